"""A program stays with one tile of the result and walks through K. In each step two tiles are loaded, and
each row of one meets each column of the other: `tile` uses of each element that was loaded.

Both masks have a part for K. Beyond it both tiles hold 0, so that nothing is added.
"""

import torch
import triton
import triton.language as tl


@triton.jit
def _multiply(a, b, out, M, N, K, TILE: tl.constexpr):
    rows = tl.program_id(0) * TILE + tl.arange(0, TILE)[:, None]
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)[None, :]
    total = tl.zeros((TILE, TILE), tl.float32)
    for start in range(0, K, TILE):
        across = start + tl.arange(0, TILE)[None, :]
        down = start + tl.arange(0, TILE)[:, None]
        left = tl.load(a + rows * K + across, mask=(rows < M) & (across < K), other=0)
        right = tl.load(b + down * N + columns, mask=(down < K) & (columns < N), other=0)
        total += tl.dot(left, right, input_precision="ieee")
    inside = (rows < M) & (columns < N)
    tl.store(out + rows * N + columns, total.to(out.dtype.element_ty), mask=inside)


def matmul_kernel(a, b, tile):
    (M, K), N = a.shape, b.shape[1]
    out = a.new_empty(M, N)
    grid = triton.cdiv(M, tile), triton.cdiv(N, tile)
    _multiply[grid](a, b, out, M, N, K, TILE=tile)
    return out


# Other right answers

from textwrap import indent

from course_utils.exercise import Edit, Wrong


@triton.jit
def _in_groups(a, b, c, M, N, K, TILE: tl.constexpr, HALF: tl.constexpr):
    """Programs in one dimension, columns of tiles one after another, half a tile of K in each step."""
    down = tl.cdiv(M, TILE)
    i = tl.program_id(0) % down * TILE + tl.arange(0, TILE)
    j = tl.program_id(0) // down * TILE + tl.arange(0, TILE)
    k = tl.arange(0, HALF)
    left = a + i[:, None] * K + k[None, :]
    right = b + k[:, None] * N + j[None, :]
    c_tile = tl.zeros((TILE, TILE), tl.float32)
    for step in range(tl.cdiv(K, HALF)):
        known = k < K - step * HALF
        x = tl.load(left, (i[:, None] < M) & known[None, :], other=0)
        y = tl.load(right, known[:, None] & (j[None, :] < N), other=0)
        c_tile = tl.dot(x.to(tl.float32), y.to(tl.float32), c_tile, input_precision="ieee")
        left += HALF
        right += HALF * N
    tl.store(c + i[:, None] * N + j[None, :], c_tile, (i[:, None] < M) & (j[None, :] < N))


def _grouped(a, b, tile, step=None):
    c = torch.zeros(a.shape[0], b.shape[1], dtype=a.dtype, device=a.device)
    programs = triton.cdiv(a.shape[0], tile) * triton.cdiv(b.shape[1], tile)
    _in_groups[(programs,)](a, b, c, *c.shape, a.shape[1], TILE=tile, HALF=step or max(16, tile // 2))
    return c


@triton.jit
def _by_products(a, b, c, M, N, K, TILE: tl.constexpr):
    """A column of `a` times a row of `b` in each step."""
    i = tl.program_id(1) * TILE + tl.arange(0, TILE)
    j = tl.program_id(0) * TILE + tl.arange(0, TILE)
    total = tl.zeros((TILE, TILE), tl.float32)
    for k in range(K):
        left = tl.load(a + i * K + k, mask=i < M).to(tl.float32)
        right = tl.load(b + k * N + j, mask=j < N).to(tl.float32)
        total += left[:, None] * right[None, :]
    tl.store(c + i[:, None] * N + j[None, :], total, mask=(i < M)[:, None] & (j < N)[None, :])


def _outer(a, b, tile):
    c = torch.empty((len(a), b.shape[1]), dtype=b.dtype, device=b.device)
    M, N = c.shape
    _by_products[(N - 1) // tile + 1, (M - 1) // tile + 1](a, b, c, M, N, len(b), TILE=tile)
    return c


also_right = [_grouped, _outer]


# Mistakes


def _strips(a, b, tile):
    return _grouped(a, b, tile, triton.next_power_of_2(len(b)))


_STORE = "    inside = (rows < M) & (columns < N)\n    tl.store("

mistakes = [
    Edit("a grid rounded down", "triton.cdiv(M, tile)", "max(1, M // tile)", told_by="values"),
    Edit("another stride", "down * N", "down * K", told_by="values"),
    Edit("sums in 16 bits", 'input_precision="ieee")', "out_dtype=left.dtype)", told_by="half"),
    Edit("right by luck", " & (across < K)", "", told_by="addresses"),
    Edit("tiles of 16", "N = a.shape, b.shape[1]", "N, tile = a.shape, b.shape[1], 16", told_by="traffic"),
    Edit("TF32", ', input_precision="ieee")', ")", told_by="exact"),
    Edit("stored in each step", _STORE, indent(_STORE, "    "), told_by="stored"),
    Wrong(_strips, told_by="tiles"),
]
_OTHER_0 = "the other tile holds 0 there"
equivalent = {
    "line 14: `0` -> `1`": _OTHER_0,
    "line 14: `0` -> `-1`": _OTHER_0,
    "line 15: `0` -> `1`": _OTHER_0,
    "line 15: `0` -> `-1`": _OTHER_0,
    "line 18: `total.to(out.dtype.element_ty)` -> `total`": "`tl.store` converts it",
}
not_tried = {
    "hard numbers": "sums that leave float16 are tried",
    "seeds": "the numbers don't matter",
}
