"""A program has its row in a block, so the sum, the root and the results need one load. The backward computes
the root again from the row: it costs arithmetic and no load, and keeps nothing.

The gradient of `weight` is the one result that several programs have a part of. Atomics add the parts in any
order, in float32: the last digits depend on the order. Where they must not, each program stores its part in a
row of its own, and a second launch adds the rows.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _forward(x, weight, y, n, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    inside, here = columns < n, tl.program_id(0) * n + columns
    row = tl.load(x + here, mask=inside, other=0).to(tl.float32)
    r = 1 / tl.sqrt(tl.sum(row * row) / n + 1e-6)
    scale = tl.load(weight + columns, mask=inside)
    tl.store(y + here, row * r * scale, mask=inside)


@triton.jit
def _backward(x, weight, grad, grad_x, grad_weight, n, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    inside, here = columns < n, tl.program_id(0) * n + columns
    row = tl.load(x + here, mask=inside, other=0.0).to(tl.float32)
    scale = tl.load(weight + columns, mask=inside, other=0.0)
    arrived = tl.load(grad + here, mask=inside, other=0.0).to(tl.float32)
    r = 1 / tl.sqrt(tl.sum(row * row) / n + 1e-6)
    normal, h = row * r, arrived * scale
    tl.store(grad_x + here, r * (h - normal * (tl.sum(h * normal) / n)), mask=inside)
    tl.atomic_add(grad_weight + columns, arrived * normal, mask=inside)


class RmsNormKernel(torch.autograd.Function):
    """(rows, n), (n,) -> (rows, n)"""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        (rows, n), y = x.shape, torch.empty_like(x)
        _forward[(rows,)](x, weight, y, n, BLOCK=triton.next_power_of_2(n))
        return y

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        (rows, n), grad_x = x.shape, torch.empty_like(x)
        grad_weight = torch.zeros_like(weight, dtype=torch.float32)
        tensors = x, weight, grad.contiguous(), grad_x, grad_weight
        _backward[(rows,)](*tensors, n, BLOCK=triton.next_power_of_2(n))
        return grad_x, grad_weight.to(weight.dtype)


# Other right answers

from course_utils.exercise import Edit


@triton.jit
def _rows_forward(x, weight, y, roots, rows, n, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    i, j = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None], tl.arange(0, BLOCK)[None, :]
    inside = (i < rows) & (j < n)
    block = tl.load(x + i * n + j, inside, 0).to(tl.float32)
    root = tl.sqrt(tl.sum(block * block, 1, keep_dims=True) / n + 1e-6)
    tl.store(roots + i, root, i < rows)
    tl.store(y + i * n + j, block / root * tl.load(weight + j, j < n, 0), inside)


@triton.jit
def _rows_backward(
    x, weight, roots, grad, s, z, grad_x, parts, rows, n, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    i, j = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None], tl.arange(0, BLOCK)[None, :]
    inside = (i < rows) & (j < n)
    root = tl.load(roots + i, i < rows, 1)
    normal = tl.load(x + i * n + j, inside, 0).to(tl.float32) / root
    g = tl.load(grad + i * s + j * z, inside, 0).to(tl.float32)
    h = g * tl.load(weight + j, j < n, 0)
    along = tl.sum(h * normal, 1, keep_dims=True) / n
    tl.store(grad_x + i * n + j, (h - normal * along) / root, inside)
    column = tl.arange(0, BLOCK)
    tl.store(parts + tl.program_id(0) * n + column, tl.sum(g * normal, 0), column < n)


@triton.jit
def _add_parts(parts, total, programs, n, BLOCK: tl.constexpr):
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    sum = tl.zeros((BLOCK,), tl.float32)
    for program in range(programs):
        sum += tl.load(parts + program * n + column, column < n, 0)
    tl.store(total + column, sum, column < n)


class _InParts(torch.autograd.Function):
    """Four rows a program; it keeps the roots, and adds the parts in a second launch."""

    @staticmethod
    def forward(ctx, x, weight):
        (rows, n), y = x.shape, torch.empty_like(x)
        roots = x.new_empty(rows, dtype=torch.float32)
        block = triton.next_power_of_2(n)
        _rows_forward[(triton.cdiv(rows, 4),)](x, weight, y, roots, rows, n, ROWS=4, BLOCK=block)
        ctx.save_for_backward(x, weight, roots)
        return y

    @staticmethod
    def backward(ctx, grad):
        x, weight, roots = ctx.saved_tensors
        (rows, n), grad_x, grad_weight = x.shape, torch.empty_like(x), torch.empty_like(weight)
        programs, block = triton.cdiv(rows, 4), triton.next_power_of_2(n)
        parts = x.new_empty(programs, n, dtype=torch.float32)
        given = (x, weight, roots, grad, *grad.stride(), grad_x, parts, rows, n)
        _rows_backward[(programs,)](*given, ROWS=4, BLOCK=block)
        _add_parts[(triton.cdiv(n, 64),)](parts, grad_weight, programs, n, BLOCK=64)
        return grad_x, grad_weight


@triton.jit
def _loop_backward(x, weight, g, s0, s1, grad_x, total, rows, n, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    scale = tl.load(weight + column, column < n, 0).to(tl.float32)
    sum = tl.zeros((BLOCK,), tl.float32)
    for i in range(tl.program_id(0), rows, tl.num_programs(0)):
        row = tl.load(x + i * n + column, column < n, 0).to(tl.float32)
        there = tl.load(g + i * s0 + column * s1, column < n, 0).to(tl.float32)
        r = tl.rsqrt(tl.sum(row * row) / n + 1e-6)
        along = tl.sum(there * scale * row) / n
        tl.store(grad_x + i * n + column, r * there * scale - r * r * r * along * row, column < n)
        sum += there * row * r
    tl.atomic_add(total + column, sum, column < n)


class _InLoops(torch.autograd.Function):
    """A program of backward handles every so manieth row, and adds its sum once."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        y = x.new_empty(x.shape)
        _forward[(len(x),)](x, weight, y, x.size(1), BLOCK=1024)
        return y

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        total, grad_x = torch.zeros(weight.shape, device=x.device), torch.empty_like(x)
        given = (x, weight, grad, *grad.stride(), grad_x, total, *x.shape)
        _loop_backward[(triton.cdiv(len(x), 8),)](*given, BLOCK=triton.next_power_of_2(len(weight)))
        return grad_x, total


