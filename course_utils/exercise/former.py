"""Until all exercises use `predict`: predictions as they were told before."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from course_utils.exercise.compare import kind_of, show
from course_utils.exercise.mismatch import Mismatch, looked

_SEQUENCES = (tuple, list, torch.Size)
_RETURNED = "the result"


def predicted(predictions: Any, name: str, truth: Any, *, code: str) -> None:
    """One line of a prediction: what the reader wrote for `name` against what torch did just now.

    `code` is what was run. `...` stands for "not answered yet".
    """
    _report_lines([_line_of(_as_lines(predictions), name, truth, code, ())])


def all_predicted(
    predictions: Any,
    truths: dict[str, Any],
    *,
    names: Iterable[str] | None = None,
    parts: Sequence[str] = (),
) -> None:
    """A group of lines of a prediction: every wrong one is told, not only the first.

    `truths` says for each expression what torch did just now. `names` are all lines that there are, in other
    groups too: another name is pointed out where a line is missing. `parts`: the truths are tuples, and this
    is what their entries are called.
    """
    answers = _as_lines(predictions)
    told = [_line_of(answers, name, truth, name, parts) for name, truth in truths.items()]
    missing = any(name not in answers for name in truths)
    if missing and names is not None and (unknown := [key for key in answers if key not in set(names)]):
        told.append(f"there is a line for {show(unknown[0])}, which was not asked for")
    _report_lines(told)


def _as_lines(predictions: Any) -> dict[str, Any]:
    if type(predictions) is not dict:
        looked()
        raise Mismatch(
            f"the result is {kind_of(predictions, _RETURNED)}, expected a dict with a line for each"
        )
    return predictions


def _report_lines(told: list[str | None]) -> None:
    if wrong := [line for line in told if line is not None]:
        raise Mismatch(*wrong)


def _line_of(answers: dict[str, Any], name: str, truth: Any, code: str, parts: Sequence[str]) -> str | None:
    """What is wrong with one line of a prediction; None where nothing is."""
    if name not in answers:
        looked()
        return f"`{code}`: there is no line for it"
    guess = answers[name]
    if guess is ...:
        looked()
        return f"`{code}`: no prediction yet (it still says `...`)"
    if not parts:
        guess = _as_written(guess, truth)
        looked()
        wrong = _wrong_prediction(guess, truth)
        return f"`{code}`: you predicted {wrong}" if wrong else None
    if type(guess) not in _SEQUENCES or len(guess) != len(parts):
        looked()
        wanted = ", ".join(parts)
        return f"`{code}`: your line is {show(guess)}, expected {len(parts)} things in brackets: {wanted}"
    guess = [_as_written(*pair) for pair in zip(guess, truth, strict=True)]
    looked()
    found = []
    for part, one, true in zip(parts, guess, truth, strict=True):
        if wrong := _wrong_prediction(one, true):
            found.append(f"{part} {wrong}")
    return f"`{code}`: {'; '.join(found)}" if found else None


def _as_written(guess: Any, truth: Any) -> Any:
    """A size of one dimension may be written as a number."""
    one = type(guess) is int and type(truth) in _SEQUENCES and len(truth) == 1
    return (guess,) if one else guess


def _wrong_prediction(guess: Any, truth: Any) -> str | None:
    """Both values; only what kind of thing was asked for, where the guess is of another kind."""
    if _same_prediction(guess, truth):
        return None
    if guess is ...:
        return "`...`, which is no prediction yet"
    if isinstance(truth, bool) and type(guess) is not bool:
        return f"{show(guess)}, which is neither `True` nor `False`"
    if isinstance(truth, torch.dtype) and type(guess) is not torch.dtype:
        shown = f"`{guess.__name__}`, a type" if isinstance(guess, type) else f"{show(guess)}"
        return f"{shown}, but what was asked for is a dtype of torch's, such as `torch.int16`"
    return f"{show(guess)}, torch says {show(truth)}"


def written_down(predict: Callable[[], Any]) -> Any:
    """What `predict` returns, which it must know without running any of torch's operators."""
    from course_utils import measure

    with measure.operators() as ran:
        predictions = predict()
    number = len(ran.calls)
    looked()
    if number:
        raise Mismatch(
            f"{number} of torch's operators ran while the predictions were made",
            "expected: none. A prediction is what you believe before torch tells you",
        )
    return _as_lines(predictions)


def _same_prediction(guess: Any, truth: Any) -> bool:
    if type(guess) in _SEQUENCES and isinstance(truth, (tuple, list)):
        return len(guess) == len(truth) and all(map(_same_prediction, guess, truth))
    if isinstance(guess, bool) or isinstance(truth, bool):
        return guess is truth
    if isinstance(guess, float) or isinstance(truth, float):
        numbers = type(guess) in (int, float) and isinstance(truth, (int, float))
        return numbers and math.isclose(guess, truth, rel_tol=1e-3, abs_tol=1e-6)
    return type(guess) is type(truth) and guess == truth
