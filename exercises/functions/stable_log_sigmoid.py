"""Log-sigmoid that holds at ±1000

The logarithm of the sigmoid is `log(1 / (1 + exp(-x)))`, and its derivative is `1 / (1 + exp(x))`. Written
down like this both overflow. Write them as an `autograd.Function`, `StableLogSigmoid.apply(x)`, for `x` of
any shape and any dtype of floating point.

- The result and the gradient are finite for every finite `x` and right to the last digits of their dtype,
  *relative to their own size*: at `x = 20` the result is `-2.06e-09`, not `0`.
- It can be differentiated twice, and the second derivative is finite and right too. Its small values need
  not keep their digits.
- Result and gradient have the strides of `torch.empty_like(x)`. Neither `x` nor the incoming gradient is
  written to.
- Between forward and backward it keeps no more bytes than `x` has, in whatever place. If what it needs was
  changed in place meanwhile, backward must not go on with the changed values.

torch's own `logsigmoid`, `softplus`, and what contains them (`mish`, the losses that take logits) are not to
be used; everything else is welcome, `torch.sigmoid` too.

`StableLogSigmoid.apply(torch.tensor([-1000., 0., 1000.]))` → `[-1000., -0.6931, 0.]`
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from course_utils import derivatives, expect, measure
from course_utils.derivatives import x_line
from course_utils.exercise import Exercise

exercise = Exercise(
    minutes=15,
    hints=[
        "`exp` overflows for large arguments and never for negative ones. For `x ≥ 0` the formula only needs "
        "`exp(-x)`. What does it become for `x < 0` when numerator and denominator are multiplied by "
        "`exp(x)`? Is there one form for both, with `|x|`?",
        "`log(1 + z)` loses a small `z` in the sum, and torch has a function that never forms the sum. The "
        "same happens in `1 - s` when `s` is close to 1: the derivative is the sigmoid of something.",
        "The second derivative comes from autograd, which records what backward does, and only that. So "
        "backward starts from the saved input (or output) itself, and calls operators whose own derivatives "
        "are sound everywhere: `torch.where` computes both branches, `abs` has the derivative 0 at 0, "
        "`torch.sigmoid` is sound.",
    ],
)


@exercise.starter
class StableLogSigmoid(torch.autograd.Function):
    """x -> log(1 / (1 + exp(-x))), element by element"""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        raise NotImplementedError

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        raise NotImplementedError


_CALL = "StableLogSigmoid.apply(x)"
_REFUSED = (
    "aten.log_sigmoid",
    "aten.log_sigmoid_forward",
    "aten.log_sigmoid_backward",
    "aten.softplus",
    "aten.softplus_backward",
    "aten.binary_cross_entropy_with_logits",
    "aten.soft_margin_loss",
    "aten.mish",
    "aten.mish_backward",
)
_SPREAD = [-3.0, -0.5, 0.0, 0.5, 3.0]
_EXTREMES = [-1000.0, -100.0, 100.0, 1000.0]
_FAR_RIGHT = [10.0, 20.0, 40.0, 80.0]
_MATRIX = [[-2.0, 0.0, 1.0], [4.0, -7.0, 5.0]]


def _exact(x):
    """Value, first and second derivative in double precision."""
    x = x.detach().cpu().double()
    return F.logsigmoid(x), torch.sigmoid(-x), -torch.sigmoid(x) * torch.sigmoid(-x)


def _compare(actual, wanted, x, what, digits):
    """`digits`: every element is right relative to itself, up to a few units in its last place."""
    limits = torch.finfo(x.dtype)
    tolerance = {"rtol": 16 * limits.eps, "atol": limits.tiny} if digits else {}
    expect.equal(actual, wanted.to(x), **tolerance, what=what)


def _expect_values(StableLogSigmoid, setup, digits=False):
    t = expect.given(setup, StableLogSigmoid=StableLogSigmoid)
    wanted, before = _exact(t.x)[0], t.x.detach().clone()
    result = t.call(_CALL)
    expect.unchanged(t.x.detach(), before, what="`x`")
    _compare(result, wanted, t.x, "the result", digits)
    return result


def _expect_gradient(StableLogSigmoid, setup, incoming="torch.ones_like(x)", digits=False):
    t = expect.given(f"{setup}\ng = {incoming}", StableLogSigmoid=StableLogSigmoid)
    wanted = _exact(t.x)[1].to(t.x) * t.g
    _compare(t.call(f"torch.autograd.grad({_CALL}, x, g)[0]"), wanted, t.x, "the gradient", digits)


def _expect_curvature(StableLogSigmoid, setup):
    x, found = derivatives.second(StableLogSigmoid, _CALL, setup)
    _compare(found, _exact(x)[2], x, "the second derivative, `x.grad`,", digits=False)


@exercise.check
def values(StableLogSigmoid, device):
    """The values"""
    expect.in_graph(_expect_values(StableLogSigmoid, x_line(_SPREAD, device)), of="`x`")
    _expect_values(StableLogSigmoid, f"{expect.tensor_line('x', _MATRIX, device)}.t()")


@exercise.check
def values_at_the_extremes(StableLogSigmoid, device):
    """The values at -1000 and 1000"""
    _expect_values(StableLogSigmoid, x_line(_EXTREMES, device))


@exercise.check
def digits_of_values(StableLogSigmoid, device):
    """Values close to 0 keep their digits"""
    _expect_values(StableLogSigmoid, x_line(_FAR_RIGHT, device), digits=True)
    if device.type != "mps":  # which has no float64
        _expect_values(StableLogSigmoid, x_line([30.0, 300.0], device, dtype=torch.float64), digits=True)


@exercise.check
def gradient(StableLogSigmoid, device):
    """The gradient, for any gradient that comes in"""
    setup = x_line(_SPREAD, device)
    _expect_gradient(StableLogSigmoid, setup, "torch.tensor([1., 10., -1., 0., 3.]).to(x)")
    setup = x_line(_MATRIX, device)
    _expect_gradient(StableLogSigmoid, setup, "torch.arange(6.).view(3, 2).t().to(x)")


@exercise.check
def gradient_at_the_extremes(StableLogSigmoid, device):
    """The gradient at -1000 and 1000"""
    _expect_gradient(StableLogSigmoid, x_line(_EXTREMES, device))


@exercise.check
def digits_of_the_gradient(StableLogSigmoid, device):
    """A gradient close to 0 keeps its digits"""
    _expect_gradient(StableLogSigmoid, x_line(_FAR_RIGHT, device), digits=True)
    if device.type != "mps":
        _expect_gradient(StableLogSigmoid, x_line([30.0, 300.0], device, dtype=torch.float64), digits=True)


@exercise.check
def second_derivative(StableLogSigmoid, device):
    """The second derivative, also at 0"""
    _expect_curvature(StableLogSigmoid, x_line([-3.0, -0.5, 0.5, 3.0], device))
    _expect_curvature(StableLogSigmoid, x_line([0.0], device))


@exercise.check
def second_derivative_at_the_extremes(StableLogSigmoid, device):
    """The second derivative at -1000 and 1000"""
    _expect_curvature(StableLogSigmoid, x_line(_EXTREMES, device))


@exercise.check
def by_differences(StableLogSigmoid):
    """`gradcheck` and `gradgradcheck` agree, in float64"""
    derivatives.agrees_with_differences(StableLogSigmoid, "StableLogSigmoid.apply")


@exercise.check
def every_dtype(StableLogSigmoid, device):
    """Every dtype of floating point is kept, in both directions"""
    for dtype in derivatives.other_dtypes(device):
        setup = x_line([-25.0, -1.0, 0.0, 2.0], device, dtype=dtype)
        _expect_values(StableLogSigmoid, setup, digits=True)
        _expect_gradient(StableLogSigmoid, setup, digits=True)


@exercise.check
def changed_in_between(StableLogSigmoid, device):
    """What is changed in place between forward and backward does not reach the gradient"""
    setup = x_line([-1.0, 0.5, 2.0], device)
    derivatives.ignores_changes(StableLogSigmoid, "StableLogSigmoid.apply(a)", setup)


@exercise.check
def kept_for_backward(StableLogSigmoid, device):
    """No more is kept for backward than `x` has bytes"""
    setup = x_line(_SPREAD, device)
    derivatives.keeps_no_more_than_x(StableLogSigmoid, "StableLogSigmoid.apply", setup)


@exercise.check
def laid_out_alike(StableLogSigmoid, device):
    """The result and the gradient have the strides of `x`"""
    setup = derivatives.transposed_x(_MATRIX, device)
    derivatives.keeps_strides(StableLogSigmoid, _CALL, setup)


@exercise.check
def left_alone(StableLogSigmoid, device):
    """`x` and the incoming gradient stay what they were"""
    setup = x_line([-30.0, -0.5, 0.0, 0.5, 30.0], device)
    derivatives.leaves_alone(StableLogSigmoid, _CALL, setup)


@exercise.check
def of_your_own(StableLogSigmoid, device):
    """Neither `logsigmoid` nor `softplus` of torch's runs, nor what contains them"""
    setup = x_line([-3.0, 0.0, 3.0], device)
    derivatives.has_a_node_of_its_own(StableLogSigmoid, _CALL, setup)
    t = expect.given(setup, StableLogSigmoid=StableLogSigmoid)
    with measure.operators() as ran:
        t.call("torch.autograd.grad(StableLogSigmoid.apply(x).sum(), x)")
    number = ran.count(*_REFUSED)
    expect.true(number == 0, "one of torch's operators for this function ran", "expected: others only")


