"""Each gradient is a product of what arrives with the *other* factor: `grad @ weight` for `x`, `grad.t() @ x`
for `weight`. So what must be kept and what must be computed follows from who will ask: a layer with frozen
weights needs no `x` in backward, the first layer of a network needs no gradient of its input.

The leading dimensions are a batch, whatever their number: flattened into one, the product over it is a sum
over all rows. The bias was added to every row, so its gradient is the sum of all rows that arrive.

Autograd would add up a gradient that is too large, as it does after broadcasting. It can do so only after the
large tensor has been made."""

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


class WithSetupContext(torch.autograd.Function):
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
        if ctx.needs_input_grad[0]:
            found[0] = grad.matmul(weight)
        if ctx.needs_input_grad[1]:
            found[1] = (
                torch.einsum("no,ni->oi", grad.flatten(0, -2), x.flatten(0, -2))
                if x.dim() > 1
                else (grad[:, None].mm(x[None]))
            )
        if ctx.needs_input_grad[2]:
            found[2] = grad.sum(dim=list(range(grad.dim() - 1))) if grad.dim() > 1 else grad
        return tuple(found)


class KeepsWhatItNeeds(torch.autograd.Function):
    """Saves a list without gaps, and takes from it in the same order."""

    @staticmethod
    def forward(ctx, x, weight, bias=None):
        needed = zip((weight, x), ctx.needs_input_grad[:2], strict=True)
        ctx.save_for_backward(*(t for t, asked_for in needed if asked_for))
        out = x @ weight.mT
        return out + bias if bias is not None else out

    @staticmethod
    def backward(ctx, grad):
        kept = list(ctx.saved_tensors)
        found = []
        for place, needed in enumerate(ctx.needs_input_grad):
            if not needed:
                found.append(None)
            elif place == 0:
                found.append(grad @ kept.pop(0))
            elif place == 1:
                x = kept.pop(0)
                found.append(grad.reshape(-1, grad.shape[-1]).mT @ x.reshape(-1, x.shape[-1]))
            else:
                found.append(grad.sum_to_size(grad.shape[-1]))
        return tuple(found)


class NotesTheVersions(torch.autograd.Function):
    """Keeps tensors on `ctx`, and looks itself whether they were changed."""

    @staticmethod
    def forward(ctx, x, weight, bias=None):
        needed = (ctx.needs_input_grad[1], x), (ctx.needs_input_grad[0], weight)
        ctx.kept = [(t, t._version) if wanted else None for wanted, t in needed]
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, grad):
        assert all(t._version == noted for t, noted in filter(None, ctx.kept)), "changed in between"
        x, weight = (None if one is None else one[0] for one in ctx.kept)
        dims = list(range(grad.dim() - 1))
        by_x = None if weight is None else torch.tensordot(grad, weight, 1)
        by_weight = None if x is None else torch.tensordot(grad, x, (dims, dims))
        return by_x, by_weight, grad.sum_to_size(grad.size(-1)) if any(ctx.needs_input_grad[2:]) else None


also_right = [WithSetupContext, KeepsWhatItNeeds, NotesTheVersions]
