"""Softmax is a quotient of two sums, and both are taken block by block, relative to the largest score so far.
When that grows, both are multiplied by `exp(old - new)`.

The loop ends with the block on the diagonal. Query 0 sees key 0, so there is a largest score from the first
block on, and no -inf - -inf. Keys beyond T come after all queries that are stored.
"""

import torch
import triton
import triton.language as tl


@triton.jit
def _attend(q, k, v, out, T, d, scale, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    head, first = tl.program_id(1) * T * d, tl.program_id(0) * BLOCK
    rows, width = first + tl.arange(0, BLOCK)[:, None], tl.arange(0, WIDTH)[None, :]
    mine, inside = head + rows * d + width, (rows < T) & (width < d)
    queries = tl.load(q + mine, mask=inside, other=0)
    top = tl.full((BLOCK, 1), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK, 1), tl.float32)
    summed = tl.zeros((BLOCK, WIDTH), tl.float32)
    for start in range(0, first + BLOCK, BLOCK):
        numbers = start + tl.arange(0, BLOCK)
        there = head + numbers[:, None] * d + width
        known = (numbers[:, None] < T) & (width < d)
        keys = tl.load(k + there, mask=known, other=0)
        values = tl.load(v + there, mask=known, other=0)
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
        scores = tl.where(numbers[None, :] <= rows, scores, -float("inf"))
        new = tl.maximum(top, tl.max(scores, 1, keep_dims=True))
        old, weights = tl.exp(top - new), tl.exp(scores - new)
        total = total * old + tl.sum(weights, 1, keep_dims=True)
        summed = summed * old + tl.dot(weights, values, input_precision="ieee")
        top = new
    tl.store(out + mine, summed / total, mask=inside)


def attention_kernel(q, k, v):
    heads, T, d = q.shape
    out = torch.empty_like(q)
    width = max(16, triton.next_power_of_2(d))
    _attend[triton.cdiv(T, 16), heads](q, k, v, out, T, d, d**-0.5, BLOCK=16, WIDTH=width)
    return out


# Other right answers

from course_utils.exercise import Edit, Wrong


@triton.jit
def _from_the_diagonal(q, k, v, out, logs, T, d, scale, D: tl.constexpr):
    """From the last block to the first; exp2 for exp; the logarithm of the sum is stored."""
    number, head = tl.program_id(1), tl.program_id(0)
    i, w = number * 16 + tl.arange(0, 16), tl.arange(0, D)
    mine, mask = (head * T + i[:, None]) * d + w[None, :], (i < T)[:, None] & (w < d)[None, :]
    x = tl.load(q + mine, mask=mask, other=0) * (scale * 1.4426950408889634)
    m, acc = tl.full((16,), -1e30, tl.float32), tl.zeros((16, D), tl.float32)
    total = tl.zeros((16,), tl.float32)
    for step in range(number + 1):
        j = (number - step) * 16 + tl.arange(0, 16)
        both = (w < d)[:, None] & (j < T)[None, :]
        y = tl.load(k + (head * T + j[None, :]) * d + w[:, None], mask=both, other=0)
        s = tl.dot(x, y, input_precision="ieee")
        s = tl.where((i[:, None] >= j[None, :]) & (j < T)[None, :], s, -float("inf"))
        higher = tl.maximum(m, tl.max(s, 1))
        p, shrink = tl.exp2(s - higher[:, None]), tl.exp2(m - higher)
        both = (j < T)[:, None] & (w < d)[None, :]
        z = tl.load(v + (head * T + j[:, None]) * d + w[None, :], mask=both, other=0)
        acc = tl.dot(p, z, acc * shrink[:, None], input_precision="ieee")
        total = total * shrink + tl.sum(p, 1)
        m = higher
    tl.store(out + mine, acc / total[:, None], mask)
    tl.store(logs + head * T + i, m + tl.log2(total), i < T)


