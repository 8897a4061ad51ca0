"""Many small cases at once: an answer against what torch does, over all of them.

The verdicts on all cases are the evidence, a letter for each: two answers that are wrong in the same cases,
in the same way, share a misunderstanding. The reader sees one case, the simplest that differs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from course_utils import evidence, expect, measure

# The arguments of one call, and what torch makes of them.
Case = tuple[tuple[Any, ...], Any]
Shape = tuple[int, ...]
RIGHT = "."
# How the verdict on a case that raised is written: what an answer refuses in words of its own, or of torch's,
# is not what it stumbles over.
_REFUSED, _RAISED = "r", {ZeroDivisionError: "z", IndexError: "i"}


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
            letter, error = _letter(raised), raised
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


def refuses(error: BaseException | None) -> bool:
    """Whether the error says that the arguments will not do, and is not one that the answer ran into."""
    kinds = (ValueError, RuntimeError, AssertionError)
    return isinstance(error, kinds) and not isinstance(error, NotImplementedError)


def _letter(error: Exception) -> str:
    return _REFUSED if refuses(error) else _RAISED.get(type(error), "x")


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
        made = f"`torch.empty_strided({size}, {stride}).{operation}({shape})`"
        if error is not None:
            if wanted is not None or not refuses(error):
                return []
            return [
                f"{_a(type(error).__name__)} is raised, expected `None`",
                f"{made} raises; your function is to return `None`",
            ]
        lines = [f"the result is {expect.show(came)}, expected {expect.show(wanted)}"]
        if came is not None and (odd := _another_type(came)):
            lines.append(odd)
        if wanted is not None and 0 in shape:
            lines.append("any numbers will do in a tensor without elements")
        elif wanted is not None and 1 in shape:
            lines.append("any number will do for dimensions of size 1")
        lines.append(f"{made} raises" if wanted is None else f"{made} has stride {expect.show(wanted)}")
        return lines

    def call(case: Case) -> str:
        return f"{name}({', '.join(map(str, case[0]))})"

    compare(answer, cases, _strides_verdict, explain, call=call, simplest=simplest)


def no_operator(
    answer: Callable[..., Any], *arguments: tuple[Shape, Shape, Shape], name: str, views: Sequence[str]
) -> None:
    """None of torch's operators runs while the answer works. What it returns or raises is not judged here.

    `views`: the operators that would find the strides. Evidence is whether a tensor with a stride of its own
    was made and one of these ran on it, not which other operators there were.
    """
    ran, returned, first = [], False, None
    for one in arguments:
        with measure.operators() as seen:
            try:
                answer(*one)
                returned = True
            except expect.Mismatch:
                raise
            except Exception:
                pass
        ran += [".".join(call.name.split(".")[:2]) for call in seen.calls]
        first = first or (one if ran else None)
    asked = any(made in ran for made in _WITH_A_STRIDE) and any(view in ran for view in views)
    if first is None and not returned:
        raise expect.CannotCheck("your function returned nothing here: it raised")
    evidence.record("operators", [bool(ran), asked])
    if first is None:
        return
    show_call("", f"{name}({', '.join(map(str, first))})", None)
    names = ", ".join(f"`{one.removeprefix('aten.')}`" for one in list(dict.fromkeys(ran))[:3])
    raise expect.Mismatch(
        f"torch's operators ran while your function worked: {names}",
        "expected: none. The strides follow from the three tuples",
    )


# What makes a tensor of a given stride.
_WITH_A_STRIDE = ("aten.empty_strided", "aten.new_empty_strided", "aten.as_strided", "aten.set_")


def _strides_verdict(came: Any, case: Case) -> str:
    """In one letter: right, too strict, another type, too few or too many numbers, too lenient (with the
    strides of a copy, or others); a capital says where the strides are others."""
    (size, _, shape), wanted = case
    if came is None:
        return RIGHT if wanted is None else "s"
    numbers = _integers(came)
    if numbers is None:
        return "t"
    if len(numbers) != len(shape):
        return "-" if len(numbers) < len(shape) else "+"
    if wanted is None:
        copied = 0 not in size and not any(_differ(numbers, _contiguous_strides(shape), shape))
        return "c" if copied else "l"
    if numbers == wanted:
        return RIGHT
    where = sum(2**dim for dim, other in enumerate(_differ(numbers, wanted, shape)) if other)
    return chr(ord("A") - 1 + where) if where else RIGHT


def _differ(came: Shape, wanted: Shape, shape: Shape) -> list[bool]:
    """For each dimension, whether the two make another step; never where there is none to make."""
    return [a != b and n != 1 and 0 not in shape for a, b, n in zip(came, wanted, shape, strict=True)]


def _integers(came: Any) -> Shape | None:
    """A result as the integers that it holds; None where it holds something else."""
    if not isinstance(came, (tuple, list)):
        return None
    if all(type(number) is int for number in came):
        return tuple(came)
    found = tuple(map(_integer, came))
    return None if None in found else found


def _integer(value: Any) -> int | None:
    """What Python itself takes for an integer, NumPy's for one; but neither `True` nor a tensor. (To read
    the element of a tensor is an operator of torch's, and it would be the grader that runs it.)"""
    if isinstance(value, bool) or issubclass(type(value), Tensor):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def _another_type(came: Any) -> str:
    """What is wrong with the type of a result, in words; an empty text where it is right."""
    if not isinstance(came, (tuple, list)):
        return f"its type is {type(came).__name__}, expected a tuple or a list of integers, or None"
    others = [type(value).__name__ for value in came if _integer(value) is None]
    return f"it holds a value of type {others[0]}, expected integers only" if others else ""


def _a(name: str) -> str:
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"


def _contiguous_strides(shape: Shape) -> Shape:
    """The strides of a new tensor of this shape, in elements."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))
