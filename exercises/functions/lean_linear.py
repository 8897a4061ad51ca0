"""A linear layer that computes what is asked for

`torch.nn.functional.linear(x, weight, bias)` as an `autograd.Function`: `x @ weight.t() + bias`. `x` has any
layout and any number of dimensions; the last one has `weight.size(1)` elements, which isn't 0, nor is
`weight.size(0)`. `bias` may be `None`, or left out.

- Don't compute a gradient that nobody asked for: `backward` returns `None` in its place.
- Every other gradient has the shape of its input when `backward` returns it.
- Keep `x` for backward if the gradient of `weight` needs it, `weight` if that of `x` needs it, and nothing
  else: the tensors themselves, not copies.

Backward raises if a tensor that it needs was changed. Use whatever torch offers for forward and products.

`LeanLinear.apply(torch.ones(4, 3), torch.ones(2, 3))` → a matrix of 3s, of shape `(4, 2)`
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from course_utils import measure
from course_utils.exercise import Exercise, Rows, expect
from course_utils.exercise.kits import derivatives
from course_utils.measure.operators import MATMULS

exercise = Exercise(
    minutes=20,
    hints=[
        "Three inputs, three gradients. Which of the other tensors does each need, and how many matrix "
        "products does it take?",
        "`ctx.needs_input_grad` is a tuple of bools, one for each argument that `apply` got, and `forward` "
        "has it already. A bias that was left out has no entry in it.",
        "With all leading dimensions of `x` and of the gradient flattened into one, the gradient of `weight` "
        "is `grad.t() @ x`, that of `x` is `grad @ weight`, and that of `bias` the sum of `grad` over all "
        "but the last dimension. Save `None` in place of a tensor that isn't needed.",
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
_NEAR = {"rtol": 1e-12, "atol": 0.0}  # whole numbers, but for those in float64
_SHAPES = {
    "a matrix": "torch.arange(12., device=device).view(4, 3)",
    "a vector": "torch.arange(3., device=device)",
    "four dimensions": "torch.arange(60., device=device).view(5, 1, 4, 3)",
    "five dimensions": "torch.arange(60., device=device).view(5, 1, 2, 2, 3)",
    "a transposed `x`": "torch.arange(60., device=device).view(3, 4, 5).permute(2, 1, 0)",
    "no rows": "torch.ones(0, 3, device=device)",
    "float64": "torch.arange(12., dtype=torch.float64).view(4, 3) / 7",
}
_CALL = "LeanLinear.apply(x, weight, bias)"
_WITHOUT_BIAS = "LeanLinear.apply(x, weight, None)", "LeanLinear.apply(x, weight)"
# What multiplies, in whatever way a gradient is computed.
_PRODUCTS = (*MATMULS, "aten.mul", "aten.convolution", "aten.convolution_backward")


def _inputs(
    x, weight="torch.arange(-2., 4.).view(2, 3).to(x)", bias="torch.arange(7., 9.).to(x)", asked=_NAMES
):
    """The code of the three; of these require a gradient those that are `asked` for."""
    made = [f"x = {x}", f"weight = {weight}", f"bias = {bias}"]
    return "\n".join([*made, *(f"{name}.requires_grad_()" for name in asked)])


_SETUPS = {label: _inputs(x) for label, x in _SHAPES.items()}


def _wanted(t, call):
    """The inputs of `call` in double precision, and the value there."""
    names = _NAMES if call == _CALL else _NAMES[:2]
    inputs = [getattr(t, name).detach().double().cpu().requires_grad_() for name in names]
    return inputs, F.linear(*inputs)


@exercise.check(cases=_SETUPS)
def values(t, device):
    """The values, for every number of dimensions, with a bias and without

    `x @ weight.t()` takes any number of leading dimensions, or none; `mm` takes matrices only. A bias of
    `None` can't be added.
    """
    for call in (_CALL, *_WITHOUT_BIAS):
        _, wanted = _wanted(t, call)
        with derivatives.untouched():
            found = t.call(call)
        expect.equal(found, wanted.detach().to(t.x), **_NEAR)


def _expect_gradients(t, call, layout="view_as(y)"):
    inputs, value = _wanted(t, call)
    t.run(f"y = {call}")
    expect.in_graph(t.y, of="the inputs")
    t.run(f"g = torch.arange(1., y.numel() + 1).to(y).{layout}")
    wanted = torch.autograd.grad(value, inputs, t.g.double().cpu())
    names = _NAMES[: len(inputs)]
    with derivatives.untouched():
        found = t.call(f"torch.autograd.grad(y, ({', '.join(names)}), g, allow_unused=True)")
    for name, one, true in zip(names, found, wanted, strict=True):
        expect.equal(one, true.to(t.x), what=f"the gradient of `{name}`", **_NEAR)


@exercise.check(
    cases={
        **{label: (setup, "view_as(y)") for label, setup in _SETUPS.items()},
        "a transposed `g`": (_SETUPS["four dimensions"], "view(y.shape[::-1]).permute(3, 2, 1, 0)"),
        "a `g` of zeros": (_SETUPS["a matrix"], "view_as(y) * 0"),
        "a `weight` of zeros": (_SETUPS["a matrix"], "weight.detach().zero_()", "view_as(y)"),
        "a `bias` of zeros": (_SETUPS["a matrix"], "bias.detach().zero_()", "view_as(y)"),
    }
)
def gradients(t, device, layout):
    """The gradients of all three

    Those of `x` and `weight` are products of what arrives with the other factor: `grad @ weight` for `x`,
    `grad.t() @ x` for `weight`, with all leading dimensions flattened into one. For `bias` it's a sum over
    them: if there are none, `sum(())` takes the last one too. `reshape(-1, n)` makes a matrix of any tensor
    whose last dimension is `n`; `view` raises if the strides don't allow it.
    """
    _expect_gradients(t, _CALL, layout)


@exercise.check(given=_SETUPS["four dimensions"], cases=_WITHOUT_BIAS)
def without_a_bias(t, device, call):
    """The gradients without a bias

    `backward` returns a gradient for each argument that `apply` got, and `ctx.needs_input_grad` has an entry
    for each. With `forward(ctx, …)` a bias that was left out doesn't count; with `setup_context` it does.
    Autograd accepts a `None` too many at the end.
    """
    _expect_gradients(t, call)


def _handed_back(t):
    """What `backward` hands back for each input, before autograd gets it."""
    handed = t.call("y.grad_fn.apply(torch.ones_like(y))")
    handed = handed if isinstance(handed, tuple) else (handed,)
    expect.true(len(handed) == 3, f"`backward` returns {len(handed)} gradients", "expected: three")
    return zip(_NAMES, handed, strict=True)


@exercise.check(cases=_SETUPS)
def shapes_handed_back(t, device):
    """Every gradient has the shape of its input when `backward` returns it

    `bias` was added to every row, so its gradient is the sum over all rows. Autograd would sum a gradient
    that is too large; here `backward` does it. A product of two matrices sums over all rows too.
    """
    t.run(f"y = {_CALL}")
    expect.in_graph(t.y, of="the inputs")
    for name, one in _handed_back(t):
        what = f"what `backward` returns for `{name}`"
        one, wanted = expect.a_tensor(one, what=what), getattr(t, name)
        expect.equal(tuple(one.shape), tuple(wanted.shape), what=f"the shape of {what}")


@exercise.check
def only_what_is_asked(LeanLinear, device):
    """A gradient that nobody asked for isn't computed, and `None` is returned

    `ctx.needs_input_grad` says for each argument whether it requires a gradient. A frozen weight needs none,
    nor does plain data. Autograd throws away what `backward` returns for them.
    """
    for_bias = 0
    with Rows() as rows:
        for asked in (_NAMES, ("x",), ("weight",), ("bias",)):
            label = " and ".join(f"`{name}`" for name in asked)
            with rows.of(f"{label} asked for"):
                setup = f"{_inputs(_SHAPES['a matrix'], asked=asked)}\ny = {_CALL}"
                t = expect.given(setup, LeanLinear=LeanLinear, device=device)
                expect.in_graph(t.y, of=label)
                with measure.operators() as ran:
                    handed = dict(_handed_back(t))
                for name in [name for name in _NAMES if name not in asked]:
                    told = f"`backward` returns a gradient of `{name}`, and nobody asked for it"
                    expect.true(handed[name] is None, told, "expected: `None`")
                products, limit = ran.count(*_PRODUCTS), len({"x", "weight"} & {*asked})
                if asked == _NAMES:
                    for_bias = max(0, products - limit)
                expect.at_most(products, limit + for_bias, "products that ran in backward")


_LARGE = (
    "torch.ones(100, 20, 10, device=device).permute(2, 1, 0)",
    "torch.ones(100, 50, device=device).t()",
    "torch.ones(50, device=device)",
)


@exercise.check(
    cases={
        f"`{name}`, for a gradient of {asked}": (_inputs(*_LARGE, asked=asked.split(" and ")), name)
        for asked, kept in {"x": "weight", "weight": "x", "bias": "", "weight and bias": "x"}.items()
        for name in _NAMES
        if name != kept
    }
)
def only_what_is_needed(t, device, name):
    """`x` is kept only for the gradient of `weight`, `weight` for that of `x`, `bias` not

    `forward` has `ctx.needs_input_grad` already, and `ctx.save_for_backward` takes `None` in place of a
    tensor. A tensor that is kept stays in memory while the graph waits for backward: the input of a frozen
    layer, for example. `reshape` and `flatten` copy if the layout doesn't allow a view.
    """
    # What is made by `* 1` is there for this call alone.
    derivatives.keeps(t, _CALL.replace(name, f"{name} * 1"))


@exercise.check(given=_SETUPS["a matrix"], cases=_NAMES)
def changed_in_between(t, device, written):
    """Backward raises if a tensor that it needs was changed in between

    `ctx.save_for_backward` stores the version of a tensor, and autograd compares it when backward asks for
    the tensor. It doesn't compare that of an attribute of `ctx`, and `x.data` has a version of its own.
    """
    derivatives.never_stale(t, _CALL, written, _NAMES)
