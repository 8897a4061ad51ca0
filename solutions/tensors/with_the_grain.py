"""The last dimension of a new contiguous tensor has stride 1. So move `dim` to the end, make a contiguous
copy of that view, and move the dimension back. The two moves only reorder strides, and the copy touches every
element once. The result has the shape of `x` and another layout.

The copy reads against the grain too, but only once. Whether it pays depends on the operator. The lesson
times `cumsum` and `exp` on a transposed table: `cumsum` is slower there than on a plain one, and `exp`, which
takes the elements as they lie, isn't. Measure yours with `torch.utils.benchmark` or
`measure.time_ratio`.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor


def with_the_grain(x: Tensor, dim: int, scans: list[Callable[[Tensor], Any]]) -> list[Any]:
    """What each scan returns for the elements of `x`, with stride 1 along `dim`"""
    if x.stride(dim) != 1:
        x = x.movedim(dim, -1).contiguous().movedim(-1, dim)
    return [scan(x) for scan in scans]


# Other right answers

import torch

from course_utils.exercise import Edit, Wrong


def _stacks_the_lines(x, dim, scans):
    if x.stride()[dim] != 1:
        x = torch.stack(x.unbind(dim), dim=-1).movedim(-1, dim)
    return list(map(lambda scan: scan(x), scans))


def _swaps_two_dimensions(x, dim, scans):
    given = x
    if x.stride(dim) != 1:
        given = x.transpose(dim, -1).clone(memory_format=torch.contiguous_format).transpose(-1, dim)
    return [scan(given) for scan in scans]


def _writes_into_its_own_strides(x, dim, scans):
    """Strides for a dense tensor in which `dim` comes first, then a copy into it."""
    lines = x
    if lines.stride(dim) != 1:
        strides, width = [0] * x.dim(), 1
        for i in sorted(range(x.dim()), key=lambda i: (i != dim, i)):
            strides[i], width = width, width * x.size(i)
        lines = torch.empty_strided(x.shape, strides, dtype=x.dtype).copy_(x)
    return [scan(lines) for scan in scans]


also_right = [_stacks_the_lines, _swaps_two_dimensions, _writes_into_its_own_strides]


# Mistakes

_kept = {}


def _renews_by_version(x, dim, scans):
    key = (x.data_ptr(), x.shape, x.stride(), x._version, dim)
    if key not in _kept:
        _kept.clear()
        _kept[key] = x if x.stride(dim) == 1 else x.movedim(dim, -1).contiguous().movedim(-1, dim)
    return [scan(_kept[key]) for scan in scans]


def _copies_for_every_scan(x, dim, scans):
    return [with_the_grain(x, dim, [scan])[0] for scan in scans]


_COPY = "x.movedim(dim, -1).contiguous().movedim(-1, dim)"

mistakes = [
    Edit(
        "chains the scans",
        "[scan(x) for scan in scans]",
        "[x := scan(x) for scan in scans]",
        told_by="results",
    ),
    Edit("lays `x` out anew", f"x = {_COPY}", f"x.data = {_COPY}", told_by="stays"),
    Edit("reshapes back", ".movedim(-1, dim)", ".reshape(x.shape)", told_by="elements"),
    Edit("never copies", "x.stride(dim) != 1", "False", told_by="stride_one"),
    Edit("contiguous as it is", _COPY, "x.contiguous()", told_by="stride_one"),
    Edit("asks whether contiguous", "x.stride(dim) != 1", "True", told_by="already_there"),
    Wrong(_copies_for_every_scan, told_by="one_copy"),
    Wrong(_renews_by_version, told_by="kept_nothing"),
]
not_tried = {"hard numbers": "nothing is computed"}
