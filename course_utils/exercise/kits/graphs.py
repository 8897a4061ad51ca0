"""Graphs of autograd and what goes through them: writes, copies, calls; and whether
the caller's tensors stay as they are."""

import contextlib
import copy
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from course_utils import measure, torch_private
from course_utils.exercise import expect
from course_utils.exercise.kits.modules import Called
from course_utils.measure.modes import Noting, packet
from course_utils.measure.operators import is_copy
from course_utils.measure.storage import tensors_in

_W = "w = torch.ones(3, dtype=torch.float64, requires_grad=True)\n"
_X = "\nx = torch.tensor([1., 2.], dtype=torch.float64)"
# Code that makes `function` and `x`: some results of each function, or all, do not depend on `x`.
WITHOUT_X = {
    "all results": f"function = lambda x: torch.ones(3, dtype=torch.float64){_X}",
    "some results": f"{_W}function = lambda x: torch.stack([x[0] * x[1], w.sum(), x[0]]){_X}",
    "results with a graph that does not lead to `x`": f"{_W}function = lambda x: 2 * w{_X}",
}


def following(node: Any) -> list[Any]:
    """The nodes that get a gradient from this one, once for each edge."""
    return [after for after, _ in node.next_functions if after is not None]


@contextlib.contextmanager
def writes_told() -> Iterator[None]:
    """A backward inside that raises because of a write in place is told in a few words."""
    try:
        yield
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
        blamed = str(error).partition("operation: ")[2].partition(" instead. Hint")[0]
        raise expect.Mismatch(
            "backward raises: a tensor that it needs was modified by an inplace operation",
            f"torch says of it: `{blamed}`",
        ) from None


def saves_through_hooks() -> bool:
    """Whether hooks for saved tensors are installed."""
    return torch_private.top_saved_tensors_hooks(True) is not None


class Copy(NamedTuple):
    """An operator that only moved numbers to other memory: in words, and how many bytes it wrote."""

    said: str
    written: int


# They move numbers as well, and put them among others.
_ALSO_COPIES = ("select_scatter", "slice_scatter", "index_copy", "index_put", "where")


@contextlib.contextmanager
def copies(*of: Tensor) -> Iterator[list[Copy]]:
    """Notes the operators inside that only move numbers to other memory, those inside of other operators too.

    `of`: only where these tensors, or views of them, are what is copied. What NumPy copies is not seen.
    """
    found: list[Copy] = []

    def note(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        name = packet(func)
        short = name.removeprefix("aten.")
        if not is_copy(name) and short not in _ALSO_COPIES:
            return
        into = name in ("aten.copy_", "aten._foreach_copy_")
        sources = list(tensors_in([args[1:] if into else args, kwargs]))
        if of and not any(measure.same_storage(t, other) for t in sources for other in of):
            return
        last = calls.names[-1] if calls.names else ""
        inside = f" inside `{last}`" if last not in ("", short) else ""
        written = sum(t.nbytes for t in tensors_in(args[0] if into else out))
        found.append(Copy(f"`{short}` ran{inside}", written))

    with Called() as calls, Noting(note):
        yield found


# Modules of torch's that differentiate a function which they are given.
_READY_MADE = {
    "torch.autograd.functional": "`torch.autograd.functional`",
    torch_private.FUNCTORCH: "`torch.func`",
}


@contextlib.contextmanager
def untouched(tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """What runs inside leaves these tensors, by name, as they are: elements, `requires_grad` and `.grad`."""
    flags = {name: tensor.requires_grad for name, tensor in tensors.items()}
    grads = {name: copy.deepcopy(_grad(tensor)) for name, tensor in tensors.items()}
    with contextlib.ExitStack() as stack:
        for name, tensor in tensors.items():
            stack.enter_context(expect.left_alone(tensor, what=f"`{name}`"))
        yield
    for name, tensor in tensors.items():
        expect.equal(tensor.requires_grad, flags[name], what=f"`{name}.requires_grad` after the call")
        expect.equal(_grad(tensor), grads[name], what=f"`{name}.grad` after the call")


def _grad(tensor: Tensor) -> Tensor | None:
    return tensor.grad if tensor.is_leaf else None


def left_alone(call: str, more: str = "", **answer: Any) -> None:
    """The caller's tensors are untouched by the call, and what comes of it has no graph: whether `x` requires
    a gradient or not, whether the result depends on it or not, and whether the leaves have a `.grad` before
    or not. `more`: a line that makes a second vector, `v`."""
    variants = ("", ".requires_grad_()", ".requires_grad_() * 2")
    old = "w.grad = torch.tensor([7., 7.])"
    for x, code, grads in itertools.product(variants, ("x * x * w", "2 * w", "torch.ones(3)"), ("", old)):
        function = f"w = torch.tensor([2., 3.], requires_grad=True)\nfunction = lambda x: {code}"
        grads += "\nx.grad = torch.tensor([5., 6.])" * (bool(grads) and "*" not in x)
        t = expect.given("\n".join([function, f"x = torch.tensor([1., 3.]){x}", grads, more]), **answer)
        with untouched({name: getattr(t, name) for name in (["x", "v", "w"] if more else ["x", "w"])}):
            found = t.call(call)
        expect.equal(expect.a_tensor(found).requires_grad, False, what="`requires_grad` of the result")


def operators_of_own_call(t: expect.Given, call: str) -> measure.Operators:
    """The operators that run while `call` is evaluated, in which the answer calls `function` of the example
    once, and not by something of torch's that differentiates for it."""
    watched = _Watched(t.function)
    t._names["function"] = watched
    with measure.operators() as ran:
        t.call(call)
    told = "expected: your own code calls it, and goes back from its result"
    expect.true(not watched.by, f"`function` was called by {watched.by}", told)
    expect.equal(watched.calls, 1, what="the number of calls of `function`")
    return ran


class _Watched:
    """A function that notes how often it is called, and what of torch's has called it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.calls, self.by = function, 0, ""

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        if torch_private.forward_level(torch.autograd.forward_ad) >= 0:
            self.by = "forward mode"
        frame = sys._getframe(1)
        while frame is not None:
            module = frame.f_globals.get("__name__", "")
            self.by = next((name for start, name in _READY_MADE.items() if module.startswith(start)), self.by)
            frame = frame.f_back
        return self.function(*args)
