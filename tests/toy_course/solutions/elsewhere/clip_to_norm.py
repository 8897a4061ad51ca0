"""The factor is `limit / norm` where that is below 1, and 1 elsewhere: a minimum instead of a branch, so
nothing has to be known while the graph is made. The smallest positive number keeps the division away from
0 / 0.
"""

import torch
from torch import Tensor


def clip_to_norm(x: Tensor, limit: float) -> Tensor:
    return x * (limit / x.norm().clamp(min=1e-30)).clamp(max=1.0)


# Other right answers


def chooses(x: Tensor, limit: float) -> Tensor:
    norm = torch.linalg.vector_norm(x)
    return torch.where(norm > limit, x / norm * limit, x)


def divides_by_the_larger(x: Tensor, limit: float) -> Tensor:
    squares = (x * x).sum()
    return torch.where(squares <= limit * limit, x, x * limit * squares.rsqrt())


equivalent = {
    "line 6: `1e-30` -> `2e-30`": "both are far below every length that is not zero",
}


def generated(answer):
    for scale in (0.0, 1e-12, 1e-3, 1.0, 1e6):
        for limit in (0.0, 1e-6, 1.0, 1e3):
            yield answer(scale * torch.randn(5), limit)


also_right = [chooses, divides_by_the_larger]
