"""The gradients of `x` and `weight` are products of what arrives with the *other* factor: `grad @ weight` for
`x`, `grad.t() @ x` for `weight`. So who asks decides what to keep and what to compute: a layer with frozen
weights needs no `x` in backward, and the first layer of a network needs no gradient of its input.

The leading dimensions are a batch. Flattened into one, the product over it is a sum over all rows. The bias
was added to every row, so its gradient is the sum of all rows that arrive.

Autograd would sum a gradient of `bias` that is too large. Here `backward` sums it."""

import torch
from torch import Tensor
from torch.nn import functional as F


class LeanLinear(torch.autograd.Function):
    """(..., inputs), (outputs, inputs), (outputs,) -> (..., outputs)"""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        for_x, for_weight = ctx.needs_input_grad[:2]
        ctx.save_for_backward(x if for_weight else None, weight if for_x else None)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        rows = grad.reshape(-1, grad.size(-1))
        grad_x = grad @ weight if weight is not None else None
        grad_weight = rows.t() @ x.reshape(-1, x.size(-1)) if x is not None else None
        # Of a bias that was left out `needs_input_grad` knows nothing.
        grad_bias = rows.sum(0) if any(ctx.needs_input_grad[2:]) else None
        return grad_x, grad_weight, grad_bias


# Other right answers

from course_utils.exercise import Edit


class _WithSetupContext(torch.autograd.Function):
    """With `setup_context` a bias that was left out counts as an argument."""

    @staticmethod
    def forward(x, weight, bias=None):
        out = torch.einsum("...i,oi->...o", x, weight)
        return out if bias is None else out.add_(bias)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, weight, _ = inputs
        for_x, for_weight, _ = ctx.needs_input_grad
        ctx.save_for_backward(weight if for_x else None, x if for_weight else None)

    @staticmethod
    def backward(ctx, grad):
        weight, x = ctx.saved_tensors
        found = [None, None, None]
        if weight is not None:
            found[0] = grad.matmul(weight)
        if x is not None:
            found[1] = torch.einsum("no,ni->oi", *(t.reshape(-1, t.size(-1)) for t in (grad, x)))
        if ctx.needs_input_grad[2]:
            found[2] = grad.sum_to_size(grad.size(-1))
        return tuple(found)


class _ProductsOfTensors(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias=None):
        needed = zip((weight, x), ctx.needs_input_grad[:2], strict=True)
        ctx.save_for_backward(*[t if asked_for else None for t, asked_for in needed])
        out = x @ weight.mT
        return out + bias if bias is not None else out

    @staticmethod
    def backward(ctx, grad):
        (weight, x), rows = ctx.saved_tensors, list(range(grad.dim() - 1))
        by_x = None if weight is None else torch.tensordot(grad, weight, 1)
        by_weight = None if x is None else torch.tensordot(grad, x, (rows, rows))
        bias = ctx.needs_input_grad[2:] == (True,)
        return by_x, by_weight, (grad.sum(rows) if rows else grad) if bias else None


also_right = [_WithSetupContext, _ProductsOfTensors]

_ROWS = "x.reshape(-1, x.size(-1))"

mistakes = [
    Edit("matrices alone", "F.linear(x, weight, bias)", "x.mm(weight.t()) + bias", told_by="values"),
    Edit(
        "the other way round",
        f"rows.t() @ {_ROWS}",
        f"({_ROWS}.t() @ rows).reshape_as(weight)",
        told_by="gradients",
    ),
    Edit("views", "grad.reshape", "grad.view", told_by="gradients"),
    Edit(
        "three entries", "any(ctx.needs_input_grad[2:])", "ctx.needs_input_grad[2]", told_by="without_a_bias"
    ),
    Edit("does not sum", "rows.sum(0)", "grad", told_by="shapes_handed_back"),
    Edit("computes for all", "weight if for_x else None", "weight", told_by="only_what_is_asked"),
    Edit("keeps a copy", "(x if for", "(x.contiguous() if for", told_by="only_what_is_needed"),
]

equivalent = {
    "the result of `backward` detached": "a second derivative is not asked for",
}

not_tried = {"hard numbers": "a sum of products, by torch's own operators"}
