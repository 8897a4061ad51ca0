"""Quantise, and train through it

`StraightThroughQuantize.apply(x, levels)` replaces each element of `x` by the nearest of `levels` numbers
that are spread evenly over [0, 1], both ends included: 0, 0.25, 0.5, 0.75 and 1 for 5 levels. What lies
outside goes to the nearer end; what lies half-way between two levels may go to either. `levels` is an
integer, 2 or more.

The derivative of this staircase is 0 wherever there is one, and nothing learns from it. So backward acts as
if forward had only *clipped* `x` to [0, 1]: where an element of `x` lies in [0, 1], the ends included, the
incoming gradient passes through as it is; elsewhere nothing passes.

- `levels` has no gradient. The result has the dtype of `x` and the strides of `torch.empty_like(x)`.
- No more than **one byte for each element** is kept for backward, in whatever place. If `x` is changed in
  place between forward and backward, the gradient must not be computed from the changed values.
- Neither `x` nor the incoming gradient is written to. Backward can be differentiated with respect to what
  comes in.

`StraightThroughQuantize.apply(torch.tensor([-1., 0.2, 0.9]), 3)` → `[0., 0., 1.]`, and an incoming gradient
of `[5., 5., 5.]` becomes `[0., 5., 5.]`
"""

import torch
from torch import Tensor

from course_utils import derivatives, expect, measure
from course_utils.derivatives import x_line
from course_utils.exercise import Exercise
from course_utils.expect import tensor_line

exercise = Exercise(
    minutes=10,
    hints=[
        "`torch.round` goes to the nearest whole number. Between 0 and 1 there are `levels - 1` steps: which "
        "number makes whole numbers of the levels, and what has to be done first to what lies outside?",
        "Whether the gradient passes depends on where the *input* was: not on how large the gradient is, and "
        "not on the result, in which 0 may come from -3 or from 0.1. What must be kept of the input for "
        "that, and which dtype takes one byte?",
        "`ctx.save_for_backward` takes tensors of booleans too. `backward` returns one thing for each "
        "argument of `forward` after `ctx`, and None stands for 'no gradient'.",
    ],
)


@exercise.starter
class StraightThroughQuantize(torch.autograd.Function):
    """x -> the nearest of `levels` numbers, evenly spread over [0, 1]"""

    @staticmethod
    def forward(ctx, x: Tensor, levels: int) -> Tensor:
        raise NotImplementedError

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        raise NotImplementedError


_CALL = "StraightThroughQuantize.apply(x, 5)"


def _nearest(x, levels):
    """Brute force: the distance to every level."""
    x = x.detach().cpu().double()
    all_levels = torch.arange(levels, dtype=torch.float64) / (levels - 1)
    return all_levels[(x.unsqueeze(-1) - all_levels).abs().argmin(-1)]


def _expect_values(StraightThroughQuantize, setup, levels):
    t = expect.given(setup, StraightThroughQuantize=StraightThroughQuantize)
    wanted = _nearest(t.x, levels).to(t.x)
    result = t.call(f"StraightThroughQuantize.apply(x, {levels})")
    expect.equal(result, wanted)
    return result


def _expect_gradient(StraightThroughQuantize, xs, gs, device):
    """The incoming gradient where `x` is in [0, 1], nothing elsewhere."""
    setup = f"{x_line(xs, device)}\n{tensor_line('g', gs, device)}"
    t = expect.given(setup, StraightThroughQuantize=StraightThroughQuantize)
    wanted = torch.tensor([g if 0 <= x <= 1 else 0.0 for x, g in zip(xs, gs, strict=True)])
    expect.equal(t.call(f"torch.autograd.grad({_CALL}, x, g)[0]"), wanted.to(device), what="the gradient")


@exercise.check
def values(StraightThroughQuantize, device):
    """Every element goes to the nearest level"""
    setup = x_line([0.0, 0.08, 0.2, 0.29, 0.45, 0.55, 0.72, 0.8, 0.95, 1.0], device)
    for levels in (5, 2, 3, 8, 300):
        expect.in_graph(_expect_values(StraightThroughQuantize, setup, levels), of="`x`")
    _expect_values(StraightThroughQuantize, x_line([], device), 5)


