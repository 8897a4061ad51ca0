"""The sum over all rows is a sum over chunks, divided by the number of rows that count. The targets tell that
number before anything is computed. In the forward each chunk takes its own gradient at once: softmax minus
one-hot, divided by that number. It goes into the gradients of `hidden` and `weight`, which have the size of
these tensors, and the logits of the chunk are freed.

Backward multiplies by what arrives.
"""

import torch
from torch import Tensor


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, target, chunk, ignore_index):
        count = (target != ignore_index).sum()
        total = hidden.new_zeros(())
        for_hidden = torch.zeros_like(hidden)
        for_weight = torch.zeros_like(weight)
        for start in range(0, len(hidden), chunk):
            part = slice(start, start + chunk)
            logits = hidden[part] @ weight.T
            keep = target[part] != ignore_index
            right = target[part].where(keep, 0).unsqueeze(1)
            each = logits.logsumexp(1) - logits.gather(1, right).squeeze(1)
            total += each.where(keep, 0.0).sum()
            slope = logits.softmax(1)
            slope.scatter_add_(1, right, -torch.ones_like(right, dtype=slope.dtype))
            slope *= keep.unsqueeze(1)
            slope /= count
            for_hidden[part] = slope @ weight
            for_weight += slope.T @ hidden[part]
        ctx.save_for_backward(for_hidden, for_weight)
        return total / count

    @staticmethod
    def backward(ctx, grad):
        for_hidden, for_weight = ctx.saved_tensors
        return for_hidden * grad, for_weight * grad, None, None, None


def chunked_cross_entropy(
    hidden: Tensor, weight: Tensor, target: Tensor, chunk: int, ignore_index: int = -100
) -> Tensor:
    return _Loss.apply(hidden, weight, target, chunk, ignore_index)


# Other right answers

from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from course_utils.exercise import Edit, Wrong


def _by_checkpoint(hidden, weight, target, chunk, ignore_index=-100):
    def part(h, w, t):
        return F.cross_entropy(h @ w.T, t, ignore_index=ignore_index, reduction="sum")

    total = 0
    for h, t in zip(hidden.split(chunk), target.split(chunk), strict=True):
        total = total + checkpoint(part, h, weight, t, use_reentrant=False)
    return total / (target != ignore_index).sum()


def _by_inner_autograd(hidden, weight, target, chunk, ignore_index=-100):
    class Loss(torch.autograd.Function):
        @staticmethod
        def forward(ctx, h, w):
            wanted = [x.detach().requires_grad_(x.requires_grad) for x in (h, w)]
            grads = [torch.zeros_like(x) if x.requires_grad else None for x in (h, w)]
            total, count = 0, (target != ignore_index).sum()
            for start in range(0, h.shape[0], chunk):
                at = slice(start, start + chunk)
                with torch.enable_grad():
                    rows = wanted[0].detach()[at].requires_grad_(h.requires_grad)
                    copy = wanted[1].detach().requires_grad_(w.requires_grad)
                    loss = F.cross_entropy(
                        rows @ copy.T, target[at], ignore_index=ignore_index, reduction="sum"
                    )
                    part = loss / count
                if part.requires_grad:
                    part.backward()
                if grads[0] is not None:
                    grads[0][at] = rows.grad
                if grads[1] is not None:
                    grads[1] += copy.grad
                total = total + loss.detach()
            ctx.grads = grads
            return total / count

        @staticmethod
        def backward(ctx, grad):
            return tuple(None if g is None else g * grad for g in ctx.grads)

    return Loss.apply(hidden, weight)


also_right = [_by_checkpoint, _by_inner_autograd]


def _sums_losses(hidden, weight, target, chunk, ignore_index=-100):
    total = 0
    for h, t in zip(hidden.split(chunk), target.split(chunk), strict=True):
        total = total + F.cross_entropy(h @ weight.T, t, ignore_index=ignore_index, reduction="sum")
    return total / (target != ignore_index).sum()


def _one_checkpoint(hidden, weight, target, chunk, ignore_index=-100):
    return checkpoint(_sums_losses, hidden, weight, target, chunk, ignore_index, use_reentrant=False)


def _mean_of_means(hidden, weight, target, chunk, ignore_index=-100):
    losses = [
        checkpoint(
            lambda h, t: F.cross_entropy(h @ weight.T, t, ignore_index=ignore_index),
            h,
            t,
            use_reentrant=False,
        )
        for h, t in zip(hidden.split(chunk), target.split(chunk), strict=True)
    ]
    return torch.stack(losses).mean()


mistakes = [
    Wrong(_mean_of_means, told_by="values"),
    Wrong(_sums_losses, told_by="kept"),
    Wrong(_one_checkpoint, told_by="peak"),
    Edit(
        "divides by all rows",
        "(target != ignore_index).sum()",
        "torch.tensor(len(target))",
        told_by="ignored",
    ),
    Edit(
        "ignores what arrives",
        "for_hidden * grad, for_weight * grad",
        "for_hidden, for_weight",
        told_by="chain",
    ),
    Edit("no maximum", "logits.logsumexp(1)", "logits.exp().sum(1).log()", told_by="exact"),
    Edit("overwrites the weight's", "for_weight += slope.T", "for_weight = slope.T", told_by="values"),
]

not_tried = {"seeds": "no draw decides"}
equivalent = {
    "line 16: `0` -> `1`": "any class does, for rows that don't count",
    "line 21: `keep.unsqueeze(1)` -> `keep.unsqueeze_(1)`": "nobody needs this mask any more",
}
