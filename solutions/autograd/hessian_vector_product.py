"""The Hessian is the Jacobian of the gradient, and for a smooth loss it is symmetric. So its product with a
vector is a vector-Jacobian product, and backward computes those: differentiate the scalar product of gradient
and vector. That is one number, for any number of parameters.

The first gradient is taken with `create_graph`, so that it has a graph of its own. If no gradient has a graph
(those of `a.sum()` and `b.sum()` have none), the product is zero. The vector is detached: it may have been
computed from the parameters, and only its numbers count.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def hessian_vector_product(
    loss_of: Callable[[], Tensor], parameters: list[Tensor], vectors: list[Tensor]
) -> list[Tensor]:
    """One tensor for each parameter, in its shape"""
    gradients = torch.autograd.grad(loss_of(), parameters, create_graph=True, materialize_grads=True)
    along = sum((g * vectors[i].detach()).sum() for i, g in enumerate(gradients))
    if not along.requires_grad:
        return [torch.zeros_like(parameter) for parameter in parameters]
    return list(torch.autograd.grad(along, parameters, materialize_grads=True))


# Other right answers

from course_utils.exercise import Edit, Wrong


def _vectors_as_grad_outputs(loss_of, parameters, vectors):
    gradients = torch.autograd.grad(loss_of(), parameters, create_graph=True, allow_unused=True)
    pairs = [(g, v) for g, v in zip(gradients, vectors, strict=True) if g is not None and g.requires_grad]
    if not pairs:
        return [torch.zeros_like(p) for p in parameters]
    moving, weights = zip(*pairs, strict=True)
    return torch.autograd.grad(moving, parameters, weights, materialize_grads=True)


def _one_long_vector(loss_of, parameters, vectors):
    def flat(tensors):
        return torch.cat([t.reshape(-1) for t in tensors])

    gradients = torch.autograd.grad(loss_of(), parameters, create_graph=True, allow_unused=True)
    gradients = [0 * p if g is None else g for g, p in zip(gradients, parameters, strict=True)]
    along = flat(gradients) @ flat(vectors).detach() + 0 * flat(parameters).sum()
    return list(torch.autograd.grad(along, parameters))


also_right = [_vectors_as_grad_outputs, _one_long_vector]


# Mistakes


def _each_parameter_alone(loss_of, parameters, vectors):
    found = []
    gradients = torch.autograd.grad(loss_of(), parameters, create_graph=True, materialize_grads=True)
    for g, p, v in zip(gradients, parameters, vectors, strict=True):
        part = torch.zeros_like(p)
        if g.requires_grad:
            (part,) = torch.autograd.grad(g, p, v, retain_graph=True, materialize_grads=True)
        found.append(part)
    return found


def _row_by_row(loss_of, parameters, vectors):
    gradients = torch.autograd.grad(loss_of(), parameters, create_graph=True, materialize_grads=True)
    found = []
    for g in gradients:
        products = []
        for element in g.flatten():
            row = [torch.zeros_like(p) for p in parameters]
            if element.requires_grad:
                row = torch.autograd.grad(element, parameters, retain_graph=True, materialize_grads=True)
            products.append(sum((part * v).sum() for part, v in zip(row, vectors, strict=True)))
        found.append(torch.stack(products).reshape(g.shape))
    return found


mistakes = [
    Edit("retains the graph", "create_graph=True", "retain_graph=True", told_by="right_values"),
    Edit("a vector of ones", "(g * vectors[i].detach()).sum()", "g.sum()", told_by="right_values"),
    Edit("differentiates the vectors too", "vectors[i].detach()", "vectors[i]", told_by="right_values"),
    Wrong(_each_parameter_alone, told_by="together"),
    Edit("forgets a linear loss", "if not along.requires_grad:", "if False:", told_by="no_part"),
    Edit("forgets None", "create_graph=True, materialize_grads=True", "create_graph=True", told_by="no_part"),
    Edit(
        "a graph of the product",
        "(along, parameters, ",
        "(along, parameters, create_graph=True, ",
        told_by="left_alone",
    ),
    Wrong(_row_by_row, told_by="work"),
]
not_tried = {"hard numbers": "torch computes the derivatives"}

equivalent = {"the result of `hessian_vector_product` made contiguous": "No strides are asked for."}