def _with_logarithms(q, k, v):
    H, T, d = q.shape
    out, logs = torch.zeros_like(q), q.new_empty(H, T)
    _from_the_diagonal[H, (T + 15) // 16](q, k, v, out, logs, T, d, d**-0.5, D=64)
    return out


@triton.jit
def _one_head(q, k, v, out, T, scale, d, D: tl.constexpr, BLOCK: tl.constexpr):
    """Products by hand; what was divided so far is averaged with what comes."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    w = tl.arange(0, D)
    at = i[:, None] * d + w
    mask = (i[:, None] < T) & (w < d)
    a = tl.load(q + at, mask=mask, other=0)
    mean = tl.zeros((BLOCK, D), tl.float32)
    log = tl.full((BLOCK,), -1e38, tl.float32)
    for j0 in range(0, tl.program_id(0) + 1):
        j = j0 * BLOCK + tl.arange(0, BLOCK)
        seen = (j[:, None] < T) & (w < d)
        b = tl.load(k + j[:, None] * d + w, mask=seen, other=0)
        c = tl.load(v + j[:, None] * d + w, mask=seen, other=0)
        s = tl.sum(a[:, None, :] * b[None, :, :], 2) * scale
        s = tl.where(i[:, None] < j[None, :], -1e38, s)
        m = tl.maximum(tl.max(s, 1), log)
        p = tl.exp(s - m[:, None])
        all = tl.exp(log - m) + tl.sum(p, 1)
        new = tl.sum(p[:, :, None] * c[None, :, :], 1) / all[:, None]
        mean = mean * (tl.exp(log - m) / all)[:, None] + new
        log = m + tl.log(all)
    tl.store(out + at, mean, mask=mask)


def _head_by_head(q, k, v):
    out, (_, T, d) = torch.empty_like(q), q.shape
    for a, b, c, o in zip(q, k, v, out, strict=True):
        D = triton.next_power_of_2(d)
        _one_head[(triton.cdiv(T, 16),)](a, b, c, o, T, 1 / d**0.5, d, D=D, BLOCK=16)
    return out


also_right = [_with_logarithms, _head_by_head]


# Mistakes


@triton.jit
def _fill(scores, n):
    where = tl.program_id(0) * 1024 + tl.arange(0, 1024)
    tl.store(scores + where, 0.0, mask=where < n)


def _room_for_scores(q, k, v):
    scores = q.new_empty(len(q), q.shape[1], q.shape[1])
    _fill[(triton.cdiv(scores.numel(), 1024),)](scores, scores.numel())
    return attention_kernel(q, k, v)


_KEYS = "BLOCK, BLOCK):\n        numbers = start + tl.arange(0, BLOCK)\n"
_ALL_KEYS = """BLOCK, 64):
        numbers = start + tl.arange(0, 64)
        numbers = tl.where(numbers < first + BLOCK, numbers, T)
"""

mistakes = [
    Edit("the sum is not rescaled", "total * old", "total", told_by="values"),
    Edit("0 for -inf", '<= rows, scores, -float("inf")', "<= rows, scores, 0.0", told_by="values"),
    Edit("no scale", ' input_precision="ieee") * scale', ' input_precision="ieee")', told_by="values"),
    Edit(
        "no maximum",
        "tl.maximum(top, tl.max(scores, 1, keep_dims=True))",
        "tl.zeros((BLOCK, 1), tl.float32)",
        told_by="large",
    ),
    Edit(
        "right by luck",
        "(numbers[:, None] < T) & (width < d)",
        "numbers[:, None] < T",
        told_by="addresses",
    ),
    Edit("all blocks", "range(0, first + BLOCK, BLOCK)", "range(0, T, BLOCK)", told_by="traffic"),
    Wrong(_room_for_scores, told_by="stored"),
    Edit("64 keys at a time", _KEYS, _ALL_KEYS, told_by="blocks"),
]
_OTHER_0 = "behind d the other tile holds 0, and what lies behind T is hidden or not stored"
equivalent = {
    **{f"line {line}: `0` -> `{by}`": _OTHER_0 for line in (11, 19) for by in (1, -1)},
    **{f"line 20: `0` -> `{by}`": "the weights behind T are 0" for by in (1, -1)},
}
not_tried = {
    "hard numbers": "scores of 1,000 and -1,000 are tried, and hidden ones",
    "seeds": "the numbers don't matter",
}
