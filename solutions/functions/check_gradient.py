"""The truth is in the values: a small step along one element of an input changes the weighted sum of the
result by the step times the gradient. Steps to both sides cancel the curvature, so the error goes with the
square of the step; rounding goes with its inverse. For `sin` near 1 the two meet between 1e-6 and 1e-5 in
double precision.

The weights stand for what arrives. A right backward is a linear map of it. Weights that are all different, of
both signs, smaller and larger than 1, reveal a backward that drops, sorts, clamps or rectifies them.

The error is compared with the largest element, because rounding comes from the whole sum. Ask whether the
error is small enough, not whether it's too large: for `nan` both comparisons are false."""

import torch
from torch import Tensor


def check_gradient(function, *inputs: Tensor) -> bool:
    """Whether the gradients of `function(*inputs)` are those of its values"""
    copies = [torch.tensor(x.tolist(), dtype=torch.float64, requires_grad=True) for x in inputs]
    result = function(*copies)
    weights = 3.0 * torch.cos(torch.arange(result.numel())).view_as(result)
    grads = torch.autograd.grad(result, copies, weights)
    step = 1e-6
    with torch.no_grad():
        for number, grad in enumerate(grads):
            flat = copies[number].view(-1)
            slopes = torch.zeros_like(flat)
            for i, middle in enumerate(flat.tolist()):
                flat[i] = middle + step
                above = (function(*copies) * weights).sum()
                flat[i] = middle - step
                below = (function(*copies) * weights).sum()
                flat[i] = middle
                slopes[i] = (above - below) / (2 * step)
            error = (grad.reshape(-1) - slopes).abs().max()
            if not error <= 1e-4 * slopes.abs().max():
                return False
    return True


# Other right answers

from course_utils.exercise import Edit, Wrong


def _whole_jacobian(function, *inputs):
    """Column by column what the values say; then what autograd says, for two gradients that arrive."""
    inputs = tuple(x.detach().double() for x in inputs)
    for number, x in enumerate(inputs):

        def of_one(z, number=number):
            return function(*inputs[:number], z, *inputs[number + 1 :]).reshape(-1)

        units = torch.eye(x.numel(), dtype=x.dtype).reshape(-1, *x.shape) * 2.0**-20
        numeric = torch.stack([of_one(x + unit) - of_one(x - unit) for unit in units], 1) * 2.0**19
        leaf = x.clone().requires_grad_()
        for scale in (0.4, -7.0):
            weights = scale * torch.cos(torch.arange(len(numeric))).double()
            (grad,) = torch.autograd.grad(of_one(leaf), leaf, weights)
            error = (grad.reshape(-1) - weights @ numeric).abs().max()
            if not error <= 1e-4 * (weights @ numeric).abs().max():
                return False
    return True


def _at_random(function, *inputs):
    """Weights at random, and a difference of four values."""
    torch.manual_seed(1)
    leaves = [x.detach().double().requires_grad_() for x in inputs]
    result = function(*leaves)
    weights = 4 * torch.randn(result.shape, dtype=torch.float64)
    for number, grad in enumerate(torch.autograd.grad(result, leaves, weights)):

        def total(change, number=number):
            moved = [x.detach() + change if n == number else x.detach() for n, x in enumerate(leaves)]
            return (function(*moved) * weights).sum()

        steps = 1e-5 * torch.eye(grad.numel(), dtype=grad.dtype).reshape(-1, *grad.shape)
        slopes = [(8 * (total(h) - total(-h)) - total(2 * h) + total(-2 * h)) / 12e-5 for h in steps]
        error = (grad.reshape(-1) - torch.stack(slopes)).abs().max()
        if error.isnan() or error > 1e-4 * max(map(abs, slopes)):
            return False
    return True


also_right = [_whole_jacobian, _at_random]


def _calls_gradcheck(function, *inputs):
    inputs = [x.detach().double().requires_grad_() for x in inputs]
    return torch.autograd.gradcheck(function, inputs, raise_exception=False)


_WEIGHTS = "3.0 * torch.cos(torch.arange(result.numel())).view_as(result)"

_BELOW = "(above - (function(*copies) * weights).sum()) / step"

mistakes = [
    Edit("lets nan through", "not error <=", "error >", told_by="right_and_wrong"),
    Edit("the mean error", "slopes).abs().max()", "slopes).abs().mean()", told_by="every_element"),
    Edit("the first alone", "enumerate(grads)", "enumerate(grads[:1])", told_by="every_element"),
    Edit("weights of one", _WEIGHTS, "torch.ones_like(result)", told_by="whatever_arrives"),
    Wrong(_calls_gradcheck, told_by="whatever_arrives"),
    Edit("on one side", "(above - below) / (2 * step)", _BELOW, told_by="both_sides"),
    Edit("a fixed tolerance", "1e-4 * slopes.abs().max()", "1e-4", told_by="any_size"),
    Edit("float32", "tolist(), dtype=torch.float64", "tolist()", told_by="right_and_wrong"),
]

equivalent = {
    "line 9: `3.0` -> `6.0`": "other weights that will do",
    "line 11: `1e-06` -> `2e-06`": "rounding and curvature both have room",
    "line 23: `grad.reshape(-1) - slopes` -> `slopes - grad.reshape(-1)`": "the sign of an error has no say",
    "line 24: `0.0001` -> `0.0002`": "more than rounding, less than any error that counts",
    "line 24: `slopes.abs()` -> `slopes.abs_()`": "nobody looks at them afterwards",
}

not_tried = {"hard numbers": "`any_size` has small and large ones"}
