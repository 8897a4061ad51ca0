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

import torch
from torch import Tensor
from torch.nn import functional as F

from course_utils.exercise import Exercise, expect
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
_SETUPS = {"a vector": _NEAR, "a transposed matrix": _MATRIX}
_ONES, _OTHERS = "g = torch.ones_like(x)", "g = torch.arange(-2., x.numel() - 2).to(x).view_as(x)"


def _with_tanh(x):
    return F.gelu(x, approximate="tanh")


def _expect(t, order):
    """The value (`order` 0) or the gradient where `g` arrives (1); `x` and `g` stay as they are."""
    what, call = (
        ("the gradient", f"torch.autograd.grad({_CALL}, x, g)[0]") if order else ("the result", _CALL)
    )
    weights = t.g.cpu().double() if order else 1
    wanted, other = (derivatives.exact(f, t.x)[order] * weights for f in (F.gelu, _with_tanh))
    like = {"that of the approximation with `tanh`": other}
    with derivatives.untouched():
        found = t.call(call)
    derivatives.agrees(found, wanted, t.x, what=what, like=like)


@exercise.check(cases=_SETUPS)
def values(t, device):
    """The values

    `Φ` is computed with `erf`. The formula with `tanh` comes close to it: near ±2.7 it's off by 0.0005.
    `gradcheck` doesn't see that, because it compares a function with itself.
    """
    _expect(t, 0)


@exercise.check(
    cases={
        f"{label}, where {words} arrive": f"{setup}\n{arrives}"
        for label, setup in _SETUPS.items()
        for words, arrives in {"ones": _ONES, "others": _OTHERS}.items()
    }
)
def gradient(t, device):
    """The gradient, for whatever arrives

    By the product rule the slope of `x Φ(x)` is `Φ(x) + x φ(x)`: both factors depend on `x`. What arrives
    multiplies both terms, element by element. It may be the caller's tensor, or other nodes may get it too:
    an operator in place changes it for all of them.
    """
    _expect(t, 1)


@exercise.check(given=f"{_DOUBLE}\n{_ONES}", cases={"the value": 0, "the gradient": 1})
def all_digits(t, order):
    """In float64 value and gradient have all their digits

    `torch.tensor(2.).sqrt()` is by default a float32 number with seven digits, and it gets no more of them in
    a product with a float64 tensor. `math.sqrt(2)` has sixteen.
    """
    _expect(t, order)


@exercise.check(cases=_SETUPS)
def second_derivative(t, device):
    """The second derivative

    With `create_graph=True` autograd records what backward does, from what `ctx.saved_tensors` returns on. A
    tensor made on the way in forward usually has no history, and is a constant there: a part of the second
    derivative is then missing, or all of it. In backward `detach`, `no_grad`, `once_differentiable`, and
    `autograd.grad` without `create_graph` cut the graph off.
    """
    x, bend = derivatives.second(t, _CALL)
    derivatives.agrees(bend, derivatives.exact(F.gelu, x)[2], x, what="the second derivative")


@exercise.check(given=f"{_FAR}\n{_ONES}")
def far_out(t, device):
    """Far out there is no `nan`: value, gradient and second derivative

    Far to the left `erf` is -1 and `φ` is 0. `exp` of a large number is `inf`, and 0 times `inf` is `nan`.
    """
    for order in (0, 1):
        _expect(t, order)
    x, bend = derivatives.second(t, _CALL)
    expect.equal(bend, torch.zeros_like(x), what="the second derivative")


@exercise.check(given=_NEAR)
def changed_in_between(t, device):
    """Backward raises if `x` was changed in between

    `ctx.save_for_backward` stores the version of a tensor, and autograd compares it when backward asks for
    the tensor. It doesn't compare that of an attribute of `ctx`, and `x.data` has a version of its own.
    """
    derivatives.never_stale(t, _CALL)


@exercise.check(given=_NEAR)
def its_own(t, device):
    """The backward is yours, and torch's own `gelu` doesn't run

    `apply` makes a node with your backward. `F.gelu` makes a node of its own.
    """
    derivatives.is_its_own(t, _CALL, ["aten.gelu"])
