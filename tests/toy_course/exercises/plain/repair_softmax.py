"""A softmax with four faults

The code below runs, and is wrong in four ways. Repair it: along `dim` the values are positive and sum to 1,
for inputs of any size, and `x` is left as it was. `torch.softmax` is welcome too.

`repair_softmax(torch.tensor([0.0, 0.0]))` → `[0.5, 0.5]`
"""

import torch
from torch import Tensor

from course_utils import expect
from course_utils.exercise import Exercise

exercise = Exercise(
    minutes=10,
    hints=[
        "Print `x` before and after the call.",
        "Which row does the largest element of all belong to? What happens to the other rows?",
        "A sum over a dimension removes it, unless it is told to keep it.",
    ],
)


@exercise.starter
def repair_softmax(x: Tensor, dim: int = -1) -> Tensor:
    """Any shape -> the same shape"""
    x -= x.max()
    powers = x.exp()
    return powers / powers.sum(-1)


@exercise.check
def one_row(repair_softmax):
    """The values of one row sum to 1"""
    t = expect.given("x = torch.tensor([1.0, 2.0, 4.0])", repair_softmax=repair_softmax)
    expect.equal(t.call("repair_softmax(x)"), torch.tensor([1.0, 2.0, 4.0]).softmax(0))


@exercise.check
def several_rows(repair_softmax):
    """Each row is a softmax of its own"""
    x = torch.tensor([[0.0, 1.0, 2.0], [5.0, -5.0, 0.0]])
    t = expect.given("x = torch.tensor([[0.0, 1.0, 2.0], [5.0, -5.0, 0.0]])", repair_softmax=repair_softmax)
    expect.equal(t.call("repair_softmax(x)"), x.softmax(-1))


@exercise.check
def other_dimension(repair_softmax):
    """`dim` decides along which dimension"""
    x = torch.randn(2, 3, 4)
    t = expect.given("", x=x, repair_softmax=repair_softmax)
    expect.equal(t.call("repair_softmax(x.clone(), dim=1)"), x.softmax(1))


@exercise.check
def large_values(repair_softmax):
    """Large values do not overflow"""
    x = torch.tensor([[1000.0, 1001.0]])
    t = expect.given("x = torch.tensor([[1000.0, 1001.0]])", repair_softmax=repair_softmax)
    expect.equal(t.call("repair_softmax(x)"), x.softmax(-1))


@exercise.check
def rows_far_apart(repair_softmax):
    """Rows of very different size do not disturb one another"""
    x = torch.tensor([[0.0, 1.0], [1000.0, 1001.0]])
    t = expect.given("x = torch.tensor([[0.0, 1.0], [1000.0, 1001.0]])", repair_softmax=repair_softmax)
    expect.equal(t.call("repair_softmax(x)"), x.softmax(-1))


@exercise.check
def input_left_alone(repair_softmax):
    """The input is not changed"""
    t = expect.given("x = torch.tensor([[1.0, 2.0]])", repair_softmax=repair_softmax)
    t.call("repair_softmax(x)")
    expect.unchanged(t.x, torch.tensor([[1.0, 2.0]]), what="`x`")


@exercise.mistake
def no_shift(x, dim=-1):
    """Nothing is subtracted before `exp`, and in float32 `exp(89)` is infinite."""
    powers = x.exp()
    return powers / powers.sum(dim, keepdim=True)


@no_shift.variant
def plain_formula(x, dim=-1):
    return torch.exp(x) / torch.exp(x).sum(dim=dim).unsqueeze(dim)


@exercise.mistake
def largest_of_all(x, dim=-1):
    """You subtract the largest element of the whole tensor. Rows far below it become 0 / 0: each row needs
    the largest of its own."""
    powers = (x - x.max()).exp()
    return powers / powers.sum(dim, keepdim=True)


@largest_of_all.variant
def one_shift(x, dim=-1):
    shifted = x - torch.amax(x)
    return shifted.exp().div(shifted.exp().sum(dim=dim, keepdim=True))


@exercise.mistake
def overwrites(x, dim=-1):
    """`x -= ...` writes into the caller's tensor."""
    x -= x.amax(dim, keepdim=True)
    powers = x.exp()
    return powers / powers.sum(dim, keepdim=True)


@overwrites.variant
def overwrites_by_name(x, dim=-1):
    x.sub_(x.max(dim, keepdim=True).values)
    return torch.softmax(x, dim)


@exercise.mistake
def last_dimension(x, dim=-1):
    """`dim` is not used: your softmax is always along the last dimension."""
    powers = (x - x.amax(-1, keepdim=True)).exp()
    return powers / powers.sum(-1, keepdim=True)
