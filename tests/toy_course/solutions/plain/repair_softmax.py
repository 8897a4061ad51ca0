"""A softmax does not change when a number is subtracted from a whole row, so each row may give up its largest
element, and no power is above 1. `keepdim` keeps the dimension that a row was summed along, so that the
sums stand beside their rows.
"""

import torch
from torch import Tensor


def repair_softmax(x: Tensor, dim: int = -1) -> Tensor:
    powers = (x - x.amax(dim, keepdim=True)).exp()
    return powers / powers.sum(dim, keepdim=True)


# Other right answers


def built_in(x: Tensor, dim: int = -1) -> Tensor:
    return torch.softmax(x, dim)


def by_logarithms(x: Tensor, dim: int = -1) -> Tensor:
    return torch.log_softmax(x, dim).exp()


also_right = [built_in, by_logarithms]
