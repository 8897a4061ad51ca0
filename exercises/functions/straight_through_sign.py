"""A sign that can be trained

`StraightThroughSign.apply(x)` makes every element of `x` either -1 or +1. There is no third value: 0 counts
as positive, `-0.` too, and becomes +1. No element is `nan`.

The sign has the derivative 0 wherever it has one. Backward passes the incoming gradient on as it is for the
elements of `x` between -1 and 1, **both ends included**, and stops it for the others, whichever way it
pushes.

- The result has the dtype of `x`, which may be any of floating point; its strides are those of
  `torch.empty_like(x)`.
- No more bytes are kept for backward than `x` has, in whatever place. If what backward needs was changed in
  place meanwhile, it must not go on with the changed values.
- Neither `x` nor the incoming gradient is written to. Backward can be differentiated with respect to what
  comes in.

`StraightThroughSign.apply(torch.tensor([-3., 0., 0.5]))` → `[-1., 1., 1.]`, and an incoming gradient of
`[5., 5., 5.]` becomes `[0., 5., 5.]`
"""

import math

import torch
from torch import Tensor

from course_utils import derivatives, expect
from course_utils.derivatives import x_line
from course_utils.exercise import Exercise
from course_utils.expect import tensor_line

exercise = Exercise(
    minutes=8,
    hints=[
        "What does `torch.sign` return for 0? A comparison has two outcomes only; choose between two numbers "
        "with it, and look at the dtype of what comes out.",
        "The mask asks how large the *input* is. Neither the result helps (its elements all have size 1) nor "
        "the incoming gradient, which may be as large as it likes.",
        "For which of the two is a change in place noticed: a tensor kept with `ctx.save_for_backward`, or "
        "one kept as an attribute of `ctx`? A mask that is made in forward is not touched by such a change.",
    ],
)


@exercise.starter
class StraightThroughSign(torch.autograd.Function):
    """x -> -1 or 1"""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        raise NotImplementedError

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        raise NotImplementedError


_CALL = "StraightThroughSign.apply(x)"


def _expect_values(StraightThroughSign, values, device, **options):
    line = x_line(str(values).replace("inf", "torch.inf"), device, **options)
    t = expect.given(line, StraightThroughSign=StraightThroughSign)
    result = t.call(_CALL)
    wanted = torch.tensor([-1.0 if value < 0 else 1.0 for value in values])
    expect.equal(result, wanted.to(t.x))
    return result


def _expect_gradient(StraightThroughSign, xs, gs, device):
    """The incoming gradient where `x` is in [-1, 1], nothing elsewhere."""
    setup = f"{x_line(xs, device)}\n{tensor_line('g', gs, device)}"
    t = expect.given(setup, StraightThroughSign=StraightThroughSign)
    expect.in_graph(t.call(_CALL), of="`x`")
    wanted = torch.tensor([g if -1 <= x <= 1 else 0.0 for x, g in zip(xs, gs, strict=True)])
    expect.equal(t.call(f"torch.autograd.grad({_CALL}, x, g)[0]"), wanted.to(device), what="the gradient")


@exercise.check
def two_values(StraightThroughSign, device):
    """Negative elements become -1, positive ones 1"""
    _expect_values(StraightThroughSign, [-30.0, -1.0, -0.25, -1e-30, 1e-30, 0.5, 1.0, 7.0], device)
    _expect_values(StraightThroughSign, [-math.inf, math.inf], device)


@exercise.check
def no_third_value(StraightThroughSign, device):
    """0 becomes 1, and so does -0"""
    _expect_values(StraightThroughSign, [0.0, 0.5], device)
    _expect_values(StraightThroughSign, [-0.0, -0.5], device)


@exercise.check
def passes_inside(StraightThroughSign, device):
    """Between -1 and 1 the incoming gradient passes as it is, whatever its size"""
    _expect_gradient(StraightThroughSign, [-0.9, -0.2, 0.0, 0.1, 0.8], [5.0, -7.0, 0.25, 3.0, -0.5], device)


