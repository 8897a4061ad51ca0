"""Why `view` fails, in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Reason:
    """`text` says it; `apart` are the two neighbours that cannot be merged, where that is the reason."""

    text: str
    apart: tuple[int, int] | None = None


def why_no_view(size: Sequence[int], stride: Sequence[int], shape: Sequence[int]) -> Reason | None:
    """Why a tensor of this size and stride cannot be viewed in `shape` (which may hold one -1); None where it
    can."""
    numel = math.prod(size)
    wanted = _completed(numel, shape)
    if isinstance(wanted, Reason):
        return wanted
    if not numel:
        return None
    # Dimensions of size 1 are never walked, so they are in nobody's way.
    dims = [d for d in range(len(size)) if size[d] != 1]
    runs = _runs(dims, size, stride)
    left = 1  # what is still to be filled of the run, from its end
    for new in reversed(range(len(wanted))):
        if wanted[new] == 1:
            continue
        if left == 1:
            run = runs.pop()
            left = math.prod(size[d] for d in run)
        if left % wanted[new]:
            inner = run[0]
            outer = runs[-1][-1]
            return Reason(_apart(outer, inner, size, stride, new, wanted[new]), (outer, inner))
        left //= wanted[new]
    return None


def _completed(numel: int, shape: Sequence[int]) -> list[int] | Reason:
    """The shape with its -1 worked out."""
    wanted = list(shape)
    if any(n < -1 for n in wanted):
        return Reason(f"A size of {min(wanted)} does not exist. Only -1 has a meaning: work it out.")
    if wanted.count(-1) > 1:
        return Reason("Only one size can be left open with -1.")
    if -1 in wanted:
        known = math.prod(n for n in wanted if n != -1)
        if not known and not numel:
            return Reason("With a size of 0 beside it, -1 could stand for any number.")
        if not known or numel % known:
            return Reason(f"{_elements(numel)} cannot be dealt out evenly to {known}.")
        wanted[wanted.index(-1)] = numel // known
    if math.prod(wanted) != numel:
        product = " * ".join(map(str, wanted))
        total = f"{product} = {math.prod(wanted)}" if len(wanted) > 1 else str(math.prod(wanted))
        return Reason(f"The tensor has {_elements(numel)}; the shape asks for {total}.")
    return wanted


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


def _elements(numel: int) -> str:
    return f"{numel} element" + ("" if numel == 1 else "s")
