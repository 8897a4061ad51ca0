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

from course_utils.exercise import Exercise, expect
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
_SETUP = "x = {}.requires_grad_()".format
_NUMBERS = {
    "numbers near 0": "torch.tensor([[-3., -0.5, 0.], [0.1, 0.5, 3.]], device=device)",
    "numbers far from 0": "torch.tensor([-1000., -100., -30., 30., 100., 1000.], device=device)",
    "a transposed matrix": "torch.tensor([[-3., -0.5, 0.], [0.1, 0.5, 3.]], device=device).t()",
    "float64": "torch.tensor([-3., -0.7, 0.1, 2.], dtype=torch.float64)",
}
_LAYOUTS = {
    "a matrix": "torch.ones(100, 200, device=device)",
    "a transposed one": "torch.ones(100, 200, device=device).t()",
    "every other column": "torch.ones(100, 400, device=device)[:, ::2]",
}


@exercise.check(given=_SETUP, cases=_NUMBERS)
def values(t, device):
    """The values are `x * sigmoid(x)`

    The result has the dtype and the shape of `x`, and the precision that this dtype has.
    """
    wanted = derivatives.exact(F.silu, t.x)[0]
    derivatives.agrees(t.call(_CALL), wanted, t.x)


@exercise.check(given=_SETUP, cases=_NUMBERS)
def gradient(t, device):
    """The gradient is that of the product rule, for whatever arrives

    Both factors of `x * s` depend on `x`, so the slope has two terms, and what arrives multiplies both. Don't
    write to what arrives: it may be the caller's tensor, or other nodes may get it too. And keep `x` for this
    one call: the next call overwrites an attribute of the class.
    """
    t.run("g = torch.arange(1., x.numel() + 1).to(x).view_as(x)")
    wanted = derivatives.exact(F.silu, t.x)[1] * t.g.cpu().double()
    with derivatives.untouched():
        t.run(f"y = {_CALL}\nRecomputingSilu.apply(1 - x)  # another call in between")
        expect.in_graph(t.y, of="`x`")
        found = t.call("torch.autograd.grad(y, x, g)[0]")
    derivatives.agrees(found, wanted, t.x, what="the gradient")


@exercise.check(given=_SETUP, cases=_LAYOUTS)
def keeps_x_alone(t, device):
    """Backward keeps no more bytes than `x` has, and none when the result is gone

    `ctx.save_for_backward` and attributes of `ctx` keep a tensor while the graph waits for backward. A result
    that is an attribute of its own `ctx` makes a reference cycle, and stays when nobody needs it any more.
    """
    derivatives.keeps(t, "RecomputingSilu.apply(x * 1)", limit=4 * 100 * 200)


@exercise.check(given=_SETUP, cases=_LAYOUTS)
def no_copy(t, device):
    """`x` itself is kept, not a copy

    `ctx.save_for_backward(x)` keeps a reference. `contiguous`, `reshape` and `flatten` return a tensor over
    the same memory if the layout allows it, and a copy if not.
    """
    derivatives.keeps(t, _CALL)


@exercise.check(
    given="x = torch.ones(3, 4, device=device){}.requires_grad_()".format,
    cases={"a matrix": "", "a transposed one": ".t()"},
)
def changed_in_between(t, device):
    """Backward raises if `x` was changed in between

    `x.add_(1)` increases the version of `x`. `ctx.save_for_backward` stores the version with the tensor; in
    backward autograd compares, and raises. It doesn't check attributes of `ctx`, and a NumPy array has no
    version.
    """
    derivatives.never_stale(t, _CALL)


@exercise.check(given=_SETUP, cases=_NUMBERS)
def twice(t, device):
    """The gradient can be differentiated again

    With `create_graph=True` autograd records what backward does with the saved tensors. A tensor made on the
    way in forward usually has no history: it counts as a constant. In backward `detach`, `no_grad`,
    `once_differentiable`, and `autograd.grad` without `create_graph` cut the graph.
    """
    x, bend = derivatives.second(t, _CALL)
    derivatives.agrees(bend, derivatives.exact(F.silu, x)[2], x, what="the second derivative")


@exercise.check(given="x = torch.tensor([-2., 0., 3.], device=device, requires_grad=True)")
def its_own(t, device):
    """It's a Function of your own, and torch's SiLU doesn't run

    `apply` makes a node with your backward, and it keeps what you keep. `F.silu` makes a node of its own.
    """
    derivatives.is_its_own(t, _CALL, ["aten.silu", "aten.glu"])
