"""A tile of 32 × 32 has 32 neighbours in each row and in each column, four sectors. So the loads fill the
sectors of `x` and the stores fill those of the result. In between the program holds the tile, where the order
of addresses doesn't matter.
"""

import torch
import triton
import triton.language as tl

SIDE = 32


@triton.jit
def _transpose(x, out, height, width, SIDE: tl.constexpr):
    rows = (tl.program_id(0) * SIDE + tl.arange(0, SIDE))[:, None]
    columns = (tl.program_id(1) * SIDE + tl.arange(0, SIDE))[None, :]
    mask = (rows < height) & (columns < width)
    tile = tl.load(x + rows * width + columns, mask=mask)
    tl.store(out + columns * height + rows, tile, mask=mask)


def transpose_kernel(x):
    height, width = x.shape
    out = x.new_empty(width, height)
    grid = (triton.cdiv(height, SIDE), triton.cdiv(width, SIDE))
    _transpose[grid](x, out, height, width, SIDE)
    return out


# Other right answers

from course_utils.exercise import Edit, Wrong


@triton.jit
def _turned(x, out, m, n, T: tl.constexpr):
    i, j = tl.program_id(1) * T + tl.arange(0, T), tl.program_id(0) * T + tl.arange(0, T)
    inside = (i[:, None] < m) & (j[None, :] < n)
    tile = tl.trans(tl.load(x + i[:, None] * n + j[None, :], mask=inside, other=0))
    tl.store(out + j[:, None] * m + i[None, :], tile, mask=tl.trans(inside))


def _by_trans(x):
    out = torch.empty_like(x.t(), memory_format=torch.contiguous_format)
    _turned[triton.cdiv(len(out), 16), triton.cdiv(len(x), 16)](x, out, *x.shape, T=16)
    return out


@triton.jit
def _long_tiles(x, x0, x1, out, out0, out1, m, n, tiles, A: tl.constexpr, B: tl.constexpr):
    tile = tl.program_id(0)
    i = tile // tiles * A + tl.arange(0, A)
    j = tile % tiles * B + tl.arange(0, B)
    inside = (i < m)[:, None] & (j < n)[None, :]
    values = tl.load(x + i[:, None] * x0 + j[None, :] * x1, inside)
    tl.store(out + i[:, None] * out1 + j[None, :] * out0, values, inside)


def _in_tiles(x, height, width):
    m, n = x.shape
    out = x.new_empty(n, m)
    tiles = triton.cdiv(n, width)
    grid = (triton.cdiv(m, height) * tiles,)
    _long_tiles[grid](x, *x.stride(), out, *out.stride(), m, n, tiles, A=height, B=width)
    return out


def _by_strides(x):
    return _in_tiles(x, 8, 64)


also_right = [_by_trans, _by_strides]


# Mistakes


def _by_rows(x):
    return _in_tiles(x, 1, 128)


def _by_columns(x):
    return _in_tiles(x, 128, 1)


def _turned_by_torch(x):
    return _in_tiles(x.t().contiguous().t(), 8, 64)


_FLAT = "+ columns, mask=rows * width + columns < height * width)"

mistakes = [
    Edit("square only", "columns * height", "columns * width", told_by="values"),
    Edit("not contiguous", "return out", "return out.t().contiguous().t()", told_by="values"),
    Edit("no mask on the load", "+ columns, mask=mask", "+ columns", told_by="addresses"),
    Edit("loads of the next row", "+ columns, mask=mask)", _FLAT, told_by="traffic"),
    Wrong(_turned_by_torch, told_by="addresses"),
    Wrong(_by_rows, told_by="sectors"),
    Wrong(_by_columns, told_by="sectors"),
    Edit("large tiles", "SIDE = 32", "SIDE = 64", told_by="blocks"),
]
equivalent = {
    "line 20: `triton.cdiv(height, SIDE)` -> `height`": "programs more, all of them masked",
    "line 20: `triton.cdiv(width, SIDE)` -> `width`": "programs more, all of them masked",
}
not_tried = {
    "hard numbers": "nothing is computed",
    "dtypes": "the sectors are counted in float32",
    "seeds": "the numbers don't matter",
}
