"""With `x` fixed, the first product `u @ J` is a linear function of `u`, and its Jacobian is the transpose of
`J`. Backward gives a vector times a Jacobian. With `v` as the vector this is `v @ J.T`, and that is `J @ v`.
So the second pass goes backward through the first backward.

You differentiate with respect to `u`; its value drops out, because the derivative of a linear function is the
same everywhere. Zeros will do. The trick costs two passes and a graph of the first one. Forward mode needs
one pass and no graph, but rules of its own for the operations.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def vector_jacobian_products(function: Callable[[Tensor], Tensor], x: Tensor, v: Tensor) -> Tensor:
    """x, v: any shape -> J @ v, in the shape of `function(x)`"""
    x = x.detach().requires_grad_()
    y = function(x)
    u = torch.zeros_like(y, requires_grad=True)
    if y.requires_grad:
        (product,) = torch.autograd.grad(y, x, u, create_graph=True, allow_unused=True)
        if product is not None:
            (change,) = torch.autograd.grad(product, u, v)
            return change
    return torch.zeros_like(y)


# Other right answers

from course_utils.exercise import Edit, Wrong


def _as_a_sum(function, x, v):
    """Both products as gradients of sums."""
    leaf = x.detach().clone().requires_grad_()
    y = function(leaf)
    if not y.requires_grad:
        return 0 * y
    u = torch.ones_like(y).requires_grad_()
    (product,) = torch.autograd.grad((u * y).sum(), leaf, create_graph=True, materialize_grads=True)
    return torch.autograd.grad((product * v).sum(), u, materialize_grads=True)[0]


def _by_backward(function, x, v):
    leaf = x.detach().clone().requires_grad_()
    y = function(leaf)
    u = torch.full_like(y, 0.5).requires_grad_()
    if y.requires_grad:
        y.backward(u, create_graph=True, inputs=[leaf])
    if leaf.grad is not None:
        product, leaf.grad = leaf.grad, None
        product.backward(v, inputs=[u])
    return torch.zeros_like(u).detach() if u.grad is None else u.grad


also_right = [_as_a_sum, _by_backward]


# Mistakes


def _the_other_product(function, x, v):
    x = x.detach().requires_grad_()
    return torch.autograd.grad(function(x), x, v)[0]


def _the_whole_jacobian(function, x, v):
    x = x.detach().requires_grad_()
    y = function(x)
    product = torch.zeros_like(y).detach().flatten()
    for i, element in enumerate(y.flatten()):
        if element.requires_grad:
            (row,) = torch.autograd.grad(element, x, retain_graph=True, materialize_grads=True)
            product[i] = (row * v).sum()
    return product.reshape(y.shape)


mistakes = [
    Wrong(_the_other_product, told_by="right_values"),
    Edit("retains the graph", "create_graph=True", "retain_graph=True", told_by="right_values"),
    Edit("u requires no gradient", "(y, requires_grad=True)", "(y)", told_by="right_values"),
    Edit("u in the shape of x", "torch.zeros_like(y, r", "torch.zeros_like(x, r", told_by="any_shape"),
    Edit("forgets None", "product is not None", "True", told_by="independent"),
    Edit(
        "the flag of the caller's x",
        "x.detach().requires_grad_()",
        "x.requires_grad_()",
        told_by="left_alone",
    ),
    Edit(
        "a graph of the product", "product, u, v)", "product, u, v, create_graph=True)", told_by="left_alone"
    ),
    Wrong(_the_whole_jacobian, told_by="work"),
]
not_tried = {"hard numbers": "torch computes the derivatives"}
