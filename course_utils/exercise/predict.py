"""Predictions: what a reader wrote down, line by line, against what torch does when the check runs.

A report says which lines are wrong, which part of each, and the rule behind it; never torch's values, which
the reader sees by running the line.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from course_utils import measure
from course_utils.exercise import symptoms
from course_utils.exercise.compare import RETURNED, kind_of, own_value, show
from course_utils.exercise.form import Exercise
from course_utils.exercise.mismatch import Mismatch, looked

# So many wrong lines are told with their rule; of the others only which they are.
TOLD = 3


def written_down(predict: Callable[[], Any]) -> dict[str, Any]:
    """Returns the dict of predictions, which `predict` must know without running any of torch's operators."""
    raised = None
    with measure.operators() as ran:
        try:
            predictions = predict()
            if issubclass(type(predictions), Mapping):
                predictions = dict(predictions)
        except Exception as error:  # what runs operators may raise because they are counted: a tracer does
            raised = error
    if raised and not ran.calls:
        raise raised
    looked()
    if number := len(ran.calls):
        raise Mismatch(
            f"{number} of torch's operators ran while the predictions were made",
            "expected: none. A prediction is what you believe before torch tells you",
        )
    if type(predictions) is not dict:
        told = kind_of(predictions, RETURNED)
        raise Mismatch(f"{RETURNED} is {told}, expected a dict with a line for each expression")
    return predictions


def add_check(exercise: Exercise, **options: Any) -> None:
    """Gives the exercise the check that its predictions are written down; `options`: those of a check."""

    def check(answer: Callable[[], Any]) -> None:
        """The predictions are written down, not computed

        A prediction is what you believe before torch tells you. If torch computes it, it's right, and you
        don't find out what you believed.
        """
        written_down(answer)

    check.__name__ = "written_down"
    exercise.check(**options)(check)


def compare(
    predictions: dict[str, Any],
    truths: Mapping[str, Any],
    whys: Mapping[str, str],
    *,
    parts: Sequence[str] = (),
    words: Sequence[str] = (),
    unit: str = "",
    all_lines: Iterable[str] | None = None,
) -> None:
    """Compares some lines of a prediction with the truth: every wrong one is told, the first few with their
    rule.

    `truths` says for each line what torch did just now; `whys` has the rule behind it. `parts`: the truths
    are tuples, and this is what their entries are called. `words`: the answers are some of these. `unit`:
    what is counted; where that is bytes and all is in another unit, it is told. `all_lines`: those of other
    checks too, so that a line with another name can be pointed out. `...` stands for "not answered yet".
    """
    looked()
    pairs = [(own_value(predictions.get(line)), truth) for line, truth in truths.items()]
    symptom = symptoms.of_unit(pairs) if unit == "bytes" else ""
    told: list[str] = []
    wrong: list[str] = []
    unanswered = [line for line in truths if predictions.get(line, 0) is ...]
    for line, truth in truths.items():
        if line in unanswered:  # told together: the places are for what is wrong
            continue
        said, why = _unfit(predictions, line, truth, parts, words, unit), ""
        if not said and (said := _differs(predictions[line], truth, parts)) and not symptom:
            why = f". {whys[line]}"
        if said:
            wrong.append(line)
            told += [f"`{line}`: {said}{why}"] * (len(wrong) <= TOLD)
    if len(wrong) > TOLD:
        others = ", ".join(f"`{line}`" for line in wrong[TOLD:])
        told.append(f"wrong too: {others}")
    if unanswered:
        told.append(f"no prediction yet (still `...`): {', '.join(f'`{line}`' for line in unanswered)}")
    known = set(truths if all_lines is None else all_lines)
    if any(line not in predictions for line in truths) and (
        odd := [k for k in predictions if k not in known]
    ):
        told.append(f"there is a line for {show(odd[0])}, which was not asked for")
    if told:
        raise Mismatch(*told, symptom=symptom)


def _unfit(
    predictions: dict[str, Any], line: str, truth: Any, parts: Sequence[str], words: Sequence[str], unit: str
) -> str:
    """Why one line is no prediction at all, which no rule of torch's explains; no text where it is one."""
    if line not in predictions:
        return "there is no line for it"
    guess = predictions[line]
    if words and _plainly(guess) not in words:
        return f"{show(guess)} is none of {', '.join(map(repr, words))}"
    if not parts:
        return _unlike(guess, truth, unit)
    if type(_plainly(guess)) is not tuple or len(guess) != len(parts):
        return f"your line is {show(guess)}, expected {len(parts)} things in brackets: {', '.join(parts)}"
    said = [(p, _unlike(g, t, unit)) for p, g, t in zip(parts, guess, truth, strict=True)]
    return "; ".join(f"{part}: {unlike}" for part, unlike in said if unlike)


def _differs(guess: Any, truth: Any, parts: Sequence[str]) -> str:
    """What is wrong with a prediction, without the truth; no text where nothing is."""
    pairs = zip(parts, guess, truth, strict=True) if parts else [("", guess, truth)]
    wrong = [(part, g) for part, g, t in pairs if not _same(_plain_for(g, t), t)]
    return "; ".join(f"{part}{part and ': '}{show(g)} is not what came out" for part, g in wrong)


def _plainly(guess: Any) -> Any:
    """What was written down, without what its types add: a size or a named tuple is a tuple, NumPy's numbers
    and words of an enumeration are Python's."""
    if issubclass(type(guess), (tuple, list)):
        return tuple(map(_plainly, guess))
    return own_value(guess)


def _plain_for(guess: Any, truth: Any) -> Any:
    plain = _plainly(guess)
    one = type(plain) is int and isinstance(truth, (tuple, list)) and len(truth) == 1
    return (plain,) if one else plain  # a size of one dimension may be written as a number


def _unlike(guess: Any, truth: Any, unit: str) -> str:
    """Why this can be no value of that kind; no text where it can."""
    plain = _plain_for(guess, truth)
    if guess is ...:
        return "no prediction yet"
    if isinstance(truth, bool):
        return "" if type(plain) is bool else f"{show(guess)} is neither `True` nor `False`"
    if isinstance(truth, torch.dtype) and type(guess) is not torch.dtype:
        shown = f"`{guess.__name__}`, a type" if isinstance(guess, type) else show(guess)
        return f"{shown} is no dtype of torch's: write one as `torch.int16`"
    if isinstance(truth, (int, float)) and type(plain) not in (int, float):
        return f"{show(guess)} is no number{unit and f' of {unit}'}: write it as `7` or `3 * 7`"
    if isinstance(truth, (tuple, list)) and type(plain) not in (tuple, int):
        return f"{show(guess)} is no tuple of numbers: write it as `(7, 2)`"
    return ""


def _same(guess: Any, truth: Any) -> bool:
    if type(guess) is tuple and isinstance(truth, (tuple, list)):
        return len(guess) == len(truth) and all(map(_same, guess, truth))
    if isinstance(guess, bool) or isinstance(truth, bool):
        return guess is truth
    if isinstance(guess, float) or isinstance(truth, float):
        numbers = type(guess) in (int, float) and isinstance(truth, (int, float))
        # Whole numbers, 0 among them, are exact; others may be rounded to about two digits.
        return numbers and (guess == truth or (truth % 1 != 0 and math.isclose(guess, truth, rel_tol=0.01)))
    return type(guess) is type(truth) and guess == truth
