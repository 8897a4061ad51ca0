"""The product rule: the slope of `x Φ(x)` is `Φ(x) + x Φ'(x)`, and the derivative of `Φ` is the density `φ`.
With the slope written down, `x` is all that backward needs, and `Φ` and `φ` are made again from it: two
element-wise functions, for two tensors less in memory.

They have to be made in backward for another reason too. A tensor that is made in forward has no history:
autograd would take it for a constant, and the second derivative would lack a part, silently. Made of
`ctx.saved_tensors`, which returns the input with its history, everything is recorded that is needed for
`2 φ(x) - x² φ(x)`.

`1 + erf(z)` loses digits far to the left, where `erf(z)` is close to -1. In float32 it is 0 at `x = -5.75`,
and so is what torch's own `gelu` returns there, though `x Φ(x)` is -2.6e-08. `erfc(-z)` is the same number
without the sum."""

import math

import torch
from torch import Tensor


class Gelu(torch.autograd.Function):
    """x -> x Φ(x), element by element"""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * share_below(x)

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        density = torch.exp(-x * x / 2) / math.sqrt(2 * math.pi)
        return grad * (share_below(x) + x * density)


def share_below(x: Tensor) -> Tensor:
    """Φ, the share of a normal distribution that lies below `x`"""
    return (1 + torch.erf(x / math.sqrt(2))) / 2


# Other right answers


class WithComplement(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return torch.erfc(x * -math.sqrt(0.5)).mul(x).div(2)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        x = ctx.saved_tensors[0]
        bell = (x.square() * -0.5 - math.log(2 * math.pi) / 2).exp()
        return torch.addcmul(torch.erfc(x * -math.sqrt(0.5)) / 2, x, bell).mul(grad)


class DifferentiatesWithinBackward(torch.autograd.Function):
    """Autograd differentiates `Φ` in backward, of the input itself, and records that it does."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x / 2 + x / 2 * torch.erf(x * 0.5**0.5)

    @staticmethod
    def backward(ctx, grad):
        recorded = torch.is_grad_enabled()
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.view_as(x)
            y = x / 2 + x / 2 * torch.erf(x * 0.5**0.5)
            return torch.autograd.grad(y, x, grad, create_graph=recorded)[0]


class SlopeIsAFunctionToo(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.special.erf(x / 2**0.5).add(1).mul(0.5)

    @staticmethod
    def backward(ctx, grad):
        return grad * _Slope.apply(*ctx.saved_tensors)


class _Slope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        bell = torch.exp(-x * x / 2) / (2 * math.pi) ** 0.5
        ctx.save_for_backward(x, bell)
        return torch.special.erf(x / 2**0.5).add(1).mul(0.5) + x * bell

    @staticmethod
    def backward(ctx, grad):
        x, bell = ctx.saved_tensors
        return grad * (2 * bell - x * (x * bell))


also_right = [WithComplement, DifferentiatesWithinBackward, SlopeIsAFunctionToo]
