"""`where` chooses without counting, so the shapes are known before any value is. The count stays a tensor,
kept above 0 by `clamp`.
"""

import torch
from torch import Tensor


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    total = torch.where(mask, x, 0.0).sum()
    return total / mask.sum().clamp(min=1)


# Other right answers


def fills(x: Tensor, mask: Tensor) -> Tensor:
    count = mask.to(x.dtype).sum()
    return x.masked_fill(~mask, 0).sum() / torch.maximum(count, torch.ones_like(count))


def divides_first(x: Tensor, mask: Tensor) -> Tensor:
    share = torch.where(mask, x, torch.zeros_like(x)) / (mask.sum() + ~mask.any())
    return share.sum()


also_right = [fills, divides_first]
