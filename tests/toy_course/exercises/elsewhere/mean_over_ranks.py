"""One mean over all ranks

Every rank holds some of the elements, not always equally many, and perhaps none. Return the mean of all of
them, the same on every rank, as a tensor without dimensions. `x` is left as it was.

`[1, 2]` on rank 0 and `[6]` on rank 1 → `3.0`
"""

import torch
import torch.distributed as dist
from torch import Tensor

from course_utils import expect
from course_utils.exercise import Exercise

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
    x = shards[rank].clone()
    came = mean_over_ranks(x)
    with expect.situation(f"x = torch.tensor({shards[rank].tolist()})", "mean_over_ranks(x)"):
        expect.equal(came, torch.cat(shards).mean())


@exercise.check(ranks=2)
def equal_shares(mean_over_ranks, rank):
    """Two ranks with equally many elements"""
    _expect_mean(mean_over_ranks, rank, [torch.tensor([1.0, 2.0]), torch.tensor([5.0, 8.0])])


@exercise.check(ranks=2)
def unequal_shares(mean_over_ranks, rank):
    """Two ranks with unequally many elements"""
    _expect_mean(mean_over_ranks, rank, [torch.tensor([1.0, 2.0]), torch.tensor([6.0])])


@exercise.check(ranks=3)
def three_ranks(mean_over_ranks, rank):
    """Three ranks"""
    _expect_mean(mean_over_ranks, rank, [torch.arange(3.0), torch.arange(4.0) + 10, torch.tensor([-7.0])])


@exercise.check(ranks=2)
def input_left_alone(mean_over_ranks, rank):
    """The elements themselves stay as they are"""
    x = torch.full((2,), rank + 1.0)
    mean_over_ranks(x)
    with expect.situation("mean_over_ranks(x)"):
        expect.unchanged(x, torch.full((2,), rank + 1.0), what="`x`")


@exercise.check(ranks=2, deadline=5)
def empty_share(mean_over_ranks, rank):
    """A rank that has no elements gets the mean too"""
    _expect_mean(mean_over_ranks, rank, [torch.tensor([3.0, 4.0, 8.0]), torch.zeros(0)])


@exercise.mistake
def mean_of_means(x):
    """You average the means of the ranks. A rank with one element then weighs as much as one with ten."""
    mean = x.mean()
    dist.all_reduce(mean)
    return mean / dist.get_world_size()


@mean_of_means.variant
def gathers_means(x):
    means = [torch.zeros(()) for _ in range(dist.get_world_size())]
    dist.all_gather(means, x.mean())
    return torch.stack(means).mean()


@exercise.mistake
def counts_its_own(x):
    """The sum is that of all ranks, the count that of one: the number of elements has to be added up
    as well."""
    total = x.sum()
    dist.all_reduce(total)
    return total / (len(x) * dist.get_world_size())


@counts_its_own.variant
def multiplies_its_count(x):
    parts = [torch.zeros(()) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.sum())
    return sum(parts) / (x.numel() * len(parts))


@exercise.mistake
def stays_on_rank_0(x):
    """`reduce` leaves the result on one rank only. `all_reduce` leaves it on every rank."""
    parts = torch.stack((x.sum(), torch.tensor(float(len(x)))))
    dist.reduce(parts, dst=0)
    if dist.get_rank() != 0:
        return x.mean()
    return parts[0] / parts[1]


@exercise.mistake
def skips_when_empty(x):
    """A rank without elements returns before the collective, and the others wait for it for ever."""
    if len(x) == 0:
        return torch.zeros(())
    parts = torch.stack((x.sum(), torch.tensor(float(len(x)))))
    dist.all_reduce(parts)
    return parts[0] / parts[1]


@skips_when_empty.variant
def leaves_early(x):
    count = torch.tensor(float(x.numel()))
    if not count:
        return count
    total = x.sum()
    dist.all_reduce(total)
    dist.all_reduce(count)
    return total / count


@exercise.mistake
def adds_into_x(x):
    """`all_reduce` writes into the tensor that it is given: `x` held its own elements, and holds sums now."""
    count = torch.tensor(float(len(x)))
    most = count.clone()
    dist.all_reduce(count)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    if len(x) == int(most) == int(count) / dist.get_world_size():
        dist.all_reduce(x)
        return x.sum() / count
    total = x.sum()
    dist.all_reduce(total)
    return total / count
