"""The cube and its derivative

Write the third power as an `autograd.Function`. It keeps one tensor for backward, can be differentiated
twice, and raises when what it keeps was changed in between.

`Cube.apply(torch.tensor(2.0))` → `8.0`, with the gradient `12.0`
"""

import torch
from torch import Tensor

from course_utils import expect
from course_utils.exercise import Exercise

exercise = Exercise(
    minutes=10,
    hints=[
        "What must be known of the input in backward?",
        "`ctx.save_for_backward` notes the version of a tensor; an attribute of `ctx` notes nothing.",
        "Backward gets the gradient of the loss with respect to the output. The chain rule multiplies.",
    ],
)


@exercise.starter
class Cube(torch.autograd.Function):
    """x -> x³, element by element"""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        raise NotImplementedError

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        raise NotImplementedError


@exercise.check
def values(Cube):
    """The values are third powers"""
    t = expect.given("x = torch.tensor([-2.0, 0.5, 3.0])", Cube=Cube)
    expect.equal(t.call("Cube.apply(x)"), torch.tensor([-8.0, 0.125, 27.0]))


@exercise.check
def derivative(Cube):
    """The gradient is that of the chain rule"""
    x = torch.tensor([-2.0, 0.5, 3.0], requires_grad=True)
    with expect.situation("Cube.apply(x).backward(torch.tensor([1.0, 10.0, -1.0]))"):
        Cube.apply(x).backward(torch.tensor([1.0, 10.0, -1.0]))
        expect.equal(x.grad, torch.tensor([12.0, 7.5, -27.0]), what="`x.grad`")


@exercise.check
def one_tensor_kept(Cube):
    """One tensor is kept for backward"""
    kept = []
    x = torch.ones(5, requires_grad=True)
    with (
        expect.situation("x = torch.ones(5, requires_grad=True)", "Cube.apply(x)"),
        torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.nbytes) or t, lambda t: t),
    ):
        Cube.apply(x)
        expect.at_most(sum(kept), 20, "kept for backward", unit="bytes")


@exercise.check
def changed_in_between(Cube):
    """Backward raises when the input was changed in between"""
    x = torch.ones(3, requires_grad=True)
    a = x * 2
    with expect.situation("a = x * 2", "y = Cube.apply(a)", "a.mul_(5)", "y.sum().backward()"):
        y = Cube.apply(a)
        a.mul_(5)
        expect.raises(RuntimeError, lambda: y.sum().backward() or x.grad, what="`y.sum().backward()`")


@exercise.check
def twice(Cube):
    """The second derivative is `6 x`"""
    x = torch.tensor([1.0, -2.0], requires_grad=True)
    with expect.situation("Cube.apply(x) differentiated twice"):
        (first,) = torch.autograd.grad(Cube.apply(x).sum(), x, create_graph=True)
        expect.true(first.requires_grad, "the first derivative has no graph", "expected: it has one")
        (second,) = torch.autograd.grad(first.sum(), x)
        expect.equal(second, torch.tensor([6.0, -12.0]), what="the second derivative")


@exercise.mistake
class DropsTheIncoming(torch.autograd.Function):
    """You return the derivative of the cube alone. Backward multiplies it by the gradient that comes in."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 3 * x**2


@DropsTheIncoming.variant
class ReturnsLocalDerivative(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx, upstream):
        x = ctx.saved_tensors[0]
        local = x * x
        return local + local + local


@exercise.mistake
class KeptOnCtx(torch.autograd.Function):
    """`ctx.x = x` keeps the tensor but not its version: a change in between goes unnoticed, and the gradient
    is silently that of the new value."""

    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        return x**3

    @staticmethod
    def backward(ctx, grad):
        return grad * 3 * ctx.x**2


@KeptOnCtx.variant
class KeptInTuple(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.inputs = (x,)
        return x.pow(3)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.inputs
        return 3 * grad * x * x


@exercise.mistake
class KeepsTheSquareToo(torch.autograd.Function):
    """You keep the square as well. It can be had again from `x`, so half of what you keep is not needed."""

    @staticmethod
    def forward(ctx, x):
        square = x * x
        ctx.save_for_backward(x, square)
        return square * x

    @staticmethod
    def backward(ctx, grad):
        x, _ = ctx.saved_tensors
        return grad * 3 * x * x


@exercise.mistake
class KeepsTheDerivative(torch.autograd.Function):
    """You keep the derivative, made in forward, where nothing is recorded: how it depends on `x` is lost, and
    with it the second derivative."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(3 * x * x)
        return x**3

    @staticmethod
    def backward(ctx, grad):
        (slope,) = ctx.saved_tensors
        return grad * slope
