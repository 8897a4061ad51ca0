"""What exercises about Jacobians share: whether the caller's tensors stay as they are, and who has called a
function."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable
from typing import Any

import torch

from course_utils import measure
from course_utils.exercise import expect

# Modules of torch's that differentiate a function which they are given.
_READY_MADE = {"torch.autograd.functional": "`torch.autograd.functional`", "torch._functorch": "`torch.func`"}


def left_alone(call: str, more: str = "", **answer: Any) -> None:
    """No tensor of the caller is written to or has another flag or `.grad` after the call, and what comes of
    it has no graph: whether `x` requires a gradient or not, and whether the result depends on it or not.
    `more`: a line that makes a second vector, `v`."""
    variants = ("", ".requires_grad_()", ".requires_grad_() * 2")
    for x, code in itertools.product(variants, ("x * x * w", "2 * w", "torch.ones(3)")):
        function = f"w = torch.tensor([2., 3.], requires_grad=True)\nfunction = lambda x: {code}"
        t = expect.given(f"{function}\nx = torch.tensor([1., 3.]){x}\n{more}", **answer)
        names = [name for name in ("x", "v", "w") if name != "v" or more]
        flags = [getattr(t, name).requires_grad for name in names]
        with contextlib.ExitStack() as stack:
            for name in names:
                stack.enter_context(expect.left_alone(getattr(t, name), what=f"`{name}`"))
            found = t.call(call)
        expect.equal(expect.a_tensor(found).requires_grad, False, what="`requires_grad` of the result")
        for name, flag in zip(names, flags, strict=True):
            tensor = getattr(t, name)
            expect.equal(tensor.requires_grad, flag, what=f"`{name}.requires_grad` after the call")
            grad = tensor.grad if tensor.is_leaf else None
            expect.true(grad is None, f"`{name}.grad` is {expect.show(grad)} after the call", "expected None")


def operators_of_own_call(t: expect.Given, call: str) -> measure.Operators:
    """The operators that run while `call` is evaluated, in which the answer calls `function` of the example
    once, and not by something of torch's that differentiates for it."""
    watched = _Watched(t.function)
    t._names["function"] = watched
    with measure.operators() as ran:
        t.call(call)
    expect.true(
        not watched.by,
        f"`function` was called by {watched.by}",
        "expected: your own code calls it, and goes back from its result",
    )
    expect.equal(watched.calls, 1, what="the number of calls of `function`")
    return ran


class _Watched:
    """A function that notes how often it is called, and what of torch's has called it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.calls, self.by = function, 0, ""

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        if torch.autograd.forward_ad._current_level >= 0:
            self.by = "forward mode"
        frame = sys._getframe(1)
        while frame is not None:
            module = frame.f_globals.get("__name__", "")
            self.by = next((name for start, name in _READY_MADE.items() if module.startswith(start)), self.by)
            frame = frame.f_back
        return self.function(*args)
