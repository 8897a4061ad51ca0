"""Forward scales [0, 1] to 0 … `levels - 1`, rounds, and scales back. Backward is the derivative of another
function, clipping, of which the staircase is an approximation: 1 inside and 0 outside.

Which of the two holds for an element is all that backward has to know. So forward asks the question and keeps
the answers, one byte each; `x` itself need not wait for backward, and a later change of it does no harm. The
mask has no derivative and needs no history, so it may be made in forward.

A mask has a price: an element outside gets no gradient, whatever the loss says, and does not come back by
itself. Without a mask it would be pushed on and on outside, where nothing follows it.

`gradcheck` fails here, and should: it compares with the true derivative, which is 0."""

import torch
from torch import Tensor


class StraightThroughQuantize(torch.autograd.Function):
    """x -> the nearest of `levels` numbers, evenly spread over [0, 1]"""

    @staticmethod
    def forward(ctx, x: Tensor, levels: int) -> Tensor:
        ctx.save_for_backward((x >= 0) & (x <= 1))
        steps = levels - 1
        return torch.round(x.clamp(0, 1) * steps) / steps

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        (inside,) = ctx.saved_tensors
        return torch.where(inside, grad, 0), None


# Other right answers


class WhatTheClipLeftAlone(torch.autograd.Function):
    """An element is inside where clipping does not change it."""

    @staticmethod
    def forward(ctx, x, levels):
        clipped = torch.clip(x, 0.0, 1.0)
        ctx.save_for_backward(clipped != x)
        return (clipped * (levels - 1) + 0.5).floor().div(levels - 1)

    @staticmethod
    def backward(ctx, grad):
        (outside,) = ctx.saved_tensors
        return grad.masked_fill(outside, 0.0), None


class LooksAtEveryLevel(torch.autograd.Function):
    """The nearest level is the one at the least distance."""

    @staticmethod
    def forward(x, levels):
        nearest = torch.zeros_like(x)
        for n in range(1, levels):
            level = n / (levels - 1)
            nearest = torch.where((x - level).abs() < (x - nearest).abs(), level, nearest)
        return nearest

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, _ = inputs
        ctx.inside = (x - 0.5).abs() <= 0.5

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.inside, None


class SilencesACopy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, levels):
        ctx.save_for_backward(x.lt(0).logical_or(x.gt(1)))
        return x.mul(levels - 1).round().clamp(0, levels - 1) / (levels - 1)

    @staticmethod
    def backward(ctx, grad):
        passed = grad.clone()
        passed[ctx.saved_tensors[0]] = 0
        return passed, None


also_right = [WhatTheClipLeftAlone, LooksAtEveryLevel, SilencesACopy]

# Mutants that no check can tell from the reference

equivalent = {
    "line 11: `levels - 1` -> `1 - levels`": "Both scalings change their sign, and rounding is symmetric: "
    "`round(-a) / -b` is `round(a) / b`.",
}


def generated(answer):
    for levels in (2, 3, 5, 8):
        x = (torch.rand(4, 6) * 3 - 1).t().requires_grad_()
        y = answer.apply(x, levels)
        yield y
        yield from torch.autograd.grad(y, x, torch.rand(4, 6).t())
