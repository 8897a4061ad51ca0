"""The Hessian is the Jacobian of the gradient, and it is symmetric. So its product with a vector is the
product of a vector with a Jacobian, which is what backward gives: differentiate the scalar product of
gradient and vector. That is one number, whatever the number of parameters.

The first gradient is taken with `create_graph`, so that the operations of backward have a graph of their own.
It is about as large as the graph of the loss; the whole costs a few times what one gradient costs. Where a
gradient does not depend on anything (the loss is linear) its graph is empty: there the product is zero."""

from collections.abc import Callable

import torch
from torch import Tensor


def hessian_vector_product(
    loss_of: Callable[[], Tensor], parameters: list[Tensor], vectors: list[Tensor]
) -> list[Tensor]:
    """One tensor for each parameter, in its shape"""
    gradients = torch.autograd.grad(loss_of(), parameters, create_graph=True, materialize_grads=True)
    parts = [(gradient * vectors[i]).sum() for i, gradient in enumerate(gradients)]
    along = torch.stack(parts).sum()
    if not along.requires_grad:
        return [torch.zeros_like(parameter) for parameter in parameters]
    return list(torch.autograd.grad(along, parameters, materialize_grads=True))


# Other right answers


def _vectors_as_grad_outputs(loss_of, parameters, vectors):
    gradients = torch.autograd.grad(loss_of(), parameters, create_graph=True, materialize_grads=True)
    moving = [i for i, gradient in enumerate(gradients) if gradient.grad_fn is not None]
    if not any(gradients[i].requires_grad for i in moving):
        return [torch.zeros_like(p) for p in parameters]
    outputs, weights = [gradients[i] for i in moving], [vectors[i] for i in moving]
    return list(torch.autograd.grad(outputs, parameters, weights, materialize_grads=True))


def _backward_over_backward(loss_of, parameters, vectors):
    """The product along a line: the derivative of the gradient in the direction of the vector, by two
    products."""
    gradients = torch.autograd.grad(loss_of(), parameters, create_graph=True, materialize_grads=True)
    gradients = [g if g.requires_grad else g.clone().requires_grad_() for g in gradients]
    weights = [torch.zeros_like(g, requires_grad=True) for g in gradients]
    first = torch.autograd.grad(gradients, parameters, weights, create_graph=True, materialize_grads=True)
    first = [part + 0 * sum(w.sum() for w in weights) for part in first]
    return [part.detach() for part in torch.autograd.grad(first, weights, vectors)]


def _one_long_vector(loss_of, parameters, vectors):
    def flat(tensors):
        return torch.cat([t.reshape(-1) for t in tensors])

    gradients = torch.autograd.grad(loss_of(), parameters, create_graph=True, allow_unused=True)
    gradients = [0 * p if g is None else g for g, p in zip(gradients, parameters, strict=True)]
    along = flat(gradients).dot(flat(vectors)) + 0 * flat(parameters).sum()
    return list(torch.autograd.grad(along, parameters))


also_right = [_vectors_as_grad_outputs, _backward_over_backward, _one_long_vector]
