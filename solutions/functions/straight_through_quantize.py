"""Forward scales [0, 1] to 0 … `levels - 1`, rounds, and scales back. Backward is that of the identity: its
slope is 1, so it returns what arrives, the same tensor. It needs no values, so nothing is kept.

The loss sees the rounded numbers, and its gradient reaches `x` as if they hadn't been rounded.

`gradcheck` fails here, and should: it compares with the true slope, which is 0."""

import torch
from torch import Tensor


class StraightThroughQuantize(torch.autograd.Function):
    """x -> the nearest of `levels` numbers, evenly spread from 0 to 1"""

    @staticmethod
    def forward(ctx, x: Tensor, levels: int) -> Tensor:
        steps = levels - 1
        return torch.round(x * steps) / steps

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


# Other right answers

from course_utils.exercise import Edit, Wrong


class _WithSetupContext(torch.autograd.Function):
    @staticmethod
    def forward(x, levels):
        return (x.clamp(0, 1) * (levels - 1) + 0.5).floor().div(levels - 1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return grad.view_as(grad), None


class _LooksAtEveryLevel(torch.autograd.Function):
    """The nearest level is the one at the least distance."""

    @staticmethod
    def forward(ctx, x, levels):
        nearest = torch.zeros_like(x)
        for n in range(1, levels):
            level = n / (levels - 1)
            nearest = torch.where((x - level).abs() < (x - nearest).abs(), level, nearest)
        return nearest

    @staticmethod
    def backward(ctx, grad):
        return grad, None


also_right = [_WithSetupContext, _LooksAtEveryLevel]


# Mistakes


class _DerivativeOfRound(torch.autograd.Function):
    """What autograd makes of forward."""

    @staticmethod
    def forward(ctx, x, levels):
        with torch.enable_grad():
            ctx.x = x.detach().clone().requires_grad_()
            ctx.y = torch.round(ctx.x * (levels - 1)) / (levels - 1)
        return ctx.y.detach()

    @staticmethod
    def backward(ctx, grad):
        return torch.autograd.grad(ctx.y, ctx.x, grad, retain_graph=True)[0], None


mistakes = [
    Edit("levels for steps", "levels - 1", "levels", told_by="values"),
    Edit("always float32", "x * steps", "x.float() * steps", told_by="keeps_the_dtype"),
    Wrong(_DerivativeOfRound, told_by="passes"),
    Edit("drops what arrives", "return grad,", "return torch.ones_like(grad),", told_by="whatever_arrives"),
    Edit("counts to 255", "steps) / steps", "steps).to(torch.uint8).to(x.dtype) / steps", told_by="values"),
    Edit("writes to the input", "x * steps", "x.mul_(steps)", told_by="values"),
    Edit("keeps the input", "steps = levels", "ctx.x = x\n        steps = levels", told_by="nothing_kept"),
    Edit("copies what arrives", "return grad,", "return grad.clone(),", told_by="not_copied"),
]

equivalent = {
    "line 10: `levels - 1` -> `1 - levels`": "both scalings change their sign, and rounding is symmetric",
}

not_tried = {"hard numbers": "they are from 0 to 1"}
