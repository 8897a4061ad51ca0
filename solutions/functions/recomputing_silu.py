"""`save_for_backward(x)` costs no memory of its own: `x` is there already, and the graph holds a reference to
it and the version that it had. The sigmoid is one operator, so backward can make it anew.

What `backward` does is recorded when somebody asks for it with `create_graph=True`, because it consists of
differentiable operators on the saved `x` itself. So the second derivative needs no further code."""

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


class WithSetupContext(torch.autograd.Function):
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


class AsksAutograd(torch.autograd.Function):
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


class NotesTheVersion(torch.autograd.Function):
    """Keeps `x` on `ctx`, and looks itself whether it was changed."""

    @staticmethod
    def forward(ctx, x):
        ctx.x, ctx.version = x, x._version
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, grad):
        if ctx.x._version != ctx.version:
            raise ValueError("x was changed in between")
        s, rest = torch.sigmoid(ctx.x), torch.sigmoid(-ctx.x)
        return grad * torch.addcmul(s, ctx.x, s * rest)


equivalent = {
    "the result of `forward` made contiguous": "any layout will do for the result",
}


def generated(answer):
    for shape in ((3,), (2, 3), ()):
        x = torch.linspace(-4, 4, torch.Size(shape).numel()).reshape(shape).requires_grad_()
        y = answer.apply(x.t())
        yield y, torch.autograd.grad(y.sum(), x)


also_right = [WithSetupContext, AsksAutograd, NotesTheVersion]
