"""SiLU that keeps one tensor

SiLU is `x * s`, where `s` is the sigmoid of `x`. Written as `x * torch.sigmoid(x)`, the graph keeps `x` and
`s` until backward. Write it as an `autograd.Function` that keeps `x` alone and works out `s` again when the
gradient arrives: a few operators more, half of the memory.

Nothing else may stay in memory for backward, in whatever place, and nothing at all once the result is gone.
Backward raises when `x` was changed in between, as it does for torch's own functions. The result can be
differentiated twice, and has the dtype and the shape of `x`, and its precision. Neither `x` nor what arrives
in backward is written to.

Build it from `torch.sigmoid` and arithmetic; torch's own SiLU and GLU are not to be used.

- `RecomputingSilu.apply(torch.tensor([0., 2.]))` is `[0.0000, 1.7616]`
- the gradient of its sum is `[0.5000, 1.0908]`
"""

import torch
from torch import Tensor

from course_utils import expect, measure
from course_utils.derivatives import leaves_alone, other_dtypes, x_line
from course_utils.exercise import Exercise
from course_utils.expect import tensor_line

exercise = Exercise(
    minutes=10,
    hints=[
        "Which tensor has to be there in backward, and which can be had again from it?",
        "`ctx.save_for_backward` keeps a tensor together with its version, and autograd lets go of it in "
        "time. What is put on `ctx` as an attribute has neither.",
        "The derivative of `x * s` by the product rule is `s + x * ds`, and `ds` is `s * (1 - s)`. Compute "
        "`s` in `backward` from the saved `x`, with operators that autograd can follow, and multiply by what "
        "arrives.",
    ],
)


@exercise.starter
class RecomputingSilu(torch.autograd.Function):
    """x -> x * sigmoid(x), element by element"""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        raise NotImplementedError

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        raise NotImplementedError


def _silu(x):
    """The oracle, in double precision: the value, its derivative and the second one, for each element."""
    z = x.detach().double().cpu().clone().requires_grad_()
    value = z / (1 + torch.exp(-z))
    (slope,) = torch.autograd.grad(value.sum(), z, create_graph=True)
    (bend,) = torch.autograd.grad(slope.sum(), z)
    return value.detach(), slope.detach(), bend


def _given(RecomputingSilu, device, values, **options):
    return expect.given(tensor_line("x", values, device, **options), RecomputingSilu=RecomputingSilu)


@exercise.check
def values(RecomputingSilu, device):
    """The values are `x * sigmoid(x)`, near zero and far from it, in the shape of `x`"""
    t = _given(RecomputingSilu, device, "[-100., -3., -0.5, 0., 0.5, 3., 100.]")
    before = t.x.clone()
    result = t.call("RecomputingSilu.apply(x)")
    expect.unchanged(t.x, before, what="`x`")
    expect.close(result, _silu(before)[0])
    for values, code in (("[[-1., 2.], [3., -4.]]", "x.t()"), ("2.", "x")):
        t = _given(RecomputingSilu, device, values)
        wanted = _silu(t.x.t())[0]
        expect.close(t.call(f"RecomputingSilu.apply({code})"), wanted)


@exercise.check
def all_digits(RecomputingSilu, device):
    """In double precision, the values and the gradient have all their digits"""
    if device.type == "mps":
        raise expect.CannotCheck("double precision is not there on mps")
    t = _given(RecomputingSilu, device, "[-3., -0.7, 0.1, 2.]", dtype="torch.float64", requires_grad=True)
    wanted, slope, _ = _silu(t.x)
    result = expect.a_tensor(t.call("RecomputingSilu.apply(x)"))
    expect.equal(result.dtype, torch.float64, what="the dtype of the result")
    expect.close(result.detach().cpu(), wanted)
    weights = "torch.tensor([1., -2., 3., 0.5], dtype=torch.float64, device=x.device)"
    (found,) = t.call(f"torch.autograd.grad(RecomputingSilu.apply(x), x, {weights})")
    oracle = torch.tensor([1.0, -2, 3, 0.5], dtype=torch.float64) * slope
    expect.close(found.cpu(), oracle, what="the gradient", factor=8)


@exercise.check
def left_alone(RecomputingSilu, device):
    """`x`, and what arrives in backward, stay as they are"""
    leaves_alone(RecomputingSilu, "RecomputingSilu.apply(x)", x_line([-2.0, 0.5, 3.0], device))