@exercise.check
def stops_outside(StraightThroughSign, device):
    """Beyond -1 and 1 nothing passes"""
    _expect_gradient(StraightThroughSign, [-3.0, -1.05, 0.4, 1.05, 2.0], [2.0, -0.5, 0.3, 0.5, -3.0], device)


@exercise.check
def passes_at_the_ends(StraightThroughSign, device):
    """At -1 and at 1 themselves it passes"""
    _expect_gradient(StraightThroughSign, [-1.0, 1.0], [0.5, -0.25], device)


@exercise.check
def trains(StraightThroughSign, device):
    """Weights learn through it, and stop where they are far enough to one side"""
    setup = tensor_line("w", [0.3, -0.2, 0.0, -0.5], device, requires_grad=True) + "\n"
    setup += tensor_line("target", [-1.0, 1.0, 1.0, -1.0], device)
    loss = "-(StraightThroughSign.apply(w) * target).sum()"
    t = expect.given(setup, StraightThroughSign=StraightThroughSign)
    optimizer = torch.optim.SGD([t.w], lr=0.25)
    for _ in range(12):
        optimizer.zero_grad()
        found = t.call(loss)
        expect.in_graph(found, what="the loss", of="`w`")
        found.backward()
        optimizer.step()
    with expect.situation(*setup.splitlines(), f"loss = {loss}", "12 steps of SGD(lr=0.25)"):
        w = t.w.detach()
        expect.equal(StraightThroughSign.apply(w), t.target, what="the signs of the weights")
        expect.at_most(w.abs().max().item(), 1.25, "the largest weight, which each step moves by 0.25")


@exercise.check
def every_dtype(StraightThroughSign, device):
    """Every dtype of floating point is kept"""
    for dtype in derivatives.other_dtypes(device):
        _expect_values(StraightThroughSign, [-2.0, -0.25, -1e-7, 1e-7, 0.75], device, dtype=dtype)


@exercise.check
def laid_out_alike(StraightThroughSign, device):
    """The result has the strides of `x`"""
    setup = derivatives.transposed_x([[-2.0, 0.1, 1.0], [0.4, -0.7, 5.0]], device)
    t = expect.given(setup, StraightThroughSign=StraightThroughSign)
    result = t.call(_CALL)
    expect.equal(result, torch.where(t.x < 0, -1.0, 1.0))
    expect.strides(result, t.x.stride())


@exercise.check
def kept_for_backward(StraightThroughSign, device):
    """No more is kept for backward than `x` has bytes"""
    setup = x_line([-3.0, -0.5, 0.0, 0.5, 3.0], device)
    derivatives.keeps_no_more_than_x(StraightThroughSign, "StraightThroughSign.apply", setup)


@exercise.check
def changed_in_between(StraightThroughSign, device):
    """A change of `x`, or of the result, in between does not reach the gradient"""
    setup = x_line([-3.0, 0.5, 2.0], device)
    derivatives.ignores_changes(StraightThroughSign, "StraightThroughSign.apply(a)", setup)


@exercise.check
def left_alone(StraightThroughSign, device):
    """`x` and the incoming gradient stay what they were"""
    setup = x_line([-3.0, -0.5, 0.0, 0.7, 3.0], device)
    derivatives.leaves_alone(StraightThroughSign, _CALL, setup)


@exercise.check
def differentiable_backward(StraightThroughSign, device):
    """The gradient can be differentiated with respect to the incoming one"""
    setup = x_line([-3.0, 0.3, -0.7], device)
    derivatives.backward_can_be_differentiated(StraightThroughSign, _CALL, setup, [0.0, 1.0, 1.0])


# --- the mistakes -------------------------------------------------------------------------------------------


def _sign(x):
    return torch.where(x < 0, -1.0, 1.0).to(x.dtype)


class _Right(torch.autograd.Function):
    """What is right in the answers below, unless they say otherwise."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return _sign(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (x.abs() <= 1)


@exercise.mistake
class SignOfZero(_Right):
    """You take a sign that has three values: the sign of 0 is 0. A weight that is exactly 0 would be neither
    -1 nor 1, and switch its connection off."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.sign(x)


