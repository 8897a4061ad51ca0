"""Attention without the T × T matrix

Compute attention block by block over the keys: `softmax(q @ k.T / sqrt(d)) @ v`, where `d` is the last size
of `q`. Only the forward is needed.

- At no moment is there a tensor of T × S scores: memory grows with T and S, not with their product. Use
  `block` keys at a time.
- With `causal`, query `i` sees keys 0 to `i`. With a `mask` of booleans, `(T, S)`, it sees the keys where the
  mask is `True`. A query that sees no key gets zeros.

`q` is `(..., T, d)`, `k` `(..., S, d)`, `v` `(..., S, e)`, the result `(..., T, e)` in the dtype of `q`.
torch's own attention is not to be used.
"""

import math

import torch
from torch import Tensor

from course_utils import measure
from course_utils.exercise import Exercise, Rows, expect

exercise = Exercise(
    minutes=20,
    hints=[
        "Three things for each query go from block to block: the largest score so far, the sum of the "
        "exponentials, and the weighted sum of values. What happens to the last two if the first grows?",
        "They were divided by `exp(old maximum)`; so multiply them by `exp(old - new)`. A query that has "
        "seen nothing has the maximum -inf: what is `-inf - -inf`?",
        "Put a finite number in the place of a maximum of -inf: `exp` of -inf minus that is 0. At the end "
        "divide by the sum, or by 1 where it is 0. Slice the mask; don't make one of T × S.",
    ],
)


@exercise.starter
def online_softmax_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block: int,
    causal: bool = False,
    mask: Tensor | None = None,
) -> Tensor:
    """q (..., T, d), k (..., S, d), v (..., S, e) -> (..., T, e)"""
    raise NotImplementedError


def _oracle(q, k, v, causal=False, mask=None):
    """With the whole matrix, in float64; NaN becomes 0 where a query sees nothing."""
    scores = q.double() @ k.double().mT / math.sqrt(q.shape[-1])
    if causal:
        rows, columns = (torch.arange(n, device=q.device) for n in scores.shape[-2:])
        scores = scores.masked_fill(columns > rows[:, None], -math.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return scores.softmax(-1).nan_to_num() @ v.double()


_TENSORS = """
torch.manual_seed(0)
q, k, v = (torch.randn(2, n, d, device=device) for n, d in ((5, 4), (7, 4), (7, 3)))
"""


def _given(online_softmax_attention, device):
    return expect.given(_TENSORS, online_softmax_attention=online_softmax_attention, device=device)


def _expect_right(t, arguments="", **also):
    before = [x.clone() for x in (t.q, t.k, t.v)]
    result = t.call(f"online_softmax_attention(q, k, v{arguments})")
    expect.equal(tuple(expect.a_tensor(result).shape), (*t.q.shape[:-1], t.v.shape[-1]), what="the shape")
    expect.equal(result.dtype, t.q.dtype, what="the dtype")
    expect.close(result, _oracle(t.q, t.k, t.v, **also), factor=32)
    for name, x, was in zip("qkv", (t.q, t.k, t.v), before, strict=True):
        expect.unchanged(x, was, what=f"`{name}`")


@exercise.check
def values(online_softmax_attention, device):
    """The values are those of the whole matrix, for every size of block

    The softmax of one block is divided by the sum of that block. What counts is the sum over all of them. The
    last block may be a smaller one.
    """
    with Rows() as rows:
        for block in (1, 2, 3, 7, 64):
            with rows.of(f"blocks of {block}"):
                t = _given(online_softmax_attention, device)
                _expect_right(t, f", block={block}")


@exercise.check
def maximum(online_softmax_attention, device):
    """A larger score in a later block

    What has been summed so far belongs to the old maximum and has to be scaled down to the new one. Without a
    maximum `exp` overflows: in float32 beyond 88.
    """
    with Rows() as rows:
        for label, change in {
            "scores that grow": "k = k.sort(-2).values * 9; q = q.abs()",
            "scores that fall": "k = k.sort(-2, descending=True).values * 9; q = q.abs()",
            "scores of 1,000": "q = q * 1000",
            "scores of -1,000": "q, k = q.abs() * 1000, -k.abs()",
        }.items():
            with rows.of(label):
                t = _given(online_softmax_attention, device)
                t.run(change)
                _expect_right(t, ", block=2")


@exercise.check
def causal(online_softmax_attention, device):
    """With `causal`, query `i` sees keys 0 to `i`

    A block may lie before, after or across the diagonal. Positions are those of the whole, not of the block.
    """
    with Rows() as rows:
        for block in (1, 2, 3, 64):
            with rows.of(f"blocks of {block}"):
                t = _given(online_softmax_attention, device)
                _expect_right(t, f", block={block}, causal=True", causal=True)


@exercise.check
def nothing_to_see(online_softmax_attention, device):
    """A query that sees no key gets zeros, and hidden blocks count for nothing

    Its maximum stays -inf, and `-inf - -inf` is NaN. A block that is hidden as a whole may come first, before
    there is any maximum.
    """
    with Rows() as rows:
        for label, hide in {
            "one query": "mask[2] = False",
            "all queries": "mask[:] = False",
            "the first block": "mask[:, :3] = False",
            "the last block": "mask[:, 5:] = False",
            "here and there": "mask[::2, 1::2] = False",
        }.items():
            for also in (False, True):
                with rows.of(f"{label}{', causal' if also else ''}"):
                    t = _given(online_softmax_attention, device)
                    t.run(f"mask = torch.ones(5, 7, dtype=torch.bool, device=device)\n{hide}")
                    _expect_right(t, f", block=2, mask=mask, causal={also}", mask=t.mask, causal=also)


@exercise.check
def memory(online_softmax_attention, device):
    """Twice the length takes twice the memory, not four times

    The matrix of all scores is what flash attention never writes. Blocks that are kept in a list until the
    end are that matrix, too.
    """
    for more in ("", ", causal=True"):
        peaks = []
        for length in (128, 256):
            t = _given(online_softmax_attention, device)
            t.run(f"q, k, v = torch.rand(3, {length}, 8, device=device)")
            with torch.no_grad():
                call = f"online_softmax_attention(q, k, v, block=16{more})"
                peaks.append(measure.peak_bytes(lambda t=t, call=call: t.call(call)).total)
        told = f"bytes at the peak for 256 (for 128: {peaks[0]:,})"
        expect.at_most(peaks[1], int(2.2 * peaks[0]), told, unit="bytes")


@exercise.check
def dtypes(online_softmax_attention, device):
    """In float64 as exact as float64, for one head or many

    A maximum that begins as `torch.full(..., -inf)` is float32, and so is what is computed with it.
    """
    with Rows() as rows:
        for shape in ("6, 4", "2, 3, 6, 4"):
            with rows.of(f"`({shape})`"):
                t = _given(online_softmax_attention, device)
                t.run(f"q, k, v = torch.randn(3, {shape}, dtype=torch.float64, device=device)")
                _expect_right(t, ", block=4, causal=True", causal=True)
