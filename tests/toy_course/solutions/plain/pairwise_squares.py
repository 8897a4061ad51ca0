"""`(a - b)² = a² - 2 a b + b²`: two of the terms need one row each, and the products of all pairs are one
matrix product, so nothing larger than the result is made. Rounding can leave a little less than zero, which
`clamp` takes away.
"""

import torch
from torch import Tensor


def pairwise_squares(x: Tensor) -> Tensor:
    squares = (x * x).sum(dim=1)
    sums = squares[:, None] + squares[None, :]
    return (sums - 2 * (x @ x.T)).clamp(min=0)


# Other right answers


def built_in(x: Tensor) -> Tensor:
    return torch.cdist(x, x).square()


def one_operator(x: Tensor) -> Tensor:
    squares = torch.linalg.vector_norm(x, dim=1) ** 2
    return torch.addmm(squares[:, None] + squares, x, x.T, alpha=-2).relu()


also_right = [built_in, one_operator]