@exercise.check
def values_outside(StraightThroughQuantize, device):
    """What lies outside goes to the nearer end"""
    _expect_values(StraightThroughQuantize, x_line([[-3.0, -0.4, 0.2], [0.6, 1.3, 7.0]], device), 5)


@exercise.check
def passes_inside(StraightThroughQuantize, device):
    """In (0, 1) the incoming gradient passes as it is, whatever its size"""
    _expect_gradient(
        StraightThroughQuantize, [0.05, 0.3, 0.55, 0.7, 0.97], [5.0, -7.0, 0.25, 0.0, -0.5], device
    )


@exercise.check
def stops_outside(StraightThroughQuantize, device):
    """Outside nothing passes"""
    _expect_gradient(
        StraightThroughQuantize, [-3.0, -0.05, 0.4, 1.05, 2.0], [1.0, -1.0, 1.0, 0.5, 3.0], device
    )


@exercise.check
def passes_at_the_ends(StraightThroughQuantize, device):
    """At 0 and at 1 themselves it passes"""
    _expect_gradient(StraightThroughQuantize, [0.0, 1.0], [0.5, -0.5], device)


@exercise.check
def trains(StraightThroughQuantize, device):
    """Weights learn through it, until the quantised ones are what they should be"""
    setup = tensor_line("w", [0.9, 0.1, 0.4], device, requires_grad=True) + "\n"
    setup += tensor_line("target", [0.25, 1.0, 0.0], device)
    loss = "(StraightThroughQuantize.apply(w, 5) - target).square().sum()"
    t = expect.given(setup, StraightThroughQuantize=StraightThroughQuantize)
    optimizer = torch.optim.SGD([t.w], lr=0.1)
    for _ in range(25):
        optimizer.zero_grad()
        found = t.call(loss)
        expect.in_graph(found, what="the loss", of="`w`")
        found.backward()
        optimizer.step()
    with expect.situation(*setup.splitlines(), f"loss = {loss}", "25 steps of SGD(lr=0.1)"):
        result = StraightThroughQuantize.apply(t.w.detach(), 5)
        expect.equal(result, t.target, what="what the weights are quantised to")


@exercise.check
def every_dtype(StraightThroughQuantize, device):
    """Every dtype of floating point is kept"""
    for dtype in derivatives.other_dtypes(device):
        _expect_values(StraightThroughQuantize, x_line([0.1, 0.3, 0.9, 2.0], device, dtype=dtype), 8)


@exercise.check
def laid_out_alike(StraightThroughQuantize, device):
    """The result has the strides of `x`"""
    setup = derivatives.transposed_x([[-2.0, 0.1, 1.0], [0.4, 0.7, 5.0]], device)
    t = expect.given(setup, StraightThroughQuantize=StraightThroughQuantize)
    expect.strides(t.call(_CALL), t.x.stride())


@exercise.check
def kept_for_backward(StraightThroughQuantize, device):
    """One byte for each element is kept for backward, at most"""
    setup = x_line([-3.0, -0.5, 0.0, 0.5, 3.0], device)
    t = expect.given(setup, StraightThroughQuantize=StraightThroughQuantize)
    with expect.situation(setup, f"y = {_CALL}"):
        saved = measure.saved_bytes(t.StraightThroughQuantize.apply, t.x, 5)
        live = measure.live_bytes(t.StraightThroughQuantize.apply, t.x, 5)
        expect.at_most(saved.total, t.x.numel(), "kept for backward", unit="bytes")
        expect.at_most(live.held - live.result, t.x.numel(), "still there beside `x` and `y`", unit="bytes")
    with expect.situation(setup, f"y = {_CALL}", "del y"):
        expect.at_most(live.left, 0, "still there beside `x`", unit="bytes")


@exercise.check
def changed_in_between(StraightThroughQuantize, device):
    """A change of `x`, or of the result, in between does not reach the gradient"""
    setup = x_line([-1.0, 0.5, 2.0], device)
    derivatives.ignores_changes(StraightThroughQuantize, "StraightThroughQuantize.apply(a, 5)", setup)


