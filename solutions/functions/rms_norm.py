"""Let `r` be 1 over the root, one number for each row, and `n = x * r` the normalised row. An element of `x`
acts in two ways. It changes its own `n`: that gives `r * h`, with `h = grad * weight`. And it changes `r`,
which every element of the row is multiplied by: that gives `-r * n * mean(h * n)`, with the mean over the
row. The second term takes out of `h` nearly all that points along the row: to make a row longer hardly
changes the result.

`weight` is used in every row, so its gradient is a sum over all rows.

The backward computes `r` again from the saved `x`. That costs one more pass over `x`, keeps nothing else, and
makes the second derivative right: autograd sees how `r` depends on `x`. You may save `r` instead. For a
second derivative a `Function` can then return `r` as a second result: so the saved `r` has a place in the
graph.
"""

import torch
from torch import Tensor


class RmsNorm(torch.autograd.Function):
    """(..., n), (n,) -> (..., n)"""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x * one_over_root(x) * weight

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        r = one_over_root(x)
        n, h = x * r, grad * weight
        grad_x = r * (h - n * (h * n).mean(-1, keepdim=True))
        return grad_x, (grad * n).reshape(-1, x.size(-1)).sum(0)


def one_over_root(x: Tensor) -> Tensor:
    """1 / sqrt(mean(x²) + 1e-6), one number for each row"""
    return torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)


# Other right answers

from course_utils.exercise import Edit


class _SavesTheRoot(torch.autograd.Function):
    """The root is a second result, so it has a gradient of its own."""

    @staticmethod
    def forward(x, weight):
        r = (x.pow(2).sum(-1, keepdim=True) / x.size(-1) + 1e-6) ** -0.5
        return x * r * weight, r

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs, output[1])

    @staticmethod
    def backward(ctx, grad, grad_r):
        x, weight, r = ctx.saved_tensors
        h = grad * weight
        grad_r = grad_r + torch.linalg.vecdot(h, x).unsqueeze(-1)
        return r * h - grad_r * x * r**3 / x.size(-1), (grad * x * r).sum_to_size(weight.shape)

    @classmethod
    def apply(cls, x, weight):
        return super().apply(x, weight)[0]


class _DividesByTheRoot(torch.autograd.Function):
    """Autograd sums a gradient of `weight` that has the shape of `x`."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        root = (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()
        along = (grad * weight * x).sum(-1, keepdim=True) / len(weight)
        return grad * weight / root - x * along / root**3, grad * x / root


also_right = [_SavesTheRoot, _DividesByTheRoot]

_MEAN = "(x * x).mean(-1, keepdim=True)"

mistakes = [
    Edit("a sum for the mean", _MEAN, "(x * x).sum(-1, keepdim=True)", told_by="values"),
    Edit("adds to the root", f"rsqrt({_MEAN} + 1e-6)", f"rsqrt({_MEAN}) + 1e-6", told_by="values"),
    Edit("a constant root", "(h - n * (h * n).mean(-1, keepdim=True))", "h", told_by="gradient_of_x"),
    Edit("a sum in backward", "(h * n).mean(-1", "(h * n).sum(-1", told_by="gradient_of_x"),
    Edit(
        "sums a vector",
        "(grad * n).reshape(-1, x.size(-1)).sum(0)",
        "(grad * n).sum(tuple(range(x.dim() - 1)))",
        told_by="gradient_of_weight",
    ),
    Edit("keeps the rows", "(x, weight)\n", "(x, weight); ctx.n = x * 1\n", told_by="one_number_a_row"),
    Edit("writes to what arrives", "grad * weight", "grad.detach().mul_(weight)", told_by="gradient_of_x"),
    Edit(
        "a root without a history", "r = one_over_root(x)", "r = one_over_root(x).detach()", told_by="twice"
    ),
]

equivalent = {
    "line 19: `(grad * n).reshape(-1, x.size(-1)).sum(0)` -> `(grad * n).reshape(-1, x.size(-1))`": (
        "autograd sums a gradient that is too large"
    ),
    "the result of `forward` made contiguous": "any layout will do for the result",
    "the result of `backward` made contiguous": "any layout will do for a gradient",
}