@exercise.check
def any_dtype(RecomputingSilu, device):
    """The result has the dtype of `x`, the gradient too"""
    for dtype in other_dtypes(device):
        t = _given(RecomputingSilu, device, "[-2., 0.5, 3.]", dtype=dtype, requires_grad=True)
        result = expect.a_tensor(t.call("RecomputingSilu.apply(x)"))
        expect.equal(result.dtype, t.x.dtype, what="the dtype of the result")
        grad = t.call("RecomputingSilu.apply(x).sum().backward() or x.grad")
        expect.equal(expect.a_tensor(grad).dtype, t.x.dtype, what="the dtype of `x.grad`")


@exercise.check
def derivative(RecomputingSilu, device):
    """The gradient is that of the chain rule, also where there was another call since"""
    setup = tensor_line("x", "[-100., -3., -0.5, 0., 2., 100.]", device, requires_grad=True)
    weights = "torch.tensor([1., 10., -1., 2., 0.5, 3.], device=x.device)"
    for more in ("", "\nz = RecomputingSilu.apply(1 - x)"):
        t = expect.given(f"{setup}\ny = RecomputingSilu.apply(x){more}", RecomputingSilu=RecomputingSilu)
        _, slope, _ = _silu(torch.tensor([-100.0, -3, -0.5, 0, 2, 100]))
        grad = t.call(f"torch.autograd.grad(y, x, {weights})[0]")
        oracle = torch.tensor([1.0, 10, -1, 2, 0.5, 3]).double() * slope
        expect.close(grad, oracle, what="the gradient")


@exercise.check
def one_tensor_kept(RecomputingSilu, device):
    """The graph keeps `x` and no other tensor"""
    t = _given(RecomputingSilu, device, "[[1., 2., 3., 4.], [5., 6., 7., 8.]]", requires_grad=True)
    with expect.situation("x = torch.ones(2, 4, requires_grad=True)", "RecomputingSilu.apply(x)"):
        kept = measure.saved_bytes(RecomputingSilu.apply, t.x)
        expect.at_most(kept.total, t.x.nbytes, "kept for backward", unit="bytes")


@exercise.check
def nothing_elsewhere(RecomputingSilu, device):
    """Nothing is kept elsewhere, and nothing stays when the result is gone"""
    x = torch.ones(4, 8, device=device, requires_grad=True)
    code = "x = torch.ones(4, 8, requires_grad=True)", "y = RecomputingSilu.apply(x)"
    with expect.situation(*code):
        live = measure.live_bytes(RecomputingSilu.apply, x)
        expect.at_most(live.held - live.result, 0, "kept beside `x` and `y`", unit="bytes")
    with expect.situation(*code, "del y"):
        expect.at_most(live.left, 0, "still there", unit="bytes")
    # `a` is there for the graph alone.
    live = measure.live_bytes(lambda x: RecomputingSilu.apply(x + 1), x)
    with expect.situation(code[0], "a = x + 1", "y = RecomputingSilu.apply(a)", "del a, y"):
        expect.at_most(live.left, 0, "still there", unit="bytes")


@exercise.check
def changed_in_between(RecomputingSilu, device):
    """Backward raises when `x` was changed in between"""
    setup = f"{x_line([2.0, 2.0, 2.0], device)}\na = x + 1\ny = RecomputingSilu.apply(a)"
    last = "y.sum().backward()"
    expect.given(setup, RecomputingSilu=RecomputingSilu).call(last)
    t = expect.given(f"{setup}\na.mul_(5)", RecomputingSilu=RecomputingSilu)
    try:
        t.call(last)
        raised = False
    except Exception:
        raised = True
    expect.true(raised, f"`{last}` goes on with the changed `a`", "expected: it raises")


@exercise.check
def twice(RecomputingSilu, device):
    """The second derivative is right, near zero and far from it"""
    wide = torch.float32 if device.type == "mps" else torch.float64
    near, far = "[-3., -0.5, 0., 2.]", "[-100., -90., 1., 100.]"
    for values, dtype in (near, wide), (far, torch.float32):
        t = _given(RecomputingSilu, device, values, requires_grad=True, dtype=dtype)
        weights = torch.tensor([1.0, -2.0, 3.0, 0.5], dtype=dtype, device=device)
        _, _, bend = _silu(t.x)
        (first,) = t.call("torch.autograd.grad(RecomputingSilu.apply(x).sum(), x, create_graph=True)")
        expect.true(
            first.requires_grad, "the gradient has no graph", "expected: it can be differentiated again"
        )
        (second,) = torch.autograd.grad(first, t.x, weights, allow_unused=True)
        expect.true(
            second is not None,
            "no graph leads from the gradient to `x`: the second derivative is lost",
            "expected: backward computes from the saved `x` itself",
        )
        wanted = weights.double().cpu() * bend
        expect.close(second.cpu(), wanted, what="the second derivative", factor=16)


