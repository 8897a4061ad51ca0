"""What exercises about Jacobians share: who has called a function, and what it was called for."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from course_utils import measure
from course_utils.exercise import expect

# Modules of torch's that differentiate a function which they are given.
_READY_MADE = {"torch.autograd.functional": "`torch.autograd.functional`", "torch._functorch": "`torch.func`"}


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
