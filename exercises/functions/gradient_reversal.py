"""Gradient reversal

`GradientReversal.apply(x, strength)` is the identity forward. Backward turns the incoming gradient around:
what reaches `x` is minus `strength` times it. Between a trunk and a head, this trains the head to succeed and
the trunk to make it fail. `strength` is any number, which has no gradient, and may differ from call to call.
In float64 it counts with all of its digits.

- Nothing is copied: the result has the storage and the strides of `x`. And autograd knows it for a view:
  torch refuses a write to the result, which would change `x` too, behind the back of its graph. Where it
  allows one, under `torch.no_grad()`, the write counts as a change of `x`.
- No tensor of the size of `x` is kept for backward, in whatever place. The incoming gradient is not written
  to.
- Backward can be differentiated with respect to the incoming gradient.

`GradientReversal.apply(torch.tensor([1., 2.]), 0.5)` → `[1., 2.]`, and an incoming gradient of `[3., 4.]`
becomes `[-1.5, -2.]`
"""

import torch
from torch import Tensor

from course_utils import derivatives, expect, measure
from course_utils.derivatives import transposed_x, x_line
from course_utils.exercise import Exercise
from course_utils.expect import tensor_line

exercise = Exercise(
    minutes=8,
    hints=[
        "Forward has nothing to compute. Which methods of a tensor return another tensor with the same "
        "storage? One of them hides from autograd that the two are related, and that one will not do.",
        "Backward needs the number and no tensor. Numbers may be kept as attributes of `ctx`, which belongs "
        "to this one call; an attribute of the class belongs to all of them.",
        "`view_as` makes a view of all of a tensor. In backward, make a new tensor: the incoming one may be "
        "on its way to other parts of the graph too. And return one thing for each argument after `ctx`.",
    ],
)


@exercise.starter
class GradientReversal(torch.autograd.Function):
    """x -> x; backward: minus `strength` times the gradient"""

    @staticmethod
    def forward(ctx, x: Tensor, strength: float) -> Tensor:
        raise NotImplementedError

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        raise NotImplementedError


_MATRIX = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]


@exercise.check
def identity(GradientReversal, device):
    """Forward changes nothing"""
    for setup in (
        x_line([-1.5, 0.0, 2.0], device),
        transposed_x(_MATRIX, device),
        x_line([0.1, 0.2], device, dtype=torch.bfloat16),
        x_line(2.0, device),
        x_line([[1.0], [2.0]], device),
        tensor_line("whole", [1.0, 2.0, 3.0], device, requires_grad=True) + "\nx = whole[1:]",
    ):
        t = expect.given(setup, GradientReversal=GradientReversal)
        wanted = t.x.detach().clone()
        for strength in ("1.", "0.25"):
            result = t.call(f"GradientReversal.apply(x, {strength})")
            expect.equal(result, wanted)
            expect.in_graph(result, of="`x`")
        expect.unchanged(t.x.detach(), wanted, what="`x`")


@exercise.check
def no_copy(GradientReversal, device):
    """The result has the storage and the strides of `x`"""
    for setup in (x_line([-1.5, 0.0, 2.0], device), transposed_x(_MATRIX, device)):
        t = expect.given(setup, GradientReversal=GradientReversal)
        witness = t.x.detach()
        result = t.call("GradientReversal.apply(x, 1.)")
        expect.same_storage(result, witness, of="`x`")
        expect.strides(result, witness.stride())


@exercise.check
def known_as_a_view(GradientReversal, device):
    """A write to the result does not reach `x` unnoticed"""
    setup = f"{x_line([1.0, 2.0], device)}\na = x * 1\ny = GradientReversal.apply(a, 1.)"
    t = expect.given(setup, GradientReversal=GradientReversal)
    graph = t.a.grad_fn
    with expect.situation(*setup.splitlines(), "y.mul_(3)"):
        refused = False
        try:
            t.y.mul_(3)
        except RuntimeError as error:
            if "being modified inplace" not in str(error):
                raise
            refused = True
        written = not torch.equal(t.a.detach(), t.x.detach())
        changed = f"`a` has become {expect.show(t.a.detach())}"
        wanted = (
            "expected: torch knows the result for a view of `a` made by a Function, and refuses the write"
        )
        unheard = t.a.grad_fn is graph
        expect.true(
            refused or not (written and unheard), f"{changed}, and its graph still says `x * 1`", wanted
        )
        expect.true(refused or not written, f"{changed}: torch has allowed the write", wanted)
    t = expect.given(setup, GradientReversal=GradientReversal)
    before = t.a._version
    with expect.situation(*setup.splitlines(), "with torch.no_grad(): y.mul_(3)"):
        with torch.no_grad():
            t.y.mul_(3)
        written = not torch.equal(t.a.detach(), t.x.detach())
        expect.true(
            t.a._version != before or not written,
            "`a` has changed, and its version has not: whoever kept `a` for backward hears nothing of it",
            "expected: the result is a view of `a` itself, and the two count their changes together",
        )


