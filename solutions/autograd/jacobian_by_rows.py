"""Backward gives `v @ J` for any `v` of the shape of the result. With a one in place `i` and zeros elsewhere
this is row `i` (as long as the derivatives are finite), so this takes as many passes as there are results.
All of them go back through one graph, so each has to leave it alive: that is `retain_graph`.

A row takes one way back, for any number of columns. A loss has one row, so it is
differentiated backward. A network with a thousand outputs has a thousand rows.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def jacobian_by_rows(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """x: any shape -> (*shape of the result, *shape of x)"""
    x = x.detach().requires_grad_()
    y = function(x)
    jacobian = x.new_zeros(y.numel(), *x.shape)
    for i, element in enumerate(y.reshape(-1)):
        if element.requires_grad:
            (row,) = torch.autograd.grad(element, x, retain_graph=True, allow_unused=True)
            if row is not None:
                jacobian[i] = row
    return jacobian.reshape(y.shape + x.shape)


# Other right answers

from course_utils.exercise import Edit, Wrong


def _in_one_batch(function, x):
    """All rows in one call, as a batch of vectors."""
    leaf = x.detach().requires_grad_()
    y = function(leaf)
    picks = torch.eye(y.numel(), dtype=y.dtype).reshape(y.numel(), *y.shape).to(y.device)
    rows = None
    if y.requires_grad:
        (rows,) = torch.autograd.grad(y, leaf, picks, is_grads_batched=True, allow_unused=True)
    if rows is None:
        rows = leaf.new_zeros(y.numel(), *leaf.shape)
    return rows.reshape(y.shape + leaf.shape)


def _by_backward(function, x):
    leaf = x.detach().clone().requires_grad_()
    y = function(leaf)

    def row(element):
        leaf.grad = None
        if element.requires_grad:
            element.backward(inputs=[leaf], retain_graph=True)
        return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad

    return torch.stack([row(element) for element in y.flatten()]).reshape(y.shape + x.shape)


also_right = [_in_one_batch, _by_backward]


# Mistakes


def _ready_made(function, x):
    return torch.autograd.functional.jacobian(function, x.detach())


mistakes = [
    Edit("graph freed", "retain_graph=True", "retain_graph=False", told_by="right_values"),
    Edit("x is not followed", ".detach().requires_grad_()", ".detach()", told_by="right_values"),
    Edit("takes the result for a vector", "enumerate(y.reshape(-1))", "enumerate(y)", told_by="any_shape"),
    Edit("forgets None", "if row is not None:", "if True:", told_by="independent"),
    Edit("zeros of the default dtype", "x.new_zeros", "torch.zeros", told_by="independent"),
    Edit(
        "the flag of the caller's x",
        "x.detach().requires_grad_()",
        "x.requires_grad_()",
        told_by="left_alone",
    ),
    Edit("a graph of the Jacobian", "retain_graph=True", "create_graph=True", told_by="left_alone"),
    Wrong(_ready_made, told_by="work"),
]
not_tried = {"hard numbers": "torch computes the derivatives"}
