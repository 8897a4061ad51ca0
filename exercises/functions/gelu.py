"""The exact GELU and its derivative

`Gelu.apply(x)` multiplies each element of `x` by `Φ(x)`, the share of a normal distribution that lies below
it: `Φ(x) = (1 + erf(x / √2)) / 2`. Write it as an `autograd.Function`, with a backward of your own. You will
need the density, `φ(x) = exp(-x² / 2) / √(2π)`, which is the derivative of `Φ`.

- Exact means up to rounding, in every dtype of floating point: the approximation with `tanh` that many models
  use is off by up to 0.0005, and that shows. The dtype is kept; result and gradient have the
  strides of `torch.empty_like(x)`.
- It can be differentiated twice.
- No more is kept for backward than `x` has bytes, in whatever place; left to autograd, this formula keeps
  three times as much.
  If what is kept was changed in place meanwhile, backward must not go on with the changed values.
- Neither `x` nor the incoming gradient is written to.

torch's own `gelu` is not to be used, everything else is welcome.

`Gelu.apply(torch.tensor([-1., 0., 2.]))` → `[-0.1587, 0., 1.9545]`, with the slopes `[-0.0833, 0.5, 1.0852]`
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from course_utils import derivatives, expect, measure
from course_utils.derivatives import x_line
from course_utils.exercise import Exercise

exercise = Exercise(
    minutes=12,
    hints=[
        "The result is a product of two things that both depend on `x`, so its slope is a sum of two terms. "
        "The incoming gradient multiplies both.",
        "How does `Φ` change with `x`? By the density `φ`. No derivative of `erf` need be looked up, and if "
        "you do look it up, mind the inner derivative `1 / √2`.",
        "Keep `x` alone and make `Φ` and `φ` again in backward, from what `ctx.saved_tensors` returns: only "
        "then does autograd see how they depend on `x`. Take √2 and √(2π) from `math`; a float32 tensor of "
        "one number has seven digits, whatever it is combined with.",
    ],
)


@exercise.starter
class Gelu(torch.autograd.Function):
    """x -> x Φ(x), element by element"""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        raise NotImplementedError

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        raise NotImplementedError


_CALL = "Gelu.apply(x)"
# What is checked at several places: on both sides of 0, and 0 itself.
_SPREAD = [-3.0, -1.5, -0.75, 0.0, 0.5, 1.0, 2.5]
_MATRIX = [[-2.0, 0.0, 1.0], [4.0, -7.0, 5.0]]


def _exact(x):
    """Value, first and second derivative, by torch's own operator in double precision."""
    x = x.detach().cpu().double().requires_grad_()
    y = F.gelu(x)
    (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (curvature,) = torch.autograd.grad(slope.sum(), x)
    return y.detach(), slope.detach(), curvature


def _compare(actual, wanted, x, what):
    """Right up to some units in the last place, of its own size or of 1."""
    eps = torch.finfo(x.dtype).eps
    largest = max(1.0, wanted.abs().max().item())
    expect.equal(actual, wanted.to(x), rtol=32 * eps, atol=32 * eps * largest, what=what)


def _expect_values(Gelu, setup):
    t = expect.given(setup, Gelu=Gelu)
    wanted, before = _exact(t.x)[0], t.x.detach().clone()
    result = t.call(_CALL)
    expect.unchanged(t.x.detach(), before, what="`x`")
    _compare(result, wanted, t.x, "the result")
    return result


def _expect_gradient(Gelu, setup, incoming="torch.ones_like(x)"):
    t = expect.given(f"{setup}\ng = {incoming}", Gelu=Gelu)
    wanted = _exact(t.x)[1] * t.g.cpu().double()
    _compare(t.call(f"torch.autograd.grad({_CALL}, x, g)[0]"), wanted, t.x, "the gradient")


def _expect_curvature(Gelu, setup):
    x, found = derivatives.second(Gelu, _CALL, setup)
    _compare(found, _exact(x)[2], x, "the second derivative, `x.grad`,")


@exercise.check
def values(Gelu, device):
    """The values, to the last digits"""
    expect.in_graph(_expect_values(Gelu, x_line(_SPREAD, device)), of="`x`")
    _expect_values(Gelu, expect.tensor_line("x", _MATRIX, device))


@exercise.check
def gradient(Gelu, device):
    """The slopes, for an incoming gradient of ones"""
    _expect_gradient(Gelu, x_line(_SPREAD, device))


@exercise.check
def any_incoming(Gelu, device):
    """Any other incoming gradient"""
    setup = x_line([-1.5, -0.75, 0.0, 1.0, 2.5], device)
    _expect_gradient(Gelu, setup, "torch.tensor([10., -1., 4., 0., 0.5]).to(x)")
    setup = x_line(_MATRIX, device)
    _expect_gradient(Gelu, setup, "torch.arange(6.).view(3, 2).t().to(x)")


@exercise.check
def far_out(Gelu, device):
    """Far out there is no `nan`: value, slope and second derivative"""
    setup = x_line([-1000.0, -30.0, 30.0, 1000.0], device)
    _expect_values(Gelu, setup)
    _expect_gradient(Gelu, setup)
    _expect_curvature(Gelu, setup)


@exercise.check
def second_derivative(Gelu, device):
    """The second derivative"""
    _expect_curvature(Gelu, x_line(_SPREAD, device))


@exercise.check
def by_differences(Gelu):
    """`gradcheck` and `gradgradcheck` agree, in float64"""
    derivatives.agrees_with_differences(Gelu, "Gelu.apply")


@exercise.check
def every_dtype(Gelu, device):
    """Every dtype of floating point is kept, with all of its digits"""
    for dtype in derivatives.other_dtypes(device):
        setup = x_line([-1.5, -0.75, 0.0, 0.5, 2.0], device, dtype=dtype)
        _expect_values(Gelu, setup)
        _expect_gradient(Gelu, setup)


@exercise.check
def laid_out_alike(Gelu, device):
    """The result and the gradient have the strides of `x`"""
    derivatives.keeps_strides(Gelu, _CALL, derivatives.transposed_x(_MATRIX, device))


@exercise.check
def kept_for_backward(Gelu, device):
    """No more is kept for backward than `x` has bytes"""
    derivatives.keeps_no_more_than_x(Gelu, "Gelu.apply", x_line([-3.0, -0.5, 0.0, 0.5, 3.0], device))


@exercise.check
def changed_in_between(Gelu, device):
    """What is changed in place between forward and backward does not reach the gradient"""
    derivatives.ignores_changes(Gelu, "Gelu.apply(a)", x_line([-1.0, 0.5, 2.0], device))


@exercise.check
def left_alone(Gelu, device):
    """`x` and the incoming gradient stay what they were"""
    derivatives.leaves_alone(Gelu, _CALL, x_line([-3.0, -0.5, 0.0, 0.7, 3.0], device))


@exercise.check
def of_your_own(Gelu, device):
    """The backward is yours, and torch's own `gelu` does not run"""
    setup = x_line([-3.0, 0.0, 3.0], device)
    derivatives.has_a_node_of_its_own(Gelu, _CALL, setup)
    t = expect.given(setup, Gelu=Gelu)
    with measure.operators() as ran:
        t.call("torch.autograd.grad(Gelu.apply(x), x, torch.ones_like(x))")
    number = ran.count("aten.gelu", "aten.gelu_backward")
    expect.true(number == 0, "`aten.gelu`, or its backward, ran", "expected: other operators only")


# --- the mistakes -------------------------------------------------------------------------------------------


def _cdf(x):
    return (1 + torch.erf(x / math.sqrt(2))) / 2


def _pdf(x):
    return torch.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def _tanh_slope(x):
    a = math.sqrt(2 / math.pi)
    t = torch.tanh(a * (x + 0.044715 * x**3))
    return (1 + t) / 2 + x / 2 * (1 - t * t) * a * (1 + 3 * 0.044715 * x * x)


class _Right(torch.autograd.Function):
    """What is right in the answers below, unless they say otherwise."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * _cdf(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (_cdf(x) + x * _pdf(x))


@exercise.mistake
class SlopeOfTheApproximation(_Right):
    """Your values are exact and your slope is that of the approximation with `tanh`. It is near enough to
    train with and off in the fourth digit, which `gradcheck` finds. The exact slope is also shorter."""

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * _tanh_slope(x)


@SlopeOfTheApproximation.variant
class SlopeThroughASigmoid(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x * torch.erfc(-x * math.sqrt(0.5)) * 0.5

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        # (1 + tanh(u)) / 2 is sigmoid(2u).
        x = ctx.saved_tensors[0]
        scale = 2 * math.sqrt(2 / math.pi)
        s = torch.sigmoid(scale * (x + 0.044715 * x.pow(3)))
        return (s + x * s * (1 - s) * scale * (1 + 0.134145 * x.square())).mul(grad)


@exercise.mistake
class Approximates(torch.autograd.Function):
    """You compute an approximation: the one with `tanh` (off by up to 0.0005), or `x * sigmoid(1.702 * x)`
    (off by 0.02). The exact GELU is made with `torch.erf`, and takes no longer today."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * _tanh_slope(x)


@Approximates.form
class ApproximatesForwardOnly(_Right):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


@Approximates.form
class ApproximatesBySigmoid(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(1.702 * x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(1.702 * x)
        return grad * (s + 1.702 * x * s * (1 - s))


@Approximates.form
class ApproximatesWithTheBuiltin(_Right):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return F.gelu(x, approximate="tanh")


@exercise.mistake
class ForgetsTheDensity(_Right):
    """Your slope is `Φ(x)` alone, as if `Φ` were a number. It depends on `x` as well: the product rule has a
    second term, `x` times the derivative of `Φ`, which is the density."""

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * _cdf(x)


@ForgetsTheDensity.variant
class OnlyTheShareBelow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.erfc(-x * math.sqrt(0.5)) * 0.5

    @staticmethod
    def backward(ctx, grad):
        x = ctx.saved_tensors[0]
        return torch.erfc(x * -math.sqrt(0.5)).mul(grad).div(2)


@exercise.mistake
class DensityAlone(_Right):
    """Of the product rule you have the term with the density and not the other: `Φ(x)` times the derivative
    of `x`, which is 1."""

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x * _pdf(x)


@exercise.mistake
class DensityWithoutX(_Right):
    """You add the density, and it stands in the product rule with a factor: `x`, the part of the product that
    was not differentiated."""

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (_cdf(x) + _pdf(x))


@exercise.mistake
class OtherDensity(_Right):
    """Your slope has the right form, and what it adds is not quite `x` times the density,
    `exp(-x² / 2) / √(2π)`. Mind where the brackets are: the 2 below `x²` belongs into `exp`, both 2 and π
    under the root. (From the derivative of `erf`, `2 / √π · exp(-z²)`, one gets there with `z = x / √2` and
    with the inner derivative `1 / √2`.)"""

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (_cdf(x) + x * torch.exp(-x * x / 2) / math.sqrt(math.pi))


@OtherDensity.variant
class ForgetsTheInnerDerivative(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.special.erfc(-x * math.sqrt(0.5)) * 0.5

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        z = x / 2**0.5
        slope_of_erf = 2 / math.pi**0.5 * (-(z**2)).exp()
        return (0.5 * (1 + z.erf()) + 0.5 * x * slope_of_erf) * grad


@OtherDensity.form
class DensityOfErf(_Right):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (_cdf(x) + x * torch.exp(-x * x) / math.sqrt(math.pi))


@OtherDensity.form
class ForgetsToHalve(_Right):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (_cdf(x) + x * torch.exp(-x * x) / math.sqrt(2 * math.pi))


@OtherDensity.form
class DensityNotNormalised(_Right):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (_cdf(x) + x * torch.exp(-x * x / 2))


@OtherDensity.form
class HalvesTheExponential(_Right):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (_cdf(x) + x * torch.exp(-(x**2)) / 2 / math.sqrt(2 * math.pi))


@OtherDensity.form
class PiBesideTheRoot(_Right):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (_cdf(x) + x * torch.exp(-(x**2) / 2) / math.sqrt(2) * math.pi)


@exercise.mistake
class OtherSignOfTheDensity(_Right):
    """You subtract the term with the density. Both terms of the product rule are added, and `Φ` grows with
    `x`: its derivative is the density itself."""

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (_cdf(x) - x * _pdf(x))


@OtherSignOfTheDensity.variant
class SubtractsTheBell(_Right):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        bell = x.square().mul(-0.5).exp() * (2 * math.pi) ** -0.5
        return torch.erfc(x * -math.sqrt(0.5)).div(2).sub(x * bell).mul(grad)


@exercise.mistake
class GrowsInsteadOfFalling(_Right):
    """The exponent of your density has the wrong sign: `exp(x² / 2)` grows without end. The density falls to
    0 on both sides, `exp(-x² / 2)`."""

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (_cdf(x) + x * torch.exp(x**2 / 2) / math.sqrt(2 * math.pi))


@exercise.mistake
class WithoutTheHalf(_Right):
    """Your result is twice as large as it should be: `1 + erf(x / √2)` runs from 0 to 2, and a share from 0
    to 1. Half of it is `Φ`."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * (1 + torch.erf(x / math.sqrt(2)))


@WithoutTheHalf.form
class WithoutTheHalfAnywhere(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * (1 + torch.erf(x / math.sqrt(2)))

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (2 * _cdf(x) + 2 * x * _pdf(x))


@exercise.mistake
class TimesRootTwo(_Right):
    """You take `erf(x * √2)`, where `Φ` has `erf(x / √2)`: it belongs to a wider bell than `erf`, and its
    argument is smaller."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * (1 + torch.erf(x * math.sqrt(2))) / 2


@exercise.mistake
class WithoutRootTwo(_Right):
    """You take `erf(x)`, where `Φ` has `erf(x / √2)`: `erf` belongs to a narrower bell than `Φ`."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * (1 + torch.erf(x)) / 2


@WithoutRootTwo.form
class WithoutRootTwoAnywhere(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * (1 + torch.erf(x)) / 2

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * ((1 + torch.erf(x)) / 2 + x * torch.exp(-x * x) / math.sqrt(math.pi))


@exercise.mistake
class DropsTheIncoming(_Right):
    """You return the slope alone, not multiplied by what comes in. What comes into backward is the gradient
    of the loss with respect to your result; the chain rule multiplies the two."""

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return _cdf(x) + x * _pdf(x)


@DropsTheIncoming.variant
class ReturnsTheSlope(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x * torch.erfc(-x * math.sqrt(0.5)) * 0.5

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, upstream):
        (x,) = ctx.saved_tensors
        bell = x.square().mul(-0.5).exp() * (2 * math.pi) ** -0.5
        return torch.addcmul(torch.erfc(-x * math.sqrt(0.5)) / 2, x, bell)


@exercise.mistake
class IncomingOnOneTermOnly(_Right):
    """The incoming gradient multiplies one of your two terms. A pair of brackets is missing."""

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * _cdf(x) + x * _pdf(x)


@IncomingOnOneTermOnly.form
class IncomingOnTheOtherTermOnly(_Right):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return _cdf(x) + grad * x * _pdf(x)


@exercise.mistake
class SlopeMadeInForward(torch.autograd.Function):
    """Values and gradients are right, and backward cannot be differentiated: for autograd your slope is a
    number that does not depend on `x`. Forward runs without recording, so what is made there (a slope, a copy
    of `x`) has no history, nor has `x.detach()` or `x.data`, nor a slope that is made under `no_grad`. Save
    `x` itself and make the slope in backward."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(_cdf(x) + x * _pdf(x))
        return x * _cdf(x)

    @staticmethod
    def backward(ctx, grad):
        (slope,) = ctx.saved_tensors
        return grad * slope


@SlopeMadeInForward.variant
class SlopeOfTheDetached(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.erfc(-x * math.sqrt(0.5)) * 0.5

    @staticmethod
    def backward(ctx, grad):
        x = ctx.saved_tensors[0].detach()
        return torch.addcmul(_cdf(x), x, _pdf(x)) * grad


@exercise.mistake
class PhiMadeInForward(torch.autograd.Function):
    """The gradient is right and the second derivative is not, without any error: you kept `Φ(x)` from
    forward. Nothing is recorded there, so in backward it is a number; the other term still depends on `x`,
    and the second derivative has only that part. Make both from the saved `x`. (It takes a tensor less.)"""

    @staticmethod
    def forward(ctx, x):
        share = _cdf(x)
        ctx.save_for_backward(x, share)
        return x * share

    @staticmethod
    def backward(ctx, grad):
        x, share = ctx.saved_tensors
        return grad * (share + x * _pdf(x))


@PhiMadeInForward.variant
class HalfOfItDetached(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        half = torch.erfc(-x * math.sqrt(0.5)) / 2
        ctx.save_for_backward(half, x)
        return half.mul(x)

    @staticmethod
    def backward(ctx, grad):
        half, x = ctx.saved_tensors
        bell = x.square().mul(-0.5).exp() * (2 * math.pi) ** -0.5
        return grad * half + grad * bell * x


@PhiMadeInForward.form
class DensityMadeInForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        share = _cdf(x)
        ctx.save_for_backward(x, share, _pdf(x))
        return x * share

    @staticmethod
    def backward(ctx, grad):
        x, share, density = ctx.saved_tensors
        return grad * (share + x * density)


@PhiMadeInForward.form
class PhiOnCtx(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.share = _cdf(x)
        return x * ctx.share

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (ctx.share + x * _pdf(x))


@exercise.mistake
class DetachedInOneTerm(_Right):
    """The gradient is right, and the second derivative lacks a part: one of the two terms of your slope was
    made of a tensor without history, as `x.detach()` is. For autograd it is a number. Make both terms from
    what `ctx.saved_tensors` returns."""

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (_cdf(x) + x * _pdf(x.detach()))


@DetachedInOneTerm.form
class ShareOfTheDetached(_Right):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (_cdf(x.detach()) + x * _pdf(x))


@DetachedInOneTerm.form
class TermOfTheDetached(_Right):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        z = x.detach()
        return grad * (_cdf(x) + z * _pdf(z))


@exercise.mistake
class BackwardWithoutRecording(_Right):
    """Values and gradients are right, and nothing of your backward was recorded, so it cannot be
    differentiated. `torch.no_grad()` and `once_differentiable` see to that, and `torch.autograd.grad` within
    backward does, without `create_graph=True`. Write the slope down from the saved `x`; where no second
    derivative is asked for, it is not recorded anyway."""

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        with torch.no_grad():
            return grad * (_cdf(x) + x * _pdf(x))


@BackwardWithoutRecording.form
class OnceOnly(_Right):
    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (_cdf(x) + x * _pdf(x))


@BackwardWithoutRecording.variant
class DifferentiatesWithoutAGraph(_Right):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            z = x.detach().requires_grad_()
            y = z * _cdf(z)
        return torch.autograd.grad(y, z, grad)[0]


@exercise.mistake
class KeptOnCtx(torch.autograd.Function):
    """`ctx.x = x` keeps the tensor and not its version: where it is changed in place between forward and
    backward, backward takes the new values and says nothing. `ctx.save_for_backward` notices."""

    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        return x * _cdf(x)

    @staticmethod
    def backward(ctx, grad):
        return grad * (_cdf(ctx.x) + ctx.x * _pdf(ctx.x))


@KeptOnCtx.variant
class KeptInATuple(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x * torch.erfc(-x * math.sqrt(0.5)) * 0.5

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.inputs = inputs

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.inputs
        return torch.addcmul(_cdf(x), x, _pdf(x)) * grad


@exercise.mistake
class KeepsTwo(torch.autograd.Function):
    """You keep a second tensor besides `x`. Whatever can be computed again need not lie in memory until
    backward."""

    @staticmethod
    def forward(ctx, x):
        y = x * _cdf(x)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, grad):
        x, _ = ctx.saved_tensors
        return grad * (_cdf(x) + x * _pdf(x))


@exercise.mistake
class KeepsMoreOnCtx(_Right):
    """Besides what is saved, something stays in memory with the graph: an attribute of `ctx` does, and hooks
    for saved tensors do not see it. Together it is more than `x` has bytes. Compute it anew in backward."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.share = _cdf(x)
        return x * ctx.share


@KeepsMoreOnCtx.form
class KeepsTwoMoreOnCtx(_Right):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.share, ctx.density = _cdf(x), _pdf(x)
        return x * ctx.share


@exercise.mistake
class TypesFourDigits(torch.autograd.Function):
    """Your constants have four digits (1.4142 or 0.7071 for the root, 0.3989 for the density), and float32
    has seven: the slopes differ in the fifth. `math.sqrt(2)` and `math.sqrt(2 * math.pi)` have sixteen."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 0.5 * x * (1 + torch.erf(x / 1.4142))

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (0.5 * (1 + torch.erf(x / 1.4142)) + x * 0.3989 * torch.exp(-x * x / 2))


@TypesFourDigits.form
class TypesFourDigitsOfTheInverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 0.5 * x * (1 + torch.erf(x * 0.7071))

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (0.5 * (1 + torch.erf(x * 0.7071)) + x * 0.3989 * torch.exp(-x * x / 2))


@exercise.mistake
class RootInFloat32(torch.autograd.Function):
    """In float64 your digits end after the seventh: a constant is the reason. `torch.sqrt(torch.tensor(2.))`
    is a float32 tensor, and torch adapts its dtype to that of `x` without giving it more digits; a constant
    that was typed in (1.414, 0.3989) has as many as were typed. `math.sqrt(2)` has sixteen."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        root = torch.sqrt(torch.tensor(2.0))
        return x * (1 + torch.erf(x / root)) / 2

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        root, other = torch.sqrt(torch.tensor(2.0)), torch.sqrt(torch.tensor(2 * math.pi))
        return grad * ((1 + torch.erf(x / root)) / 2 + x * torch.exp(-x * x / 2) / other)


@RootInFloat32.variant
class RootsOfShortTensors(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 0.5 * x * (x * torch.tensor(0.5).sqrt()).erf().add(1)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        bell = torch.exp(-0.5 * x**2) * torch.tensor(2 * torch.pi).rsqrt()
        return grad * (0.5 + 0.5 * (x * torch.tensor(0.5).sqrt()).erf() + x * bell)


@RootInFloat32.form
class RootInFloat32OfTheDensity(_Right):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (_cdf(x) + x * torch.exp(-x * x / 2) / torch.sqrt(2 * torch.tensor(math.pi)))


@RootInFloat32.variant
class TypesTheConstant(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * (1 + torch.erf(x / 1.4142135)) / 2

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * ((1 + torch.erf(x / 1.4142135)) / 2 + x * torch.exp(-x * x / 2) * 0.3989423)


@exercise.mistake
class AlwaysFloat32(_Right):
    """You compute in float32 whatever came in, and the result is float32: it has another dtype than `x`, and
    a float64 input loses half its digits."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        x = x.float()
        return x * _cdf(x)


@AlwaysFloat32.variant
class AlwaysFloat32InBoth(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        x = x.float()
        return x * _cdf(x)

    @staticmethod
    def backward(ctx, grad):
        x = ctx.saved_tensors[0].float()
        return grad * (_cdf(x) + x * _pdf(x))


@exercise.mistake
class ThroughFloat32AndBack(_Right):
    """You compute in float32 and convert the result back to the dtype of `x`. That helps half precision; a
    float64 input has lost half its digits on the way (and `gradcheck` fails, which needs them)."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        y = x.float()
        return (y * _cdf(y)).to(x.dtype)


@ThroughFloat32AndBack.variant
class BothThroughFloat32(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        y = x.float()
        return (y * _cdf(y)).to(x.dtype)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        x = x.float()
        return (grad * (_cdf(x) + x * _pdf(x))).to(grad.dtype)


@exercise.mistake
class Builtin(_Right):
    """You call torch's own `gelu`, which does all the work. Write it with `erf` and `exp`: that is all that
    is in it."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return F.gelu(x)


@exercise.mistake
class LeavesItToAutograd(torch.autograd.Function):
    """You replaced `apply`, and autograd differentiates the formula: no backward of yours runs, and more is
    kept than `x` has bytes. `apply` is inherited; it makes the node in the graph and calls your `forward`."""

    @staticmethod
    def apply(x):
        return x * _cdf(x)


@exercise.mistake
class WritesIntoWhatCameIn(_Right):
    """You multiply the incoming gradient in place. It belongs to whoever handed it in, and may be used
    elsewhere: at a second branch of the graph, say."""

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad.mul_(_cdf(x) + x * _pdf(x))


@exercise.mistake
class WritesIntoTheInput(_Right):
    """You write into the caller's `x`: an operator with an underscore, such as `mul_`, does. Without it the
    result is a new tensor."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.mul_(_cdf(x))


@WritesIntoTheInput.form
class WritesAndClones(_Right):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.mul_(_cdf(x)).clone()


@exercise.mistake
class MadeContiguous(_Right):
    """For a transposed `x` your result has another layout. `contiguous()` makes one, and so does all that
    builds a new tensor from a shape. Arithmetic, `erf`, `exp` and the `*_like` functions keep the strides."""

    @staticmethod
    def forward(ctx, x):
        x = x.contiguous()
        ctx.save_for_backward(x)
        return x * _cdf(x)