@exercise.check
def reversed_gradient(GradientReversal, device):
    """The gradient is minus `strength` times the incoming one"""
    for strength in (1.0, 0.25, 3.0, 0.0, 2.5, -0.5):
        setup = f"{x_line([-1.0, 0.5, 2.0], device)}\n{tensor_line('g', [3.0, -4.0, 10.0], device)}"
        t = expect.given(setup, GradientReversal=GradientReversal)
        wanted = t.g * -strength
        found = t.call(f"torch.autograd.grad(GradientReversal.apply(x, {strength}), x, g)[0]")
        expect.equal(found, wanted, what="the gradient")


@exercise.check
def every_dtype(GradientReversal, device):
    """`strength` has all of its digits, in every dtype of floating point"""
    for dtype in derivatives.other_dtypes(device):
        g = tensor_line("g", [3.0, -4.0, 10.0], device, dtype=dtype)
        setup = f"{x_line([-1.0, 0.5, 2.0], device, dtype=dtype)}\n{g}"
        t = expect.given(setup, GradientReversal=GradientReversal)
        wanted = t.g * -0.1
        found = t.call("torch.autograd.grad(GradientReversal.apply(x, 0.1), x, g)[0]")
        expect.equal(found, wanted, rtol=4 * torch.finfo(dtype).eps, atol=0.0, what="the gradient")


@exercise.check
def a_strength_for_each_call(GradientReversal, device):
    """Each call has a strength of its own"""
    setup = x_line([1.0, 2.0], device)
    setup += "\ny = GradientReversal.apply(x, 0.5)\nz = GradientReversal.apply(x, 4.)"
    t = expect.given(setup, GradientReversal=GradientReversal)
    wanted = torch.tensor([-0.5, -0.5], device=device)
    found = t.call("torch.autograd.grad(y, x, torch.ones_like(y))[0]")
    expect.equal(found, wanted, what="the gradient through `y`")
    found = t.call("torch.autograd.grad(z, x, torch.ones_like(z))[0]")
    expect.equal(found, wanted * 8, what="the gradient through `z`")


@exercise.check
def beside_another_path(GradientReversal, device):
    """A path beside it has its own gradient"""
    setup = f"{x_line([1.0, 2.0], device)}\na = x * 1\ny = a + GradientReversal.apply(a, 0.25)"
    t = expect.given(setup, GradientReversal=GradientReversal)
    found = t.call("torch.autograd.grad(y, x, torch.ones_like(y))[0]")
    expect.equal(found, torch.tensor([0.75, 0.75], device=device), what="the gradient")


@exercise.check
def between_trunk_and_head(GradientReversal, device):
    """The head learns as usual; what reaches the trunk is turned around"""
    setup = [
        tensor_line("trunk", [[0.5, -1.0], [2.0, 0.3]], device, requires_grad=True),
        tensor_line("head", [1.5, -0.7], device, requires_grad=True),
        tensor_line("x", [[1.0, 2.0], [-1.0, 0.5], [0.3, 0.3]], device),
    ]
    t = expect.given("\n".join(setup), GradientReversal=GradientReversal)
    usual = torch.autograd.grad((torch.tanh(t.x @ t.trunk) @ t.head).square().mean(), (t.trunk, t.head))
    loss = t.call("(GradientReversal.apply(torch.tanh(x @ trunk), 0.5) @ head).square().mean()")
    expect.in_graph(loss, what="the loss", of="`trunk`")
    loss.backward()
    expect.equal(t.head.grad, usual[1], what="`head.grad`")
    expect.equal(t.trunk.grad, -0.5 * usual[0], what="`trunk.grad`")