also_right = [_InParts, _InLoops]

_ADDED = "tl.atomic_add(grad_weight + columns, arrived * normal, mask=inside)"
_SUM = "tl.load(grad_weight + columns, mask=inside) + arrived * normal"

mistakes = [
    Edit("sums in 16 bits", "other=0).to(tl.float32)\n    r = 1", "other=0)\n    r = 1", told_by="values"),
    Edit("a constant root", "(h - normal * (tl.sum(h * normal) / n))", "h", told_by="gradient_of_x"),
    Edit("takes g as contiguous", "grad.contiguous()", "grad", told_by="gradient_of_x"),
    Edit(
        "each program stores its part",
        _ADDED,
        "tl.store(grad_weight + columns, arrived * normal, mask=inside)",
        told_by="gradient_of_weight",
    ),
    Edit("no mask for `weight`", "mask=inside)\n    tl.store(y", ")\n    tl.store(y", told_by="addresses"),
    Edit(
        "loads twice",
        "tl.store(y + here, row",
        "tl.store(y + here, tl.load(x + here, mask=inside)",
        told_by="traffic",
    ),
    Edit("a race", _ADDED, f"tl.store(grad_weight + columns, {_SUM}, mask=inside)", told_by="programs"),
    Edit("keeps the rows", "return y", "ctx.y = y.clone()\n        return y", told_by="kept"),
]

_TIMES_ZERO = "it is multiplied by the row, which is 0 there"
equivalent = {
    "line 22: `0.0` -> `1.0`": _TIMES_ZERO,
    "line 23: `0.0` -> `1.0`": _TIMES_ZERO,
    "line 44: `torch.float32` -> `torch.float64`": "more digits than are asked for",
    "line 47: `grad_weight.to(weight.dtype)` -> `grad_weight`": "autograd casts gradients",
}
not_tried = {"seeds": "the numbers don't matter"}
