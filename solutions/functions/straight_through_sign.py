"""A comparison has two outcomes, so `x >= 0` is turned into 1 and 0 of the dtype of `x`, and these into 1 and
-1. `torch.sign` has three values, and `torch.copysign` tells 0 from `-0.`, which compare as equal.

Backward is that of clipping to [-1, 1], which the sign is taken for: the slope is 1 where |x| ≤ 1, and 0
elsewhere. Only the input says which; the result has forgotten how far outside an element was. `torch.where`
takes what arrives, or 0; a product with the mask would make `nan` of 0 and `inf`.

The mask is what stops a weight from growing without end once its sign is settled. Clipping what arrives to
[-1, 1] looks alike and does something else: it changes the gradient where it should pass, and lets it pass
where it should be stopped."""

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

from course_utils.exercise import Edit


class _KeepsAMask(torch.autograd.Function):
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


class _ClippingDifferentiated(torch.autograd.Function):
    """The sign of 0 is mended, and autograd differentiates what the sign is taken for."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sign() + (x == 0)

    @staticmethod
    def backward(ctx, grad):
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            return torch.autograd.grad(x.clamp(-1, 1), x, grad)[0]


also_right = [_KeepsAMask, _ClippingDifferentiated]

mistakes = [
    Edit("integers", ".to(x.dtype) * 2", " * 2", told_by="values"),
    Edit("the sign of 0", "(x >= 0).to(x.dtype) * 2 - 1", "torch.sign(x)", told_by="no_third_value"),
    Edit(
        "clamps what arrives",
        "torch.where(x.abs() <= 1, grad, 0)",
        "grad.clamp(-1, 1)",
        told_by="passes_inside",
    ),
    Edit("no mask", "torch.where(x.abs() <= 1, grad, 0)", "grad.clone()", told_by="stops_outside"),
    Edit("stops on one side", "x.abs() <= 1", "x <= 1", told_by="stops_outside"),
    Edit("leaves out the ends", "<= 1", "< 1", told_by="passes_at_the_ends"),
    Edit("multiplies", "torch.where(x.abs() <= 1, grad, 0)", "grad * (x.abs() <= 1)", told_by="stops_all"),
    Edit(
        "zeros in place",
        "torch.where(x.abs() <= 1, grad, 0)",
        "grad.masked_fill_(x.abs() > 1, 0)",
        told_by="left_alone",
    ),
]

equivalent = {
    "the result of `forward` made contiguous": "any layout will do for the result",
    "the result of `backward` made contiguous": "any layout will do for a gradient",
}
