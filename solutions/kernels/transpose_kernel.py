"""A tile of 32 × 32 has 32 neighbours in each row and in each column, four sectors. So the loads fill the
sectors of `x` and the stores fill those of the result. In between the program holds the tile: on a GPU its
elements change places in shared memory, which has no sectors.
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


def _by_strides(x):
    m, n = x.shape
    out = x.new_empty(n, m)
    tiles = triton.cdiv(n, 64)
    grid = (triton.cdiv(m, 8) * tiles,)
    _long_tiles[grid](x, *x.stride(), out, *out.stride(), m, n, tiles, A=8, B=64)
    return out


also_right = [_by_trans, _by_strides]


# Mistakes


@triton.jit
def _lines(x, out, height, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    line = tl.load(x + row * width + columns, mask=columns < width)
    tl.store(out + columns * height + row, line, mask=columns < width)


def _by_rows(x):
    height, width = x.shape
    out = x.new_empty(width, height)
    _lines[(height, triton.cdiv(width, 128))](x, out, height, width, BLOCK=128)
    return out


@triton.jit
def _upright(x, out, height, width, BLOCK: tl.constexpr):
    column = tl.program_id(0)
    rows = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    line = tl.load(x + rows * width + column, mask=rows < height)
    tl.store(out + column * height + rows, line, mask=rows < height)


def _by_columns(x):
    height, width = x.shape
    out = x.new_empty(width, height)
    _upright[(width, triton.cdiv(height, 128))](x, out, height, width, BLOCK=128)
    return out


@triton.jit
def _copy(x, out, n):
    i = tl.program_id(0) * 1024 + tl.arange(0, 1024)
    tl.store(out + i, tl.load(x + i, mask=i < n), mask=i < n)


def _a_view(x):
    out = torch.empty_like(x)
    _copy[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel())
    return out.t()


@triton.jit
def _flat_mask(x, out, height, width, TILE: tl.constexpr):
    rows = tl.program_id(0) * TILE + tl.arange(0, TILE)[:, None]
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)[None, :]
    where = rows * width + columns
    tile = tl.load(x + where, mask=where < height * width)
    tl.store(out + columns * height + rows, tile, mask=(rows < height) & (columns < width))


def _loads_of_the_next_row(x):
    height, width = x.shape
    out = x.new_empty(width, height)
    grid = (triton.cdiv(height, 32), triton.cdiv(width, 32))
    _flat_mask[grid](x, out, height, width, TILE=32)
    return out


def _one_tile(x):
    height, width = x.shape
    out = x.new_empty(width, height)
    side = triton.next_power_of_2(max(height, width))
    _transpose[(1, 1)](x, out, height, width, side)
    return out


mistakes = [
    Edit("square only", "columns * height", "columns * width", told_by="values"),
    Wrong(_a_view, told_by="values"),
    Edit("no mask on the load", "+ columns, mask=mask", "+ columns", told_by="addresses"),
    Wrong(_loads_of_the_next_row, told_by="traffic"),
    Wrong(_by_rows, told_by="sectors"),
    Wrong(_by_columns, told_by="sectors"),
    Wrong(_one_tile, told_by="blocks"),
]
equivalent = {
    "line 20: `triton.cdiv(height, SIDE)` -> `height`": "programs more, all of them masked",
    "line 20: `triton.cdiv(width, SIDE)` -> `width`": "programs more, all of them masked",
}
not_tried = {
    "hard numbers": "nothing is computed",
    "dtypes": "the sectors are counted in float32",
    "left alone": "nothing is written but the result",
    "seeds": "the numbers don't matter",
}