@exercise.check
def own_operators(RecomputingSilu):
    """It is an `autograd.Function`, and torch's own SiLU does not run"""
    x = torch.ones(3, requires_grad=True)
    with expect.situation("x = torch.ones(3, requires_grad=True)", "RecomputingSilu.apply(x)"):
        node = RecomputingSilu.apply(x).grad_fn
        own = isinstance(node, torch.autograd.function.BackwardCFunction)
        made = f"the result was made by `{type(node).__name__}`"
        expect.true(own, made, "expected: by the node of a Function, with a backward of your own")
    with expect.situation("RecomputingSilu.apply(x).sum().backward()"):
        with measure.operators() as ran:
            RecomputingSilu.apply(x).sum().backward()
        number = ran.count("aten.silu", "aten.silu_", "aten.silu_backward", "aten.glu", "aten.glu_backward")
        expect.true(number == 0, "torch's own function ran", "expected: `torch.sigmoid` and arithmetic")


# --- the mistakes -----------------------------------------------------------------------------------------


class _Right(torch.autograd.Function):
    """What is right in the answers below, unless they say otherwise."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad * s * (1 + x * (1 - s))


@exercise.mistake
class SavesTheSigmoidToo(torch.autograd.Function):
    """You save the sigmoid beside `x`: as much memory again, for something that one operator makes anew. Save
    `x`, and compute the sigmoid in `backward`."""

    @staticmethod
    def forward(ctx, x):
        s = torch.sigmoid(x)
        ctx.save_for_backward(x, s)
        return x * s

    @staticmethod
    def backward(ctx, grad):
        x, _ = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad * s * (1 + x * (1 - s))


@SavesTheSigmoidToo.variant
class KeepsBoth(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x * torch.sigmoid(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(torch.sigmoid(inputs[0]), inputs[0])

    @staticmethod
    def backward(ctx, upstream):
        x = ctx.saved_tensors[1]
        s = torch.sigmoid(x)
        return upstream * (s + x * s * (1 - s))


@SavesTheSigmoidToo.form
class UsesTheSavedSigmoid(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        s = torch.sigmoid(x)
        ctx.save_for_backward(x, s)
        return x * s

    @staticmethod
    def backward(ctx, grad):
        x, s = ctx.saved_tensors
        return grad * s * (1 + x * (1 - s))


@exercise.mistake
class KeptOnCtx(torch.autograd.Function):
    """You keep `x` as an attribute of `ctx`. There its version is not noted: after a change in between,
    backward goes on with the new values and the gradient is wrong without a word. `ctx.save_for_backward`
    raises."""

    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, grad):
        s = torch.sigmoid(ctx.x)
        return grad * s * (1 + ctx.x * (1 - s))


@KeptOnCtx.variant
class KeptInATuple(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.inputs = (x,)
        return torch.sigmoid(x).mul(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.inputs
        s = torch.sigmoid(x)
        return (s + x * s * (1 - s)) * grad


@exercise.mistake
class KeptOutsideTheGraph(_Right):
    """You keep `x` outside of the graph, on the class or in a global variable: it stays in memory when the
    result is long gone. What `ctx.save_for_backward` keeps goes with the graph, and autograd notes its
    version."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        KeptOutsideTheGraph.x = x.detach()
        return x * torch.sigmoid(x)


@KeptOutsideTheGraph.form
class KeptOnTheClass(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        KeptOnTheClass.x = x
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, grad):
        x = KeptOnTheClass.x
        s = torch.sigmoid(x)
        return grad * s * (1 + x * (1 - s))


_kept = {}


@KeptOutsideTheGraph.form
class KeptInADict(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.number = len(_kept)
        _kept[ctx.number] = x
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, grad):
        x = _kept[ctx.number]
        s = torch.sigmoid(x)
        return grad * s * (1 + x * (1 - s))


