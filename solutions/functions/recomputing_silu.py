"""`save_for_backward(x)` keeps a reference to `x` and its version, and makes no copy. It isn't free: `x`
stays in memory while the graph waits for backward. The sigmoid doesn't, because backward computes it again.

With `create_graph=True` autograd records `backward`, because it consists of differentiable operators on the
saved `x` itself. So the second derivative needs no more code."""

import torch
from torch import Tensor


class RecomputingSilu(torch.autograd.Function):
    """x -> x * sigmoid(x), element by element"""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad * s * (1 + x * (1 - s))


# Other right answers

from course_utils.exercise import Edit, Wrong


class _WithSetupContext(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return torch.sigmoid(x).mul_(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        x = ctx.saved_tensors[0]
        s = torch.sigmoid(x)
        y = x * s
        return torch.addcmul(s, y, 1 - s) * grad


class _AsksAutograd(torch.autograd.Function):
    """Backward builds the little graph again and lets autograd go through it, as checkpointing does."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x / (1 + torch.exp(-x))

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        again = torch.is_grad_enabled()
        with torch.enable_grad():
            x = x if again else x.detach().requires_grad_()
            y = x * torch.sigmoid(x)
        return torch.autograd.grad(y, x, grad, create_graph=again)[0]


also_right = [_WithSetupContext, _AsksAutograd]


# Mistakes


class _OnCtx(RecomputingSilu):
    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, grad):
        s = torch.sigmoid(ctx.x)
        return grad * s * (1 + ctx.x * (1 - s))


_KEEP = "ctx.save_for_backward(x)"

mistakes = [
    Edit("half of the product rule", "(1 + x * (1 - s))", "1", told_by="gradient"),
    Edit(
        "writes to what arrives",
        "return grad * s *",
        "return (grad.mul if torch.is_grad_enabled() else grad.mul_)(s) *",
        told_by="gradient",
    ),
    Edit("keeps the sigmoid too", _KEEP, f"{_KEEP}; ctx.s = torch.sigmoid(x)", told_by="keeps_x_alone"),
    Edit("and a NumPy array", _KEEP, f"{_KEEP}; ctx.n = x.detach().numpy() * 1", told_by="keeps_x_alone"),
    Edit("keeps a contiguous one", _KEEP, "ctx.save_for_backward(x.contiguous())", told_by="no_copy"),
    Wrong(_OnCtx, told_by="changed_in_between"),
    Edit(
        "makes a constant",
        "torch.sigmoid(x)\n        return grad",
        "torch.sigmoid(x).detach()\n        return grad",
        told_by="twice",
    ),
    Edit("torch's own", "x * torch.sigmoid(x)", "torch.nn.functional.silu(x)", told_by="its_own"),
]

equivalent = {
    "the result of `forward` made contiguous": "any layout will do for the result",
    "the result of `backward` made contiguous": "any layout will do for a gradient",
}

not_tried = {"hard numbers": "`values` has those of this function"}