@exercise.check
def left_alone(StraightThroughQuantize, device):
    """`x` and the incoming gradient stay what they were"""
    setup = x_line([-3.0, -0.5, 0.0, 0.7, 3.0], device)
    derivatives.leaves_alone(StraightThroughQuantize, _CALL, setup)


@exercise.check
def differentiable_backward(StraightThroughQuantize, device):
    """The gradient can be differentiated with respect to the incoming one"""
    setup = x_line([-3.0, 0.3, 0.7], device)
    derivatives.backward_can_be_differentiated(StraightThroughQuantize, _CALL, setup, [0.0, 1.0, 1.0])


# --- the mistakes -------------------------------------------------------------------------------------------


def _quantize(x, levels):
    return torch.round(x.clamp(0, 1) * (levels - 1)) / (levels - 1)


def _inside(x):
    return (x >= 0) & (x <= 1)


class _Right(torch.autograd.Function):
    """What is right in the answers below, unless they say otherwise."""

    @staticmethod
    def forward(ctx, x, levels):
        ctx.save_for_backward(_inside(x))
        return _quantize(x, levels)

    @staticmethod
    def backward(ctx, grad):
        (inside,) = ctx.saved_tensors
        return grad * inside, None


@exercise.mistake
class PassesEverywhere(torch.autograd.Function):
    """Your gradient passes everywhere. Outside [0, 1] forward gives the same end whatever `x` is, and an
    element out there would be pushed on and on without any effect on the result. It passes where `x` lies in
    [0, 1]. (The result always does, so a mask made of the result stops nothing.)"""

    @staticmethod
    def forward(ctx, x, levels):
        return _quantize(x, levels)

    @staticmethod
    def backward(ctx, grad):
        return grad, None


@PassesEverywhere.variant
class MasksByTheClippedResult(torch.autograd.Function):
    @staticmethod
    def forward(x, levels):
        return torch.floor(x.clamp(0, 1) * (levels - 1) + 0.5) / (levels - 1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward((output >= 0) & (output <= 1))

    @staticmethod
    def backward(ctx, grad):
        (mask,) = ctx.saved_tensors
        return torch.where(mask, grad, 0), None


@PassesEverywhere.form
class MasksByTheKeptResult(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, levels):
        y = _quantize(x, levels)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return grad * _inside(y), None


@exercise.mistake
class ClampsTheGradient(torch.autograd.Function):
    """You clip the incoming gradient, its *values*: a 5 arrives as a 1, and an element far outside still gets
    its gradient. What decides is where the *input* was. Inside [0, 1] the gradient passes at its full size,
    outside not at all."""

    @staticmethod
    def forward(ctx, x, levels):
        return _quantize(x, levels)

    @staticmethod
    def backward(ctx, grad):
        return grad.clamp(-1, 1), None


@ClampsTheGradient.variant
class HardTanhOfTheGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, levels):
        steps = torch.linspace(0, 1, levels, dtype=x.dtype, device=x.device)
        return steps[(x.clamp(0, 1) * (levels - 1)).round().long()]

    @staticmethod
    def backward(ctx, incoming):
        return torch.nn.functional.hardtanh(incoming), None


@ClampsTheGradient.form
class ClampsTheGradientToTheRange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, levels):
        return _quantize(x, levels)

    @staticmethod
    def backward(ctx, grad):
        return grad.clamp(0, 1), None


@ClampsTheGradient.form
class ClampsAndMasks(_Right):
    @staticmethod
    def backward(ctx, grad):
        (inside,) = ctx.saved_tensors
        return grad.clamp(-1, 1) * inside, None


@exercise.mistake
class DerivativeOfRound(torch.autograd.Function):
    """Your gradient is 0 everywhere. That is the derivative of the staircase, and what autograd gives for
    `torch.round`; with it no weight ever moves. Straight-through means to put another derivative in its
    place: that of clipping."""

    @staticmethod
    def forward(ctx, x, levels):
        return _quantize(x, levels)

    @staticmethod
    def backward(ctx, grad):
        return grad * 0, None


@DerivativeOfRound.form
class NoGradientAtAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, levels):
        return _quantize(x, levels)

    @staticmethod
    def backward(ctx, grad):
        return torch.zeros_like(grad), None


