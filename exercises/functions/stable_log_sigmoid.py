"""Log-sigmoid that holds at ±1000

The logarithm of the sigmoid is `log(1 / (1 + exp(-x)))`, and its derivative is `1 / (1 + exp(x))`. Computed
like this, `exp` overflows. Write an `autograd.Function` in which nothing does, for float32 and float64.

- Result and gradient are finite for every finite `x`, and right to the last digits **relative to their own
  size**: at `x = 20` the result is `-2.06e-09`, not `0`.
- The second derivative is finite and right too; its small values may lose digits.
- Backward raises if a tensor that it needs was changed. Don't write to `x` or to what arrives.

Don't use torch's own `logsigmoid` and `softplus`, or what contains them (`mish`, losses of logits).
Everything else is allowed, `torch.sigmoid` too.

`StableLogSigmoid.apply(torch.tensor([-1000., 0., 1000.]))` → `[-1000., -0.6931, 0.]`
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import derivatives

exercise = Exercise(
    minutes=15,
    core=True,
    hints=[
        "`exp` overflows for large positive arguments, not for negative ones. For `x ≥ 0` the formula needs "
        "only `exp(-x)`. For `x < 0`, multiply numerator and denominator by `exp(x)`. Is there one form for "
        "both, with `|x|`?",
        "`log(1 + z)` loses a small `z` in the sum; `torch.log1p(z)` doesn't. `1 - s` loses digits too if "
        "`s` is close to 1. The derivative is the sigmoid of something.",
        "For the second derivative autograd records what backward does. So start from the saved input (or "
        "output), and call operators whose own derivatives are right everywhere. `torch.where` computes both "
        "branches, and `abs` has the derivative 0 at 0; `torch.sigmoid` is fine.",
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
_X = "x = torch.tensor({}, device=device, requires_grad=True)".format
_NEAR = "[-3., -0.5, 0., 0.5, 3.]"
_FAR = ("[-100.]", "[-1000.]", "[100.]", "[1000.]", "[-1000., 1000.]")
_MATRIX = "x = torch.tensor([[-2., 0., 1.], [4., -7., 5.]], device=device).t().requires_grad_()"
_SMALL = {
    "float32": _X("[5., 10., 20., 40., 80.]"),
    "float64": "x = torch.tensor([-25., 30., 300.], dtype=torch.float64, requires_grad=True)",
}
_REFUSED = (
    "aten.log_sigmoid",
    "aten.softplus",
    "aten.binary_cross_entropy_with_logits",
    "aten.soft_margin_loss",
    "aten.mish",
)


def _expect(actual, wanted, x, what="the result", digits=False):
    """`digits`: every element is right relative to itself, up to a few units in its last place."""
    limits = torch.finfo(x.dtype)
    tolerance = {"rtol": 16 * limits.eps, "atol": limits.tiny} if digits else {}
    expect.equal(actual, wanted.to(x), **tolerance, what=what)


def _expect_value(t, digits=False):
    wanted = derivatives.exact(F.logsigmoid, t.x)[0]
    _expect(t.call(_CALL), wanted, t.x, digits=digits)


def _expect_gradient(t, incoming, digits=False):
    t.run(f"g = {incoming}")
    wanted = derivatives.exact(F.logsigmoid, t.x)[1] * t.g.cpu().double()
    with derivatives.untouched():
        found = t.call(f"torch.autograd.grad({_CALL}, x, g)[0]")
    _expect(found, wanted, t.x, "the gradient", digits)


@exercise.check(
    cases={"a transposed matrix": _MATRIX, **{f"`{numbers}`": _X(numbers) for numbers in (_NEAR, *_FAR)}}
)
def values(t, device):
    """The values, near 0 and at ±1000

    The logarithm of a sigmoid is never positive, and at 0 it is `-log(2)`. In float32 `exp(100.)` is `inf`,
    and the sigmoid of -1000 is 0, whose logarithm is `-inf`. `exp(-|x|)` doesn't overflow. Choose a branch
    for each element, or find one form for both signs.
    """
    _expect_value(t)


@exercise.check(cases=_SMALL)
def digits_of_values(t, device):
    """Every value has all its digits, also close to 0

    In float32 `1 + 2e-09` is 1: the small number has no place in the digits of the large one. `log1p(z)` is
    `log(1 + z)` without the sum, and `expm1(z)` is `exp(z) - 1` without the difference. In float64 the same
    happens with smaller numbers, and a clamp that suits float32 cuts off what float64 can hold.
    """
    _expect_value(t, digits=True)


@exercise.check(cases={"a vector": _X(_NEAR), "a transposed matrix": _MATRIX})
def gradient(t, device):
    """The gradient near 0, for whatever arrives

    Backward returns what arrives times `1 / (1 + exp(x))`, element by element. What arrives may be the
    caller's tensor, or other nodes may get it too: an operator in place changes it for all of them.
    """
    _expect_gradient(t, "torch.arange(2., 2 + x.numel()).to(x).view_as(x)")


@exercise.check(given=_X, cases=_FAR)
def gradient_far_out(t, device):
    """The gradient at ±100 and ±1000

    Value and derivative are two computations, and one may be right and the other not: `exp(1000.)` is `inf`,
    and both `inf / inf` and `0 * inf` are `nan`. Autograd sends 0 into the branch that `torch.where` didn't
    take; if that branch overflows, `nan` may come back.
    """
    _expect_gradient(t, "torch.arange(2., 2 + len(x)).to(x)")


@exercise.check(cases=_SMALL)
def digits_of_the_gradient(t, device):
    """A gradient close to 0 keeps its digits

    At 20 the sigmoid is rounded to 1 in float32, and `1 - 1` has no digits left. `sigmoid(-x)` is the same
    number without a difference.
    """
    _expect_gradient(t, "torch.ones_like(x)", digits=True)


@exercise.check(given=_X, cases=[_NEAR.replace("0., ", ""), "[0.]", *_FAR])
def second_derivative(StableLogSigmoid, t, device):
    """The second derivative is right, and a tensor that was changed is noticed

    Autograd records what backward does with the saved tensors. What `ctx.save_for_backward` keeps has a
    history and a version, which is compared. An attribute of `ctx` isn't compared, and a tensor that was made
    in forward, or detached, counts as a constant. `no_grad` and `once_differentiable` cut the graph. Each
    operator has its own derivative: that of `abs` at 0 is 0, and where `exp` overflows there may be `nan`.
    """
    x, bend = derivatives.second(t, _CALL)
    _expect(bend, derivatives.exact(F.logsigmoid, x)[2], x, "the second derivative")
    t = expect.given(_X(_NEAR), StableLogSigmoid=StableLogSigmoid, device=device)
    derivatives.never_stale(t, _CALL)


@exercise.check(given=_X(_NEAR))
def its_own(t, device):
    """Torch's `logsigmoid` and `softplus` don't run, nor what contains them

    `apply` makes a node with your backward; operators inside forward make no nodes. `F.logsigmoid` makes a
    node of its own.
    """
    derivatives.is_its_own(t, _CALL, _REFUSED)