@exercise.check
def nothing_kept(GradientReversal, device):
    """Nothing of the size of `x` is kept for backward"""
    setup = f"x = torch.ones(1000{expect.on(device)}, requires_grad=True)"
    t = expect.given(setup, GradientReversal=GradientReversal)
    # The view itself holds its base, so what else holds it shows once the view is gone.
    step = "GradientReversal.apply(x * 1, 1.) * 1"
    # One number in a tensor does no harm.
    with expect.situation(setup, "GradientReversal.apply(x, 1.)"):
        saved = measure.saved_bytes(t.GradientReversal.apply, t.x, 1.0)
        made = measure.live_bytes(t.GradientReversal.apply, t.x, 1.0)
        live = measure.live_bytes(lambda x: t.GradientReversal.apply(x * 1, 1.0) * 1, t.x)
        expect.at_most(saved.total, 8, "kept for backward", unit="bytes")
        expect.at_most(made.held - made.result, 8, "made and kept for backward", unit="bytes")
    with expect.situation(setup, f"z = {step}"):
        expect.at_most(live.held - live.result, 8, "still there beside `x` and `z`", unit="bytes")
    with expect.situation(setup, f"z = {step}", "del z"):
        expect.at_most(live.left, 8, "still there beside `x`", unit="bytes")


@exercise.check
def left_alone(GradientReversal, device):
    """The incoming gradient stays what it was"""
    call = "GradientReversal.apply(x * 1, 0.5)"
    derivatives.leaves_alone(GradientReversal, call, x_line([-3.0, 0.5, 2.0], device))


@exercise.check
def differentiable_backward(GradientReversal, device):
    """The gradient can be differentiated with respect to the incoming one"""
    call, setup = "GradientReversal.apply(x, 0.5)", x_line([-3.0, 0.3, 0.7], device)
    derivatives.backward_can_be_differentiated(GradientReversal, call, setup, [-0.5, -0.5, -0.5])


# --- the mistakes -------------------------------------------------------------------------------------------


class _Right(torch.autograd.Function):
    """What is right in the answers below, unless they say otherwise."""

    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -ctx.strength * grad, None


@exercise.mistake
class ReversesForward(_Right):
    """You turn the values around. The head is to see what the trunk has computed; what is turned around is
    the gradient, on its way back."""

    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return -strength * x


@ReversesForward.variant
class ScalesAndNegates(torch.autograd.Function):
    @staticmethod
    def forward(x, strength):
        return x.mul(strength).neg()

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.strength = inputs

    @staticmethod
    def backward(ctx, grad):
        return grad.neg().mul(ctx.strength), None


@ReversesForward.form
class NegatesForward(_Right):
    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return -x


@exercise.mistake
class ForgetsTheStrength(torch.autograd.Function):
    """Your gradient is turned around, and `strength` is missing from it."""

    @staticmethod
    def forward(ctx, x, strength):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -grad, None


@ForgetsTheStrength.variant
class TurnsOnly(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x[...]

    @staticmethod
    def backward(ctx, grad):
        return grad.neg(), None


@exercise.mistake
class ForgetsTheSign(_Right):
    """Your gradient has the right size and is not turned around: the minus is missing, and the trunk would
    help the head."""

    @staticmethod
    def backward(ctx, grad):
        return ctx.strength * grad, None


@ForgetsTheSign.variant
class ScalesOnly(torch.autograd.Function):
    @staticmethod
    def forward(x, strength):
        return x[...]

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.factor = inputs

    @staticmethod
    def backward(ctx, grad):
        return grad.mul(ctx.factor), None


@exercise.mistake
class DividesByTheStrength(_Right):
    """You divide by `strength`. It multiplies: 0 is to stop the gradient, and a large number to make it
    large."""

    @staticmethod
    def backward(ctx, grad):
        return -grad / ctx.strength, None


@exercise.mistake
class DropsTheIncoming(_Right):
    """You return minus `strength`, whatever gradient came in. The two are multiplied."""

    @staticmethod
    def backward(ctx, grad):
        return torch.full_like(grad, -ctx.strength), None


@exercise.mistake
class TooFewGradients(_Right):
    """Forward takes two arguments and your backward returns one thing. It returns one for each argument after
    `ctx`, in their order, and None for those that have no gradient."""

    @staticmethod
    def backward(ctx, grad):
        return -ctx.strength * grad


@TooFewGradients.variant
class OnlyTheFirst(torch.autograd.Function):
    @staticmethod
    def forward(x, strength):
        return x[...]

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.factor = inputs

    @staticmethod
    def backward(ctx, grad):
        return (grad.mul(ctx.factor).neg(),)


@exercise.mistake
class GradientForTheStrength(torch.autograd.Function):
    """You return a gradient for `strength`, a number. Only tensors have gradients; the place of everything
    else is filled with None."""

    @staticmethod
    def forward(ctx, x, strength):
        ctx.save_for_backward(x)
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return -ctx.strength * grad, -(grad * x).sum()


@GradientForTheStrength.form
class ZeroForTheStrength(_Right):
    @staticmethod
    def backward(ctx, grad):
        return -ctx.strength * grad, 0.0


@exercise.mistake
class WritesIntoWhatCameIn(_Right):
    """You turn the incoming gradient around in place. The same tensor may be on its way to another part of
    the graph: in `a + reversed(a)` both summands are given one and the same, and the path beside yours gets
    a reversed gradient too. Make a new tensor."""

    @staticmethod
    def backward(ctx, grad):
        return grad.mul_(-ctx.strength), None


@WritesIntoWhatCameIn.variant
class NegatesInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, strength):
        ctx.factor = strength
        return x[...]

    @staticmethod
    def backward(ctx, grad):
        grad.neg_()
        grad *= ctx.factor
        return grad, None


