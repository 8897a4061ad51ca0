"""With `m = min(x, 0)` pulled out of the logarithm,

    log(1 / (1 + exp(-x))) = m - log(1 + exp(-|x|))

for either sign of `x`. The argument of `exp` is at most 0, so nothing overflows, and `log1p` keeps the digits
of a small `exp(-|x|)`. No two nearly equal numbers are subtracted: if `m` isn't 0, both terms are negative.

The derivative is `sigmoid(-x)`. Far to the right, `1 - sigmoid(x)` would lose its digits, because the
sigmoid is rounded.

Backward computes the slope from the saved input, with an operator whose own derivative is right everywhere.
With `create_graph=True` autograd records that operator, and the second derivative comes from its backward. So
forward may use `abs` and `clamp`, whose derivatives at 0 are a convention, and backward shouldn't. The saved
result would do as well: the slope is `-expm1(y)`."""

import torch
from torch import Tensor


class StableLogSigmoid(torch.autograd.Function):
    """x -> log(1 / (1 + exp(-x))), element by element"""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp(max=0) - torch.log1p(torch.exp(-x.abs()))

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * torch.sigmoid(-x)


# Other right answers

from course_utils.exercise import Edit


class _FromTheResult(torch.autograd.Function):
    """The slope is `1 - exp(y)`, and `expm1` knows it where `y` is small."""

    @staticmethod
    def forward(x):
        return -torch.logaddexp(-x, torch.zeros_like(x))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return -torch.expm1(y) * grad


class _BranchesOfSafeArguments(torch.autograd.Function):
    """Both branches are computed everywhere, from arguments for which neither overflows."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        small = torch.where(x < 0, x, -x).exp()
        return torch.where(x < 0, x - small.log1p(), -small.log1p())

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        left = torch.where(x < 0, x, 0).exp()
        right = torch.where(x < 0, 0, -x).exp()
        return grad * torch.where(x < 0, 1 / (1 + left), right / (1 + right))


also_right = [_FromTheResult, _BranchesOfSafeArguments]

_VALUE = "x.clamp(max=0) - torch.log1p(torch.exp(-x.abs()))"
_SLOPE = "torch.sigmoid(-x)"

mistakes = [
    Edit("as written down", _VALUE, "torch.log(torch.sigmoid(x))", told_by="values"),
    Edit("forgets log1p", "torch.log1p(", "torch.log(1 + ", told_by="digits_of_values"),
    Edit("bounds of float32", "-x.abs()", "-x.abs().clamp(max=88)", told_by="digits_of_values"),
    Edit(
        "writes to what arrives",
        "grad * torch.sigmoid(-x)",
        "(grad.mul if torch.is_grad_enabled() else grad.mul_)(torch.sigmoid(-x))",
        told_by="gradient",
    ),
    Edit("a slope that overflows", _SLOPE, "torch.exp(-x) / (1 + torch.exp(-x))", told_by="gradient_far_out"),
    Edit("a difference", _SLOPE, "(1 - torch.sigmoid(x))", told_by="digits_of_the_gradient"),
    Edit(
        "a branch not taken",
        _SLOPE,
        "torch.where(x < 0, 1 / (1 + x.exp()), 1 / (1 + x.exp()))",
        told_by="second_derivative",
    ),
    Edit("torch's own", _VALUE, "torch.nn.functional.logsigmoid(x)", told_by="its_own"),
]

equivalent = {"the result of `forward` made contiguous": "any layout will do for the result"}

not_tried = {"hard numbers": "`values` and `digits_of_values` have those of this function"}
