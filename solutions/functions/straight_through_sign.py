"""A comparison has two outcomes, so `x >= 0` is turned into 1 and 0 of the dtype of `x`, and these into 1 and
-1. `torch.sign` has three values, and `torch.copysign` tells 0 from `-0.`, which compare as equal.

Backward is the derivative of clipping to [-1, 1], which the sign is taken for: 1 where |x| ≤ 1, and 0
elsewhere. It needs the input, since the result has forgotten how far outside an element was. The input is
there anyway, so keeping it costs nothing as long as somebody else holds it, and `save_for_backward` notices
when it is changed in place. A mask that is made in forward takes a quarter of the bytes and is new memory:
which of the two is less depends on whether `x` would have been freed.

The mask is what stops a weight from growing without end once its sign is settled. Clipping the incoming
gradient to [-1, 1] instead looks alike and does something else: it changes the gradient where it should pass
and lets it pass where it should be stopped."""

import torch
from torch import Tensor


class StraightThroughSign(torch.autograd.Function):
    """x -> -1 or 1"""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return (x >= 0).to(x.dtype) * 2 - 1

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return torch.where(x.abs() <= 1, grad, 0)


# Other right answers


class KeepsAMask(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return torch.where(x < 0, -torch.ones_like(x), torch.ones_like(x))

    @staticmethod
    def setup_context(ctx, inputs, output):
        (x,) = inputs
        ctx.save_for_backward((x < -1) | (x > 1))

    @staticmethod
    def backward(ctx, grad):
        (outside,) = ctx.saved_tensors
        return grad.masked_fill(outside, 0)


class WhereClippingChangesNothing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        result = torch.full_like(x, 1)
        result[x < 0] = -1
        return result

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x.eq(x.clamp(-1, 1))


class ClippingDifferentiated(torch.autograd.Function):
    """The sign of 0 is mended, and autograd differentiates what the sign is taken for. (Its `clamp` lets the
    gradient pass at the bounds.)"""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sign() + (x == 0)

    @staticmethod
    def backward(ctx, grad):
        recorded = torch.is_grad_enabled()
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            return torch.autograd.grad(x.clamp(-1, 1), x, grad, create_graph=recorded)[0]


class CountsTheVersions(torch.autograd.Function):
    """What `save_for_backward` does, by hand."""

    @staticmethod
    def forward(ctx, x):
        ctx.x, ctx.version = x, x._version
        return torch.ones_like(x).masked_fill_(x < 0, -1)

    @staticmethod
    def backward(ctx, grad):
        if ctx.x._version != ctx.version:
            raise ValueError("x was changed since forward")
        return grad * (ctx.x.abs() <= 1)


also_right = [KeepsAMask, WhereClippingChangesNothing, ClippingDifferentiated, CountsTheVersions]