@WritesIntoWhatCameIn.form
class NegatesInPlaceThenScales(_Right):
    @staticmethod
    def backward(ctx, grad):
        return grad.neg_() * ctx.strength, None


@exercise.mistake
class Copies(_Right):
    """You copy `x`, as `clone()`, `x * 1` and `x + 0` do: a second tensor of its size is allocated for
    nothing. A copy is what you would want if the result were to be written to in place; here a view is asked
    for."""

    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x.clone()


@Copies.variant
class TimesOne(torch.autograd.Function):
    @staticmethod
    def forward(x, strength):
        return x * 1

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.factor = inputs

    @staticmethod
    def backward(ctx, grad):
        return grad.mul(ctx.factor).neg(), None


@exercise.mistake
class CopiesWhatIsNotContiguous(_Right):
    """A transposed `x` is copied, and the result has another storage: `contiguous()` does that where the
    elements do not lie in their order, and so does `flatten`. `view_as` keeps any strides."""

    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x.contiguous()


@CopiesWhatIsNotContiguous.variant
class ViewsWhatIsContiguous(_Right):
    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x.contiguous().view_as(x)


@exercise.mistake
class ViewsAsOneRow(_Right):
    """For a transposed `x` your forward raises: `view` cannot make one row of elements that do not lie in
    their order. A view of the same shape goes for any strides, and `x.view_as(x)` is one."""

    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x.view(-1).view(x.shape)


@exercise.mistake
class StartsAtTheBeginning(_Right):
    """Where `x` is a slice of something larger, your result shows other elements: those at the beginning of
    the storage. A view that is made by hand needs the offset too, `x.storage_offset()`."""

    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x.as_strided(x.size(), x.stride(), 0)


@exercise.mistake
class Detaches(_Right):
    """The result shares the storage of `x`, and autograd does not know: `detach()` and `.data` return a
    tensor that is nobody's view. A write to it, by an `inplace=True` further on, changes `x` as well, whose
    graph hears nothing of it. With `view_as` torch refuses such a write."""

    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x.detach()


@Detaches.variant
class ReturnsTheData(torch.autograd.Function):
    @staticmethod
    def forward(x, strength):
        return x.data

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.factor = inputs

    @staticmethod
    def backward(ctx, grad):
        return grad.mul(ctx.factor).neg(), None


@exercise.mistake
class ViewsTheData(_Right):
    """Your result shares the storage of `x` and is a view of another tensor: `.data` returns one with the
    same elements and a version of its own. What is written to it under `torch.no_grad()` changes `x`, and a
    backward that has kept `x` computes from the changed values without a word. Make a view of `x` itself."""

    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x.data.view_as(x)


@exercise.mistake
class MarksItDirty(_Right):
    """You tell autograd with `mark_dirty` that forward changed `x` in place. Then `x` itself becomes the
    result: everything that uses it afterwards lies behind the reversal, and for a parameter torch refuses
    altogether. Nothing was changed here; return a view."""

    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        ctx.mark_dirty(x)
        return x


