"""Forward computes nothing, so the result is a view of `x`. Backward needs only the number; an attribute of
`ctx` holds it for this one call. `-strength * grad` is a new tensor, because other nodes may use the one that
arrives.

`return x` would do as well: torch makes a view of it. `x.detach()` wouldn't. It shares the storage too, but
autograd doesn't know: `F.relu(y, inplace=True)` would change `x` without a word. Autograd knows of a view,
and refuses the write while it records, because it couldn't tell whose backward applies to it. If the next
operation works in place, return `x.clone()`, which costs a copy.

`gradcheck` fails here, unless `strength` is -1, and should: the gradient is not that of the identity."""

import torch
from torch import Tensor


class GradientReversal(torch.autograd.Function):
    """x -> x; backward: minus `strength` times the gradient"""

    @staticmethod
    def forward(ctx, x: Tensor, strength: float) -> Tensor:
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        return -ctx.strength * grad, None


# Other right answers

from course_utils.exercise import Edit


class _ReturnsTheInput(torch.autograd.Function):
    """Torch makes the view."""

    @staticmethod
    def forward(ctx, x, strength):
        ctx.factor = -strength
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad.mul(ctx.factor), None


class _WithSetupContext(torch.autograd.Function):
    @staticmethod
    def forward(x, strength):
        return x[...]

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.strength = inputs

    @staticmethod
    def backward(ctx, grad):
        return torch.zeros_like(grad).sub(grad, alpha=ctx.strength), None


class _NumberInATensor(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, strength):
        ctx.save_for_backward(torch.tensor(strength, dtype=x.dtype, device=x.device))
        return x.as_strided(x.size(), x.stride(), x.storage_offset())

    @staticmethod
    def backward(ctx, grad):
        (strength,) = ctx.saved_tensors
        return grad.neg() * strength, None


also_right = [_ReturnsTheInput, _WithSetupContext, _NumberInATensor]

mistakes = [
    Edit("copies", "x.view_as(x)", "x.clone()", told_by="shares_storage"),
    Edit("detaches", "x.view_as(x)", "x.detach()", told_by="known_as_a_view"),
    Edit("forgets the sign", "-ctx.strength", "ctx.strength", told_by="turned_around"),
    Edit("a float32 number", "= strength", "= torch.tensor(strength)", told_by="turned_around"),
    Edit("on the class", "ctx.strength =", "type(ctx).strength =", told_by="a_strength_for_each_call"),
    Edit("in place", "-ctx.strength * grad", "grad.mul_(-ctx.strength)", told_by="left_alone"),
    Edit("keeps the input", "= strength", "= strength\n        ctx.x = x", told_by="nothing_kept"),
]

equivalent = {
    "line 11: `x.view_as(x)` -> `x`": "torch makes a view of an input that is returned as it came",
    "the result of `backward` made contiguous": "any layout will do for a gradient",
}

not_tried = {"hard numbers": "one product"}
