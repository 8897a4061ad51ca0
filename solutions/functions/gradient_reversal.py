"""There is nothing to compute forward, so the result is a view of all of `x`. Backward needs the number
alone; an attribute of `ctx` holds it for this one call. `-strength * grad` is a new tensor, as the incoming
one may be on its way to other nodes.

Must it be `view_as`? In this torch `return x` comes to the same: where forward returns an input as it came,
torch makes a view of it, and gives that to the caller. `x.detach()` does not come to the same. It shares the
storage too, but autograd is not told: then `F.relu(y, inplace=True)` writes through to `x` without a word,
and the graph of `x` knows nothing of it. Of a view it knows, and as it could not tell whose backward applies
to what is written, it refuses. Where the next operation is to work in place, `x.clone()` is the way, and
costs a copy.

`gradcheck` fails here, and should: the gradient is not that of the identity."""

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


class ReturnsTheInput(torch.autograd.Function):
    """Torch makes the view."""

    @staticmethod
    def forward(ctx, x, strength):
        ctx.factor = -strength
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad.mul(ctx.factor), None


class WithSetupContext(torch.autograd.Function):
    @staticmethod
    def forward(x, strength):
        return x[...]

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.strength = inputs

    @staticmethod
    def backward(ctx, grad):
        reversed_gradient = torch.zeros_like(grad).sub(grad, alpha=ctx.strength)
        return reversed_gradient, None


class NumberInATensor(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, strength):
        ctx.save_for_backward(torch.tensor(strength, dtype=x.dtype, device=x.device))
        return x.as_strided(x.size(), x.stride(), x.storage_offset())

    @staticmethod
    def backward(ctx, grad):
        (strength,) = ctx.saved_tensors
        return grad.neg() * strength, None


also_right = [ReturnsTheInput, WithSetupContext, NumberInATensor]

# Mutants that no check can tell from the reference

equivalent = {
    "line 11: `x.view_as(x)` -> `x`": "Torch makes a view of an input that is returned as it came.",
}


def generated(answer):
    for strength in (0.0, 0.5, 2.0):
        x = torch.randn(3, 4).t().requires_grad_()
        a = x * 1
        y = answer.apply(a, strength)
        yield [y, y.stride(), y is a, y._base is a, y.data_ptr() == a.data_ptr()]
        yield from torch.autograd.grad(y, x, torch.randn(4, 3))
