"""Element `[i, j]` of the result is element `i * step + j` of `x`, and element `k` of `x` is
`storage[offset + k * s]` with `s = x.stride(0)`. Put together:

    storage[offset + i * (step * s) + j * s]

So the strides are `(step * s, s)`, the offset is that of `x`, and nothing has to move. The starts are
`0, step, 2 * step, …` up to `len(x) - size`: as many as whole steps fit into `len(x) - size`, and one.

Rows may overlap: one element of the storage then has several places in the matrix. `x.unfold(0, size, step)`
is torch's name for the same view.
"""

import torch
from torch import Tensor


def sliding_windows(x: Tensor, size: int, step: int = 1) -> Tensor:
    """(n,) -> (windows, size)"""
    (s,) = x.stride()
    windows = (len(x) - size) // step + 1
    return x.as_strided((windows, size), (step * s, s))


# Other right answers


def _built_in(x, size, step=1):
    return x.unfold(0, size, step)


def _every_window_then_some(x, size, step=1):
    every = x.as_strided((x.numel() - size + 1, size), x.stride() * 2)
    return every[::step]


def _counts_the_starts(x, size, step=1):
    count = 0
    while count * step + size <= len(x):
        count += 1
    distances = [step * x.stride(-1), x.stride(-1)]
    return torch.as_strided(x, [count, size], distances, x.storage_offset())


also_right = [_built_in, _every_window_then_some, _counts_the_starts]
