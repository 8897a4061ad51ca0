"""All distances, in little memory

Return the squared distance of every row of `x` from every other, as a matrix. On the way to it nothing
larger than a few such matrices is made, and no loop runs over the rows. No distance is below zero.

`pairwise_squares(torch.tensor([[0.0, 0.0], [3.0, 4.0]]))` → `[[0, 25], [25, 0]]`
"""

import torch
from torch import Tensor

from course_utils import expect, measure
from course_utils.exercise import Exercise

exercise = Exercise(
    minutes=10,
    hints=[
        "How many elements has the difference of every row from every other?",
        "Multiply out the square of a difference. Which of the three terms needs both rows?",
        "The products of every row with every other are one matrix product.",
    ],
)


@exercise.starter
def pairwise_squares(x: Tensor) -> Tensor:
    """(n, d) -> (n, n)"""
    raise NotImplementedError


@exercise.check
def right_values(pairwise_squares):
    """Every entry is a squared distance"""
    t = expect.given("x = torch.tensor([[0., 0.], [3., 4.], [3., 0.]])", pairwise_squares=pairwise_squares)
    expect.equal(t.call("pairwise_squares(x)"), torch.tensor([[0.0, 25, 9], [25, 0, 16], [9, 16, 0]]))
    expect.unchanged(t.x, torch.tensor([[0.0, 0.0], [3.0, 4.0], [3.0, 0.0]]), what="`x`")


@exercise.check
def other_shapes(pairwise_squares):
    """More rows than columns, and more columns than rows"""
    for shape in ((7, 2), (2, 7)):
        x = torch.randn(shape, dtype=torch.float64)
        with expect.situation(f"pairwise_squares(x), x of shape {shape}"):
            expect.equal(pairwise_squares(x), torch.cdist(x, x).square(), rtol=1e-6, atol=1e-9)


@exercise.check
def never_negative(pairwise_squares):
    """Rows that lie close together are not less than nothing apart"""
    x = 1000 + torch.rand(20, 3)
    with expect.situation("x = 1000 + torch.rand(20, 3)", "pairwise_squares(x)"):
        least = pairwise_squares(x).min().item()
        expect.true(least >= 0, f"the smallest entry is {least:.3g}", "expected: none below 0")


@exercise.check
def little_memory(pairwise_squares):
    """The most memory at one moment is that of a few matrices"""
    x = torch.randn(32, 200)
    with expect.situation("x = torch.randn(32, 200)", "pairwise_squares(x)"):
        peak = measure.peak_bytes(pairwise_squares, x)
        expect.at_most(peak.total, x.nbytes + 5 * 4 * 32 * 32, "memory at the peak", unit="bytes")


@exercise.check
def few_operators(pairwise_squares):
    """The number of operators does not grow with the rows"""
    counts = []
    for rows in (4, 16):
        with measure.operators() as ran:
            pairwise_squares(torch.ones(rows, 3))
        counts.append(len(ran.calls))
    expect.true(
        counts[0] == counts[1], f"{counts[0]} for 4 rows, {counts[1]} for 16", "expected: no difference"
    )


@exercise.mistake
def all_differences(x):
    """You make the difference of every row from every other: n times n times d elements, where n times n are
    wanted."""
    return ((x[:, None] - x[None]) ** 2).sum(-1)


@all_differences.variant
def expanded(x):
    a, b = x.unsqueeze(0), x.unsqueeze(1)
    return (b - a).square().sum(dim=2)


@exercise.mistake
def row_by_row(x):
    """You go through the rows in Python: many small operators instead of one large one."""
    return torch.stack([(x - row).square().sum(1) for row in x])


@exercise.mistake
def below_zero(x):
    """Three large numbers are added, and what is left of them is rounding: it can fall below zero."""
    squares = (x * x).sum(1)
    return torch.addmm(squares[:, None] + squares, x, x.T, alpha=-2)


@below_zero.variant
def term_by_term(x):
    squares = x.square().sum(dim=1, keepdim=True)
    return squares - 2 * x @ x.T + squares.T


@exercise.mistake
def distances(x):
    """These are distances; the task asks for their squares."""
    return torch.cdist(x, x)


@distances.variant
def root_of_squares(x):
    squares = (x * x).sum(1)
    return (squares[:, None] + squares - 2 * (x @ x.T)).clamp(min=0).sqrt()


@exercise.mistake
def product_once(x):
    """Multiplied out, a squared difference holds the product of the two rows twice."""
    squares = (x * x).sum(1)
    return (squares[:, None] + squares - x @ x.T).clamp(min=0)
