"""The grid is rounded up, so the last program's block reaches beyond the end, and the mask takes these
elements out of all three accesses. A mask on the loads alone still stores behind the result.
"""

import torch
import triton
import triton.language as tl


@triton.jit
def _add(x, y, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    total = tl.load(x + offsets, mask=inside) + tl.load(y + offsets, mask=inside)
    tl.store(out + offsets, total, mask=inside)


def add_kernel(x, y):
    out = torch.empty_like(x)
    n = out.numel()
    _add[(triton.cdiv(n, 1024),)](x, y, out, n, BLOCK=1024)
    return out


# Other right answers

from course_utils.exercise import Edit


@triton.jit
def _add_in_rows(out, n, x, y, WIDTH: tl.constexpr):
    start = tl.program_id(0) * 4 * WIDTH
    where = start + tl.arange(0, 4)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    total = tl.load(y + where, where < n, 0) + tl.load(x + where, where < n, 0)
    tl.store(out + where, total, where < n)


def _small_blocks(x, y):
    out = x.new_empty(x.shape)
    _add_in_rows[lambda meta: (triton.cdiv(x.numel(), 4 * meta["WIDTH"]),)](out, x.numel(), x, y, WIDTH=64)
    return out


@triton.jit
def _add_many(x, y, out, n):
    where = tl.program_id(0) * 512 + tl.arange(0, 512)
    left = tl.load(x + where, mask=where < n, other=0)
    tl.store(out + where, left + tl.load(y + where, mask=where < n, other=0), mask=where < n)


def _flat(x, y):
    out = torch.zeros_like(x).view(-1)
    _add_many[((x.numel() + 511) // 512,)](x.view(-1), y.view(-1), out, x.numel())
    return out.view(x.shape)


def _piece_by_piece(x, y):
    """A launch for each piece of 800 elements"""
    out = torch.empty_like(x)
    for one, other, total in zip(*(tensor.view(-1).split(800) for tensor in (x, y, out)), strict=True):
        _add[(1,)](one, other, total, len(one), BLOCK=1024)
    return out


also_right = [_small_blocks, _flat, _piece_by_piece]

_LAUNCH = "_add[(triton.cdiv(n, 1024),)](x, y, out, n, BLOCK=1024)"
_ONE = "_add[(1,)](x, y, out, n, BLOCK=triton.next_power_of_2(n))"

mistakes = [
    Edit("no mask", "inside = offsets < n", "inside = offsets >= 0", told_by="addresses"),
    Edit("no mask on the store", "total, mask=inside", "total", told_by="addresses"),
    Edit("a grid rounded down", "triton.cdiv(n, 1024),", "max(1, n // 1024),", told_by="values"),
    Edit("off by one", "offsets < n", "offsets < n - 1", told_by="values"),
    Edit("twice", "(triton.cdiv(n, 1024),)", "(triton.cdiv(n, 1024), 2)", told_by="traffic"),
    Edit(
        "floats through float32",
        "tl.load(x + offsets, mask=inside) +",
        "tl.load(x + offsets, mask=inside).to(tl.int64 if x.dtype.element_ty == tl.int64 else tl.float32) +",
        told_by="values",
    ),
    Edit("of torch", "return out", "return x + y", told_by="addresses"),
    Edit("one block", _LAUNCH, _ONE, told_by="blocks"),
]
equivalent = {
    "line 17: `_add[triton.cdiv(n, 1024),](x, y, out, n, BLOCK=1024)` -> "
    "`_add[triton.cdiv(n, 1024),](y, x, out, n, BLOCK=1024)`": "a sum has no order",
    "line 17: `1024` -> `1023`": "one program more, all of it masked",
}
not_tried = {
    "hard numbers": "a sum of two numbers is what the machine makes of it",
    "seeds": "the numbers don't matter",
}