@SignOfZero.variant
class TwoComparisons(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return (x > 0).to(x) - (x < 0).to(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return torch.where((x > 1) | (x < -1), 0, grad)


@exercise.mistake
class ZeroIsNegative(_Right):
    """You send 0 to -1. It is to count as positive: `x >= 0`, not `x > 0`."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x > 0, 1.0, -1.0).to(x.dtype)


@ZeroIsNegative.variant
class TwiceAComparison(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.gt(0).to(x.dtype) * 2 - 1

    @staticmethod
    def backward(ctx, grad):
        return grad.masked_fill(ctx.saved_tensors[0].abs() > 1, 0)


@exercise.mistake
class CopiesTheSignBit(_Right):
    """You read the sign bit, which `-0.` has too. It is equal to 0: `-0. >= 0` is true. Such zeros are
    common, as the product of 0 and a negative number."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.copysign(torch.ones_like(x), x)


@CopiesTheSignBit.variant
class LooksAtTheBit(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 1 - 2 * torch.signbit(x).to(x.dtype)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return torch.where((x > 1) | (x < -1), 0, grad)


@exercise.mistake
class SignOfALittleMore(_Right):
    """You add a small number before you take the sign, so that 0 becomes positive. A negative number that is
    smaller still becomes positive too. Compare with 0 instead: there are two outcomes, and no limit."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.sign(x + 1e-6)


@SignOfALittleMore.form
class SignOfAlmostNothingMore(_Right):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.sign(x + 1e-12)


@exercise.mistake
class DividesByTheSize(_Right):
    """You divide `x` by its size, and infinity divided by infinity is `nan`, as 0 divided by 0 is. What mends
    the one does not mend the other. A comparison divides nothing."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x / x.abs()


@DividesByTheSize.form
class DividesAndMends(_Right):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.nan_to_num(x / x.abs(), nan=1.0)


@exercise.mistake
class PassesEverywhere(torch.autograd.Function):
    """Your gradient passes everywhere, and weights are pushed on without end where their sign has long been
    settled. It is the input that decides: nothing passes where |x| > 1. (The result cannot decide. Its
    elements are -1 and 1, so `y.abs() <= 1` is always true.)"""

    @staticmethod
    def forward(ctx, x):
        return _sign(x)

    @staticmethod
    def backward(ctx, grad):
        return grad


@PassesEverywhere.variant
class MasksByTheResult(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return (x >= 0).to(x.dtype) * 2 - 1

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output.abs() <= 1)

    @staticmethod
    def backward(ctx, grad):
        (mask,) = ctx.saved_tensors
        return torch.where(mask, grad, 0)


@PassesEverywhere.variant
class MasksByTheKeptResult(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = _sign(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return grad * (y.abs() <= 1)


@PassesEverywhere.form
class SignThatPassesEverywhere(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.sign(x)

    @staticmethod
    def backward(ctx, grad):
        return grad


@exercise.mistake
class ClampsTheGradient(torch.autograd.Function):
    """You clip the values of the incoming gradient: a 5 arrives as a 1, and a weight far outside still gets
    its share. "Passed where |x| ≤ 1" is about `x`. There the gradient passes at its full size, elsewhere not
    at all."""

    @staticmethod
    def forward(ctx, x):
        return _sign(x)

    @staticmethod
    def backward(ctx, grad):
        return grad.clamp(-1, 1)


@ClampsTheGradient.variant
class HardTanhOfTheGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.ge(0).to(x.dtype).mul(2).sub(1)

    @staticmethod
    def backward(ctx, incoming):
        return torch.nn.functional.hardtanh(incoming)


@ClampsTheGradient.form
class ClampsAndMasks(_Right):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad.clamp(-1, 1) * (x.abs() <= 1)


@ClampsTheGradient.form
class SignWithAClampedGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.sign(x)

    @staticmethod
    def backward(ctx, grad):
        return grad.clamp(-1, 1)


@exercise.mistake
class MasksByTheGradient(torch.autograd.Function):
    """You stop gradients that are large. How large the gradient is has nothing to do with it: it passes where
    the *input* is between -1 and 1."""

    @staticmethod
    def forward(ctx, x):
        return _sign(x)

    @staticmethod
    def backward(ctx, grad):
        return grad * (grad.abs() <= 1)


@MasksByTheGradient.variant
class SilencesLargeGradients(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x.ge(0).to(x.dtype).mul(2).sub(1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return torch.where((grad > 1) | (grad < -1), 0, grad)


@exercise.mistake
class DerivativeOfSign(torch.autograd.Function):
    """Your gradient is 0 everywhere: that is the derivative of the sign, and what autograd gives for
    `torch.sign`. Nothing learns from it. (`y.abs() < 1` comes to the same, as the result is -1 or 1.) Put
    another derivative in its place: that of clipping to [-1, 1]."""

    @staticmethod
    def forward(ctx, x):
        return _sign(x)

    @staticmethod
    def backward(ctx, grad):
        return grad * 0


@DerivativeOfSign.variant
class MasksByTheInsideOfTheResult(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = (x >= 0).to(x.dtype) * 2 - 1
        ctx.save_for_backward(y.abs() < 1)
        return y

    @staticmethod
    def backward(ctx, grad):
        (mask,) = ctx.saved_tensors
        return grad * mask


@DerivativeOfSign.form
class NoGradientAtAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return _sign(x)

    @staticmethod
    def backward(ctx, grad):
        return torch.zeros_like(grad)


@exercise.mistake
class LeavesOutTheEnds(_Right):
    """At -1 and 1 exactly your gradient is stopped: `<=`, not `<`. Weights that are clipped to [-1, 1] after
    each step, as is usual with binary weights, lie exactly there, and would never come back."""

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (x.abs() < 1)


@LeavesOutTheEnds.variant
class StopsWhatReachesTheEnds(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward((x <= -1).logical_or(x >= 1))
        return (x >= 0).to(x.dtype) * 2 - 1

    @staticmethod
    def backward(ctx, grad):
        return grad.masked_fill(ctx.saved_tensors[0], 0.0)


@LeavesOutTheEnds.form
class SignWithoutTheEnds(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.sign(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (x.abs() < 1)


@exercise.mistake
class LeavesOutOneEnd(torch.autograd.Function):
    """At one of the two ends exactly your gradient is stopped, and at the other it passes. Both belong to
    [-1, 1]: `<=` on either side."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward((x >= -1) & (x < 1))
        return _sign(x)

    @staticmethod
    def backward(ctx, grad):
        (mask,) = ctx.saved_tensors
        return grad * mask


@LeavesOutOneEnd.form
class LeavesOutTheLowerEnd(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward((x > -1) & (x <= 1))
        return _sign(x)

    @staticmethod
    def backward(ctx, grad):
        (mask,) = ctx.saved_tensors
        return grad * mask


@exercise.mistake
class StopsInside(_Right):
    """Your mask is the wrong way round: the gradient passes beyond -1 and 1 and is stopped between them."""

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (x.abs() > 1)


@StopsInside.variant
class MultipliesByTheOutside(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward((x > 1) | (x < -1))
        return (x >= 0).to(x.dtype) * 2 - 1

    @staticmethod
    def backward(ctx, grad):
        return torch.where(ctx.saved_tensors[0], grad, 0)


@exercise.mistake
class StopsWhatPushesOn(_Right):
    """Beyond -1 and 1 you stop the gradient where it pushes on and let it pass where it pulls back. It is to
    be stopped there in either case: `x` decides alone, and not the sign of the gradient."""

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return torch.where(((x > 1) & (grad < 0)) | ((x < -1) & (grad > 0)), 0, grad)


@exercise.mistake
class HalfTheRange(_Right):
    """Your gradient passes where |x| ≤ 0.5 and is stopped between 0.5 and 1. It passes up to 1."""

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (x.abs() <= 0.5)


@exercise.mistake
class SignOfTheGradient(_Right):
    """Where the gradient passes, yours has size 1. You return the sign of the incoming gradient; it is
    forward that takes a sign, and backward passes the gradient as it is."""

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad.sign() * (x.abs() <= 1)


@exercise.mistake
class ForgetsTheSize(_Right):
    """You compare `x` itself with 1 and stop the gradient on one side only. It is the size of `x` that
    counts, its absolute value."""

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (x <= 1)


@ForgetsTheSize.variant
class CutsAtOneSide(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x > 1)
        return (x >= 0).to(x.dtype) * 2 - 1

    @staticmethod
    def backward(ctx, grad):
        (beyond,) = ctx.saved_tensors
        return grad.masked_fill(beyond, 0)


@ForgetsTheSize.form
class BetweenZeroAndOne(_Right):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * ((x >= 0) & (x <= 1))


@exercise.mistake
class SlopeOfTanh(_Right):
    """You give back the slope of a smooth sign, and small gradients become smaller still. That is an
    estimator in its own right; straight-through passes the gradient as it is, or not at all."""

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (1 - torch.tanh(x) ** 2)


@SlopeOfTanh.form
class SlopeOfTwoParabolas(_Right):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (2 - 2 * x.abs()).clamp(min=0)


@exercise.mistake
class DropsTheIncoming(_Right):
    """You return the mask and not the incoming gradient. The mask says where it passes."""

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return (x.abs() <= 1).to(grad)


@exercise.mistake
class ResultOfIntegers(_Right):
    """Your result holds integers or booleans. Such a tensor cannot require a gradient: torch leaves it out of
    the graph, backward is never called, and nobody is told. Make it of the dtype of `x`."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x >= 0) * 2 - 1


@ResultOfIntegers.variant
class ChoosesBetweenIntegers(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.abs() <= 1)
        return torch.where(x < 0, -1, 1)

    @staticmethod
    def backward(ctx, grad):
        (mask,) = ctx.saved_tensors
        return torch.where(mask, grad, 0)


@exercise.mistake
class AlwaysFloat32(_Right):
    """Your result is float32 whatever `x` was. `.float()` makes it so, and `torch.where` does with two Python
    floats. The dtype is to be that of `x`."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x < 0, -1.0, 1.0)


@AlwaysFloat32.variant
class FloatOfAComparison(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.abs() <= 1)
        return (x >= 0).float() * 2 - 1

    @staticmethod
    def backward(ctx, grad):
        (mask,) = ctx.saved_tensors
        return torch.where(mask, grad, 0)


@exercise.mistake
class KeptOnCtx(torch.autograd.Function):
    """`ctx.x = x` does not notice a change: where `x` is changed in place between forward and backward (as an
    optimizer changes weights), your mask is made of the new values. `ctx.save_for_backward` raises then."""

    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        return _sign(x)

    @staticmethod
    def backward(ctx, grad):
        return grad * (ctx.x.abs() <= 1)


@KeptOnCtx.variant
class KeptInATuple(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return (x >= 0).to(x.dtype) * 2 - 1

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.inputs = inputs

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.inputs
        return torch.where((x > 1) | (x < -1), 0, grad)


@exercise.mistake
class KeepsTwo(torch.autograd.Function):
    """You save more bytes than `x` has: two tensors, or one of a wider dtype. One tensor is enough to decide,
    the input or a mask made of it, and a mask of booleans takes one byte for each element."""

    @staticmethod
    def forward(ctx, x):
        y = _sign(x)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, grad):
        x, _ = ctx.saved_tensors
        return grad * (x.abs() <= 1)


@KeepsTwo.variant
class SavesAWideMask(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward((x.abs() <= 1).long())
        return _sign(x)

    @staticmethod
    def backward(ctx, grad):
        (mask,) = ctx.saved_tensors
        return grad * mask


@KeepsTwo.form
class KeepsTheMaskToo(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        mask = x.abs() <= 1
        ctx.save_for_backward(x, mask)
        return _sign(x)

    @staticmethod
    def backward(ctx, grad):
        _, mask = ctx.saved_tensors
        return grad * mask


@exercise.mistake
class KeepsAWideMask(torch.autograd.Function):
    """You keep more bytes than `x` has, though not with `save_for_backward`: an attribute of `ctx` stays in
    memory as well, as long as the graph does. A tensor of booleans takes one byte for each element."""

    @staticmethod
    def forward(ctx, x):
        ctx.mask = (x.abs() <= 1).double()
        return _sign(x)

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.mask.to(grad.dtype)


@exercise.mistake
class LeavesSomethingBehind(torch.autograd.Function):
    """When the result is gone, something of your call is still in memory. What is put on the class, into a
    global, or as the result itself on its own `ctx` (the two then hold each other) is not freed with the
    graph. `ctx.save_for_backward` knows how to keep a result."""

    @staticmethod
    def forward(ctx, x):
        ctx.y = _sign(x)
        ctx.save_for_backward(x.abs() <= 1)
        return ctx.y

    @staticmethod
    def backward(ctx, grad):
        (mask,) = ctx.saved_tensors
        return grad * mask


@exercise.mistake
class WritesIntoWhatCameIn(_Right):
    """You set elements of the incoming gradient to 0 in place. It belongs to whoever handed it in, and may be
    used elsewhere, at another branch of the graph. Make a new tensor: `torch.where`, a product, a clone."""

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        grad[x.abs() > 1] = 0
        return grad


@WritesIntoWhatCameIn.variant
class MultipliesInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.abs() <= 1)
        return (x >= 0).to(x.dtype) * 2 - 1

    @staticmethod
    def backward(ctx, grad):
        (mask,) = ctx.saved_tensors
        return grad.mul_(mask)


@exercise.mistake
class WritesIntoTheInput(torch.autograd.Function):
    """You change the caller's `x`: `x[x == 0] = 1` does, and so do `clamp_` and `sign_`. The result is to be
    a new tensor."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.abs() <= 1)
        negative = x < 0
        x[negative] = -1
        x[~negative] = 1
        return x

    @staticmethod
    def backward(ctx, grad):
        (mask,) = ctx.saved_tensors
        return grad * mask


@WritesIntoTheInput.variant
class WritesAndClones(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.abs() <= 1)
        return x.copy_(_sign(x)).clone()

    @staticmethod
    def backward(ctx, grad):
        (mask,) = ctx.saved_tensors
        return grad * mask


@WritesIntoTheInput.form
class MendsTheZeros(_Right):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        x[x == 0] = 1
        return torch.sign(x)


@exercise.mistake
class BackwardWithoutRecording(_Right):
    """The gradient is right, and your backward is not recorded: `torch.no_grad()`, `.detach()`, `.data` and
    `once_differentiable` see to that. Leave them out; without `create_graph=True` nothing is recorded
    anyway."""

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        with torch.no_grad():
            return grad * (x.abs() <= 1)


@BackwardWithoutRecording.variant
class ClonesTheData(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.abs() > 1)
        return (x >= 0).to(x.dtype) * 2 - 1

    @staticmethod
    def backward(ctx, grad):
        passed = grad.data.clone()
        passed[ctx.saved_tensors[0]] = 0
        return passed


@BackwardWithoutRecording.form
class OnceOnly(_Right):
    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (x.abs() <= 1)


@exercise.mistake
class StopsBehindTheGraph(_Right):
    """The gradient is right, and its own derivative passes everywhere. The zeros came in without being
    recorded, through `.data`, `detach()` or `torch.no_grad()`, and autograd still takes what comes out for
    the incoming gradient. Multiply by the mask, or use `torch.where`."""

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        passed = grad.clone()
        passed.data[x.abs() > 1] = 0
        return passed


@StopsBehindTheGraph.variant
class TakesAwayWhatIsDetached(_Right):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad - (grad * (x.abs() > 1)).detach()


@exercise.mistake
class MadeContiguous(_Right):
    """For a transposed `x` your result has another layout. `contiguous()` makes one, and so do `masked_fill`
    and all that builds a new tensor from a shape, as `torch.ones(x.shape)` does. Arithmetic, `torch.where`
    and the `*_like` functions keep the strides."""

    @staticmethod
    def forward(ctx, x):
        x = x.contiguous()
        ctx.save_for_backward(x)
        return _sign(x)


@MadeContiguous.variant
class FillsANewTensor(_Right):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        result = torch.ones(x.shape, dtype=x.dtype, device=x.device)
        result[x < 0] = -1
        return result
