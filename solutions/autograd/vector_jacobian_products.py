"""With `x` fixed, the first product `u @ J` is a linear function of `u`, and the Jacobian of that function is
the transpose of `J`. Backward mode gives a vector times a Jacobian; with `v` as the vector this is `v @ J.T`,
and that is `J @ v`. So the second pass goes backward through the first backward.

`u` is there to be differentiated with respect to. Its value drops out, because the derivative of a linear
function is the same everywhere; zeros will do. Where the derivative is zero everywhere, as that of `round`
is, the first pass gives zeros that do not depend on `u`, and there is no second one. What the trick costs is
two passes and a graph of the first one, whatever the sizes. Forward mode needs one pass and no graph, and a
rule for each operation."""

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
        if product is not None and product.requires_grad:
            (change,) = torch.autograd.grad(product, u, v)
            return change
    return torch.zeros_like(y)


# Other right answers


def _as_a_sum(function, x, v):
    """Both products as gradients of sums."""
    leaf = torch.empty_like(x).copy_(x.detach()).requires_grad_()
    y = function(leaf)
    if not y.requires_grad:
        return 0 * y
    u = torch.ones_like(y).requires_grad_()
    weighted = (u * y).sum()
    (product,) = torch.autograd.grad(weighted, leaf, create_graph=True, materialize_grads=True)
    if not product.requires_grad:
        return torch.zeros_like(u).detach()
    total = (product * v.detach()).sum()
    (found,) = torch.autograd.grad(total, u, materialize_grads=True)
    return found.detach()


def _by_backward(function, x, v):
    leaf = x.detach().clone().requires_grad_()
    y = function(leaf)
    u = torch.full_like(y, 0.5).requires_grad_()
    if y.requires_grad:
        y.backward(u, create_graph=True, inputs=[leaf])
    if leaf.grad is not None and leaf.grad.requires_grad:
        product, leaf.grad = leaf.grad, None
        product.backward(v, inputs=[u])
    return torch.zeros_like(u).detach() if u.grad is None else u.grad


also_right = [_as_a_sum, _by_backward]