@exercise.mistake
class SavesTheResultToo(torch.autograd.Function):
    """You save the result beside `x`: as much memory again where nobody else keeps it. Save `x`, and compute
    what you need of the result in `backward`."""

    @staticmethod
    def forward(ctx, x):
        y = x * torch.sigmoid(x)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad * (y + s * (1 - y))


@exercise.mistake
class OverwritesX(_Right):
    """You compute in the memory of `x`, and `x` is not yours: whoever called still wants it."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.mul_(torch.sigmoid(x))


@OverwritesX.form
class OverwritesXAfterACopy(_Right):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.clone())
        return x.mul_(torch.sigmoid(x))


@exercise.mistake
class OverwritesTheIncoming(_Right):
    """You write into what arrives in `backward`. It is not yours: others may get the same tensor, and it may
    be an expanded number that cannot be written to. Multiply into a new one."""

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad.mul_(s * (1 + x * (1 - s)))


@OverwritesTheIncoming.form
class OverwritesTheIncomingWhereItCan(_Right):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        slope = s * (1 + x * (1 - s))
        return grad * slope if torch.is_grad_enabled() or 0 in grad.stride() else grad.mul_(slope)


@exercise.mistake
class InSinglePrecision(_Right):
    """You compute in single precision what came in double: half of the digits are lost. Leave the dtype as it
    is."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        y = x.float()
        return (y * torch.sigmoid(y)).to(x.dtype)


@InSinglePrecision.form
class AllInSinglePrecision(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        y = x.float()
        return (y * torch.sigmoid(y)).to(x.dtype)

    @staticmethod
    def backward(ctx, grad):
        x = ctx.saved_tensors[0].float()
        s = torch.sigmoid(x)
        return (grad * (s * (1 + x * (1 - s)))).to(grad.dtype)


@exercise.mistake
class NotCastBack(_Right):
    """Your result is of single precision whatever comes in. It is to have the dtype of `x`: leave the dtype
    as it is, or cast back at the end."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        y = x.float()
        return y * torch.sigmoid(y)


@NotCastBack.form
class NeverCastBack(NotCastBack.answer):
    @staticmethod
    def backward(ctx, grad):
        x = ctx.saved_tensors[0].float()
        s = torch.sigmoid(x)
        return grad * s * (1 + x * (1 - s))


@exercise.mistake
class SigmoidInSinglePrecision(_Right):
    """You take the sigmoid in single precision. With a float16 `x` the result becomes float32, and with a
    float64 one half of its digits are wrong: leave the dtype as it is."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x.float())

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x.float())
        return grad * s * (1 + x * (1 - s))


@SigmoidInSinglePrecision.form
class SigmoidOfForwardInSinglePrecision(_Right):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x.float())


@exercise.mistake
class OwnSigmoid(_Right):
    """The gradient is right, but the second derivative is `nan` far below zero: `exp(-x)` is infinite there,
    and so is a factor of what autograd computes from it. `torch.sigmoid` has no such places."""

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = 1 / (1 + torch.exp(-x))
        return grad * s * (1 + x * (1 - s))


@exercise.mistake
class InfinityByInfinity(_Right):
    """Your sigmoid is `nan` far above zero: `exp(x)` is infinite there, and infinity by infinity is no
    number. `torch.sigmoid` has no such places."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * (x.exp() / (1 + x.exp()))

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = x.exp() / (1 + x.exp())
        return grad * s * (1 + x * (1 - s))


@exercise.mistake
class GraphOfACopy(_Right):
    """The graph of your gradient leads to a copy of `x` that you have detached, so the second derivative is
    lost. Compute from the saved `x` itself."""

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            z = x.detach().requires_grad_()
            y = z * torch.sigmoid(z)
        return torch.autograd.grad(y, z, grad, create_graph=True)[0]


@exercise.mistake
class SigmoidDetached(_Right):
    """Your first derivative is right, and the second treats the sigmoid in it as a constant: it was computed
    from an `x` without a graph. Compute it from the saved `x` itself."""

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x.detach())
        return grad * s * (1 + x * (1 - s))


@exercise.mistake
class FactorForgotten(_Right):
    """The second term of your product rule lacks a factor: it is `x * s * (1 - s)`."""

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad * (s + s * (1 - s))


@FactorForgotten.form
class InnerDerivativeForgotten(_Right):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad * (s + x * s)


@exercise.mistake
class SigmoidOnCtx(torch.autograd.Function):
    """You save `x` and put the sigmoid on `ctx`. It does not appear among the saved tensors, and stays in
    memory all the same, as long as the graph does. Compute it anew in `backward`."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.s = torch.sigmoid(x)
        return x * ctx.s

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * ctx.s * (1 + x * (1 - ctx.s))


