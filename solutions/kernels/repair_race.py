"""Load, add and store are three steps, and another program's may come between them. An atomic is one: whoever
comes second adds to what the first one left. That holds for two lanes of a block as for two programs. One can
also count each block by itself first, and add its counts by atomics, or store them in a row of its own for a
second launch.

Integers can be added in any order. Floats too, but the last digits depend on it.
"""

import triton
import triton.language as tl
from torch import Tensor


def repair_race(values: Tensor, bins: int) -> Tensor:
    """(n,) -> (bins,)"""

    @triton.jit
    def count(values, counts, n, BLOCK: tl.constexpr):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = offsets < n
        which = tl.load(values + offsets, mask=inside, other=0)
        tl.atomic_add(counts + which, 1, mask=inside)

    n = len(values)
    counts = values.new_zeros(bins)
    count[(triton.cdiv(n, 256),)](values, counts, n, BLOCK=256)
    return counts


# Other right answers

import torch

from course_utils.exercise import Edit, Wrong


@triton.jit
def _count_block(values, rows, n, bins, BLOCK: tl.constexpr, BINS: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    which = tl.load(values + offsets, mask=inside, other=0).to(tl.int32)
    counted = tl.histogram(which, BINS, mask=inside)
    every = tl.arange(0, BINS)
    tl.store(rows + tl.program_id(0) * bins + every, counted, mask=every < bins)


@triton.jit
def _add_rows(rows, counts, bins, programs):
    which, total = tl.program_id(0), tl.program_id(0).to(tl.int64) * 0
    for row in range(programs):
        total += tl.load(rows + row * bins + which)
    tl.store(counts + which, total)


def _rows(values, bins):
    n, programs = len(values), triton.cdiv(len(values), 512)
    rows, counts = values.new_empty(programs, bins), values.new_empty(bins)
    _count_block[(programs,)](values, rows, n, bins, BLOCK=512, BINS=triton.next_power_of_2(bins))
    _add_rows[(bins,)](rows, counts, bins, programs)
    return counts


@triton.jit
def _block_by_atomics(values, counts, n, bins, BINS: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    which = tl.load(values + offsets, offsets < n, other=-1)
    every = tl.arange(0, BINS)
    counted = tl.sum((which[:, None] == every[None, :]).to(tl.int64), 0)
    tl.atomic_add(counts + every, counted, mask=(every < bins) & (counted > 0))


def _one_hot(values, bins):
    counts = torch.zeros(bins, dtype=torch.int64, device=values.device)
    grid = (triton.cdiv(len(values), 128),)
    _block_by_atomics[grid](values, counts, len(values), bins, BINS=triton.next_power_of_2(bins), BLOCK=128)
    return counts


also_right = [_rows, _one_hot]


# Mistakes


@triton.jit
def _count_bin(values, counts, n, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), tl.int64)
    for start in range(0, n, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        total += tl.load(values + offsets, mask=offsets < n, other=-1) == tl.program_id(0)
    tl.store(counts + tl.program_id(0), tl.sum(total))


def _a_program_for_each_bin(values, bins):
    counts = values.new_empty(bins)
    _count_bin[(bins,)](values, counts, len(values), BLOCK=256)
    return counts


_ATOMIC = "tl.atomic_add(counts + which, 1, mask=inside)"
_BY_BLOCK = """counted, every = tl.histogram(which.to(tl.int32), 512, mask=inside), tl.arange(0, 512)
        so_far = tl.load(counts + every, mask=counted > 0)
        tl.store(counts + every, so_far + counted, mask=counted > 0)"""
_LAUNCH = "count[(triton.cdiv(n, 256),)](values, counts, n, BLOCK=256)"
_ONE = "count[(1,)](values, counts, n, BLOCK=triton.next_power_of_2(n))"

mistakes = [
    Edit("right in a block", _ATOMIC, _BY_BLOCK, told_by="any_order"),
    Wrong(_a_program_for_each_bin, told_by="traffic"),
    Edit("one program", _LAUNCH, _ONE, told_by="traffic"),
    Edit("of torch", "return counts", "return values.bincount(minlength=bins)", told_by="addresses"),
    Edit("no mask", "1, mask=inside", "1", told_by="counts"),
    Edit("no mask on a load", "inside, other=0)\n        tl", "None)\n        tl", told_by="addresses"),
    Edit("memory that is not zeros", "new_zeros", "new_empty", told_by="counts"),
    Edit("a grid rounded down", "triton.cdiv(n, 256)", "max(1, n // 256)", told_by="counts"),
]
_MASKED = "the mask of the atomic leaves these lanes out"
_LOAD = "tl.load(values + offsets, mask=inside"
equivalent = {
    f"line 13: `{_LOAD}, other=0)` -> `{_LOAD})`": _MASKED,
    "line 13: `0` -> `1`": _MASKED,
    "line 13: `0` -> `-1`": _MASKED,
    "line 18: `256` -> `255`": "at most a program more, all of it masked",
}
not_tried = {
    "hard numbers": "values are indices",
    "dtypes": "values are indices",
    "seeds": "the numbers don't matter",
}
