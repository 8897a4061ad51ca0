"""SiLU that keeps one tensor

SiLU is `x * s`, where `s` is the sigmoid of `x`. If you write `x * torch.sigmoid(x)`, the graph keeps `x` and
`s` until backward. Write an `autograd.Function` that computes `s` again in backward: a few operators more,
half of the memory.

- Keep `x` itself for backward, in any layout: no copy, and nothing else. Once the result is gone, nothing is
  left.
- Backward raises if `x` was changed in between, as torch's own do.
- The gradient can be differentiated again. Don't write to `x` or to what arrives.

Use `torch.sigmoid` and arithmetic, not torch's own SiLU or GLU.

`RecomputingSilu.apply(torch.tensor([0., 2.]))` → `[0., 1.7616]`; the gradient of its sum is `[0.5, 1.0908]`.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from course_utils.exercise import Exercise, Rows, expect
from course_utils.exercise.kits import derivatives

exercise = Exercise(
    minutes=10,
    core=True,
    hints=[
        "Which tensor does backward need, and which can it compute from that one?",
        "`ctx.save_for_backward` keeps a tensor with its version, and autograd frees it in time. An "
        "attribute of `ctx` has neither.",
        "The derivative of `x * s` by the product rule is `s + x * ds`, and `ds` is `s * (1 - s)`. Compute "
        "`s` in `backward` from the saved `x`, with operators that autograd can record, and multiply by what "
        "arrives.",
    ],
)


@exercise.starter
class RecomputingSilu(torch.autograd.Function):
    """x -> x * sigmoid(x), element by element"""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        raise NotImplementedError

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        raise NotImplementedError


_CALL = "RecomputingSilu.apply(x)"
_NUMBERS = {
    "numbers near 0": "torch.tensor([[-3., -0.5, 0.], [0.1, 0.5, 3.]], device=device)",
    "numbers far from 0": "torch.tensor([-1000., -100., -30., 30., 100., 1000.], device=device)",
    "a transposed matrix": "torch.tensor([[-3., -0.5, 0.], [0.1, 0.5, 3.]], device=device).t()",
    "float64": "torch.tensor([-3., -0.7, 0.1, 2.], dtype=torch.float64, device=device)",
}
_LAYOUTS = {
    "a matrix": "torch.ones(100, 200, device=device)",
    "a transposed one": "torch.ones(100, 200, device=device).t()",
    "every other column": "torch.ones(100, 400, device=device)[:, ::2]",
}


def _numbers(device):
    """(label, the line that makes `x`)"""
    there = [label for label in _NUMBERS if device.type != "mps" or "float64" not in label]
    return [(label, f"x = {_NUMBERS[label]}.requires_grad_()") for label in there]


@exercise.check
def values(RecomputingSilu, device):
    """The values are `x * sigmoid(x)`

    The result has the dtype and the shape of `x`, and the precision that this dtype has.
    """
    with Rows() as rows:
        for label, setup in _numbers(device):
            with rows.of(label):
                t = expect.given(setup, RecomputingSilu=RecomputingSilu, device=device)
                wanted = derivatives.exact(F.silu, t.x)[0]
                derivatives.agrees(t.call(_CALL), wanted, t.x)


@exercise.check
def gradient(RecomputingSilu, device):
    """The gradient is that of the product rule, for whatever arrives

    Both factors of `x * s` depend on `x`, so the slope has two terms, and what arrives multiplies both. Don't
    write to what arrives: it may be the caller's tensor, or other nodes may get it too. And keep `x` for this
    one call: the next call overwrites an attribute of the class.
    """
    with Rows() as rows:
        for label, setup in _numbers(device):
            with rows.of(label):
                setup += "\ng = torch.arange(1., x.numel() + 1).to(x).view_as(x)"
                t = expect.given(setup, RecomputingSilu=RecomputingSilu, device=device)
                wanted = derivatives.exact(F.silu, t.x)[1] * t.g.cpu().double()
                with derivatives.untouched():
                    t.run(f"y = {_CALL}\nRecomputingSilu.apply(1 - x)  # another call in between")
                    expect.in_graph(t.y, of="`x`")
                    found = t.call("torch.autograd.grad(y, x, g)[0]")
                derivatives.agrees(found, wanted, t.x, what="the gradient")


@exercise.check
def keeps_x_alone(RecomputingSilu, device):
    """Backward keeps no more bytes than `x` has, and none when the result is gone

    `ctx.save_for_backward` and attributes of `ctx` keep a tensor until backward has run. A result that is an
    attribute of its own `ctx` makes a reference cycle, and stays until the garbage collector runs.
    """
    with Rows() as rows:
        for label, code in _LAYOUTS.items():
            with rows.of(label):
                setup, size = f"x = {code}.requires_grad_()", 4 * 100 * 200
                call = "RecomputingSilu.apply(x * 1)"
                derivatives.keeps(RecomputingSilu, call, setup, device, limit=size)


@exercise.check
def no_copy(RecomputingSilu, device):
    """`x` itself is kept, not a copy

    `ctx.save_for_backward(x)` keeps a reference. `contiguous`, `reshape` and `flatten` return a tensor over
    the same memory if the layout allows it, and a copy if not.
    """
    with Rows() as rows:
        for label, code in _LAYOUTS.items():
            with rows.of(label):
                derivatives.keeps(RecomputingSilu, _CALL, f"x = {code}.requires_grad_()", device)


@exercise.check
def changed_in_between(RecomputingSilu, device):
    """Backward raises if `x` was changed in between

    An operator in place increases the version of its tensor. `ctx.save_for_backward` stores the version with
    the tensor; in backward autograd compares, and raises. It doesn't check attributes of `ctx`, and a NumPy
    array has no version.
    """
    with Rows() as rows:
        for label, more in {"a matrix": "", "a transposed one": ".t()"}.items():
            with rows.of(label):
                setup = f"x = torch.ones(3, 4, device=device){more}.requires_grad_()"
                derivatives.never_stale(RecomputingSilu, _CALL, setup, device, "x")


@exercise.check
def twice(RecomputingSilu, device):
    """The gradient can be differentiated again

    With `create_graph=True` autograd records what backward does with the saved tensors. A tensor that was
    made in forward has no history: it counts as a constant. In backward `detach`, `no_grad`,
    `once_differentiable`, and `autograd.grad` without `create_graph` cut the graph.
    """
    with Rows() as rows:
        for label, setup in _numbers(device):
            with rows.of(label):
                x, bend = derivatives.second(RecomputingSilu, _CALL, setup, device)
                wanted = derivatives.exact(F.silu, x)[2]
                derivatives.agrees(bend, wanted, x, what="the second derivative")


@exercise.check
def its_own(RecomputingSilu, device):
    """It's a Function of your own, and torch's SiLU doesn't run

    `apply` makes a node with your backward, and it keeps what you keep. `F.silu` makes a node of its own.
    """
    setup = "x = torch.tensor([-2., 0., 3.], device=device, requires_grad=True)"
    derivatives.is_its_own(RecomputingSilu, _CALL, setup, device, ["aten.silu", "aten.glu"])
