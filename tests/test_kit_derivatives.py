"""What is looked at in every function with a backward of its own: right ones pass, wrong ones are told."""

import pytest
import torch
from torch.autograd import Function

from course_utils.exercise import expect
from course_utils.exercise.kits import derivatives

X = "x = torch.tensor([-1., 0.5, 2.], requires_grad=True)"
MATRIX = "x = torch.rand(100, 100).t().requires_grad_()"


def squares(backward):
    """x -> x² with this backward: (x, grad) -> grad"""

    class Square(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, grad):
            return backward(ctx.saved_tensors[0], grad)

    return Square


Right = squares(lambda x, grad: 2 * x * grad)
WritesToTheGradient = squares(lambda x, grad: grad.mul_(2 * x))
WritesToX = squares(lambda x, grad: x.detach().mul_(2) * grad)
WrongFactor = squares(lambda x, grad: 3 * x * grad)
Detached = squares(lambda x, grad: 2 * x.detach() * grad)
WithoutAGraph = squares(lambda x, grad: (2 * x * grad).detach())


class LeftToAutograd(Right):
    @staticmethod
    def apply(x):
        return x * x


def keeping(keep):
    """Right, and something of `x` is kept in another place."""

    class Keeps(Right):
        @staticmethod
        def forward(ctx, x):
            keep(ctx, x)
            return Right.forward(ctx, x)

    return Keeps


HOARD = []


@pytest.fixture(autouse=True)
def nothing_given():
    """An example that a test gives belongs to that test."""
    with expect.situation():
        yield
    HOARD.clear()


def leaves_alone(square):
    derivatives.leaves_alone(square, "Square.apply(x)", X, None)


def untouched(square):
    t = expect.given(f"{X}\ng = torch.tensor([1., 2., 3.])", Square=square)
    with derivatives.untouched():
        t.call("torch.autograd.grad(Square.apply(x), x, g)[0]")


def second(square):
    x, found = derivatives.second(square, "Square.apply(x)", X, None)
    derivatives.agrees(found, torch.full((3,), 2.0).double(), x, what="the second derivative")


def is_its_own(square):
    derivatives.is_its_own(square, "Square.apply(x)", X, None, ("aten.pow", "aten.tanh"))


def keeps(square):
    derivatives.keeps(square, "Square.apply(x * 1)", MATRIX, None, limit=40_000)


@pytest.mark.parametrize("check", [leaves_alone, untouched, second, is_its_own, keeps])
def test_right_ones_pass_and_were_looked_at(check):
    with expect.looking() as looks:
        check(Right)
    assert looks


@pytest.mark.parametrize(
    ("check", "square", "said"),
    [
        (leaves_alone, WritesToTheGradient, "what arrived (`g`) was changed: element `[0]`"),
        (untouched, WritesToTheGradient, "what arrived (`g`) was changed: element `[0]`"),
        (untouched, WritesToX, "`x` was changed: element `[0]` was -1 and is -2 now"),
        (leaves_alone, WritesToX, "`x` was changed: element `[0]` was -1 and is -2 now"),
        (second, WithoutAGraph, "`g` requires a gradient and the gradient does not"),
        (second, Detached, "the gradient has a graph, and none of it leads to `x`"),
        (second, WrongFactor, "element `[0]` of the second derivative is 3, expected 2"),
        (is_its_own, LeftToAutograd, "is `MulBackward0`, which does not call your `backward`"),
        (is_its_own, keeping(lambda ctx, x: x.tanh()), "`aten.tanh` ran"),
        (keeps, keeping(lambda ctx, x: setattr(ctx, "y", x + x)), "80,000 bytes, expected at most 40,000"),
        (keeps, keeping(lambda ctx, x: HOARD.append(x[0] + 1)), "40,400 bytes, expected at most 40,000"),
        (keeps, keeping(lambda ctx, x: setattr(ctx, "n", x.detach().numpy() + 1)), "NumPy arrays or Python"),
        (keeps, keeping(lambda ctx, x: setattr(ctx, "n", x.tolist())), "NumPy arrays or Python objects"),
    ],
)
def test_wrong_ones_are_told(check, square, said):
    with pytest.raises(expect.Mismatch) as caught:
        check(square)
    example, *lines = caught.value.lines
    assert example.startswith("for\nx = ") and "Square.apply" in example
    assert said in lines[0]


def test_what_is_kept_when_all_is_gone_is_told():
    hoards = keeping(lambda ctx, x: HOARD.append(x[0] + 1))
    with pytest.raises(expect.Mismatch, match="of `forward\\(\\)` is gone: 400 bytes"):
        derivatives.keeps(hoards, "Square.apply(x * 1)", MATRIX, None, limit=50_000)
