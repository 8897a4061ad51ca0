"""`save_for_backward` keeps the input itself, with its version: no copy, and a change in between raises.
Backward is made of differentiable operations on it, so the second derivative comes for free.
"""

import torch
from torch import Tensor


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * 3 * x**2


# Other right answers


class WithSetupContext(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x.pow(3)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        x = ctx.saved_tensors[0]
        return x * x * (grad + grad + grad)


class WithEinsum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.einsum("i,i,i->i", x, x, x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return x.abs().square().mul(grad).mul(3)


also_right = [WithSetupContext, WithEinsum]