@DerivativeOfRound.form
class AutogradOfRound(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, levels):
        with torch.enable_grad():
            ctx.x = x.detach().clone().requires_grad_()
            ctx.y = _quantize(ctx.x, levels)
        return ctx.y.detach()

    @staticmethod
    def backward(ctx, grad):
        return torch.autograd.grad(ctx.y, ctx.x, grad, retain_graph=True)[0], None


@exercise.mistake
class MasksByTheOutput(torch.autograd.Function):
    """You decide by the result whether the gradient passes. A result of 0 may come from -3 and from 0.1, and
    an element at 0.1 is to learn. Decide by the input."""

    @staticmethod
    def forward(ctx, x, levels):
        y = _quantize(x, levels)
        ctx.save_for_backward((y > 0) & (y < 1))
        return y

    @staticmethod
    def backward(ctx, grad):
        (between,) = ctx.saved_tensors
        return grad * between, None


@MasksByTheOutput.variant
class MasksByTheLevel(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, levels):
        number = (x.clamp(0, 1) * (levels - 1)).round()
        ctx.save_for_backward((number == 0) | (number == levels - 1))
        return number / (levels - 1)

    @staticmethod
    def backward(ctx, grad):
        (at_an_end,) = ctx.saved_tensors
        return grad.masked_fill(at_an_end, 0), None


@MasksByTheOutput.form
class KeepsTheOutput(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, levels):
        y = _quantize(x, levels)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return grad * ((y > 0) & (y < 1)), None


@exercise.mistake
class LeavesOutTheEnds(_Right):
    """At 0 and at 1 exactly your gradient is stopped. These ends belong to [0, 1]: `<=`, not `<`. Weights
    that were initialised with zeros, or clipped, lie exactly there, and would never move again."""

    @staticmethod
    def forward(ctx, x, levels):
        ctx.save_for_backward((x > 0) & (x < 1))
        return _quantize(x, levels)


@LeavesOutTheEnds.variant
class StopsWhatReachesTheEnds(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, levels):
        ctx.save_for_backward(x.le(0).logical_or(x.ge(1)))
        return torch.floor(x.clamp(0, 1) * (levels - 1) + 0.5) / (levels - 1)

    @staticmethod
    def backward(ctx, grad):
        return grad.masked_fill(ctx.saved_tensors[0], 0.0), None


@exercise.mistake
class LeavesOutOneEnd(_Right):
    """At one of the two ends exactly your gradient is stopped, and at the other it passes. Both belong to
    [0, 1]: `<=` on either side."""

    @staticmethod
    def forward(ctx, x, levels):
        ctx.save_for_backward((x >= 0) & (x < 1))
        return _quantize(x, levels)


@LeavesOutOneEnd.form
class LeavesOutTheLowerEnd(_Right):
    @staticmethod
    def forward(ctx, x, levels):
        ctx.save_for_backward((x > 0) & (x <= 1))
        return _quantize(x, levels)


@exercise.mistake
class MasksAfterRounding(_Right):
    """You ask after rounding what lies in [0, 1]. Up to half a step outside everything is rounded to an end,
    and there your gradient still passes. Ask it of `x` itself."""

    @staticmethod
    def forward(ctx, x, levels):
        number = torch.round(x * (levels - 1))
        ctx.save_for_backward((number >= 0) & (number <= levels - 1))
        return _quantize(x, levels)


@exercise.mistake
class OtherRange(_Right):
    """Your gradient passes below 0 too, where |x| ≤ 1. That is the range of a quantiser on [-1, 1]; this one
    begins at 0, and below it the result is not to follow `x`."""

    @staticmethod
    def forward(ctx, x, levels):
        ctx.save_for_backward(x.abs() <= 1)
        return _quantize(x, levels)


@OtherRange.form
class OtherRangeInBoth(_Right):
    @staticmethod
    def forward(ctx, x, levels):
        ctx.save_for_backward(x.abs() <= 1)
        return torch.round(x.clamp(-1, 1) * (levels - 1)) / (levels - 1)


@exercise.mistake
class OneSideOnly(_Right):
    """Your gradient is stopped on one side only. The result no longer follows `x` below 0, nor above 1."""

    @staticmethod
    def forward(ctx, x, levels):
        ctx.save_for_backward(x <= 1)
        return _quantize(x, levels)


