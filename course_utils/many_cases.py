"""Many small cases at once: an answer against what torch does, over all of them.

The verdicts on all cases are the evidence, a letter for each: two answers that are wrong in the same cases,
in the same way, share a misunderstanding. The reader sees one case, the simplest that differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from course_utils import evidence, expect

# The arguments of one call, and what torch makes of them.
Case = tuple[tuple[Any, ...], Any]
Shape = tuple[int, ...]
RIGHT, RAISED = ".", "x"


def compare(
    answer: Callable[..., Any],
    cases: Sequence[Case],
    verdict: Callable[[Any, Case], str],
    explain: Callable[[Any, BaseException | None, Case], Iterable[str]],
    *,
    call: Callable[[Case], str],
    setup: str = "",
    simplest: Callable[[Case], Any] | None = None,
) -> None:
    """Calls the answer in all cases; raises `Mismatch` with one that differs, if there is any.

    `verdict(came, case)`: `RIGHT`, or a letter for the way in which what came is wrong. `explain(came, error,
    case)`: the lines of the message; where the answer has raised and they are none, its error is shown.
    `call(case)`: the call as the reader can try it after `setup`. `simplest`: the case that differs and for
    which this is least is shown; without it, the first. A `Mismatch` that the answer raises goes through.
    """
    verdicts, different = [], []
    for case in cases:
        came, error = None, None
        try:
            came = answer(*case[0])
            letter = verdict(came, case)
        except expect.Mismatch:
            raise
        except Exception as raised:
            letter, error = RAISED, raised
        verdicts.append(letter)
        if letter != RIGHT:
            different.append((case, came, error))
    evidence.record("cases", "".join(verdicts))
    if not different:
        return
    case, came, error = different[0]
    if simplest is not None:
        case, came, error = min(different, key=lambda one: simplest(one[0]))
    lines = list(explain(came, error, case))
    show_call(setup, call(case), came, None if lines else error)
    if len(different) > 1:
        lines.append(f"{len(different):,} of {len(cases):,} cases differ")
    raise expect.Mismatch(*lines)


def show_call(setup: str, code: str, came: Any, error: BaseException | None = None) -> None:
    """Makes the call the example of the message, with what came of it the first time: another call might
    answer something else. Raises `error` where there is one."""
    name = code.partition("(")[0]

    def once_more(*_: Any) -> Any:
        if error is not None:
            raise error
        return came

    expect.given(setup, **{name: once_more}).call(code)


# --- functions that compute strides ------------------------------------------------------------------


def strides_cases(
    oracle: Callable[[Tensor, Shape], Shape | None], *wanted: tuple[Shape, Shape, Iterable[Shape]]
) -> list[Case]:
    """What the oracle says of real tensors, with arguments `(size, stride, shape)`.

    `wanted`: size, stride, and all the shapes that go with them. `oracle(x, shape)`: the strides of the
    result; None, or a RuntimeError, where there is none.
    """
    found: list[Case] = []
    for size, stride, shapes in wanted:
        x = torch.empty_strided(size, stride, dtype=torch.uint8)
        for shape in shapes:
            try:
                strides = oracle(x, shape)
            except RuntimeError:
                strides = None
            found.append(((size, stride, shape), strides))
    return found


def compare_strides(
    answer: Callable[..., Any],
    cases: Sequence[Case],
    *,
    name: str,
    operation: str,
    simplest: Callable[[Case], Any] | None = None,
) -> None:
    """Compares a function with the cases of `strides_cases`. Where no step is made, any number will do.

    `name(size, stride, shape)` is to return the strides of what the method `operation` of a tensor returns,
    and None where it raises.
    """

    def explain(came: Any, error: BaseException | None, case: Case) -> list[str]:
        (size, stride, shape), wanted = case
        refuses = isinstance(error, (ValueError, RuntimeError)) and not isinstance(error, NotImplementedError)
        if error is not None and not (wanted is None and refuses):
            return []
        result = f"a {type(error).__name__} is raised" if error else f"the result is {expect.show(came)}"
        lines = [f"{result}, expected {expect.show(wanted)}"]
        if came is not None and (odd := _another_type(came)):
            lines.append(odd)
        elif wanted is not None and 0 in shape:
            lines.append("any numbers will do in a tensor without elements")
        elif wanted is not None and 1 in shape:
            lines.append("any number will do for dimensions of size 1")
        made = f"`torch.empty_strided({size}, {stride}).{operation}({shape})`"
        lines.append(f"{made} raises" if wanted is None else f"{made} has stride {expect.show(wanted)}")
        return lines

    def call(case: Case) -> str:
        return f"{name}({', '.join(map(str, case[0]))})"

    compare(answer, cases, _strides_verdict, explain, call=call, simplest=simplest)


def _strides_verdict(came: Any, case: Case) -> str:
    """In one letter: right, not a tuple of integers, too strict, too lenient (with the strides of a new
    tensor, or others), or other strides."""
    (_, _, shape), wanted = case
    if came is None:
        return RIGHT if wanted is None else "s"
    if _another_type(came) or len(came) != len(shape):
        return "n"
    if wanted is None:
        return "c" if _agree(came, _contiguous_strides(shape), shape) else "l"
    return RIGHT if came == wanted or _agree(came, wanted, shape) else "o"


def _agree(came: Sequence[int], wanted: Shape, shape: Shape) -> bool:
    """Whether the two make the same steps, wherever there is one to make."""
    return 0 in shape or all(a == b for a, b, n in zip(came, wanted, shape, strict=True) if n != 1)


def _another_type(came: Any) -> str:
    """What is wrong with the type of a result, in words; an empty text where it is right."""
    if not isinstance(came, (tuple, list)):
        return f"its type is {type(came).__name__}, expected a tuple of integers, or None"
    others = [kind.__name__ for kind in map(type, came) if kind is not int]
    return f"it holds a value of type {others[0]}, expected integers only" if others else ""


def _contiguous_strides(shape: Shape) -> Shape:
    """The strides of a new tensor of this shape, in elements."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))
