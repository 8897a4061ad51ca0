"""The exact GELU and its derivative

`Gelu.apply(x)` multiplies each element of `x` by `Φ(x)`, the share of a normal distribution that lies below
it: `Φ(x) = (1 + erf(x / √2)) / 2`. Write it as an `autograd.Function`, with a backward of your own. You need
the density, `φ(x) = exp(-x² / 2) / √(2π)`, which is the derivative of `Φ`.

- Value and gradient are exact up to rounding, in float32 and in float64. The approximation with `tanh` that
  many models use is off by up to 0.0005.
- It can be differentiated twice. Backward raises if `x` was changed in between. Don't write to `x` or to what
  arrives.

Don't use torch's own `gelu`; everything else is allowed.

`Gelu.apply(torch.tensor([-1., 0., 2.]))` → `[-0.1587, 0., 1.9545]`, with the slopes `[-0.0833, 0.5, 1.0852]`
"""

import contextlib

import torch
from torch import Tensor
from torch.nn import functional as F

from course_utils.exercise import Exercise, Rows, expect
from course_utils.exercise.kits import derivatives

exercise = Exercise(
    minutes=12,
    hints=[
        "The result is a product of two things that both depend on `x`, so its slope is a sum of two terms. "
        "What arrives multiplies both.",
        "The derivative of `Φ` is the density `φ`. You don't need the derivative of `erf`; if you look it "
        "up, mind the inner derivative `1 / √2`.",
        "Save `x` and compute `Φ` and `φ` again in backward, from `ctx.saved_tensors`: then autograd sees "
        "how they depend on `x`. Take √2 and √(2π) from `math`; a float32 tensor has seven digits.",
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
_NEAR = "x = torch.tensor([-3., -1.5, -0.75, 0., 0.5, 1., 2.5], device=device, requires_grad=True)"
_MATRIX = "x = torch.tensor([[-2., 0., 1.], [4., -7., 5.]], device=device).t().requires_grad_()"
_FAR = "x = torch.tensor([-1000., -30., 30., 1000.], device=device, requires_grad=True)"
_DOUBLE = "x = torch.tensor([-1.5, -0.75, 0.5, 2.], dtype=torch.float64, requires_grad=True)"
_ONES, _OTHERS = "torch.ones_like(x)", "torch.arange(-2., x.numel() - 2).to(x).view_as(x)"


def _with_tanh(x):
    return F.gelu(x, approximate="tanh")


def _expect(Gelu, setup, device, order, incoming=_ONES):
    """The value (`order` 0) or the gradient (1); of others than ones, that they stay as they are."""
    t = expect.given(f"{setup}\ng = {incoming}" if order else setup, Gelu=Gelu, device=device)
    what, call = (
        ("the gradient", f"torch.autograd.grad({_CALL}, x, g)[0]") if order else ("the result", _CALL)
    )
    weights = t.g.cpu().double() if order else 1
    wanted, other = (derivatives.exact(f, t.x)[order] * weights for f in (F.gelu, _with_tanh))
    like = {"that of the approximation with `tanh`": other}
    with contextlib.nullcontext() if incoming == _ONES else derivatives.untouched():
        found = t.call(call)
    derivatives.agrees(found, wanted, t.x, what=what, like=like)


@exercise.check
def values(Gelu, device):
    """The values

    `Φ` is computed with `erf`. The formula with `tanh` comes close to it: near ±2 it's off by 0.0005.
    `gradcheck` doesn't see that, because it compares a function with itself.
    """
    for setup in (_NEAR, _MATRIX):
        _expect(Gelu, setup, device, 0)


@exercise.check
def gradient(Gelu, device):
    """The gradient, for whatever arrives

    By the product rule the slope of `x Φ(x)` is `Φ(x) + x φ(x)`: both factors depend on `x`. What arrives
    multiplies both terms, element by element. It may be the caller's tensor, or other nodes may get it too:
    an operator in place changes it for all of them.
    """
    for setup in (_NEAR, _MATRIX):
        _expect(Gelu, setup, device, 1)
        _expect(Gelu, setup, device, 1, _OTHERS)


@exercise.check
def all_digits(Gelu):
    """In float64 value and gradient have all their digits

    `torch.tensor(2.).sqrt()` is a float32 number with seven digits, and it gets no more of them in a product
    with a float64 tensor. `math.sqrt(2)` has sixteen.
    """
    for order in (0, 1):
        _expect(Gelu, _DOUBLE, None, order)


@exercise.check
def second_derivative(Gelu, device):
    """The second derivative

    With `create_graph=True` autograd records what backward does, from what `ctx.saved_tensors` returns on. A
    tensor that was made in forward has no history, and is a constant there: a part of the second derivative
    is then missing, or all of it. In backward `detach`, `no_grad`, `once_differentiable`, and `autograd.grad`
    without `create_graph` cut the graph off.
    """
    with Rows() as rows:
        for label, setup in {"a vector": _NEAR, "a transposed matrix": _MATRIX}.items():
            with rows.of(label):
                x, bend = derivatives.second(Gelu, _CALL, setup, device)
                derivatives.agrees(bend, derivatives.exact(F.gelu, x)[2], x, what="the second derivative")


@exercise.check
def far_out(Gelu, device):
    """Far out there is no `nan`: value, gradient and second derivative

    Far to the left `erf` is -1 and `φ` is 0. `exp` of a large number is `inf`, and 0 times `inf` is `nan`.
    """
    for order in (0, 1):
        _expect(Gelu, _FAR, device, order)
    x, bend = derivatives.second(Gelu, _CALL, _FAR, device)
    expect.equal(bend, torch.zeros_like(x), what="the second derivative")


@exercise.check
def changed_in_between(Gelu, device):
    """Backward raises if `x` was changed in between

    `ctx.save_for_backward` stores the version of a tensor, and autograd compares it when backward asks for
    the tensor. It doesn't compare that of an attribute of `ctx`, and `x.data` has a version of its own.
    """
    derivatives.never_stale(Gelu, _CALL, _NEAR, device, "x")


@exercise.check
def its_own(Gelu, device):
    """The backward is yours, and torch's own `gelu` doesn't run

    `apply` makes a node with your backward. `F.gelu` makes a node of its own.
    """
    derivatives.is_its_own(Gelu, _CALL, _NEAR, device, ["aten.gelu"])
