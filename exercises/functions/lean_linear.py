"""A linear layer that computes what is asked for

`torch.nn.functional.linear(x, weight, bias)` as an `autograd.Function`: `x @ weight.t() + bias`, for an `x`
of any number of dimensions, of which the last has `weight.size(1)` elements. `weight` is a matrix and `bias`
a vector, or `None`, or left out.

In `backward`

- a gradient that nobody asked for is not computed, and `None` is returned in its place: frozen weights and
  inputs that are plain data cost no matrix product;
- every other gradient has the shape of what it belongs to, before autograd gets it;
- all of it can be differentiated again.

For backward, `x` is kept only where the gradient of `weight` will need it, `weight` only where that of `x`
will, and nothing else. Where one that was kept has been changed in between, backward raises, as it does for
torch's own functions. The inputs may have any layout, and so may what arrives, which is not written to; the
results have the dtype of the inputs, and its precision.

What torch offers for the forward and for products is welcome.

- `LeanLinear.apply(x, weight, bias)` and `LeanLinear.apply(x, weight)`
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from course_utils import evidence, expect, measure
from course_utils.exercise import Exercise
from course_utils.measure.operators import MATMULS

exercise = Exercise(
    minutes=20,
    hints=[
        "Three inputs, three gradients. For each: which of the other tensors has to be there to compute it, "
        "and how many matrix products does it take?",
        "`ctx.needs_input_grad` is a tuple of bools, one for each argument that `apply` was given, and it is "
        "there in `forward` already. A bias that was left out has no entry in it.",
        "With all leading dimensions of `x` and of the gradient flattened into one, the gradient of `weight` "
        "is `grad.t() @ x`, that of `x` is `grad @ weight`, and that of `bias` the sum of `grad` over all "
        "but the last dimension. Save `None` in place of what will not be needed.",
    ],
)


@exercise.starter
class LeanLinear(torch.autograd.Function):
    """(..., inputs), (outputs, inputs), (outputs,) -> (..., outputs)"""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        raise NotImplementedError

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        raise NotImplementedError


_NAMES = "x", "weight", "bias"
_SHAPES = (2, 3), (3,), (2, 4, 3), (2, 1, 4, 3)


def _inputs(LeanLinear, shape, device, needed="x weight bias", dtype="float32", then=""):
    """`x` of this shape, a weight and a bias; of these require a gradient those that are `needed`. `then`:
    further lines of code."""
    more = f", dtype=torch.{dtype}" * (dtype != "float32") + expect.on(device)
    lines = []
    for name, size, begin in (("x", shape, 0), ("weight", (2, 3), -2), ("bias", (2,), 7)):
        end = begin + torch.Size(size).numel()
        made = f"{name} = torch.arange({begin}., {end}.{more})" + f".view{size}" * (len(size) > 1)
        lines.append(made + ".requires_grad_()" * (name in needed.split()))
    return expect.given("\n".join([*lines, then]), LeanLinear=LeanLinear)


def _wanted(t, bias, grad):
    """The oracle: value and gradients in double precision, by autograd and without a linear layer."""
    x, weight, b = (one.detach().double().cpu().requires_grad_() for one in (t.x, t.weight, t.bias))
    value = (x.unsqueeze(-2) * weight).sum(-1)
    value = value + b if bias else value
    grads = torch.autograd.grad(value, (x, weight, b), grad.double().cpu(), allow_unused=True)
    return value.detach(), grads


def _expect_gradients(found, wanted):
    for name, one, oracle in zip(_NAMES, found, wanted, strict=False):
        expect.true(one is not None, f"no gradient reaches `{name}`", "expected: one does")
        expect.close(one.cpu(), oracle, what=f"the gradient of `{name}`", factor=8)


def _weights(result):
    """Gradients that arrive: no two alike."""
    return torch.arange(1.0, result.numel() + 1).reshape(result.shape).to(result)


@exercise.check
def values(LeanLinear, device):
    """The values, for an `x` of one, two, three and four dimensions, with a bias and without"""
    for shape in _SHAPES:
        t = _inputs(LeanLinear, shape, device)
        for call, bias in (("x, weight, bias", True), ("x, weight, None", False), ("x, weight", False)):
            result = expect.a_tensor(t.call(f"LeanLinear.apply({call})"))
            value = (t.x.double().cpu().unsqueeze(-2) * t.weight.double().cpu()).sum(-1)
            expect.close(result.cpu(), value + t.bias.double().cpu() if bias else value)


@exercise.check
def gradients(LeanLinear, device):
    """The gradients of all three, for an `x` of one to four dimensions, be it a leaf or not"""
    for shape in _SHAPES:
        t = _inputs(LeanLinear, shape, device)
        for inputs in ("x, weight, bias", "x * 1, weight * 1, bias * 1"):
            result = expect.a_tensor(t.call(f"LeanLinear.apply({inputs})"))
            expect.in_graph(result, of="`x`, `weight` and `bias`")
            grad = _weights(result)
            _, wanted = _wanted(t, True, grad)
            with expect.left_alone(grad, what="what arrives in `backward`"):
                found = torch.autograd.grad(result, (t.x, t.weight, t.bias), grad, allow_unused=True)
            _expect_gradients(found, wanted)


@exercise.check
def without_a_bias(LeanLinear, device):
    """The gradients where there is no bias"""
    for call in ("x, weight, None", "x, weight"):
        t = _inputs(LeanLinear, (2, 4, 3), device)
        result = expect.a_tensor(t.call(f"LeanLinear.apply({call})"))
        grad = _weights(result)
        _, wanted = _wanted(t, False, grad)
        found = torch.autograd.grad(result, (t.x, t.weight), grad, allow_unused=True)
        _expect_gradients(found, wanted)


@exercise.check
def shapes_handed_back(LeanLinear, device):
    """Every gradient has the shape of its input before autograd gets it"""
    # All shapes are tried before one is shown: what goes wrong in one may be right in another.
    failed = []
    for shape in _SHAPES[:3]:
        t = _inputs(LeanLinear, shape, device)
        result = expect.a_tensor(t.call("LeanLinear.apply(x, weight, bias)"))
        try:
            handed = result.grad_fn.apply(_weights(result))
        except Exception as error:
            evidence.record("handed back", type(error).__name__)
            failed.append((t, error))
            continue
        handed = handed if isinstance(handed, tuple) else (handed,)
        sizes = [tuple(one.shape) if isinstance(one, Tensor) else None for one in handed]
        evidence.record("handed back", sizes)
        if sizes != [tuple(getattr(t, name).shape) for name in _NAMES]:
            failed.append((t, handed))
    if not failed:
        return
    t, handed = failed[0]
    with evidence.silent():
        t.call("LeanLinear.apply(x, weight, bias)")
    if isinstance(handed, Exception):
        raise handed
    expect.true(len(handed) == 3, f"`backward` returns {len(handed)} gradients", "expected: three")
    for name, one in zip(_NAMES, handed, strict=True):
        wanted = tuple(getattr(t, name).shape)
        if not isinstance(one, Tensor) or tuple(one.shape) != wanted:
            lines = [f"`backward` hands back {_what(one)} for `{name}`, expected {wanted}"]
            if isinstance(one, Tensor) and one.dim() > len(wanted):
                lines.append("autograd adds up what is too much, after the larger tensor was made")
            raise expect.Mismatch(*lines)


# What multiplies, in whatever way a gradient is computed.
_PRODUCTS = (*MATMULS, "aten.mul", "aten.convolution", "aten.convolution_backward")


@exercise.check
def only_what_is_asked(LeanLinear, device):
    """A gradient that nobody asked for is not computed: `None` is handed back"""
    found, products = [], {}
    for needed in ("x weight bias", "weight bias", "x bias", "bias", "x", "weight"):
        t = _inputs(LeanLinear, (4, 3), device, needed)
        result = expect.a_tensor(t.call("LeanLinear.apply(x, weight, bias)"))
        expect.in_graph(result, of=_listed(needed))
        with measure.operators() as ran, evidence.silent():
            handed = result.grad_fn.apply(_weights(result))
            products[needed] = ran.count(*_PRODUCTS)
        handed = handed if isinstance(handed, tuple) else (handed,)
        for name, one in zip(_NAMES, handed, strict=False):
            if one is not None and name not in needed.split():
                found.append((needed, name, one))
    most = products.pop("x weight bias")
    wasted = [needed for needed, number in products.items() if number >= most > 0]
    evidence.record("not asked for", [(needed, name) for needed, name, _ in found])
    evidence.record("as much work as for all", wasted)
    for needed in [needed for needed, _, _ in found] or wasted:
        # That example is shown, not the one that ran last.
        with evidence.silent():
            _inputs(LeanLinear, (4, 3), device, needed).call("LeanLinear.apply(x, weight, bias)")
        break
    for needed, name, one in found:
        raise expect.Mismatch(
            f"`backward` hands back {_what(one)} for `{name}`, expected `None`",
            f"a gradient was asked for {_listed(needed)}",
        )
    for needed in wasted:
        raise expect.Mismatch(
            f"products that ran in backward: {products[needed]}, as many as for all three gradients",
            f"expected: fewer. A gradient was asked for {_listed(needed)}",
        )


def _what(value):
    return f"the shape {tuple(value.shape)}" if isinstance(value, Tensor) else expect.show(value)


def _listed(names):
    quoted = [f"`{name}`" for name in names.split()]
    return " and ".join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted) + " alone" * (
        len(quoted) == 1
    )


@exercise.check
def only_what_is_needed(LeanLinear, device):
    """`x` is kept for the gradient of `weight` alone, `weight` for that of `x`, `bias` never"""
    found = []
    for needed, kept in (
        ("x", "weight"), ("weight", "x"), ("bias", ""), ("weight bias", "x"), ("x bias", "weight")
    ):  # fmt: skip
        t = _inputs(LeanLinear, (5, 3), device, needed)
        t.call("LeanLinear.apply(x, weight, bias)")
        for name in _NAMES:
            if name in kept:
                continue

            def applied(t=t, name=name):
                # Made here, it is gone afterwards unless somebody keeps it, in whatever place.
                return t.LeanLinear.apply(
                    *(getattr(t, n) * 1 if n == name else getattr(t, n) for n in _NAMES)
                )

            with evidence.silent():
                live = measure.live_bytes(applied)
            if live.held - live.result > 0:
                found.append((needed, name, getattr(t, name).nbytes))
    evidence.record("kept", [(needed, name) for needed, name, _ in found])
    for needed, name, size in found[:1]:
        _inputs(LeanLinear, (5, 3), device, needed).call("LeanLinear.apply(x, weight, bias)")
        raise expect.Mismatch(
            f"`{name}` is kept, of {size} bytes, expected: it is not",
            f"a gradient will be asked for {_listed(needed)}",
        )


@exercise.check
def nothing_elsewhere(LeanLinear, device):
    """Nothing is kept in another place, and backward raises when what was kept has been changed"""
    t = _inputs(LeanLinear, (5, 3), device)
    t.call("LeanLinear.apply(x, weight, bias)")
    live = measure.live_bytes(LeanLinear.apply, t.x, t.weight, t.bias)
    expect.at_most(live.held - live.result, 0, "made in `forward` and kept beside the result", unit="bytes")
    for name in ("x", "weight"):
        inputs = ", ".join("a" if one == name else one for one in _NAMES)
        then = f"a = {name} * 1\ny = LeanLinear.apply({inputs})"
        _inputs(LeanLinear, (5, 3), device, then=then).call("y.sum().backward()")
        t = _inputs(LeanLinear, (5, 3), device, then=f"{then}\na.add_(1)")
        try:
            t.call("y.sum().backward()")
            raised = False
        except Exception:
            raised = True
        expect.true(raised, "`y.sum().backward()` goes on with the changed `a`", "expected: it raises")


@exercise.check
def any_layout(LeanLinear, device):
    """`x` may be a transposed view, and what arrives as well"""
    more = expect.on(device)
    t = expect.given(
        f"x = torch.arange(24.{more}).view(3, 4, 2).permute(2, 1, 0).requires_grad_()\n"
        f"weight = torch.arange(-2., 4.{more}).view(2, 3).requires_grad_()\n"
        f"bias = torch.arange(7., 9.{more}).requires_grad_()\n"
        f"grad = torch.arange(16.{more}).view(2, 4, 2).permute(2, 1, 0)",
        LeanLinear=LeanLinear,
    )
    call = "torch.autograd.grad(LeanLinear.apply(x, weight, bias), (x, weight, bias), {})"
    for grad in ("grad.contiguous()", "grad"):
        _, wanted = _wanted(t, True, t.grad)
        found = t.call(call.format(grad))
        _expect_gradients(found, wanted)


@exercise.check
def all_digits(LeanLinear, device):
    """In double precision nothing is lost"""
    if device.type == "mps":
        raise expect.CannotCheck("double precision is not there on mps")
    t = _inputs(LeanLinear, (4, 3), device, dtype="float64")
    for one in (t.x, t.weight, t.bias):
        one.data /= 7
    with expect.situation("x, weight, bias = x / 7, weight / 7, bias / 7"):
        result = expect.a_tensor(t.LeanLinear.apply(t.x, t.weight, t.bias))
        grad = _weights(result) / 3
        value, wanted = _wanted(t, True, grad)
        expect.close(result.detach().cpu(), value)
        found = torch.autograd.grad(result, (t.x, t.weight, t.bias), grad, allow_unused=True)
        _expect_gradients(found, wanted)


@exercise.check
def no_rows(LeanLinear, device):
    """An `x` without rows"""
    t = _inputs(LeanLinear, (0, 3), device)
    result = expect.a_tensor(t.call("LeanLinear.apply(x, weight, bias)"))
    expect.equal(tuple(result.shape), (0, 2), what="the shape of the result")
    found = torch.autograd.grad(result, (t.x, t.weight, t.bias), torch.ones_like(result), allow_unused=True)
    for name, one in zip(_NAMES, found, strict=True):
        expect.true(one is not None, f"no gradient reaches `{name}`", "expected: one does")
        expect.equal(one, torch.zeros_like(getattr(t, name)), what=f"the gradient of `{name}`")


@exercise.check
def twice(LeanLinear, device):
    """The gradients can be differentiated, in double precision"""
    if device.type == "mps":
        raise expect.CannotCheck("double precision is not there on mps")
    t = _inputs(LeanLinear, (2, 2, 3), device, dtype="float64")
    result = expect.a_tensor(t.call("LeanLinear.apply(x, weight, bias)"))
    expect.equal(result.dtype, torch.float64, what="the dtype of the result")
    grad = _weights(result).requires_grad_()
    tensors = (t.x, t.weight, t.bias)
    x, weight, b, g = (one.detach().cpu().clone().requires_grad_() for one in (*tensors, grad))
    oracle = torch.autograd.grad(F.linear(x, weight, b), (x, weight, b), g, create_graph=True)
    loss = sum(one.square().sum() for one in oracle)
    wanted = torch.autograd.grad(loss, (x, weight, b, g), allow_unused=True)
    first = torch.autograd.grad(result, tensors, grad, create_graph=True, allow_unused=True)
    evidence.record("graphs", [one is not None and one.requires_grad for one in first])
    for name, one in zip(_NAMES, first, strict=True):
        expect.true(
            one is not None and one.requires_grad,
            f"the gradient of `{name}` has no graph",
            "expected: with `create_graph=True` it can be differentiated again",
        )
    found = torch.autograd.grad(sum(one.square().sum() for one in first), (*tensors, grad), allow_unused=True)
    evidence.record("depends", [one is not None for one in found])
    for name, one, true in zip(("`x`", "`weight`", "`bias`", "what arrives"), found, wanted, strict=True):
        evidence.record(f"second {name}", one)
        if true is not None:
            expect.true(
                one is not None,
                f"no graph leads from the gradients to {name}: the second derivative is lost",
                "expected: backward computes from the inputs themselves",
            )
            expect.close(one.cpu(), true, what=f"the second derivative by {name}", factor=32)


# --- the mistakes -----------------------------------------------------------------------------------------


def _flat(t):
    return t.reshape(-1, t.size(-1))


class _Right(torch.autograd.Function):
    """What the people below get right."""

    @staticmethod
    def forward(ctx, x, weight, bias=None):
        needs = ctx.needs_input_grad
        ctx.save_for_backward(x if needs[1] else None, weight if needs[0] else None)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        dx = grad @ weight if weight is not None else None
        dw = _flat(grad).t() @ _flat(x) if x is not None else None
        needs = ctx.needs_input_grad
        db = _flat(grad).sum(0) if len(needs) > 2 and needs[2] else None
        return dx, dw, db


@exercise.mistake
class IgnoresWhatIsNeeded(_Right):
    """You compute all gradients, asked for or not. `ctx.needs_input_grad` says for each argument whether its
    gradient is wanted; where it is not, return `None` and save the matrix product. The same goes for what is
    kept."""

    @staticmethod
    def forward(ctx, x, weight, bias=None):
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        db = _flat(grad).sum(0) if ctx.has_bias else None
        return grad @ weight, _flat(grad).t() @ _flat(x), db


@IgnoresWhatIsNeeded.variant
class AlwaysEverything(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias=None):
        ctx.save_for_backward(x, weight)
        ctx.biased = bias is not None
        out = x.matmul(weight.t())
        return out if bias is None else out + bias

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        by_weight = grad.reshape(-1, grad.shape[-1]).transpose(0, 1).mm(x.reshape(-1, x.shape[-1]))
        by_bias = grad.reshape(-1, grad.shape[-1]).sum(dim=0) if ctx.biased else None
        return grad.matmul(weight), by_weight, by_bias


@IgnoresWhatIsNeeded.form
class EverythingAndABias(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias=None):
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad @ weight, _flat(grad).t() @ _flat(x), _flat(grad).sum(0)


@IgnoresWhatIsNeeded.form
class ComputedAndDropped(_Right):
    @staticmethod
    def forward(ctx, x, weight, bias=None):
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        all_three = grad @ weight, _flat(grad).t() @ _flat(x), _flat(grad).sum(0)
        return tuple(one if n else None for one, n in zip(all_three, ctx.needs_input_grad, strict=False))


@IgnoresWhatIsNeeded.form
class EverythingWithTheBiasSaved(_Right):
    @staticmethod
    def forward(ctx, x, weight, bias=None):
        ctx.save_for_backward(x, weight, bias)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, grad):
        x, weight, bias = ctx.saved_tensors
        return grad @ weight, _flat(grad).t() @ _flat(x), None if bias is None else _flat(grad).sum(0)


@exercise.mistake
class ZerosForNone(_Right):
    """You hand back zeros where no gradient was asked for. They take memory and are added up: `None` says the
    same and costs nothing."""

    @staticmethod
    def forward(ctx, x, weight, bias=None):
        ctx.sizes = x.shape, weight.shape
        return _Right.forward(ctx, x, weight, bias)

    @staticmethod
    def backward(ctx, grad):
        dx, dw, db = _Right.backward(ctx, grad)
        dx, dw = (grad.new_zeros(n) if d is None else d for d, n in zip((dx, dw), ctx.sizes, strict=True))
        return dx, dw, db


@ZerosForNone.form
class ZerosForX(_Right):
    @staticmethod
    def backward(ctx, grad):
        dx, dw, db = _Right.backward(ctx, grad)
        return torch.zeros(grad.shape[:-1] + (1,)) if dx is None else dx, dw, db


@exercise.mistake
class BiasGradientAlways(_Right):
    """You hand back a gradient for the bias although none is asked for: there may be no bias, or a frozen
    one. `ctx.needs_input_grad` says so; `None` stands for no gradient."""

    @staticmethod
    def backward(ctx, grad):
        dx, dw, _ = _Right.backward(ctx, grad)
        return dx, dw, _flat(grad).sum(0)


@BiasGradientAlways.form
class BiasGradientIfGiven(_Right):
    @staticmethod
    def forward(ctx, x, weight, bias=None):
        ctx.has_bias = bias is not None
        return _Right.forward(ctx, x, weight, bias)

    @staticmethod
    def backward(ctx, grad):
        dx, dw, _ = _Right.backward(ctx, grad)
        return dx, dw, _flat(grad).sum(0) if ctx.has_bias else None


@exercise.mistake
class KeepsTheBias(_Right):
    """You keep `bias` for backward. No gradient needs its values: whether there is one, and whether its
    gradient is wanted, `ctx.needs_input_grad` knows."""

    @staticmethod
    def forward(ctx, x, weight, bias=None):
        needs = ctx.needs_input_grad
        ctx.save_for_backward(x if needs[1] else None, weight if needs[0] else None, bias)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, grad):
        x, weight, bias = ctx.saved_tensors
        dx = grad @ weight if weight is not None else None
        dw = _flat(grad).t() @ _flat(x) if x is not None else None
        return dx, dw, _flat(grad).sum(0) if bias is not None and ctx.needs_input_grad[2] else None


@exercise.mistake
class ForMatricesOnly(torch.autograd.Function):
    """You take `x` for a matrix: `mm` and `t` know no other. An `x` may have any number of leading
    dimensions, and none as well. And you keep all three tensors in any case: which of them backward will
    need follows from `ctx.needs_input_grad`."""

    @staticmethod
    def forward(ctx, x, weight, bias=None):
        ctx.save_for_backward(x, weight, bias)
        output = x.mm(weight.t())
        if bias is not None:
            output += bias.unsqueeze(0).expand_as(output)
        return output

    @staticmethod
    def backward(ctx, grad):
        x, weight, bias = ctx.saved_tensors
        dx = dw = db = None
        if ctx.needs_input_grad[0]:
            dx = grad.mm(weight)
        if ctx.needs_input_grad[1]:
            dw = grad.t().mm(x)
        if bias is not None and ctx.needs_input_grad[2]:
            db = grad.sum(0)
        return dx, dw, db


@ForMatricesOnly.form
class ForMatricesInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias=None):
        ctx.save_for_backward(x, weight, bias)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, grad):
        return ForMatricesOnly.answer.backward(ctx, grad)


@exercise.mistake
class ViewsWhatArrives(_Right):
    """You flatten with `view`, which raises where the strides do not allow it. What arrives, and `x`, may be
    transposed views: `reshape` makes a copy where there is no view."""

    @staticmethod
    def backward(ctx, grad):
        grad.view(-1, grad.size(-1))
        return _Right.backward(ctx, grad)


@ViewsWhatArrives.form
class ViewsX(_Right):
    @staticmethod
    def backward(ctx, grad):
        if (x := ctx.saved_tensors[0]) is not None:
            x.view(-1, x.size(-1))
        return _Right.backward(ctx, grad)


@exercise.mistake
class GradientsInSinglePrecision(_Right):
    """You compute in single precision what came in double: half of the digits are lost. Leave the dtype as it
    is."""

    @staticmethod
    def backward(ctx, grad):
        x, weight = (None if one is None else one.float() for one in ctx.saved_tensors)
        needs, grad = ctx.needs_input_grad, grad.float()
        dx = grad @ weight if weight is not None else None
        dw = _flat(grad).t() @ _flat(x) if x is not None else None
        return dx, dw, _flat(grad).sum(0) if len(needs) > 2 and needs[2] else None


@GradientsInSinglePrecision.form
class ValuesInSinglePrecision(_Right):
    @staticmethod
    def forward(ctx, x, weight, bias=None):
        out = _Right.forward(ctx, x.float(), weight.float(), None if bias is None else bias.float())
        needs = ctx.needs_input_grad
        ctx.save_for_backward(x if needs[1] else None, weight if needs[0] else None)
        return out.to(x.dtype)


@exercise.mistake
class SavesAReshapedX(_Right):
    """The gradients are right, but the second derivatives are lost: you save a tensor that was made in
    `forward`, reshaped, transposed or detached, and nothing is recorded there. Save the inputs themselves,
    and do the rest in `backward`."""

    @staticmethod
    def forward(ctx, x, weight, bias=None):
        needs = ctx.needs_input_grad
        ctx.save_for_backward(_flat(x) if needs[1] else None, weight if needs[0] else None)
        return F.linear(x, weight, bias)


@SavesAReshapedX.form
class SavesThemDetached(_Right):
    @staticmethod
    def forward(ctx, x, weight, bias=None):
        needs = ctx.needs_input_grad
        ctx.save_for_backward(x.detach() if needs[1] else None, weight.detach() if needs[0] else None)
        return F.linear(x, weight, bias)


@SavesAReshapedX.form
class SavesATransposedWeight(_Right):
    @staticmethod
    def forward(ctx, x, weight, bias=None):
        needs = ctx.needs_input_grad
        ctx.save_for_backward(x if needs[1] else None, weight.t() if needs[0] else None)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, grad):
        x, turned = ctx.saved_tensors
        needs = ctx.needs_input_grad
        dx = grad @ turned.t() if needs[0] else None
        dw = _flat(grad).t() @ _flat(x) if needs[1] else None
        return dx, dw, _flat(grad).sum(0) if any(needs[2:]) else None


@exercise.mistake
class KeepsBoth(_Right):
    """You keep `x` and `weight` in any case. With frozen weights nobody will need `x` again, and `x` is what
    takes the memory: `ctx.needs_input_grad` is known in `forward`, so save `None` in its place."""

    @staticmethod
    def forward(ctx, x, weight, bias=None):
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        needs = ctx.needs_input_grad
        dx = grad @ weight if needs[0] else None
        dw = _flat(grad).t() @ _flat(x) if needs[1] else None
        return dx, dw, _flat(grad).sum(0) if len(needs) > 2 and needs[2] else None


@KeepsBoth.variant
class SavesThemAll(torch.autograd.Function):
    @staticmethod
    def forward(x, weight, bias=None):
        return F.linear(x, weight, bias)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        result = [None] * 3
        if ctx.needs_input_grad[0]:
            result[0] = torch.matmul(grad, weight)
        if ctx.needs_input_grad[1]:
            result[1] = torch.matmul(_flat(grad).transpose(0, 1), _flat(x))
        if ctx.needs_input_grad[2]:
            result[2] = grad.sum_to_size(grad.size(-1))
        return tuple(result)


@exercise.mistake
class KeepsTheWrongOne(_Right):
    """You keep each of the two for its own gradient. It is the other way round: the gradient of `x` is a
    product with `weight`, the gradient of `weight` one with `x`."""

    @staticmethod
    def forward(ctx, x, weight, bias=None):
        needs = ctx.needs_input_grad
        ctx.save_for_backward(x if needs[0] else None, weight if needs[1] else None)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        needs = ctx.needs_input_grad
        dx = grad @ weight if needs[0] else None
        dw = _flat(grad).t() @ _flat(x) if needs[1] else None
        return dx, dw, _flat(grad).sum(0) if len(needs) > 2 and needs[2] else None


@exercise.mistake
class SumsTheFirstOnly(_Right):
    """You sum the gradient of the bias over the first dimension alone. The bias was added at every place of
    all leading dimensions, so its gradient is the sum over all of them. Autograd adds up the rest for you,
    from a tensor that is larger than it need be."""

    @staticmethod
    def backward(ctx, grad):
        dx, dw, db = _Right.backward(ctx, grad)
        return dx, dw, None if db is None else grad.sum(0) if grad.dim() > 1 else grad


@SumsTheFirstOnly.variant
class SumsDimensionZero(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias=None):
        ctx.with_bias = len(ctx.needs_input_grad) == 3 and ctx.needs_input_grad[2]
        for_x, for_weight = ctx.needs_input_grad[:2]
        ctx.save_for_backward(weight if for_x else None, x if for_weight else None)
        return x @ weight.t() if bias is None else x @ weight.t() + bias

    @staticmethod
    def backward(ctx, grad):
        weight, x = ctx.saved_tensors
        by_x = None if weight is None else grad.matmul(weight)
        by_weight = None if x is None else _flat(grad).t().mm(_flat(x))
        by_bias = None
        if ctx.with_bias:
            by_bias = grad if grad.ndim == 1 else torch.sum(grad, dim=0)
        return by_x, by_weight, by_bias


@SumsTheFirstOnly.form
class SumsAVectorToo(_Right):
    @staticmethod
    def backward(ctx, grad):
        dx, dw, db = _Right.backward(ctx, grad)
        return dx, dw, None if db is None else grad.sum(0)


@exercise.mistake
class DoesNotSum(_Right):
    """You hand back what arrived as the gradient of the bias. One bias was added at many places, and its
    gradient is the sum over them. Autograd adds it up for you here; a gradient is to have the shape of what
    it belongs to."""

    @staticmethod
    def backward(ctx, grad):
        dx, dw, db = _Right.backward(ctx, grad)
        return dx, dw, None if db is None else grad


@exercise.mistake
class OneMatrixForEach(_Right):
    """You make the gradient of `weight` once for every entry of the first dimensions. Autograd adds the
    matrices up for you, after all of them were made. With the leading dimensions flattened, one product makes
    the sum."""

    @staticmethod
    def backward(ctx, grad):
        dx, dw, db = _Right.backward(ctx, grad)
        if dw is not None and grad.dim() > 1:
            dw = grad.transpose(-1, -2) @ ctx.saved_tensors[0]
        return dx, dw, db


@OneMatrixForEach.form
class OneMatrixForEachOfTwo(_Right):
    @staticmethod
    def backward(ctx, grad):
        dx, dw, db = _Right.backward(ctx, grad)
        return dx, None if dw is None else grad.transpose(-1, -2) @ ctx.saved_tensors[0], db


@exercise.mistake
class TwoDimensionsOnly(_Right):
    """Your `backward` takes `grad` for a matrix. An `x` may have any number of leading dimensions, and none
    as well: flatten them into one for the gradients of `weight` and `bias`."""

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        needs = ctx.needs_input_grad
        dx = grad.mm(weight) if weight is not None else None
        dw = grad.t().mm(x) if x is not None else None
        return dx, dw, grad.sum(0) if len(needs) > 2 and needs[2] else None


@TwoDimensionsOnly.variant
class AsMatrices(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias=None):
        kept = [x, weight] if all(ctx.needs_input_grad[:2]) else [None, weight]
        kept = [x, None] if not ctx.needs_input_grad[0] else kept
        ctx.save_for_backward(*(kept if any(ctx.needs_input_grad[:2]) else [None, None]))
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        by_x = None if weight is None else torch.mm(grad, weight)
        by_weight = None if x is None else torch.mm(torch.t(grad), x)
        by_bias = torch.sum(grad, dim=0) if ctx.needs_input_grad[2:] == (True,) else None
        return by_x, by_weight, by_bias


@TwoDimensionsOnly.form
class MatrixOfWhatArrives(_Right):
    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        dx = grad @ weight if weight is not None else None
        dw = grad.t() @ x if x is not None else None
        return dx, dw, grad.sum(0) if any(ctx.needs_input_grad[2:]) else None


@exercise.mistake
class NoVectors(_Right):
    """Your `backward` raises for an `x` of one dimension: `flatten(0, -2)` asks for two at least.
    `reshape(-1, grad.size(-1))` makes a matrix of one row there."""

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        rows = grad.flatten(0, -2)
        dx = grad @ weight if weight is not None else None
        dw = rows.t() @ x.flatten(0, -2) if x is not None else None
        return dx, dw, rows.sum(0) if any(ctx.needs_input_grad[2:]) else None


@exercise.mistake
class SumsOverNoDimensions(_Right):
    """For an `x` of one dimension your gradient of the bias is one number: `sum` with an empty tuple of
    dimensions sums over all of them. There the gradient is what arrives, as it is."""

    @staticmethod
    def backward(ctx, grad):
        dx, dw, db = _Right.backward(ctx, grad)
        return dx, dw, None if db is None else grad.sum(dim=tuple(range(grad.dim() - 1)))


@exercise.mistake
class TransposedWeight(_Right):
    """In `backward` you multiply by `weight.t()`, as in `forward`. There it leads from inputs to outputs; the
    gradient takes the way back, and that of `x` is `grad @ weight`."""

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        dx = grad @ weight.t() if weight is not None else None
        dw = _flat(grad).t() @ _flat(x) if x is not None else None
        return dx, dw, _flat(grad).sum(0) if any(ctx.needs_input_grad[2:]) else None


@exercise.mistake
class FlatGradientOfX(_Right):
    """Your gradient of `x` is a matrix, with the leading dimensions flattened into one. It is to have the
    shape of `x`: `grad @ weight` needs no flattening."""

    @staticmethod
    def backward(ctx, grad):
        dx, dw, db = _Right.backward(ctx, grad)
        return None if dx is None else _flat(dx), dw, db


@exercise.mistake
class ExpectsABias(_Right):
    """You ask for a third entry of `ctx.needs_input_grad`, or return a third gradient, where `apply` was
    given two arguments. Both follow the arguments that were given; a `None` too many at the end is
    allowed."""

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        needs = ctx.needs_input_grad
        dx = grad @ weight if weight is not None else None
        dw = _flat(grad).t() @ _flat(x) if x is not None else None
        return dx, dw, _flat(grad).sum(0) if needs[2] else None


@exercise.mistake
class TransposedGradient(_Right):
    """Your gradient of `weight` is transposed: it has the shape (inputs, outputs). A gradient has the shape
    of what it belongs to; `grad.t() @ x` is (outputs, inputs)."""

    @staticmethod
    def backward(ctx, grad):
        dx, dw, db = _Right.backward(ctx, grad)
        return dx, None if dw is None else dw.t(), db


@exercise.mistake
class OnCtx(_Right):
    """You keep tensors as attributes of `ctx`. Autograd knows nothing of them: it frees them late, and it
    does not notice that one was changed in between. `ctx.save_for_backward` takes `None` as well."""

    @staticmethod
    def forward(ctx, x, weight, bias=None):
        ctx.x, ctx.weight = x, weight
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, grad):
        needs = ctx.needs_input_grad
        dx = grad @ ctx.weight if needs[0] else None
        dw = _flat(grad).t() @ _flat(ctx.x) if needs[1] else None
        return dx, dw, _flat(grad).sum(0) if len(needs) > 2 and needs[2] else None


@OnCtx.form
class OnCtxWhereNeeded(_Right):
    @staticmethod
    def forward(ctx, x, weight, bias=None):
        needs = ctx.needs_input_grad
        ctx.x, ctx.weight = x if needs[1] else None, weight if needs[0] else None
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, grad):
        needs = ctx.needs_input_grad
        dx = grad @ ctx.weight if needs[0] else None
        dw = _flat(grad).t() @ _flat(ctx.x) if needs[1] else None
        return dx, dw, _flat(grad).sum(0) if len(needs) > 2 and needs[2] else None


@exercise.mistake
class OneBackwardOnly(_Right):
    """The gradients cannot be differentiated again: `backward` works on tensors without a graph. Leave out
    `detach`, `no_grad` and `once_differentiable`; then autograd records what `backward` does, when it is
    asked to."""

    @staticmethod
    def backward(ctx, grad):
        with torch.no_grad():
            return _Right.backward(ctx, grad)


@OneBackwardOnly.variant
class Detached(_Right):
    @staticmethod
    def backward(ctx, grad):
        x, weight = (None if t is None else t.detach() for t in ctx.saved_tensors)
        grad = grad.detach()
        by_bias = _flat(grad).sum(0) if any(ctx.needs_input_grad[2:]) else None
        by_weight = None if x is None else torch.einsum("ro,ri->oi", _flat(grad), _flat(x))
        return None if weight is None else grad.matmul(weight), by_weight, by_bias


@OneBackwardOnly.form
class MarkedAsOnce(_Right):
    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        return _Right.backward(ctx, grad)
