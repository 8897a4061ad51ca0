"""With `m = min(x, 0)` pulled out of the logarithm,

    log(1 / (1 + exp(-x))) = m - log(1 + exp(-|x|))

for either sign of `x`. The argument of `exp` is never positive, so nothing overflows, and `log1p` keeps the
digits of a small `exp(-|x|)`. No subtraction of two nearly equal numbers is left: where `m` is not 0 both
terms are negative.

The derivative is `sigmoid(-x)`. As `1 - sigmoid(x)` it would be a difference of nearly equal numbers far to
the right.

Backward saves the input itself and makes the slope from it there, with an operator of torch's that is sound
everywhere. `torch.autograd.grad(..., create_graph=True)` records these operators, and so the second
derivative is made of *their* backwards. That is why forward may use `abs` and `clamp`, of which the
derivatives at 0 are a matter of convention, and backward had better not. The saved result would serve as
well: the slope is `-expm1(y)`."""

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


class FromTheResult(torch.autograd.Function):
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


class BranchesOfSafeArguments(torch.autograd.Function):
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


class FunctionOfAFunction(torch.autograd.Function):
    """Backward is a Function of its own, with a backward of its own."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.minimum(x, x.new_zeros(())).sub(x.abs().neg().exp().log1p())

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * _Slope.apply(x)


class _Slope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        slope = x.neg().sigmoid()
        ctx.save_for_backward(slope)
        return slope

    @staticmethod
    def backward(ctx, grad):
        (slope,) = ctx.saved_tensors
        return -grad * slope * (1 - slope)


also_right = [FromTheResult, BranchesOfSafeArguments, FunctionOfAFunction]
