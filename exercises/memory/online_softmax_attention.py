"""Attention without the T × T matrix

Compute attention block by block over the keys: `softmax(q @ k.T / sqrt(d)) @ v`, where `d` is the last size
of `q`. Only the forward is needed.

- At no moment is there a tensor of T × S scores: memory grows with T and S, not with their product. Take
  `block` keys at a time.
- With `causal`, query `i` sees keys 0 to `i`. With a `mask` of booleans, `(T, S)`, it sees the keys where the
  mask is `True`. A query that sees no key gets zeros.

`q` is `(..., T, d)`, `k` `(..., S, d)`, `v` `(..., S, e)`, the result `(..., T, e)` in the dtype of `q`.
There is at least one key. torch's own attention is not to be used.
"""

import math

import torch
from torch import Tensor

from course_utils import measure
from course_utils.exercise import Exercise, expect

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


_SETUP = """
torch.manual_seed(0)
q, k, v = (torch.randn(2, n, d, device=device) for n, d in ((5, 4), (7, 4), (7, 3)))
"""
_MASK = "mask = torch.ones(5, 7, dtype=torch.bool, device=device)\n"
_LARGE = "q, k[:, 5:] = q.abs() + 1, 200.0\n"


def _compare(t, how="block=2"):
    """`how`: the other arguments, but for the mask, which is there where the example makes one."""
    masks = ["mask"] * hasattr(t, "mask")
    inputs = {name: getattr(t, name) for name in ["q", "k", "v", *masks]}
    with expect.left_alone(inputs, what="the input"):
        result = t.call(f"online_softmax_attention(q, k, v, {how}{', mask=mask' * len(masks)})")
    expect.equal(tuple(expect.a_tensor(result).shape), (*t.q.shape[:-1], t.v.shape[-1]), what="the shape")
    expect.equal(result.dtype, t.q.dtype, what="the dtype")
    expect.close(result, _oracle(causal="causal" in how, **inputs), factor=32)


@exercise.check(
    given=f"{_SETUP}q, k = q.abs(), k.sort(-2, descending=True).values",
    cases={f"blocks of {size}": f"block={size}" for size in (1, 2, 3, 7, 64)},
)
def values(t, device, how):
    """The values are those of the whole matrix, for every size of block

    The softmax of one block is divided by the sum of that block. What counts is the sum over all of them. The
    last block may be a smaller one. Scores are scaled by the width of `q`; that of `v` may be another.
    """
    _compare(t, how)


@exercise.check(
    given=_SETUP,
    cases={
        "scores in no order": "",
        "scores that grow": "q, k = q.abs(), k.sort(-2).values * 9",
        "scores of 1,000": "q = q * 1000",
        "scores of -1,000": "q, k = q.abs() * 1000, -k.abs()",
    },
)
def maximum(t, device):
    """A larger score may come in a later block, and scores may be large

    What has been summed so far, exponentials and weighted values, belongs to the old maximum and has to be
    scaled down to the new one. Without a maximum `exp` overflows: in float32 from 89 on.
    """
    _compare(t)


@exercise.check(
    given=_SETUP,
    cases={f"`causal` in blocks of {size}": ("", f"block={size}, causal=True") for size in (1, 2, 3, 64)}
    | {
        "a mask": (f"{_MASK}mask[::2, 1::2] = False", "block=2"),
        "`causal` and a mask": (f"{_MASK}mask[::2, 1::2] = False", "block=2, causal=True"),
        "a mask that hides large scores": (f"{_LARGE}{_MASK}mask[:, 5:] = False", "block=2"),
        "`causal` that hides large scores": (_LARGE, "block=2, causal=True"),
    },
)
def seen(t, device, how):
    """A query sees the keys that `causal` and the mask both leave

    With `causal`, query 0 sees key 0 alone, also where there are more keys than queries. Positions are those
    of the whole, not of the block. In the mask `True` is a key that is seen. The maximum is that of the keys
    that are seen: after subtracting a much larger one, `exp` makes 0 of all of them.
    """
    _compare(t, how)


@exercise.check(
    given=_SETUP + _MASK,
    cases={
        f"{label} hidden{' and `causal`' if 'causal' in how else ''}": (f"mask[{hidden}] = False", how)
        for label, hidden in {
            "one query": "2",
            "all queries": ":",
            "the first block": ":, :3",
            "the last block": ":, 5:",
        }.items()
        for how in ("block=2", "block=2, causal=True")
    },
)
def nothing_to_see(t, device, how):
    """A query that sees no key gets zeros, and hidden blocks count for nothing

    Where all keys are hidden, a finite score hides none of them: all have the same. If it is -inf, so is the
    maximum, and `-inf - -inf` is NaN. A hidden block may come first, before there is any maximum.
    """
    _compare(t, how)


@exercise.check(deadline=40, cases={"neither": "", "`causal`": ", causal=True", "a mask": ", mask=mask"})
def memory(online_softmax_attention, device, more):
    """Twice the queries and keys take twice the memory, not four times

    The matrix of all scores is what flash attention avoids. Blocks that are kept in a list until the end are
    that matrix, too, and so is a mask of T × S that you make, for `causal` or from the one given.
    """
    setup = """q, k, v = torch.rand({0}, 4, device=device), *torch.rand(2, {1}, 4, device=device)
mask = torch.rand({0}, {1}, device=device) < 0.5"""
    answer = {"online_softmax_attention": online_softmax_attention, "device": device}
    call, peaks = f"online_softmax_attention(q, k, v, block=8{more})", []
    for lengths in ((16, 128), (32, 256)):
        t = expect.given(setup.format(*lengths), **answer)
        peaks.append(measure.peak_bytes(t.call, call).total)
    told = f"bytes at the peak for 32 queries and 256 keys (for 16 and 128: {peaks[0]:,})"
    # Halving the keys again and again, one more half waits to be merged: a little over twice.
    expect.at_most(peaks[1], int(2.5 * peaks[0]), told, unit="bytes")


@exercise.check(given="q, k, v = torch.rand(4, 2, device=device), *torch.rand(2, 1024, 2, device=device)")
def blocks(t, device):
    """A smaller `block` takes less memory

    It is the number of keys whose scores are there at a time. What goes from block to block grows with the
    queries and the width of `v`, not with the keys.
    """
    calls = [f"online_softmax_attention(q, k, v, block={block})" for block in (1024, 16)]
    large, small = (measure.peak_bytes(t.call, call).total for call in calls)
    told = f"bytes at the peak in blocks of 16 (of 1,024: {large:,})"
    expect.at_most(small, large // 2, told, unit="bytes")


@exercise.check(
    given=_SETUP,
    cases={
        f"`({shape})` in {dtype}": (
            f"q, k, v = torch.randn(3, {shape}, dtype=torch.{dtype}, device=device)",
            "block=4, causal=True",
        )
        for shape, dtype in (("6, 4", "float64"), ("2, 3, 6, 4", "float64"), ("2, 6, 4", "bfloat16"))
    }
    | {"transposed": ("q, k, v = (x.mT.contiguous().mT for x in (q, k, v))", "block=2")},
)
def dtypes(t, device, how):
    """In the dtype of `q` and as exact, for one head or many

    float32 is too narrow for float64 inputs, and too wide for the result of bfloat16 ones. `torch.full(...,
    -inf)` is float32, as everything is after `.float()`.
    """
    _compare(t, how)
