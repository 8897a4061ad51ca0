"""What is checked of a function with a backward of its own, whatever it computes.

`call` is code that applies the answer, such as `Gelu.apply(x)`; it begins with the name that the answer has
there. `setup` is the code that makes `x`. A check raises `expect.Mismatch`, with the example in the message;
what the answer itself raises goes through.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from course_utils import expect, measure


def x_line(values: Any, device: torch.device, **options: Any) -> str:
    """The line of code that makes `x`, which requires a gradient."""
    return expect.tensor_line("x", values, device, **options, requires_grad=True)


def transposed_x(values: Any, device: torch.device) -> str:
    """The lines of code that make `x`, a transposed view of a matrix that requires a gradient."""
    return f"{expect.tensor_line('whole', values, device, requires_grad=True)}\nx = whole.t()"


def other_dtypes(device: torch.device) -> list[torch.dtype]:
    """The dtypes of floating point, besides float32, in which something can be computed on this device."""
    short = [torch.float16, torch.bfloat16]
    return short if device.type == "mps" else [*short, torch.float64]


def leaves_alone(answer: Any, call: str, setup: str) -> None:
    """Forward and backward write neither to `x`, a vector, nor to the incoming gradient."""
    t = _given(answer, call, f"{setup}\ng = torch.arange(1., x.numel() + 1).to(x)")
    with expect.left_alone(t.x, what="`x`"), expect.left_alone(t.g, what="the incoming gradient `g`"):
        expect.a_tensor(t.call(_gradient(call)), what="the gradient")


def keeps_strides(answer: Any, call: str, setup: str) -> None:
    """The result and the gradient have the strides of `x`."""
    t = _given(answer, call, f"{setup}\ng = torch.ones_like(x)")
    expect.strides(t.call(call), t.x.stride())
    expect.strides(t.call(_gradient(call)), t.x.stride(), what="the gradient")


def agrees_with_differences(answer: Any, function: str) -> None:
    """torch's two comparisons with differences of values agree. `function` is code for what takes `x`."""
    setup = "x = torch.tensor([-2., 0.3, 1.5], dtype=torch.float64, requires_grad=True)"
    t = _given(answer, function, setup)
    for test in ("gradcheck", "gradgradcheck"):
        agrees = t.call(f"torch.autograd.{test}({function}, x, raise_exception=False)")
        expect.true(
            agrees,
            f"`torch.autograd.{test}` does not agree",
            "expected: the derivative that it finds by differences of values",
        )


def second(answer: Any, call: str, setup: str) -> tuple[Tensor, Tensor]:
    """`x`, and the second derivative there. Messages from here on show where it comes from.

    Raises `Mismatch` where the gradient is not in a graph, or in one that does not lead to `x`.
    """
    setup += "\ng = torch.ones_like(x, requires_grad=True)"
    recorded = _gradient(call, ", create_graph=True")
    slope = _given(answer, call, setup).call(recorded)
    expect.in_graph(slope, what="the gradient", of="`g`")
    t = _given(answer, call, f"{setup}\nslope = {recorded}")
    t.call("slope.sum().backward()")
    expect.true(
        t.x.grad is not None,
        "no graph leads from the gradient to `x`: `x.grad` is None, and the second derivative is lost",
        "expected: backward computes from a tensor that is part of the graph",
    )
    return t.x, t.x.grad


def backward_can_be_differentiated(answer: Any, call: str, setup: str, slopes: Sequence[float]) -> None:
    """The gradient can be differentiated with respect to the incoming one.

    `x` has three elements; `slopes` is what backward multiplies the three elements that come in by.
    """
    setup += "\nh = torch.tensor([0.5, 2., 3.]).to(x).requires_grad_()\ng = h * 1"
    # Weights: a square would hide what passes where the gradient is 0.
    setup += "\nweights = torch.tensor([3., -5., 0.25]).to(x)"
    t = _given(answer, call, setup)
    slope = t.call(_gradient(call, ", create_graph=True"))
    expect.in_graph(slope, what="the gradient", of="`g`")
    (slope * t.weights).sum().backward()
    wanted = t.weights * torch.tensor(slopes).to(t.weights)
    expect.equal(t.h.grad, wanted, what="`h.grad`, after `(gradient * weights).sum().backward()`,")


def has_a_node_of_its_own(answer: Any, call: str, setup: str) -> None:
    """The node of the result is the answer's: it calls the answer's `backward`, and no other's."""
    result = _given(answer, call, setup).call(call)
    expect.in_graph(result, of="`x`")
    node = type(result.grad_fn)
    expect.true(
        node is getattr(answer, "_backward_cls", None),
        f"the node of the result is `{node.__name__}`, which does not call your `backward`",
        "expected: the node of your Function, which `apply` makes when it calls your `forward`",
    )


def keeps_no_more_than_x(answer: Any, function: str, setup: str) -> None:
    """No more is kept for backward than `x` has bytes: saved, or in any other place. Once the result is gone,
    nothing is left. `function` is code for what takes `x`.
    """
    t = _given(answer, function, f"{setup}\nfunction = {function}")
    step = f"z = {function}(x * 1) * 1"
    with expect.situation(setup, f"{function}(x)"):
        saved = measure.saved_bytes(t.function, t.x)
        # Of what is made on the way, all that the graph does not hold is gone in the end.
        live = measure.live_bytes(lambda x: t.function(x * 1) * 1, t.x)
        expect.at_most(saved.total, t.x.nbytes, "kept for backward", unit="bytes")
    with expect.situation(setup, step):
        expect.at_most(live.held - live.result, t.x.nbytes, "still there beside `x` and `z`", unit="bytes")
    with expect.situation(setup, step, "del z"):
        expect.at_most(live.left, 0, "still there beside `x`", unit="bytes")


def ignores_changes(answer: Any, call: str, setup: str) -> None:
    """What is changed in place between forward and backward does not reach the gradient.

    `call` applies the function to `a`, which is made of `x`. `a` and then the result are filled with other
    numbers, unseen by autograd. Backward may notice and raise, whatever it likes.
    """
    setup += f"\na = x * 1\ny = {call}\nz = y * 1"
    gradient = "torch.autograd.grad(z.sum(), x)[0]"
    wanted = _given(answer, call, setup).call(gradient)
    for name in ("a", "y"):
        for number in ("-3.", "0.5"):
            t = _given(answer, call, f"{setup}\n{name}.detach().fill_({number})")
            try:
                found = t.call(gradient)
            except Exception:  # without the change nothing was raised, so this is what was noticed
                found = wanted
            expect.true(
                torch.allclose(found, wanted, equal_nan=True),
                f"the gradient is {expect.show(found)}: it was computed from the changed `{name}`",
                f"expected: backward raises, or returns {expect.show(wanted)} as without the change",
            )


def _given(answer: Any, call: str, setup: str) -> expect.Given:
    return expect.given(setup, **{call.partition(".")[0]: answer})


def _gradient(call: str, more: str = "") -> str:
    """The code for the gradient of `x` where `g` arrives."""
    return f"torch.autograd.grad({call}, x, g{more})[0]"