@OneSideOnly.form
class OtherSideOnly(_Right):
    @staticmethod
    def forward(ctx, x, levels):
        ctx.save_for_backward(x >= 0)
        return _quantize(x, levels)


@exercise.mistake
class TooFewGradients(_Right):
    """Forward takes two arguments and your backward returns one thing. It returns one for each argument after
    `ctx`, in their order, and None for those that have no gradient."""

    @staticmethod
    def backward(ctx, grad):
        (inside,) = ctx.saved_tensors
        return grad * inside


@TooFewGradients.variant
class OnlyTheFirst(torch.autograd.Function):
    @staticmethod
    def forward(x, levels):
        return torch.floor(x.clamp(0, 1) * (levels - 1) + 0.5) / (levels - 1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, _ = inputs
        ctx.save_for_backward(_inside(x))

    @staticmethod
    def backward(ctx, grad):
        return (torch.where(ctx.saved_tensors[0], grad, 0.0),)


@exercise.mistake
class GradientForLevels(_Right):
    """You return a gradient for `levels`, an ordinary number. Only tensors have gradients; the place of
    everything else is filled with None, and 0 is not None."""

    @staticmethod
    def backward(ctx, grad):
        (inside,) = ctx.saved_tensors
        return grad * inside, torch.zeros_like(grad)


@GradientForLevels.variant
class ZeroForLevels(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, levels):
        steps = levels - 1
        ctx.save_for_backward(_inside(x))
        return x.clamp(0, 1).mul(steps).round().div(steps)

    @staticmethod
    def backward(ctx, grad):
        return grad.masked_fill(~ctx.saved_tensors[0], 0.0), 0


@exercise.mistake
class OneLevelTooMany(_Right):
    """You make one level too many: `levels` levels have `levels - 1` steps between them. Rounding to
    multiples of `1 / levels` gives 0, 1 and all between, which are `levels + 1` numbers."""

    @staticmethod
    def forward(ctx, x, levels):
        ctx.save_for_backward(_inside(x))
        return torch.round(x.clamp(0, 1) * levels) / levels


@OneLevelTooMany.variant
class AFenceOfLevels(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, levels):
        ctx.save_for_backward(_inside(x))
        return (x.clamp(0, 1) * levels + 0.5).floor() * (1 / levels)

    @staticmethod
    def backward(ctx, grad):
        (inside,) = ctx.saved_tensors
        return torch.where(inside, grad, 0), None


@exercise.mistake
class OneLevelTooFew(_Right):
    """You make one level too few: between `levels` levels there are `levels - 1` steps, and yours are
    `levels - 2`. For 2 levels you divide by 0."""

    @staticmethod
    def forward(ctx, x, levels):
        ctx.save_for_backward(_inside(x))
        return torch.round(x.clamp(0, 1) * (levels - 2)) / (levels - 2)


@exercise.mistake
class AlwaysFiveLevels(_Right):
    """Your levels are those of the example, 0, 0.25, 0.5, 0.75 and 1, whatever `levels` says."""

    @staticmethod
    def forward(ctx, x, levels):
        ctx.save_for_backward(_inside(x))
        return _quantize(x, 5)


@exercise.mistake
class NumbersInOneByte(_Right):
    """With more than 256 levels your results begin again at 0: the numbers of the levels are counted in a
    byte, which holds 0 to 255. A floating-point number holds them all."""

    @staticmethod
    def forward(ctx, x, levels):
        ctx.save_for_backward(_inside(x))
        return torch.round(x.clamp(0, 1) * (levels - 1)).to(torch.int32).to(torch.uint8).to(x.dtype) / (
            levels - 1
        )


@exercise.mistake
class RoundsDown(_Right):
    """You go to the level below: `floor`, `int` and the conversion to integers cut off. The nearest level is
    what `torch.round` finds."""

    @staticmethod
    def forward(ctx, x, levels):
        ctx.save_for_backward(_inside(x))
        return torch.floor(x.clamp(0, 1) * (levels - 1)) / (levels - 1)


@RoundsDown.variant
class CutsOff(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, levels):
        ctx.save_for_backward(_inside(x))
        return (x.clamp(0, 1) * (levels - 1)).long().to(x.dtype) / (levels - 1)

    @staticmethod
    def backward(ctx, grad):
        (inside,) = ctx.saved_tensors
        return torch.where(inside, grad, 0), None


@exercise.mistake
class PartsOfEqualWidth(_Right):
    """You cut [0, 1] into `levels` parts of equal width and number them, which is not the nearest level: with
    5 levels 0.85 lies in the last part and becomes 1, and 0.75 is nearer. What is nearest to an end is half
    as wide as what is nearest to a level in between. `torch.round` divides it like this, on `levels - 1`
    steps."""

    @staticmethod
    def forward(ctx, x, levels):
        ctx.save_for_backward(_inside(x))
        return torch.floor(x.clamp(0, 1) * levels).clamp(max=levels - 1) / (levels - 1)


@PartsOfEqualWidth.form
class PartsOfEqualWidthAndOneMore(_Right):
    @staticmethod
    def forward(ctx, x, levels):
        ctx.save_for_backward(_inside(x))
        return torch.floor(x.clamp(0, 1) * levels) / (levels - 1)


@exercise.mistake
class NumbersTheLevels(_Right):
    """Your results are the numbers of the levels, 0, 1, 2, …, as a quantiser stores them. Here the levels
    themselves are wanted, on the scale of `x`: divide by the `levels - 1` that you multiplied by."""

    @staticmethod
    def forward(ctx, x, levels):
        ctx.save_for_backward(_inside(x))
        return torch.round(x.clamp(0, 1) * (levels - 1))


@exercise.mistake
class GoesOnOutside(_Right):
    """Outside [0, 1] your staircase goes on: -3 is rounded to -3. There are `levels` levels and no more; clip
    before you round (or after)."""

    @staticmethod
    def forward(ctx, x, levels):
        ctx.save_for_backward(_inside(x))
        return torch.round(x * (levels - 1)) / (levels - 1)


@GoesOnOutside.form
class GoesOnOutsideAndPasses(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, levels):
        return torch.round(x * (levels - 1)) / (levels - 1)

    @staticmethod
    def backward(ctx, grad):
        return grad, None


@exercise.mistake
class CountsTheSteps(torch.autograd.Function):
    """Your gradient is too large or too small by `levels - 1`: you counted one of the two scalings, and the
    other undoes it. From `x` to the result the slope is 1 on the whole."""

    @staticmethod
    def forward(ctx, x, levels):
        ctx.steps = levels - 1
        ctx.save_for_backward(_inside(x))
        return _quantize(x, levels)

    @staticmethod
    def backward(ctx, grad):
        (inside,) = ctx.saved_tensors
        return grad * inside * ctx.steps, None


@CountsTheSteps.form
class DividesByTheSteps(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, levels):
        ctx.steps = levels - 1
        ctx.save_for_backward(_inside(x))
        return _quantize(x, levels)

    @staticmethod
    def backward(ctx, grad):
        (inside,) = ctx.saved_tensors
        return grad * inside / ctx.steps, None


@exercise.mistake
class DropsTheIncoming(_Right):
    """You return the mask, or ones, and not the incoming gradient. Straight through means that this gradient
    is what passes."""

    @staticmethod
    def backward(ctx, grad):
        (inside,) = ctx.saved_tensors
        return inside.to(grad), None


@DropsTheIncoming.form
class OnesEverywhere(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, levels):
        return _quantize(x, levels)

    @staticmethod
    def backward(ctx, grad):
        return torch.ones_like(grad), None


@exercise.mistake
class KeepsTheInput(torch.autograd.Function):
    """You keep all of `x`, four bytes for each element or eight, and backward asks a single question of it:
    inside or outside? Ask it in forward and keep the answer: a tensor of booleans takes one byte for each."""

    @staticmethod
    def forward(ctx, x, levels):
        ctx.save_for_backward(x)
        return _quantize(x, levels)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * _inside(x), None


@KeepsTheInput.variant
class KeepsItForWhere(torch.autograd.Function):
    @staticmethod
    def forward(x, levels):
        return torch.floor(x.clamp(0, 1) * (levels - 1) + 0.5) / (levels - 1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, grad):
        x = ctx.saved_tensors[0]
        return torch.where((x < 0) | (x > 1), 0, grad), None


@exercise.mistake
class KeepsAMaskOfNumbers(_Right):
    """Forward makes a tensor and keeps it for backward, four bytes for each element or eight. All that
    backward asks is inside or outside, and a tensor of booleans tells it in one byte for each. A mask that is
    converted to the dtype of `x`, or a copy of `x`, takes as much as `x` does."""

    @staticmethod
    def forward(ctx, x, levels):
        ctx.save_for_backward(_inside(x).to(x.dtype))
        return _quantize(x, levels)


@KeepsAMaskOfNumbers.variant
class KeepsACopy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, levels):
        ctx.save_for_backward(x.clone())
        return x.clamp(0, 1).mul(levels - 1).round().div(levels - 1)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return torch.where(_inside(x), grad, 0), None