# --- the mistakes -------------------------------------------------------------------------------------------


def _log_sigmoid(x):
    return x.clamp(max=0) - torch.log1p(torch.exp(-x.abs()))


class _Right(torch.autograd.Function):
    """What is right in the answers below, unless they say otherwise."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return _log_sigmoid(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * torch.sigmoid(-x)


@exercise.mistake
class LogOfSigmoid(_Right):
    """You take the logarithm of the finished sigmoid, or of `1 + exp(-x)`. Far to the left the sigmoid is
    rounded to 0 (and `exp(-x)` to infinity), and the result is `-inf`; far to the right both are rounded
    to 1, and the result is `0`. The rounding has to be kept away from the logarithm: pull the large part
    out of it first."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.log(torch.sigmoid(x))


@LogOfSigmoid.variant
class LogOfOnePlusExp(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return (1 + (-x).exp()).log().neg()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, grad):
        return ctx.saved_tensors[0].neg().sigmoid().mul(grad)


@LogOfSigmoid.form
class LogOfSigmoidAndOneMinus(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.sigmoid(x).log()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (1 - torch.sigmoid(x))


@LogOfSigmoid.form
class LogOfSigmoidThatIsKept(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        s = torch.sigmoid(x)
        ctx.save_for_backward(s)
        return torch.log(s)

    @staticmethod
    def backward(ctx, grad):
        (s,) = ctx.saved_tensors
        return grad * (1 - s)


@LogOfSigmoid.form
class AsItIsWrittenOnPaper(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.log(1 / (1 + torch.exp(-x)))

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad / (1 + torch.exp(x))


@LogOfSigmoid.form
class BothOverflowOnTheLeft(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return -torch.log(1 + torch.exp(-x))

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * torch.exp(-x) / (1 + torch.exp(-x))


@exercise.mistake
class OverflowsOnTheLeftOnly(_Right):
    """Far to the left the result is `-inf`: `exp(-x)` overflows. To the right your form holds, and keeps all
    digits. For negative `x` there is another form of the kind, with `exp(x)`; pull `x` out of the
    logarithm."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return -torch.log1p(torch.exp(-x))


@exercise.mistake
class OneBranchForAll(_Right):
    """You choose one branch for the whole tensor, and overflow where its elements have both signs. Each
    element needs a branch of its own: `torch.where`, or one form for both with `|x|`."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        if bool((x >= 0).all()):
            return -torch.log1p(torch.exp(-x))
        return x - torch.log1p(torch.exp(x))


@exercise.mistake
class OtherSignOfTheResult(_Right):
    """Your result has the wrong sign: it is that of `softplus(-x)`. The logarithm of a sigmoid, which lies
    between 0 and 1, is negative."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return -_log_sigmoid(x)


@exercise.mistake
class LogOfSigmoidAndALittle(_Right):
    """A small number inside the logarithm, or a `clamp`, keeps the result finite and makes it wrong: at
    `x = -1000` it is the logarithm of that small number, or the bound of the `clamp`, and not `-1000`."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.log(torch.sigmoid(x) + 1e-12)


@LogOfSigmoidAndALittle.variant
class LogOfSigmoidThatIsBounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sigmoid().clamp(min=1e-12).log()

    @staticmethod
    def backward(ctx, grad):
        return ctx.saved_tensors[0].neg().sigmoid() * grad


@LogOfSigmoidAndALittle.form
class LogOfSigmoidOfTheBounded(_Right):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.log(torch.sigmoid(x.clamp(-80, 80)))


@LogOfSigmoidAndALittle.form
class InputIsBounded(_Right):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return -torch.log1p(torch.exp(-x.clamp(-80, 80)))


@LogOfSigmoidAndALittle.form
class InputIsBoundedBothWays(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return _log_sigmoid(x.clamp(-50, 50))

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * torch.sigmoid(-x.clamp(-50, 50))


@LogOfSigmoidAndALittle.form
class InputIsBoundedInForward(_Right):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return -torch.log1p(torch.exp(-x.clamp(-50, 50)))


@exercise.mistake
class ForgetsLog1p(_Right):
    """Nothing overflows, and `1 + exp(-|x|)` forgets a small `exp(-|x|)`: in float32 the sum is exactly 1
    from about `x = 17` on. `torch.log1p` never forms the sum."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(max=0) - torch.log(1 + torch.exp(-x.abs()))


@ForgetsLog1p.variant
class SumsBothExponentials(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        zero = torch.zeros_like(x)
        largest = torch.maximum(zero, -x)
        return -(largest + ((zero - largest).exp() + (-x - largest).exp()).log())

    @staticmethod
    def backward(ctx, grad):
        return ctx.saved_tensors[0].neg().sigmoid() * grad


@ForgetsLog1p.form
class ForgetsSmallNumbersTwice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(max=0) - torch.log(1 + torch.exp(-x.abs()))

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (1 - torch.sigmoid(x))


@exercise.mistake
class AsOneOfTwoClasses(_Right):
    """You stack `x` with zeros and take a softmax, or `logsumexp`, over the two: that forgets a small
    `exp(-|x|)` beside 1, and in float32 the result is 0 from about `x = 17` on. `torch.log1p` never forms the
    sum. (What was stacked and reduced also has another layout than a transposed `x`.)"""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return -torch.logsumexp(torch.stack([torch.zeros_like(x), -x]), 0)


@AsOneOfTwoClasses.variant
class LogSoftmaxOfTwo(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.log_softmax(torch.stack([x, torch.zeros_like(x)]), 0)[0]

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * torch.softmax(torch.stack([x, torch.zeros_like(x)]), 0)[1]


@AsOneOfTwoClasses.form
class LogSoftmaxAlongTheLast(_Right):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.log_softmax(torch.stack([x, torch.zeros_like(x)], -1), -1)[..., 0]


@exercise.mistake
class ThresholdOfFloat32(_Right):
    """From a fixed threshold on you take `x` itself, or 0, for the result. A threshold belongs to a dtype: at
    `x = -25` float32 cannot tell the result from `x`, and float64 can. Close to 0 there is none at all, as
    small numbers keep their digits. The stable form needs no threshold."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x < -20, x, -torch.log1p(torch.exp(-x)))


@ThresholdOfFloat32.form
class ThresholdOnBothSides(_Right):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        middle = -torch.log1p(torch.exp(-x.clamp(-20, 20)))
        return torch.where(x < -20, x, torch.where(x > 20, 0.0, middle))


@exercise.mistake
class OneMinusSigmoid(_Right):
    """Far to the right your gradient is lost, in a difference of two numbers that are nearly equal. On paper
    the derivative is `1 - sigmoid(x)`, or `1 - exp(y)` from the result, or `(1 - tanh(x / 2)) / 2`; in
    floating point both sides of the minus are rounded to the same number. `sigmoid(-x)` subtracts nothing,
    and for `y` torch has `expm1`."""

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (1 - torch.sigmoid(x))


@OneMinusSigmoid.variant
class OneMinusExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = -torch.logaddexp(-x, torch.zeros_like(x))
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return grad - grad * y.exp()


@OneMinusSigmoid.variant
class OneMinusTanh(_Right):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (1 - torch.tanh(x / 2)) / 2


@exercise.mistake
class OverflowsInBackward(_Right):
    """Forward holds and backward divides infinity by infinity: `exp(-x) / (1 + exp(-x))` is `nan` far to the
    left. Which of the two exponentials is small depends on the sign of `x`; `torch.sigmoid` takes care of
    that."""

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        e = torch.exp(-x)
        return grad * e / (1 + e)


@OverflowsInBackward.variant
class OverflowsInAQuotient(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return torch.minimum(x, torch.zeros_like(x)) - x.abs().neg().exp().log1p()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return torch.div(x.neg().exp(), x.neg().exp() + 1).mul(grad)


@exercise.mistake
class MultipliesByMasks(_Right):
    """You multiply branches by masks, and 0 times infinity is `nan`: each branch is right on its side and
    overflows on the other, which a mask does not remove. Choose with `torch.where`, or give each branch an
    argument for which it does not overflow."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        right, left = -torch.log1p(torch.exp(-x)), x - torch.log1p(torch.exp(x))
        return (x >= 0) * right + (x < 0) * left


@MultipliesByMasks.variant
class BlendsTwoBranches(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        share = x.gt(0).to(x)
        return share * -(-x).exp().log1p() + (1 - share) * (x - x.exp().log1p())

    @staticmethod
    def backward(ctx, grad):
        return ctx.saved_tensors[0].neg().sigmoid().mul(grad)


@MultipliesByMasks.form
class MultipliesByMasksInBackward(_Right):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        left, right = 1 / (1 + x.exp()), (-x).exp() / (1 + (-x).exp())
        return grad * ((x < 0) * left + (x >= 0) * right)


@exercise.mistake
class OverflowsOneDerivativeLater(_Right):
    """Values and gradients are right, and the second derivative is `nan` at the extremes: it is made by
    autograd from what backward did. There an `exp` has overflowed, which did no harm while it stood below a
    fraction bar, or in the branch that `torch.where` did not take. Its derivative multiplies that infinity
    by 0. Backward may contain no infinity, not even one that is thrown away."""

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        left, right = 1 / (1 + x.exp()), (-x).exp() / (1 + (-x).exp())
        return grad * torch.where(x < 0, left, right)


@OverflowsOneDerivativeLater.variant
class BothBranchesOverflow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return -torch.logaddexp(torch.zeros_like(x), -x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        small = torch.exp(-x)
        return torch.where(x > 0, grad * small / (small + 1), grad * (torch.exp(x) + 1).reciprocal())


@OverflowsOneDerivativeLater.form
class TheFormulaAsItStands(_Right):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad / (1 + torch.exp(x))


@exercise.mistake
class FlatAtZero(_Right):
    """Everything is right but one point: your backward contains `|x|`, and the derivative of `abs` at 0 is 0
    in torch. Autograd differentiates backward operator by operator and finds the second derivative 0 where
    it is `-0.25`."""

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        e = torch.exp(-x.abs())
        return grad * torch.where(x >= 0, e, 1) / (1 + e)


@FlatAtZero.variant
class FlatWhereBothMeet(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return -torch.logaddexp(-x, torch.zeros_like(x))

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        small = x.abs().neg().exp()
        part = small / (1 + small)
        return torch.where(x < 0, grad - grad * part, grad * part)


@exercise.mistake
class DifferentiatesForwardAgain(_Right):
    """In backward you run the formula of forward once more and let autograd differentiate it. Its operators
    are right in value, and where they have a corner torch takes some number for the slope: 0 for `abs` at 0,
    1 for `clamp` at its bound. At `x = 0` the corners no longer cancel. (And made of a detached `x` it has no
    second derivative at all.) Write the slope down yourself."""

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            return torch.autograd.grad(_log_sigmoid(x), x, grad)[0]


@DifferentiatesForwardAgain.form
class DifferentiatesForwardInTheGraph(_Right):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        recorded = torch.is_grad_enabled()
        with torch.enable_grad():
            x = x.view_as(x) if x.requires_grad else x.detach().requires_grad_()
            return torch.autograd.grad(_log_sigmoid(x), x, grad, create_graph=recorded)[0]


@exercise.mistake
class SlopeWithCorners(_Right):
    """Everything is right but the second derivative at `x = 0`, which comes out as `-0.5` instead of `-0.25`.
    Backward uses operators with a corner there, such as `abs` and `clamp`. Their values fit together and the
    slopes that torch takes for them, 0 and 1, do not."""

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * torch.exp(_log_sigmoid(-x))


@SlopeWithCorners.variant
class SlopeByTheSmallerOne(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return -torch.logaddexp(-x, torch.zeros_like(x))

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (-x).clamp(max=0).exp() / (1 + x.abs().neg().exp())


@exercise.mistake
class SlopeMadeInForward(torch.autograd.Function):
    """Values and gradients are right, and backward cannot be differentiated: for autograd your slope is a
    number that does not depend on `x`. Forward runs without recording, so what is made there (a slope, a copy
    of `x`) has no history, nor has `x.detach()` or `x.data`. Save `x` itself, or the result, and make the
    slope from it in backward."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(torch.sigmoid(-x))
        return _log_sigmoid(x)

    @staticmethod
    def backward(ctx, grad):
        (slope,) = ctx.saved_tensors
        return grad * slope


@SlopeMadeInForward.variant
class SlopeOfTheDetached(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return -torch.logaddexp(torch.zeros_like(x), -x)

    @staticmethod
    def backward(ctx, grad):
        x = ctx.saved_tensors[0].detach()
        return torch.sigmoid(-x).mul(grad)


@SlopeMadeInForward.variant
class SlopeOfTheData(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return torch.minimum(x, torch.zeros_like(x)) - (-x.abs()).exp().log1p()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return -grad * y.data.expm1()


@SlopeMadeInForward.form
class SlopeBesideTheInput(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        slope = torch.sigmoid(-x)
        ctx.save_for_backward(x, slope)
        return _log_sigmoid(x)

    @staticmethod
    def backward(ctx, grad):
        _, slope = ctx.saved_tensors
        return grad * slope


@exercise.mistake
class BackwardWithoutRecording(_Right):
    """Values and gradients are right, and nothing of your backward was recorded, so it cannot be
    differentiated: `torch.no_grad()` sees to that, and so does detaching what you return. Nothing of the
    kind is needed: without `create_graph=True` backward is not recorded anyway."""

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        with torch.no_grad():
            return grad * torch.sigmoid(-x)


@BackwardWithoutRecording.variant
class ReturnsDetached(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return -torch.logaddexp(torch.zeros_like(x), -x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return (x.neg().sigmoid() * grad).detach()


@exercise.mistake
class OnceOnly(_Right):
    """`once_differentiable` forbids the second derivative. It is for a backward that autograd could not
    differentiate correctly; one that is made of differentiable operators needs no such mark."""

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * torch.sigmoid(-x)


@exercise.mistake
class OtherSide(_Right):
    """Your gradient is that of the mirrored function: it grows to the right, where the log-sigmoid is flat.
    The derivative is `1 - sigmoid(x)`, which is `sigmoid(-x)`, not `sigmoid(x)`."""

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * torch.sigmoid(x)


@OtherSide.form
class ExpOfTheResult(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = -torch.logaddexp(-x, torch.zeros_like(x))
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return y.exp() * grad


@exercise.mistake
class SlopeOfTheSigmoid(_Right):
    """Your gradient is `s * (1 - s)`, the derivative of the sigmoid. That of its logarithm has a `1 / s`
    more: what is left is `1 - s`, or `sigmoid(-x)`."""

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad * s * (1 - s)


@SlopeOfTheSigmoid.variant
class SlopeOfTheSigmoidOfBoth(_Right):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return x.sigmoid() * x.neg().sigmoid() * grad


@exercise.mistake
class NoSlopeAtZero(_Right):
    """At `x = 0` your gradient is 0, and right elsewhere. The log-sigmoid has no corner there, its slope is
    0.5; but `torch.sign` is 0 at 0, and so is the derivative of `abs` in torch."""

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        e = torch.exp(-x.abs())
        return grad * ((x < 0).to(x.dtype) + torch.sign(x) * e / (1 + e))


@exercise.mistake
class OtherSign(_Right):
    """Your gradient has the wrong sign. The log-sigmoid rises everywhere: for an incoming gradient of 1 the
    gradient is positive. (The inner derivative of `exp(-x)` brings one minus, the minus before the logarithm
    another.)"""

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return -grad * torch.sigmoid(-x)


@OtherSign.form
class ForgetsOneMinus(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = -torch.logaddexp(-x, torch.zeros_like(x))
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        return torch.expm1(ctx.saved_tensors[0]) * grad


@exercise.mistake
class DropsTheIncoming(_Right):
    """You return the derivative alone, not multiplied by what comes in. What comes into backward is the
    gradient of the loss with respect to your result; the chain rule multiplies the two."""

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return torch.sigmoid(-x)


@DropsTheIncoming.form
class ReturnsTheSlope(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return -torch.logaddexp(-x, torch.zeros_like(x))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, upstream):
        return 0 - ctx.saved_tensors[0].expm1()


@exercise.mistake
class KeptOnCtx(torch.autograd.Function):
    """`ctx.x = x` keeps the tensor and not its version: where it is changed in place between forward and
    backward, backward takes the new values and says nothing. `ctx.save_for_backward` notices."""

    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        return _log_sigmoid(x)

    @staticmethod
    def backward(ctx, grad):
        return grad * torch.sigmoid(-ctx.x)


@KeptOnCtx.variant
class KeptInADict(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return -torch.logaddexp(-x, torch.zeros_like(x))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.kept = {"x": inputs[0]}

    @staticmethod
    def backward(ctx, grad):
        return ctx.kept["x"].neg().sigmoid() * grad


@exercise.mistake
class ResultOnCtx(torch.autograd.Function):
    """You keep the result as an attribute of `ctx`, and the two hold each other: the result holds its node,
    the node is `ctx`, and `ctx` holds the result. This circle stays in memory when nobody wants it any more.
    Nor is a change of the result noticed. `save_for_backward` keeps a result without either."""

    @staticmethod
    def forward(ctx, x):
        ctx.y = _log_sigmoid(x)
        return ctx.y

    @staticmethod
    def backward(ctx, grad):
        return -grad * torch.expm1(ctx.y)


@exercise.mistake
class AlwaysFloat32(_Right):
    """You compute in float32 whatever came in, and the result is float32. A float64 input loses half its
    digits (and `gradcheck` fails, which needs them), and a half precision one comes back wider than it was.
    The result has the dtype of `x`."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return _log_sigmoid(x.float())


@AlwaysFloat32.variant
class ThroughFloat32(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return -torch.logaddexp(-x.to(torch.float32), torch.zeros((), device=x.device))

    @staticmethod
    def backward(ctx, grad):
        return ctx.saved_tensors[0].neg().sigmoid() * grad


@AlwaysFloat32.form
class AlwaysFloat32InBoth(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return _log_sigmoid(x.float())

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * torch.sigmoid(-x.float())


@exercise.mistake
class ThroughFloat32AndBack(torch.autograd.Function):
    """You compute in float32 and convert the result back to the dtype of `x`. That helps half precision; a
    float64 input has lost half its digits on the way (and `gradcheck` fails, which needs them)."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return _log_sigmoid(x.float()).to(x.dtype)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return (grad * torch.sigmoid(-x.float())).to(grad.dtype)


@ThroughFloat32AndBack.form
class ForwardThroughFloat32(_Right):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return _log_sigmoid(x.float()).to(x.dtype)


@exercise.mistake
class KeepsTwo(torch.autograd.Function):
    """You save more bytes than `x` has. One tensor is enough, `x` or the result: whatever can be computed
    again from it need not lie in memory until backward."""

    @staticmethod
    def forward(ctx, x):
        y = _log_sigmoid(x)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, grad):
        x, _ = ctx.saved_tensors
        return grad * torch.sigmoid(-x)


@KeepsTwo.variant
class KeepsTheExponential(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        small = torch.exp(-x.abs())
        ctx.save_for_backward(small, x)
        return torch.minimum(x, torch.zeros_like(x)) - small.log1p()

    @staticmethod
    def backward(ctx, grad):
        return ctx.saved_tensors[1].neg().sigmoid().mul(grad)


@exercise.mistake
class KeepsMoreOnCtx(_Right):
    """Besides what is saved, something stays in memory with the graph: an attribute of `ctx` does, and hooks
    for saved tensors do not see it. Together it is more than `x` has bytes. Compute it anew in backward."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.s = torch.sigmoid(-x)
        return _log_sigmoid(x)


@KeepsMoreOnCtx.form
class KeepsTwoMoreOnCtx(_Right):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.e, ctx.s = torch.exp(-x.abs()), torch.sigmoid(-x)
        return _log_sigmoid(x)


@exercise.mistake
class Builtin(_Right):
    """You call one of the functions that the task rules out: this exercise is about what they do inside.
    (`softplus` would not do in any case. From 20 on it returns its argument, and float64 sees that.)"""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return F.logsigmoid(x)


@Builtin.form
class MinusSoftplus(_Right):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return -F.softplus(-x)


@Builtin.form
class MinusALoss(_Right):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return -F.binary_cross_entropy_with_logits(x, torch.ones_like(x), reduction="none")


@exercise.mistake
class WritesIntoTheInput(_Right):
    """You write into the caller's `x`: an operator with an underscore does. Without it the result is a new
    tensor."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        small = torch.exp(-x.abs())
        return x.clamp_(max=0) - small.log1p()


@exercise.mistake
class WritesIntoWhatCameIn(_Right):
    """You multiply the incoming gradient in place. It belongs to whoever handed it in, and may be used
    elsewhere: at a second branch of the graph, say."""

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad.mul_(torch.sigmoid(-x))


@exercise.mistake
class MadeContiguous(_Right):
    """For a transposed `x`, or images in `channels_last`, your result has another layout. `contiguous()`
    makes one, and so does all that builds a new tensor from a shape. Arithmetic, `torch.where`
    and the `*_like` functions keep the strides."""

    @staticmethod
    def forward(ctx, x):
        x = x.contiguous()
        ctx.save_for_backward(x)
        return _log_sigmoid(x)


@MadeContiguous.variant
class FillsANewTensor(_Right):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        result = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        left = x < 0
        result[left] = x[left] - torch.log1p(torch.exp(x[left]))
        result[~left] = -torch.log1p(torch.exp(-x[~left]))
        return result
