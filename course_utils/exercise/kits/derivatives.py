"""What exercises with a backward of their own share.

`call` is code that applies the answer and begins with its name, such as `Gelu.apply(x)`; `t` is an example
with an `x`. What the answer itself raises goes through.
"""

import contextlib
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from course_utils import measure, torch_private
from course_utils.exercise import expect
from course_utils.exercise.given import known_tensors


def exact(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The value of an element-wise function, its first and its second derivative: in double precision, on the
    CPU, by autograd."""
    x = x.detach().cpu().double().requires_grad_()
    y = function(x)
    (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (bend,) = torch.autograd.grad(slope.sum(), x)
    return y.detach(), slope.detach(), bend


def agrees(actual: Tensor, wanted: Tensor, x: Tensor, *, least: float = 1.0, **more: Any) -> None:
    """`actual` is `wanted` in the dtype of `x`, up to some units in the last place of the largest element, or
    of `least`. `more`: see `expect.equal`."""
    eps = torch.finfo(x.dtype).eps
    near = (32 if eps < 1e-4 else 4) * eps  # in 16 bits a unit is a percent
    finite = wanted[wanted.isfinite()].abs()
    largest = max(least, finite.max().item() if len(finite) else 0.0)
    expect.equal(actual, wanted.to(x), rtol=near, atol=near * largest, **more)


def second(t: expect.Given, call: str) -> tuple[Tensor, Tensor]:
    """`x` as it was before the call, and the second derivative there. Messages from here on show how that was
    found."""
    x = t.x.detach().clone()
    t.run("g = torch.ones_like(x, requires_grad=True)")
    t.run(f"slope = torch.autograd.grad({call}, x, g, create_graph=True)[0]")
    expect.in_graph(t.slope, what="the gradient", of="`g`")
    (bend,) = t.call("torch.autograd.grad(slope.sum(), x, allow_unused=True)")
    told = "the gradient has a graph, and none of it leads to `x`"
    expect.true(bend is not None, told, "expected: one that leads through what backward computes, to `x`")
    return x, bend


def never_stale(t: expect.Given, call: str, written: str = "x", inputs: Sequence[str] = ("x",)) -> None:
    """Where one of its inputs was written to after `call`, backward raises; or what it computes is what it
    was."""
    t.run(f"y = {call}")
    expect.in_graph(t.y, of=f"`{inputs[0]}`")
    backward = f"torch.autograd.grad(y.sum(), ({', '.join(inputs)},), retain_graph=True)"
    before = t.call(backward)
    t.run(f"with torch.no_grad():\n    {written}.mul_(-5)")
    try:
        after = t.call(backward)
    except RuntimeError:
        expect.looked()
        return
    same = all(map(torch.equal, before, after))
    told = f"`{written}` was changed after the call, and backward computes from the new numbers"
    expect.true(same, told, "expected: it raises, or returns the gradient that it returned before")


@contextlib.contextmanager
def untouched() -> Iterator[None]:
    """What runs inside, forward and backward, writes to no tensor of the example; `g` is what arrives."""
    with contextlib.ExitStack() as looked_at:
        for name, tensor in known_tensors().items():
            what = "what arrived (`g`)" if name == "g" else f"`{name}`"
            looked_at.enter_context(expect.left_alone(tensor, what=what))
        yield


def is_its_own(t: expect.Given, call: str, refused: Sequence[str]) -> None:
    """The node of the result is the answer's, and no operator whose name begins like one of `refused` runs,
    forward or backward."""
    result = t.call(call)
    expect.in_graph(result, of="`x`")
    answer, node = getattr(t, call.partition(".")[0]), type(result.grad_fn).__name__
    told = f"the node of the result is `{node}`, which does not call your `backward`"
    expect.true(is_made_by(answer, result), told, "expected: the node of your Function, which `apply` makes")
    with measure.operators() as ran:
        t.call(f"torch.autograd.grad({call}.sum(), x)")
    found = [name for name in ran.names if name.startswith(tuple(refused))]
    told = " and ".join(f"`{name}`" for name in found)
    expect.true(not found, f"{told} ran", "expected: operators that the task allows")


def is_made_by(answer: Any, result: Tensor) -> bool:
    """Whether the graph of this result ends in a node of the answer, a Function."""
    own = isinstance(answer, type) and issubclass(answer, torch.autograd.Function)
    return own and type(result.grad_fn) is torch_private.backward_class(answer)


def keeps(t: expect.Given, call: str, *, limit: int = 0) -> None:
    """At most `limit` bytes are made by `call` and kept for backward, in whatever place, and none when the
    result is gone.

    Where `call` applies the answer to `x * 1`, that counts too when it is kept; where to `x`, a copy does. In
    Python it is noticed from some thousand elements on.
    """
    # The result of the answer counts as well when it is kept: what is returned is another tensor.
    t.run(f"def forward():\n    return {call} * 1")
    t.call("forward()")
    live = measure.live_bytes(t.forward)
    expect.at_most(live.held - live.result, limit, "made in `forward()` and kept for backward", unit="bytes")
    expect.at_most(live.left, 0, "still there when the result of `forward()` is gone", unit="bytes")
    expect.true(
        _in_python(t.forward) < 8192,
        "NumPy arrays or Python objects of several thousand bytes are still there after `forward()`",
        "expected: what is kept for backward is kept in tensors",
    )


def _in_python(function: Callable[[], object]) -> int:
    """Bytes that the result of a call keeps in Python objects and NumPy arrays."""
    function()  # what is made once and then kept by torch, or by Python, is there now
    traced = tracemalloc.is_tracing()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        result = function()
        after, _ = tracemalloc.get_traced_memory()
        del result
        return after - before
    finally:
        if not traced:
            tracemalloc.stop()
