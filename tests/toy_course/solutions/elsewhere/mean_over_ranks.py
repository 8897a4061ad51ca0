"""A sum and a count can be added up over ranks, a mean cannot. Both travel in one tensor, so there is one
collective, and a rank without elements takes part in it with two zeros.
"""

import torch
import torch.distributed as dist
from torch import Tensor


def mean_over_ranks(x: Tensor) -> Tensor:
    sum_and_count = torch.stack((x.sum(), torch.tensor(float(len(x)))))
    dist.all_reduce(sum_and_count)
    return sum_and_count[0] / sum_and_count[1]


# Other right answers

from course_utils.exercise import Edit, Wrong


def two_collectives(x: Tensor) -> Tensor:
    total, count = x.sum(), torch.tensor(float(x.numel()))
    dist.all_reduce(count)
    dist.all_reduce(total)
    return total / count


def gathers_everything(x: Tensor) -> Tensor:
    shards = [None] * dist.get_world_size()
    dist.all_gather_object(shards, x.tolist())
    return torch.tensor([value for shard in shards for value in shard]).mean()


also_right = [two_collectives, gathers_everything]


def mean_of_means(x: Tensor) -> Tensor:
    mean = x.mean()
    dist.all_reduce(mean)
    return mean / dist.get_world_size()


mistakes = [
    Wrong(mean_of_means, told_by="unequal_shares"),
    Edit("no collective", "dist.all_reduce(sum_and_count)", "pass", told_by="equal_shares"),
    Edit(
        "stays away",
        "sum_and_count = torch",
        "if not len(x):\n        return x.sum()\n    sum_and_count = torch",
        told_by="empty_share",
    ),
]