@KeepsAMaskOfNumbers.form
class KeepsAMaskOfNumbersOnCtx(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, levels):
        ctx.mask = _inside(x).to(x.dtype)
        return _quantize(x, levels)

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.mask, None


@KeepsAMaskOfNumbers.form
class KeepsAMaskOfIntegers(_Right):
    @staticmethod
    def forward(ctx, x, levels):
        ctx.save_for_backward(_inside(x).long())
        return _quantize(x, levels)


@exercise.mistake
class KeepsTwoMasks(torch.autograd.Function):
    """You keep a mask for either end, which makes two bytes for each element. Backward asks one question,
    inside or outside: put the two together in forward, with `&` or `|`."""

    @staticmethod
    def forward(ctx, x, levels):
        ctx.save_for_backward(x >= 0, x <= 1)
        return _quantize(x, levels)

    @staticmethod
    def backward(ctx, grad):
        lower, upper = ctx.saved_tensors
        return grad * lower * upper, None


@exercise.mistake
class KeptOnCtx(torch.autograd.Function):
    """`ctx.x = x` takes no memory of its own and does not notice a change: where `x` is changed in place
    between forward and backward, your mask is made of the new values. Make the mask in forward."""

    @staticmethod
    def forward(ctx, x, levels):
        ctx.x = x
        return _quantize(x, levels)

    @staticmethod
    def backward(ctx, grad):
        return grad * _inside(ctx.x), None