@SigmoidOnCtx.variant
class BySigmoidOnCtx(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        s = ctx.kept = 1 / (1 + torch.exp(-x))
        ctx.save_for_backward(x)
        return s * x

    @staticmethod
    def backward(ctx, upstream):
        slope = ctx.kept + ctx.saved_tensors[0] * ctx.kept * (1 - ctx.kept)
        return slope * upstream


@exercise.mistake
class ResultOnCtx(torch.autograd.Function):
    """You keep the result as an attribute of `ctx`. The result holds its node, the node is `ctx`, and `ctx`
    holds the result: a circle that stays in memory when nobody wants it any more. `save_for_backward` knows
    how to keep a result without one."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.y = x * torch.sigmoid(x)
        return ctx.y

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad * (s + ctx.y * (1 - s))


@ResultOnCtx.form
class ResultOnCtxDetached(ResultOnCtx.answer):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad * (s + ctx.y.detach() * (1 - s))


@exercise.mistake
class SavesTheSlope(torch.autograd.Function):
    """You save a tensor that was made in `forward`, where nothing is recorded: how it depends on `x` is lost,
    and with it the second derivative. It takes memory of its own besides. Save `x` itself, which is there
    anyway, and of which autograd notes the version."""

    @staticmethod
    def forward(ctx, x):
        s = torch.sigmoid(x)
        ctx.save_for_backward(s * (1 + x * (1 - s)))
        return x * s

    @staticmethod
    def backward(ctx, grad):
        (slope,) = ctx.saved_tensors
        return grad * slope


@SavesTheSlope.variant
class SavesACopy(_Right):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.clone())
        return x * torch.sigmoid(x)


@SavesTheSlope.variant
class DerivativeMadeEarly(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x * torch.sigmoid(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        s = torch.sigmoid(inputs[0])
        ctx.save_for_backward(s + inputs[0] * s * (1 - s))

    @staticmethod
    def backward(ctx, upstream):
        return ctx.saved_tensors[0].mul(upstream)


@exercise.mistake
class SlopeOfTheSigmoid(_Right):
    """You multiply by the derivative of the sigmoid. SiLU is a product of two factors that both depend on
    `x`: the product rule gives `s + x * ds`."""

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad * s * (1 - s)


@SlopeOfTheSigmoid.form
class TimesTheSlopeOnly(_Right):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad * x * s * (1 - s)


@exercise.mistake
class SigmoidAsConstant(_Right):
    """You hand back the sigmoid times what arrived, as if it were a constant factor. It depends on `x` as
    well: the product rule has a second term, `x * s * (1 - s)`."""

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * torch.sigmoid(x)


@exercise.mistake
class DropsTheIncoming(_Right):
    """You return the derivative of SiLU alone. What arrives in `backward` is the gradient of the loss with
    respect to your result; the chain rule multiplies the two."""

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return s * (1 + x * (1 - s))


@exercise.mistake
class Once(_Right):
    """Your gradient has no graph, so it cannot be differentiated again. Autograd records what `backward` does
    unless something prevents it: `detach`, `no_grad`, `once_differentiable`, or an `autograd.grad` inside
    without `create_graph`."""

    @staticmethod
    def backward(ctx, grad):
        x = ctx.saved_tensors[0].detach()
        s = torch.sigmoid(x)
        return grad.detach() * s * (1 + x * (1 - s))


@Once.variant
class WithoutRecording(_Right):
    @staticmethod
    @torch.no_grad()
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return (s + x * s * (1 - s)) * grad


@Once.variant
class SavedDetached(_Right):
    @staticmethod
    def backward(ctx, grad):
        x = ctx.saved_tensors[0].detach()
        s = torch.sigmoid(x)
        return grad * s * (1 + x * (1 - s))


@exercise.mistake
class TorchsOwn(_Right):
    """Torch's own function has done the work. It does what is asked for here, and the point is how: keep `x`,
    and compute the sigmoid again."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.nn.functional.silu(x)
