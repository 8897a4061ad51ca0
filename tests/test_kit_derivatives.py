"""What no exercise's own mistakes show of the kit for functions with a backward of their own."""

import pytest
import torch
from torch.autograd import Function

from course_utils.exercise import expect
from course_utils.exercise.kits import derivatives

X = "x = torch.tensor([-1., 0.5, 2.], requires_grad=True)"


class Square(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * ctx.saved_tensors[0] * grad


class LeftToAutograd(Square):
    @staticmethod
    def apply(x):
        return x * x


class Detached(Square):
    @staticmethod
    def backward(ctx, grad):
        return 2 * ctx.saved_tensors[0].detach() * grad


def is_its_own(square):
    derivatives.is_its_own(square, "Square.apply(x)", X, None, ("aten.pow",))


def second(square):
    x, found = derivatives.second(square, "Square.apply(x)", X, None)
    derivatives.agrees(found, torch.full((3,), 2.0).double(), x, what="the second derivative")


@pytest.mark.parametrize(
    ("check", "wrong", "said"),
    [
        (is_its_own, LeftToAutograd, "which does not call your `backward`"),
        (second, Detached, "the gradient has a graph, and none of it leads to `x`"),
    ],
)
def test_right_ones_pass_and_wrong_ones_are_told(check, wrong, said):
    with expect.situation():
        check(Square)
        with pytest.raises(expect.Mismatch, match=said):
            check(wrong)


def test_values_and_derivatives_are_in_double_precision():
    found = derivatives.exact(torch.sin, torch.tensor([0.5], requires_grad=True))
    x = torch.tensor([0.5]).double()
    torch.testing.assert_close(found, (x.sin(), x.cos(), -x.sin()))
