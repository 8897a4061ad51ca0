"""`tl.rand` has no state: it mixes the seed and the offset in ten rounds (Philox), and gives the same number
whenever it's asked for. So the mask needs no memory, and no order: any program can draw any part of it, in
forward, in backward, in blocks of any size. What arrives is treated as `x` was, by the same kernel.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _drop(x, y, p, seed, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    kept = tl.load(x + offsets, mask=inside) / (1 - p)
    tl.store(y + offsets, tl.where(tl.rand(seed, offsets) < p, 0.0, kept), mask=inside)


class DropoutKernel(torch.autograd.Function):
    """x, with a share `p` of its elements dropped"""

    @staticmethod
    def forward(ctx, x: Tensor, p: float, seed: int) -> Tensor:
        ctx.p, ctx.seed = p, seed
        return dropped(x, p, seed)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:
        return dropped(grad.contiguous(), ctx.p, ctx.seed), None, None


def dropped(x: Tensor, p: float, seed: int) -> Tensor:
    n, y = x.numel(), torch.empty_like(x)
    _drop[(triton.cdiv(n, 1024),)](x, y, p, seed, n, BLOCK=1024)
    return y


# Other right answers

from course_utils.exercise import Edit


@triton.jit
def _keep(x, y, n, p, factor, seed, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = (tl.rand(seed, i) >= p) & (i < n)
    tl.store(y + i, tl.load(x + i, mask=keep, other=0) * factor, mask=i < n)


class _LoadsWhatIsKept(torch.autograd.Function):
    """Dropped elements are not loaded at all, and blocks of backward are smaller."""

    @staticmethod
    def forward(ctx, x, p, seed):
        ctx.of = p, 1 / (1 - p), seed
        y = x.new_empty(x.shape)
        _keep[(triton.cdiv(x.numel(), 512),)](x, y, x.numel(), *ctx.of, BLOCK=512)
        return y

    @staticmethod
    def backward(ctx, grad):
        given = torch.empty_like(grad, memory_format=torch.contiguous_format)
        flat = grad.flatten().contiguous()  # an expanded one stays expanded when it is flat
        _keep[(triton.cdiv(grad.numel(), 64),)](flat, given, grad.numel(), *ctx.of, BLOCK=64)
        return given, None, None


@triton.jit
def _drop_rows(x, y, n, p, seed, BLOCK: tl.constexpr):
    for part in range(2):
        i = (tl.program_id(0) * 2 + part) * BLOCK + tl.arange(0, BLOCK)
        value = tl.load(x + i, mask=i < n, other=0).to(tl.float32)
        value = tl.where(tl.rand(seed, i) < p, 0.0, value * (1 / (1 - p)))
        tl.store(y + i, value, mask=i < n)


class _TwoBlocks(torch.autograd.Function):
    """Two blocks a program."""

    @staticmethod
    def forward(x, p, seed):
        y = torch.zeros_like(x)
        _drop_rows[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), p, seed, BLOCK=128)
        return y

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.p, ctx.seed = inputs

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone(memory_format=torch.contiguous_format)
        return _TwoBlocks.apply(grad, ctx.p, ctx.seed), None, None


also_right = [_LoadsWhatIsKept, _TwoBlocks]

mistakes = [
    Edit(
        "a mask for each program",
        "tl.rand(seed, offsets)",
        "tl.rand(seed, tl.arange(0, BLOCK))",
        told_by="values",
    ),
    Edit("no factor", " / (1 - p)", "", told_by="values"),
    Edit(
        "the seed of the last call",
        "ctx.p, ctx.seed = p, seed",
        "type(ctx).p, type(ctx).seed = p, seed",
        told_by="two_calls",
    ),
    Edit("another mask in backward", "ctx.seed), None", "ctx.seed + 1), None", told_by="gradient"),
    Edit("takes g as contiguous", "grad.contiguous()", "grad", told_by="gradient"),
    Edit(
        "keeps the mask",
        "return dropped(x, p, seed)",
        "ctx.mask = dropped(torch.ones_like(x), p, seed)\n        return dropped(x, p, seed)",
        told_by="nothing_kept",
    ),
    Edit("no mask on the load", "mask=inside) /", "mask=None) /", told_by="addresses"),
    Edit(
        "one large block",
        "_drop[(triton.cdiv(n, 1024),)](x, y, p, seed, n, BLOCK=1024)",
        "_drop[(1,)](x, y, p, seed, n, BLOCK=triton.next_power_of_2(n + 1))",
        told_by="addresses",
    ),
]
equivalent = {
    "line 30: `1024` -> `1023`": "at most a program more, all of it masked",
}
not_tried = {
    "hard numbers": "the kernel divides, and does nothing else",
}