@KeptOnCtx.variant
class KeptInAList(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, levels):
        ctx.inputs = [x, levels]
        return x.clamp(0, 1).mul(levels - 1).round().div(levels - 1)

    @staticmethod
    def backward(ctx, grad):
        x, _ = ctx.inputs
        return torch.where((x < 0) | (x > 1), 0, grad), None


@exercise.mistake
class WritesIntoWhatCameIn(_Right):
    """You set elements of the incoming gradient to 0 in place. It belongs to whoever handed it in, and may be
    used elsewhere, at another branch of the graph. Make a new tensor: `torch.where`, a product, a clone."""

    @staticmethod
    def backward(ctx, grad):
        (inside,) = ctx.saved_tensors
        grad[~inside] = 0
        return grad, None


@WritesIntoWhatCameIn.variant
class MultipliesInPlace(_Right):
    @staticmethod
    def backward(ctx, grad):
        (inside,) = ctx.saved_tensors
        return grad.mul_(inside), None


@WritesIntoWhatCameIn.variant
class FillsInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, levels):
        ctx.save_for_backward(~_inside(x))
        return _quantize(x, levels)

    @staticmethod
    def backward(ctx, grad):
        (outside,) = ctx.saved_tensors
        return grad.masked_fill_(outside, 0), None


@WritesIntoWhatCameIn.form
class WritesIntoTheData(_Right):
    @staticmethod
    def backward(ctx, grad):
        (inside,) = ctx.saved_tensors
        grad.data[~inside] = 0
        return grad, None


@exercise.mistake
class ClampsTheInputItself(_Right):
    """You write into the caller's `x`. An operator with an underscore, such as `clamp_`, does that; without
    it the result is a new tensor."""

    @staticmethod
    def forward(ctx, x, levels):
        ctx.save_for_backward(_inside(x))
        return torch.round(x.clamp_(0, 1) * (levels - 1)) / (levels - 1)


