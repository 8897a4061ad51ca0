"""Exercises whose answer computes with strides: cases with what torch says of them, how strides that came are
judged, and whether an answer worked it out by itself."""

import math
import operator
import sys
from collections.abc import Callable, Iterable
from typing import Any, Self

import torch
from torch import Tensor

from course_utils import measure, torch_private
from course_utils.exercise import expect

Shape = tuple[int, ...]


def cases(
    oracle: Callable[[Tensor, Shape], Shape | None], *wanted: tuple[Shape, Shape, Iterable[Shape]]
) -> list[tuple[tuple[Shape, Shape, Shape], Any]]:
    """For a `Table`: `(size, stride, shape)` with what torch says of it.

    `wanted`: size, stride, and the shapes that go with them. The oracle gives strides, or None; where it
    raises there are none.
    """
    found = []
    for size, stride, shapes in wanted:
        x = torch.empty_strided(size, stride, dtype=torch.uint8)
        for shape in shapes:
            try:
                strides = oracle(x, shape)
            except RuntimeError:
                strides = None
            found.append(((size, stride, shape), None if strides is None else _Wanted(strides, shape)))
    return found


class _Wanted(tuple):
    """Strides, with the shape that they belong to: along a size of 1 any number is right."""

    def __new__(cls, strides: Shape, shape: Shape) -> Self:
        made = super().__new__(cls, strides)
        made.shape = shape
        return made


def judge(came: Any, wanted: _Wanted | None) -> str:
    """For a `Table`: what is wrong with the strides that came."""
    if came is None:
        return "you answer `None`" if wanted is not None else ""
    if not isinstance(came, (tuple, list)) or any(_integer(n) is None for n in came):
        return "you return something else than a tuple or a list of integers, or `None`"
    if wanted is None:
        return "you return strides"
    if len(came) != len(wanted):
        return f"your result has {'fewer' if len(came) < len(wanted) else 'more'} entries than `shape`"
    came = tuple(map(_integer, came))
    if all(a == b or n == 1 for a, b, n in zip(came, wanted, wanted.shape, strict=True)):
        return ""
    if came[::-1] == tuple(wanted):
        return "your strides are right, in the opposite order"
    return "your strides are others than torch's"


def simplest(arguments: tuple[Shape, Shape, Shape]) -> Any:
    """For a `Table`: of the cases that differ the one with the fewest dimensions, then elements."""
    size, stride, shape = arguments
    return len(size) + len(shape), math.prod(size), max(stride, default=0)


def shapes(number: int, dims: int) -> list[Shape]:
    """All shapes of one to `dims` dimensions that hold so many elements."""
    if dims == 1:
        return [(number,)]
    first = [n for n in range(1, number + 1) if number % n == 0]
    longest = [(n, *rest) for n in first for rest in shapes(number // n, dims - 1)]
    return list(dict.fromkeys(shapes(number, dims - 1) + longest))


def squares(*size: int) -> str:
    """Code for a tensor in which every place shows: what is read elsewhere, shifted or wider apart, is
    neither a multiple of what was meant nor a constant away from it."""
    shape = f".reshape({', '.join(map(str, size))})" if len(size) > 1 else ""
    return f"torch.arange(1., {math.prod(size) + 1}.).square(){shape}"


def contiguous(size: Shape, stride: Shape) -> bool:
    """Whether the strides are those of a new tensor, as far as steps are made."""
    return all(n == 1 or stride[i] == math.prod(size[i + 1 :]) for i, n in enumerate(size))


def ends(size: Shape, stride: Shape | None = None) -> set[int]:
    """After how many elements, counted from the right, one dimension ends and the next begins; with `stride`,
    only where that one does not follow."""
    dims = [(n, None if stride is None else stride[i]) for i, n in enumerate(size) if n != 1][::-1]
    found, count = set(), 1
    for (n, step), (_, outer) in zip(dims, [*dims[1:], (1, 0)], strict=False):
        count *= n
        if stride is None or outer != n * step:
            found.add(count)
    return found


def plain_python(call: Callable[[], Any], *, ask: Iterable[str] = ()) -> None:
    """While `call` runs, nothing of torch's or NumPy's does, and no tensor is asked for anything but `ask`,
    names of its methods. (Its attributes, such as `shape`, may be read.)"""
    with measure.operators() as ran:
        call()
    if ran.calls:
        name = ran.calls[0].name.split(".")[1]
        raise expect.Mismatch(f"torch's operator `{name}` ran", "expected: Python alone")
    found: list[str] = []

    def note(frame: Any, event: str, called: Any) -> None:
        where = frame.f_globals.get("__name__", "")
        if where in torch_private.SWITCHES:  # what is under one computes as it would without
            return
        if event == "call":
            # NumPy asks a function of this name first where a call goes.
            module, name = where, frame.f_code.co_name.removesuffix("_dispatcher").lstrip("_")
        elif event == "c_call":
            of, name = getattr(called, "__self__", None), called.__name__
            if expect.is_tensor(of) and name not in ask and where != torch_private.TENSOR:
                found.append(f"a tensor was asked for `{name}()`")
            if expect.is_tensor(of) or isinstance(of, torch.Size):
                return
            module = called.__module__ or type(of).__module__
        else:
            return
        # `len(x)` is a function of Python's there, and asks for nothing else.
        if module.split(".")[0] in _LIBRARIES and torch_private.TENSOR not in (module, where):
            found.append(f"{_LIBRARIES[module.split('.')[0]]} `{name}` was called")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    wanted = f", and of a tensor only {', '.join(f'`{name}()`' for name in ask)}" if ask else ""
    expect.true(not found, *found[:1], f"expected: Python alone{wanted}")


_LIBRARIES = {"torch": "torch's", "numpy": "NumPy's", "ctypes": "ctypes'", "_ctypes": "ctypes'"}


def _integer(value: Any) -> int | None:
    """What Python itself takes for an integer; neither `True` nor a tensor."""
    if isinstance(value, bool) or expect.is_tensor(value):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None
