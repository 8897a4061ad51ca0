"""A masked place holds −inf, which changes no maximum and adds 0 to the sum. A short row is one block, so
everything is computed from one load.

A long row is walked twice. The first pass keeps the largest so far, and the sum of the exponentials relative
to it. When the largest grows, the sum is multiplied by `exp(old - new)`. The walk begins with the smallest
float32, not with −inf: in a first block of −inf alone, −inf − −inf would be nan.
"""

import torch
import triton
import triton.language as tl


@triton.jit
def _short(x, out, n, BLOCK: tl.constexpr):
    start, columns = tl.program_id(0) * n, tl.arange(0, BLOCK)
    block = tl.load(x + start + columns, mask=columns < n, other=-float("inf"))
    e = tl.exp(block - tl.max(block))
    tl.store(out + start + columns, e / tl.sum(e), mask=columns < n)


@triton.jit
def _long(x, out, n, BLOCK: tl.constexpr):
    x += tl.program_id(0) * n
    out += tl.program_id(0) * n
    largest, total = -3.4028234e38, 0.0
    for start in range(0, n, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        block = tl.load(x + columns, mask=columns < n, other=-float("inf"))
        new = tl.maximum(largest, tl.max(block))
        total = total * tl.exp(largest - new) + tl.sum(tl.exp(block - new))
        largest = new
    for start in range(0, n, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        block = tl.load(x + columns, mask=columns < n)
        tl.store(out + columns, tl.exp(block - largest) / total, mask=columns < n)


def softmax_kernel(x):
    out = torch.empty_like(x)
    rows, n = x.shape
    if n <= 1024:
        _short[(rows,)](x, out, n, BLOCK=triton.next_power_of_2(n))
    else:
        _long[(rows,)](x, out, n, BLOCK=1024)
    return out


# Other right answers

from course_utils.exercise import Edit


@triton.jit
def _by_lanes(x, out, n, B: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * n
    lanes = tl.arange(0, B)
    top, total = tl.full((B,), -float("inf"), tl.float32), tl.zeros((B,), tl.float32)
    for start in range(0, n, B):
        v = tl.load(x + row + start + lanes, mask=start + lanes < n, other=-float("inf"))
        new = tl.maximum(top, v)
        safe = tl.where(new == -float("inf"), 0.0, new)
        total = total * tl.exp(top - safe) + tl.exp(v - safe)
        top = new
    highest = tl.max(top, 0)
    total = tl.sum(total * tl.exp(top - highest), 0)
    for start in range(0, n, B):
        inside = start + lanes < n
        v = tl.load(x + row + start + lanes, mask=inside)
        tl.store(out + row + start + lanes, tl.exp(v - highest) / total, mask=inside)


def _lanes(x):
    out = torch.empty(x.shape, device=x.device)
    if x.shape[1] <= 1024:
        _short[(len(x),)](x, out, x.shape[1], BLOCK=1024)
    else:
        _by_lanes[(len(x),)](x, out, x.shape[1], B=256)
    return out


@triton.jit
def _parts(x, tops, sums, n, parts, B: tl.constexpr):
    row, part = tl.program_id(0), tl.program_id(1)
    i = part * B + tl.arange(0, B)
    v = tl.load(x + row * n + i, mask=i < n, other=-float("inf"))
    top = tl.maximum(tl.max(v, 0), -1e38)
    tl.store(tops + row * parts + part, top)
    tl.store(sums + row * parts + part, tl.sum(tl.exp(v - top), 0))


@triton.jit
def _whole(x, tops, sums, out, n, parts, B: tl.constexpr, P: tl.constexpr):
    row, p = tl.program_id(0), tl.arange(0, P)
    top = tl.load(tops + row * parts + p, mask=p < parts, other=-float("inf"))
    sums = tl.load(sums + row * parts + p, mask=p < parts, other=0)
    highest = tl.max(top, 0)
    total = tl.sum(sums * tl.exp(top - highest), 0)
    i = tl.program_id(1) * B + tl.arange(0, B)
    v = tl.load(x + row * n + i, mask=i < n)
    tl.store(out + row * n + i, tl.exp(v - highest) / total, mask=i < n)


def _two_launches(x):
    rows, n = x.shape
    if n <= 1024:
        return softmax_kernel(x)
    out, parts = torch.empty_like(x), triton.cdiv(n, 512)
    tops, sums = x.new_empty(rows, parts), x.new_empty(rows, parts)
    _parts[(rows, parts)](x, tops, sums, n, parts, B=512)
    P = triton.next_power_of_2(parts)
    _whole[(rows, parts)](x, tops, sums, out, n, parts, B=512, P=P)
    return out


def _row_by_row(x):
    out = torch.empty_like(x)
    for row, result in zip(x, out, strict=True):
        kernel, block = (_short, triton.next_power_of_2(len(row))) if len(row) <= 1024 else (_long, 512)
        kernel[(1,)](row, result, len(row), BLOCK=block)
    return out


also_right = [_lanes, _two_launches, _row_by_row]


_ONLINE = """new = tl.maximum(largest, tl.max(block))
        total = total * tl.exp(largest - new) + tl.sum(tl.exp(block - new))
        largest = new
"""
_TWO_WALKS = """largest = tl.maximum(largest, tl.max(block))
    for start in range(0, n, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        block = tl.load(x + columns, mask=columns < n, other=-float("inf"))
        total += tl.sum(tl.exp(block - largest))
"""
_MASKED = 'tl.load(x + start + columns, mask=columns < n, other=-float("inf"))'
_UNMASKED = 'tl.where(columns < n, tl.load(x + start + columns), -float("inf"))'
_SHORT = 'other=-float("inf"))\n    e = tl.exp(block - tl.max(block))'
_ZEROS = "other=0)\n    e = tl.where(columns < n, tl.exp(block - tl.max(block)), 0)"

mistakes = [
    Edit("no rescaling", "total * tl.exp(largest - new)", "total", told_by="values"),
    Edit("no maximum", "block - tl.max(block)", "block", told_by="hard_numbers"),
    Edit("begins with -inf", "-3.4028234e38, 0.0", '-float("inf"), 0.0', told_by="hard_numbers"),
    Edit("zeros in the maximum", _SHORT, _ZEROS, told_by="hard_numbers"),
    Edit("right by luck", _MASKED, _UNMASKED, told_by="addresses"),
    Edit("always in two walks", "n <= 1024", "n <= 0", told_by="traffic"),
    Edit("three walks", _ONLINE, _TWO_WALKS, told_by="long_rows"),
    Edit("one huge block", "n <= 1024", "n <= 2**20", told_by="blocks"),
]
equivalent = {
    "line 18: `3.4028234e+38` -> `6.8056468e+38`": "a float64 then, also below all numbers",
    "line 18: `0.0` -> `1.0`": "the first rescaling multiplies it by 0",
}
not_tried = {
    "seeds": "the numbers don't matter",
}
