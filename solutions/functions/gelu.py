"""The product rule: the slope of `x Φ(x)` is `Φ(x) + x Φ'(x)`, and the derivative of `Φ` is the density `φ`.
With this formula backward needs only `x`, and computes `Φ` and `φ` again.

There is another reason to compute them in backward. A tensor made on the way in forward usually has no
history: autograd would take it for a constant, and the second derivative could be wrong without a word.
`ctx.saved_tensors` returns the input with its history, so autograd records what it needs for
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

from course_utils.exercise import Edit


class _WithComplement(torch.autograd.Function):
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


class _DifferentiatesWithinBackward(torch.autograd.Function):
    """Autograd differentiates the formula in backward, of the input itself, and records that it does."""

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


also_right = [_WithComplement, _DifferentiatesWithinBackward]

_PHI = "(1 + torch.erf(x / math.sqrt(2))) / 2"

mistakes = [
    Edit(
        "with tanh",
        _PHI,
        "(1 + torch.tanh((2 / math.pi) ** 0.5 * (x + 0.044715 * x**3))) / 2",
        told_by="values",
    ),
    Edit("no density", "share_below(x) + x * density", "share_below(x)", told_by="gradient"),
    Edit("drops what arrives", "grad * (share", "(share", told_by="gradient"),
    Edit(
        "writes to what arrives",
        "return grad * (share",
        "return (grad.mul if torch.is_grad_enabled() else grad.mul_)(share",
        told_by="gradient",
    ),
    Edit("√2 in float32", "math.sqrt(2)", "torch.tensor(2.0).sqrt()", told_by="all_digits"),
    Edit(
        "a density that overflows", "torch.exp(-x * x / 2) /", "1 / torch.exp(x * x / 2) /", told_by="far_out"
    ),
    Edit("a constant density", "x * density)", "x * density.detach())", told_by="second_derivative"),
    Edit("torch's own", "x * share_below(x)", "torch.nn.functional.gelu(x)", told_by="its_own"),
]

equivalent = {
    "the result of `forward` made contiguous": "any layout will do for the result",
    "the result of `backward` made contiguous": "any layout will do for a gradient",
}

not_tried = {"hard numbers": "`far_out` has those of this function"}
