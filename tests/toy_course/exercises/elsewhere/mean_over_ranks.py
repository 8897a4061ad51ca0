"""One mean over all ranks

Every rank holds some of the elements, not always equally many, and perhaps none. Return the mean of all of
them, the same on every rank, as a tensor without dimensions. `x` is left as it was.

`[1, 2]` on rank 0 and `[6]` on rank 1 → `3.0`
"""

import torch
from torch import Tensor

from course_utils.exercise import Exercise, expect

exercise = Exercise(
    minutes=10,
    hints=[
        "Two means, of ten elements and of one: what is the mean of the eleven?",
        "Sums can be added across ranks. Which two sums does a mean need?",
        "A collective is over when every rank has called it, also one that has nothing to give.",
    ],
)


@exercise.starter
def mean_over_ranks(x: Tensor) -> Tensor:
    """(n,) on each rank -> ()"""
    raise NotImplementedError


def _expect_mean(mean_over_ranks, rank, shards):
    t = expect.given(f"x = torch.tensor({shards[rank].tolist()})", mean_over_ranks=mean_over_ranks)
    own = shards[rank].mean()
    expect.equal(
        t.call("mean_over_ranks(x)"), torch.cat(shards).mean(), like={"the mean of this rank alone": own}
    )


@exercise.check(ranks=2)
def equal_shares(mean_over_ranks, rank):
    """Two ranks with equally many elements

    A collective adds what all ranks bring.
    """
    _expect_mean(mean_over_ranks, rank, [torch.tensor([1.0, 2.0]), torch.tensor([5.0, 8.0])])


@exercise.check(ranks=2)
def unequal_shares(mean_over_ranks, rank):
    """Two ranks with unequally many elements

    In a mean of means a rank with one element weighs as much as one with ten.
    """
    _expect_mean(mean_over_ranks, rank, [torch.tensor([1.0, 2.0]), torch.tensor([6.0])])


@exercise.check(ranks=3)
def three_ranks(mean_over_ranks, rank):
    """Three ranks

    The number of ranks is `dist.get_world_size()`.
    """
    _expect_mean(mean_over_ranks, rank, [torch.arange(3.0), torch.arange(4.0) + 10, torch.tensor([-7.0])])


@exercise.check(ranks=2)
def input_left_alone(mean_over_ranks, rank):
    """The elements themselves stay as they are

    A collective writes into the tensor that it is given.
    """
    t = expect.given("x = torch.full((2,), rank + 1.0)", mean_over_ranks=mean_over_ranks, rank=rank)
    with expect.left_alone(t.x, what="`x`"):
        t.call("mean_over_ranks(x)")


@exercise.check(ranks=2, deadline=5)
def empty_share(mean_over_ranks, rank):
    """A rank that has no elements gets the mean too

    A collective is over when every rank has called it.
    """
    _expect_mean(mean_over_ranks, rank, [torch.tensor([3.0, 4.0, 8.0]), torch.zeros(0)])
