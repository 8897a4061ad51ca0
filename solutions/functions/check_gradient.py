"""The truth is in the values: a small step along one element of an input changes the weighted sum of the
result by the step times the gradient. Steps to both sides cancel the curvature, so the error goes with the
square of the step; rounding goes with its inverse. In double precision the two meet near 1e-6, and leave some
eight digits.

The weights stand for what arrives in the backward. A backward is a linear map of it, so weights that are all
different, of both signs, smaller and larger than 1, give away one that drops, sorts, clamps or rectifies. A
result of one element has one weight, so the second round sends another, of the other sign and size.

The difference is measured against the largest element: rounding comes from the sum, which knows nothing of
the small ones."""

import math

import torch
from torch import Tensor


def check_gradient(function, *inputs: Tensor) -> bool:
    """Whether the gradients of `function(*inputs)` are those of its values"""
    inputs = [x.new_tensor(x.tolist(), dtype=torch.float64).view(x.shape).requires_grad_() for x in inputs]
    step = 1e-6
    for scale in (0.4, -3.0):
        result = function(*inputs)
        numbers = [scale * math.cos(i) for i in range(result.numel())]
        weights = result.new_tensor(numbers).reshape(result.shape)
        grads = [torch.zeros_like(x) for x in inputs]
        if result.requires_grad:
            grads = torch.autograd.grad(result, inputs, weights, materialize_grads=True)
        for number, grad in enumerate(grads):
            flat, slopes = inputs[number].detach().view(-1), []
            for i, middle in enumerate(flat.tolist()):
                flat[i] = middle + step
                above = (function(*inputs) * weights).sum().item()
                flat[i] = middle - step
                below = (function(*inputs) * weights).sum().item()
                flat[i] = middle
                slopes.append((above - below) / (2 * step))
            room = 1e-5 * sum(map(abs, slopes))
            # A `nan` is close to nothing.
            if not torch.allclose(grad, grad.new_tensor(slopes).reshape(grad.shape), atol=room):
                return False
    return True


# Other right answers


def _whole_jacobian(function, *inputs):
    """Row by row what autograd says, column by column what the values say; twice, for small and large."""
    inputs = tuple(x.detach().double() for x in inputs)
    for number, x in enumerate(inputs):

        def of_one(z, number=number):
            return function(*inputs[:number], z, *inputs[number + 1 :]).reshape(-1)

        leaf = x.clone().requires_grad_()
        result = of_one(leaf)
        columns = []
        for i in range(x.numel()):
            step = torch.zeros(x.numel(), dtype=x.dtype)
            step[i] = 2.0**-20
            step = step.reshape(x.shape)
            columns.append((of_one(x + step) - of_one(x - step)) * 2.0**19)
        if not columns:
            continue
        numeric = torch.stack(columns, 1)
        for scale in (0.5, -7.0):
            rows = []
            for unit in torch.eye(len(result), dtype=x.dtype):
                row = None
                if result.requires_grad:
                    (row,) = torch.autograd.grad(
                        result, leaf, scale * unit, retain_graph=True, allow_unused=True
                    )
                rows.append(torch.zeros(x.numel()).double() if row is None else row.reshape(-1))
            error = (torch.stack(rows) - scale * numeric).abs().max()
            if not error <= 2e-5 * abs(scale) * numeric.abs().max().clamp(min=error / 50):
                return False
    return True


def _at_random(function, *inputs):
    """Weights at random, a central difference of higher order, and lists of numbers."""
    torch.manual_seed(1)
    return all(_for_weights_at_random(size, function, *inputs) for size in (-4, 0.2))


def _for_weights_at_random(size, function, *inputs):
    leaves = [x.detach().double().requires_grad_() for x in inputs]
    result = function(*leaves)
    signs = torch.arange(result.numel()).reshape(result.shape) % 2 * 2 - 1
    weights = size * signs * (4 * torch.rand(result.shape, dtype=torch.float64) + 0.5)
    total = (result * weights).sum() + 0 * sum(x.sum() for x in leaves)
    grads = torch.autograd.grad(total, leaves, allow_unused=True)

    def value(number, i, h):
        changed = [x.detach().clone(memory_format=torch.contiguous_format) for x in leaves]
        changed[number].view(-1)[i] += h
        return (function(*changed).detach() * weights).sum().item()

    for number, grad in enumerate(grads):
        size = leaves[number].numel()
        said = [0.0] * size if grad is None else grad.reshape(-1).tolist()
        seen = []
        for i in range(size):
            near, far = (value(number, i, h) - value(number, i, -h) for h in (2e-5, 4e-5))
            seen.append((8 * near - far) / (12 * 2e-5))
        largest = max(map(abs, said + seen), default=0.0)
        if any(not abs(a - b) <= 1e-5 * largest for a, b in zip(said, seen, strict=True)):
            return False
    return True


equivalent = {
    "line 10: `1e-06` -> `2e-06`": "rounding and curvature both have room",
    "line 11: `0.4` -> `0.8`": "smaller than 1 as well",
    "line 11: `3.0` -> `6.0`": "larger than 1 as well",
    "line 13: `scale * math.cos(i)` -> `scale / math.cos(i)`": "other weights of both signs",
    "line 27: `1e-05` -> `2e-05`": "more than rounding, less than any error that counts",
}


def generated(answer):
    for factor in (0.5, 1.0, 1.5):

        class Scaled(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 1

            @staticmethod
            def backward(ctx, grad, factor=factor):
                return factor * grad

        for size in (1, 2, 3):
            yield answer(Scaled.apply, torch.linspace(-1, 1, size))


also_right = [_whole_jacobian, _at_random]