@ClampsTheInputItself.form
class ComputesInPlace(_Right):
    @staticmethod
    def forward(ctx, x, levels):
        ctx.save_for_backward(_inside(x))
        return x.clamp_(0, 1).mul_(levels - 1).round_().div_(levels - 1)


@exercise.mistake
class AlwaysFloat32(_Right):
    """Your result is float32 whatever `x` was. `.float()` does that, and so does a tensor of levels that is
    made without `dtype=x.dtype`."""

    @staticmethod
    def forward(ctx, x, levels):
        ctx.save_for_backward(_inside(x))
        return _quantize(x.float(), levels)


@AlwaysFloat32.variant
class TakesFromATable(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, levels):
        ctx.save_for_backward(_inside(x))
        table = torch.linspace(0, 1, levels, device=x.device)
        return table[(x.clamp(0, 1) * (levels - 1)).round().long()]

    @staticmethod
    def backward(ctx, grad):
        (inside,) = ctx.saved_tensors
        return torch.where(inside, grad, 0), None


@exercise.mistake
class TableOfFloat32(_Right):
    """You take the levels from a table, and the result is float32, as the table is, whatever `x` was. For a
    transposed `x` its layout is another one too, since `unsqueeze` and `argmin` make theirs. Computed from
    each element by `clamp`, `*`, `round` and `/`, the level keeps the dtype and the strides."""

    @staticmethod
    def forward(ctx, x, levels):
        ctx.save_for_backward(_inside(x))
        table = torch.linspace(0, 1, levels, device=x.device)
        return table[(x.unsqueeze(-1) - table).abs().argmin(-1)]


@exercise.mistake
class BackwardWithoutRecording(_Right):
    """The gradient is right, and your backward is not recorded, so nothing can be learned through it (as a
    gradient penalty does): `torch.no_grad()`, `.detach()`, `.data` and `once_differentiable` see to that.
    Leave them out; without `create_graph=True` nothing is recorded anyway."""

    @staticmethod
    def backward(ctx, grad):
        (inside,) = ctx.saved_tensors
        with torch.no_grad():
            return grad * inside, None


@BackwardWithoutRecording.variant
class ClonesTheData(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, levels):
        ctx.save_for_backward(_inside(x))
        return x.clamp(0, 1).mul(levels - 1).round().div(levels - 1)

    @staticmethod
    def backward(ctx, grad):
        (inside,) = ctx.saved_tensors
        passed = grad.data.clone()
        passed[~inside] = 0
        return passed, None


@BackwardWithoutRecording.form
class OnceOnly(_Right):
    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        (inside,) = ctx.saved_tensors
        return grad * inside, None


@exercise.mistake
class StopsBehindTheGraph(_Right):
    """The gradient is right, and its own derivative passes everywhere. The zeros came in without being
    recorded, through `.data`, `detach()` or `torch.no_grad()`, and autograd still takes what comes out for
    the incoming gradient. Multiply by the mask, or use `torch.where`."""

    @staticmethod
    def backward(ctx, grad):
        (inside,) = ctx.saved_tensors
        passed = grad.clone()
        passed.data[~inside] = 0
        return passed, None


@StopsBehindTheGraph.variant
class TakesAwayWhatIsDetached(_Right):
    @staticmethod
    def backward(ctx, grad):
        (inside,) = ctx.saved_tensors
        return grad - (grad * ~inside).detach(), None


@exercise.mistake
class MadeContiguous(_Right):
    """For a transposed `x` your result has another layout. `contiguous()` makes one, and so do `masked_fill`
    and all that builds a new tensor from a shape or searches a table. Arithmetic, `torch.where` and the
    `*_like` functions keep the strides."""

    @staticmethod
    def forward(ctx, x, levels):
        x = x.contiguous()
        ctx.save_for_backward(_inside(x))
        return _quantize(x, levels)


@MadeContiguous.variant
class LooksUpATable(_Right):
    @staticmethod
    def forward(ctx, x, levels):
        ctx.save_for_backward(_inside(x))
        table = torch.linspace(0, 1, levels, dtype=x.dtype, device=x.device)
        return table[(x.unsqueeze(-1) - table).abs().argmin(-1)]
