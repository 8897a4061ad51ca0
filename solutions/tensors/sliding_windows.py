"""Element `[i, j]` of the result is element `i * step + j` of `x`, and element `k` of `x` is
`storage[offset + k * s]` with `s = x.stride(0)`. Together:

    storage[offset + i * (step * s) + j * s]

So the strides are `(step * s, s)`, the offset is that of `x`, and no element moves. The windows start at
`0, step, 2 * step, …` up to `len(x) - size`: count the whole steps in `len(x) - size` and add one.

Rows may overlap: then one element of the storage has several places in the matrix. `x.unfold(0, size, step)`
returns the same view.
"""

import torch
from torch import Tensor


def sliding_windows(x: Tensor, size: int, step: int = 1) -> Tensor:
    """(n,) -> (windows, size)"""
    (s,) = x.stride()
    windows = (len(x) - size) // step + 1
    return x.as_strided((windows, size), (step * s, s))


# Other right answers

from course_utils.exercise import Edit, Wrong


def _built_in(x, size, step=1):
    return x.unfold(0, size, step)


def _every_window_then_some(x, size, step=1):
    every = x.as_strided((x.numel() - size + 1, size), x.stride() * 2)
    return every[::step]


also_right = [_built_in, _every_window_then_some]


# Mistakes


def _stacks(x, size, step=1):
    return torch.stack([x[i : i + size] for i in range(0, len(x) - size + 1, step)])


mistakes = [
    Wrong(_stacks, told_by="shares_storage"),
    Edit("changes x", "x.as_strided", "x.as_strided_", told_by="shares_storage"),
    Edit("forgets the step", "step * s", "s", told_by="right_values"),
    Edit("one window too few", " // step + 1", " // step", told_by="right_values"),
    Edit("rounds up", "(len(x) - size) // step", "-(-(len(x) - size) // step)", told_by="right_values"),
    Edit("unit stride", "(step * s, s)", "(step, 1)", told_by="of_a_view"),
    Edit("begins at 0", "(step * s, s))", "(step * s, s), 0)", told_by="of_a_view"),
    Edit("leaves the graph", "x.as_strided", "x.detach().as_strided", told_by="gradients"),
]
not_tried = {"hard numbers": "nothing is computed", "dtypes": "a view has the dtype of its base"}
