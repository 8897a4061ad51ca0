"""Softmax is a quotient of two sums, and sums can be taken block by block. The largest score is only there so
that `exp` doesn't overflow: numerator and denominator are both divided by `exp(top)`. When a block brings a
larger one, both are multiplied by `exp(old - new)`, and go on.

As long as a query has seen nothing, its maximum is -inf. Then the smallest finite number takes its place:
every `exp` is that of -inf, which is 0. The sum at the end is at least 1, that of the largest score, or 0
where nothing was seen.
"""

import math

import torch
from torch import Tensor


def online_softmax_attention(
    q: Tensor, k: Tensor, v: Tensor, block: int, causal: bool = False, mask: Tensor | None = None
) -> Tensor:
    top = torch.full_like(q[..., :1], -math.inf)
    total = summed = torch.zeros_like(top)
    rows = torch.arange(q.shape[-2], device=q.device)[:, None]
    for start in range(0, k.shape[-2], block):
        keys, values = k[..., start : start + block, :], v[..., start : start + block, :]
        scores = q @ keys.mT / math.sqrt(q.shape[-1])
        if causal:
            columns = torch.arange(start, start + keys.shape[-2], device=q.device)
            scores = torch.where(columns <= rows, scores, -math.inf)
        if mask is not None:
            scores = torch.where(mask[..., start : start + block], scores, -math.inf)
        new = torch.maximum(top, scores.amax(-1, keepdim=True))
        safe = torch.clamp(new, min=torch.finfo(q.dtype).min)
        old, weights = torch.exp(top - safe), torch.exp(scores - safe)
        total = total * old + weights.sum(-1, keepdim=True)
        summed = summed * old + weights @ values
        top = new
    return summed / torch.clamp(total, min=1)


# Other right answers

from course_utils.exercise import Edit, Wrong


def _with_the_logarithm(q, k, v, block=64, causal=False, mask=None):
    """Keeps the mean so far and the logarithm of the sum."""
    T, S = q.shape[-2], k.shape[-2]
    mean = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=q.dtype, device=q.device)
    log = torch.full(q.shape[:-1], -torch.inf, dtype=q.dtype, device=q.device)
    scale = q.shape[-1] ** -0.5
    for a in range(0, S, block):
        b = min(a + block, S)
        s = (q * scale) @ k[..., a:b, :].transpose(-1, -2)
        seen = torch.ones(T, b - a, dtype=torch.bool, device=q.device)
        if causal:
            seen = seen.tril(-a) if a else seen.tril()
        if mask is not None:
            seen = seen & mask[..., a:b]
        s = s.where(seen, torch.tensor(-torch.inf, dtype=q.dtype, device=q.device))
        here = s.logsumexp(-1)
        both = torch.logaddexp(log, here)
        safe = both.where(both > -torch.inf, torch.zeros_like(both))
        mean = mean * (log - safe).exp()[..., None] + (s - safe[..., None]).exp() @ v[..., a:b, :]
        log = both
    return mean


def _a_row_at_a_time(q, k, v, block=64, causal=False, mask=None):
    rows = []
    for i in range(q.shape[-2]):
        one = None if mask is None else mask[i : i + 1]
        if causal:
            seen = (torch.arange(k.shape[-2], device=q.device) <= i)[None]
            one = seen if one is None else seen & one
        rows.append(online_softmax_attention(q[..., i : i + 1, :], k, v, block, False, one))
    return torch.cat(rows, -2)


def _in_halves(q, k, v, block=64, causal=False, mask=None):
    """Merges what two halves of the keys give, so that as many wait as the keys can be halved."""

    def part(a, b):
        if b - a > block:
            middle = a + (b - a + 1) // 2
            first, second = part(a, middle), part(middle, b)
            top = torch.maximum(first[0], second[0])
            safe = top.clamp(min=torch.finfo(q.dtype).min)
            old, new = (first[0] - safe).exp(), (second[0] - safe).exp()
            return top, *(x * old + y * new for x, y in zip(first[1:], second[1:], strict=True))
        scores = q @ k[..., a:b, :].mT / math.sqrt(q.shape[-1])
        if causal:
            columns, rows = (torch.arange(n, device=q.device) for n in (b, q.shape[-2]))
            scores.masked_fill_(columns[a:] > rows[:, None], -math.inf)
        if mask is not None:
            scores.masked_fill_(~mask[:, a:b], -math.inf)
        top = scores.amax(-1, keepdim=True)
        weights = scores.sub_(top.clamp(min=torch.finfo(q.dtype).min)).exp_()
        return top, weights.sum(-1, keepdim=True), weights @ v[..., a:b, :]

    _, total, summed = part(0, k.shape[-2])
    return (summed / total).masked_fill_(total == 0, 0)


also_right = [_with_the_logarithm, _a_row_at_a_time, _in_halves]


def _whole(q, k, v, block=64, causal=False, mask=None):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return scores.softmax(-1).nan_to_num() @ v


mistakes = [
    Wrong(_whole, told_by="memory"),
    Edit(
        "another mask of T × S",
        "    rows = torch",
        "    mask = None if mask is None else mask & True\n    rows = torch",
        told_by="memory",
    ),
    Edit("values not rescaled", "summed = summed * old", "summed = summed", told_by="maximum"),
    Edit(
        "NaN", "safe = torch.clamp(new, min=torch.finfo(q.dtype).min)", "safe = new", told_by="nothing_to_see"
    ),
    Edit("divides by 0", "torch.clamp(total, min=1)", "total", told_by="nothing_to_see"),
    Edit(
        "a maximum of hidden keys",
        "new = torch.maximum(top, scores.amax(",
        "new = torch.maximum(top, (q @ keys.mT / math.sqrt(q.shape[-1])).amax(",
        told_by="seen",
    ),
    Edit(
        "blocks of its own",
        "range(0, k.shape[-2], block)",
        "range(0, k.shape[-2], block := 2)",
        told_by="blocks",
    ),
    Edit(
        "positions in the block",
        "torch.arange(start, start + keys.shape[-2]",
        "torch.arange(keys.shape[-2]",
        told_by="seen",
    ),
]

not_tried = {"hard numbers": "scores of 1,000, of -1,000, and hidden ones", "seeds": "no draw decides"}
CPU = "all is on the CPU here"
equivalent = {
    "line 12: `torch.arange(q.shape[-2], device=q.device)` -> `torch.arange(q.shape[-2])`": CPU,
    "line 17: `torch.arange(start, start + keys.shape[-2], device=q.device)` -> "
    "`torch.arange(start, start + keys.shape[-2])`": CPU,
}
