"""Why `view` fails, in words."""

from __future__ import annotations

import math
from collections.abc import Sequence

from course_utils.draw.labels import counted


def why_no_view(size: Sequence[int], stride: Sequence[int], shape: Sequence[int]) -> str | None:
    """Why a tensor of this size and stride cannot be viewed in `shape` (which may hold one -1); None where it
    can, and where torch's own words about the shape are all there is to say."""
    numel, wanted = math.prod(size), list(shape)
    if wanted.count(-1) == 1 and (known := -math.prod(wanted)):
        wanted[wanted.index(-1)] = numel // known
    if math.prod(wanted) != numel or min(wanted, default=0) < 0:
        total = " * ".join(map(str, shape)) or "1"
        return f"The tensor has {counted(numel, 'element')}; the shape asks for {total}."
    if not numel:
        return None
    # Dimensions of size 1 are never walked, so they are in nobody's way.
    runs = _runs([d for d in range(len(size)) if size[d] != 1], size, stride)
    left = 1  # what is still to be filled of the run, from its end
    for new in reversed(range(len(wanted))):
        if wanted[new] == 1:
            continue
        if left == 1:
            run = runs.pop()
            left = math.prod(size[d] for d in run)
        if left % wanted[new]:
            return _apart(runs[-1][-1], run[0], size, stride, new, wanted[new])
        left //= wanted[new]
    return None


def _runs(dims: list[int], size: Sequence[int], stride: Sequence[int]) -> list[list[int]]:
    """The dimensions in groups, each of which is one evenly spaced row of elements."""
    runs: list[list[int]] = []
    for d in dims:
        if runs and stride[runs[-1][-1]] == size[d] * stride[d]:
            runs[-1].append(d)
        else:
            runs.append([d])
    return runs


def _apart(outer: int, inner: int, size: Sequence[int], stride: Sequence[int], new: int, length: int) -> str:
    run = size[inner] * stride[inner]
    return (
        f"Dimensions {outer} and {inner} cannot be merged, and dimension {new} of the result, of size "
        f"{length}, would run through both. A step along dimension {outer} is {stride[outer]}; a whole run "
        f"of dimension {inner} is {size[inner]} * {stride[inner]} = {run}. They merge only where the two are "
        f"equal: stride[{outer}] == size[{inner}] * stride[{inner}]."
    )