@exercise.mistake
class KeepsTheInput(_Right):
    """You keep `x` for backward, which has no use for it: the gradient of the identity does not depend on
    where it is taken. A tensor that is kept stays in memory until backward has run."""

    @staticmethod
    def forward(ctx, x, strength):
        ctx.save_for_backward(x)
        ctx.strength = strength
        return x.view_as(x)


@KeepsTheInput.variant
class KeepsItForItsShape(torch.autograd.Function):
    @staticmethod
    def forward(x, strength):
        return x[...]

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        _, ctx.factor = inputs

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad.new_full(x.shape, -ctx.factor) * grad, None


@KeepsTheInput.form
class InputOnCtx(_Right):
    @staticmethod
    def forward(ctx, x, strength):
        ctx.x, ctx.strength = x, strength
        return x.view_as(x)


@KeepsTheInput.form
class InputAndStrength(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, strength):
        ctx.save_for_backward(x, torch.tensor(strength, device=x.device))
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        _, strength = ctx.saved_tensors
        return -strength * grad, None


@exercise.mistake
class ATensorOfStrengths(torch.autograd.Function):
    """You make a tensor of the size of `x` and keep it for backward. All that backward needs is one number;
    multiplied by the incoming gradient it reaches every element."""

    @staticmethod
    def forward(ctx, x, strength):
        ctx.save_for_backward(torch.full_like(x, -strength))
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        (factors,) = ctx.saved_tensors
        return grad * factors, None


@ATensorOfStrengths.form
class ATensorOfStrengthsOnCtx(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, strength):
        ctx.factors = torch.full_like(x, -strength)
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.factors, None


@exercise.mistake
class ZeroTakenForNothing(_Right):
    """For a `strength` of 0 your gradient is that of a strength of 1. In Python 0 counts as false, so that
    `strength or 1.0` replaces it. Here it is a number like others: it stops the gradient."""

    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength or 1.0
        return x.view_as(x)


@exercise.mistake
class AddsTheUsualGradient(_Right):
    """You return the incoming gradient less `strength` times it. The usual gradient is not to pass beside the
    reversed one: minus `strength` times it is all that `x` gets."""

    @staticmethod
    def backward(ctx, grad):
        return grad - ctx.strength * grad, None


@exercise.mistake
class StrengthTwice(_Right):
    """Your gradient contains the square of `strength`. It is a factor once."""

    @staticmethod
    def backward(ctx, grad):
        return -(ctx.strength**2) * grad, None


@exercise.mistake
class StrengthInFloat32(_Right):
    """In float64 your gradient is right in seven digits only. `torch.tensor(0.1)` is a float32 tensor; torch
    adapts its dtype to that of the gradient and cannot give back the digits. A Python number has them all."""

    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = torch.tensor(strength, device=x.device)
        return x.view_as(x)


@exercise.mistake
class StrengthOnTheClass(torch.autograd.Function):
    """You keep `strength` in a place that all calls share, on the class or in a global: the last call decides
    for all that are still waiting for backward. `ctx` belongs to one call."""

    strength = 1.0

    @staticmethod
    def forward(ctx, x, strength):
        StrengthOnTheClass.answer.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -StrengthOnTheClass.answer.strength * grad, None


_latest = {}


@StrengthOnTheClass.variant
class StrengthInAGlobal(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, strength):
        _latest["strength"] = strength
        return x[...]

    @staticmethod
    def backward(ctx, grad):
        return grad.mul(_latest["strength"]).neg(), None


@exercise.mistake
class BackwardWithoutRecording(_Right):
    """The gradient is right, and your backward is not recorded, so nothing can be learned through it (as a
    gradient penalty does): `torch.no_grad()`, `.detach()`, `.data` and `once_differentiable` see to that.
    Leave them out; without `create_graph=True` nothing is recorded anyway."""

    @staticmethod
    def backward(ctx, grad):
        return (-ctx.strength * grad).detach(), None


@BackwardWithoutRecording.variant
class NegatesTheData(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, strength):
        ctx.factor = strength
        return x[...]

    @staticmethod
    def backward(ctx, grad):
        with torch.no_grad():
            return grad.data.mul(ctx.factor).neg(), None


@BackwardWithoutRecording.form
class OnceOnly(_Right):
    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        return -ctx.strength * grad, None
