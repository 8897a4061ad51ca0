"""The last dimension holds the heads side by side, so it is cut there, and `n` and `heads` change places: the
scores of a head are then one matrix product. On the way out the two change back, and `flatten` joins the
columns.

The flash kernel returns no weights, so whoever needs them computes them by hand: the mask goes into the
scores, before the softmax, and the root is that of the head's width. Dropout comes after the softmax, on the
weights, and only in training; the probability is set to 0 once, for both ways.

A query whose mask hides every key has no weights: by hand its row is NaN, from SDPA on a CPU it is zeros.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F


def multi_head_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    heads: int,
    mask: Tensor | None = None,
    dropout: float = 0.0,
    training: bool = False,
    need_weights: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """(batch, n, width), twice (batch, m, width) -> (batch, n, width)"""
    q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (q, k, v))
    dropped = dropout if training else 0.0
    if need_weights:
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        if mask is not None and mask.dtype is torch.bool:
            scores = scores.masked_fill(~mask, -math.inf)
        elif mask is not None:
            scores = scores + mask
        weights = scores.softmax(-1)
        output = F.dropout(weights, dropped) @ v
    else:
        output = F.scaled_dot_product_attention(q, k, v, mask, dropped)
    output = output.transpose(1, 2).flatten(2)
    return (output, weights) if need_weights else output


# Other right answers

from course_utils.exercise import Edit, Wrong


def _einsum(q, k, v, heads, mask=None, dropout=0.0, training=False, need_weights=False):
    """The scores by `einsum`, and every mask as floats."""
    (batch, n, width), m = q.shape, k.shape[1]
    q, k, v = q.view(batch, n, heads, -1), k.view(batch, m, heads, -1), v.view(batch, m, heads, -1)
    if not need_weights:
        turned = (x.permute(0, 2, 1, 3) for x in (q, k, v))
        output = F.scaled_dot_product_attention(*turned, attn_mask=mask, dropout_p=dropout * training)
        return output.permute(0, 2, 1, 3).reshape(batch, n, width)
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=q.dtype).masked_fill(mask.logical_not(), float("-inf"))
    scores = torch.einsum("bnhd,bmhd->bhnm", q * (width // heads) ** -0.5, k)
    weights = torch.softmax(scores if mask is None else scores + mask, dim=-1)
    kept = F.dropout(weights, dropout, training=training)
    return torch.einsum("bhnm,bmhd->bnhd", kept, v).reshape(batch, n, width), weights


def _head_by_head(q, k, v, heads, mask=None, dropout=0.0, training=False, need_weights=False):
    """The columns in chunks; `exp` by hand, minus the largest score."""
    q, k, v = (torch.stack(x.chunk(heads, dim=-1), dim=1) for x in (q, k, v))
    if need_weights:
        scores = (q / q.shape[-1] ** 0.5).matmul(k.transpose(-2, -1))
        if mask is not None:
            hides = mask.dtype == torch.bool
            scores = torch.where(mask, scores, torch.tensor(-math.inf)) if hides else scores.add(mask)
        scores = (scores - scores.amax(-1, keepdim=True)).exp()
        weights = scores / scores.sum(-1, keepdim=True)
        kept = weights
        if training and dropout:
            kept = weights * (torch.rand_like(weights) >= dropout) / (1 - dropout)
        return torch.cat(kept.matmul(v).unbind(1), dim=-1), weights
    p = dropout if training else 0
    return torch.cat(F.scaled_dot_product_attention(q, k, v, mask, dropout_p=p).unbind(1), dim=-1)


also_right = [_einsum, _head_by_head]


# Mistakes


def _all_by_hand(q, k, v, heads, mask=None, dropout=0.0, training=False, need_weights=False):
    found = _head_by_head(q, k, v, heads, mask, dropout, training, need_weights=True)
    return found if need_weights else found[0]


mistakes = [
    Edit(
        "a view across the rows",
        "x.unflatten(-1, (heads, -1)).transpose(1, 2)",
        "x.reshape(len(x), heads, x.shape[1], -1)",
        told_by="heads",
    ),
    Edit(
        "the root of the whole width",
        "math.sqrt(q.shape[-1])",
        "math.sqrt(heads * q.shape[-1])",
        told_by="scores",
    ),
    Edit(
        "a mask after the softmax",
        "        weights = scores.softmax(-1)\n",
        "        weights = scores.softmax(-1)\n        if mask is not None and mask.dtype is torch.bool:\n"
        "            weights = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) * mask\n",
        told_by="boolean_masks",
    ),
    Edit("True hides", "masked_fill(~mask", "masked_fill(mask", told_by="boolean_masks"),
    Edit("floats as True and False", "scores + mask", "scores * (mask == 0)", told_by="float_masks"),
    Edit("drops in evaluation", "dropout if training else 0.0", "dropout", told_by="evaluation"),
    Edit(
        "returns what dropout left",
        "output = F.dropout(weights, dropped) @ v",
        "weights = F.dropout(weights, dropped)\n        output = weights @ v",
        told_by="dropped",
    ),
    Wrong(_all_by_hand, told_by="kernel"),
]

_SAME, _OWN = "the same two dimensions", "the scores and the output are its own: nobody else sees the write"

equivalent = {
    "line 19: `x.unflatten(-1, (heads, -1)).transpose(1, 2)` -> "
    "`x.unflatten(-1, (heads, -1)).transpose(2, 1)`": _SAME,
    "line 24: `scores.masked_fill(~mask, -math.inf)` -> `scores.masked_fill_(~mask, -math.inf)`": _OWN,
    "line 31: `output.transpose(1, 2)` -> `output.transpose(2, 1)`": _SAME,
    "line 31: `output.transpose(1, 2)` -> `output.transpose_(1, 2)`": _OWN,
}
