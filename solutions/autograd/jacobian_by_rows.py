"""Backward gives `u @ J` for any `u` of the shape of the result. With a one in place `i` and zeros elsewhere
that is row `i`, so there are as many passes as there are results. All of them go back through one graph, so
each of them has to leave it alive: that is `retain_graph`.

A row costs about as much as the function itself, however many columns it has. That is why a loss, which has
one row, is differentiated backward, and why nobody makes the Jacobian of a network with a thousand outputs.
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


def _one_hot(function, x):
    leaf = x.clone().detach().requires_grad_(True)
    y = function(leaf)
    jacobian = torch.zeros(y.numel(), *leaf.shape, dtype=leaf.dtype, device=leaf.device)
    for i in range(len(jacobian) if y.requires_grad else 0):
        pick = torch.zeros_like(y)
        pick[tuple(torch.unravel_index(torch.tensor(i), y.shape))] = 1
        jacobian[i] = torch.autograd.grad(y, leaf, pick, retain_graph=True, materialize_grads=True)[0]
    return jacobian.reshape(y.shape + leaf.shape)


def _in_one_batch(function, x):
    """All rows in one call, as a batch of vectors."""
    leaf = x.detach().requires_grad_()
    y = function(leaf)
    picks = torch.eye(y.numel(), dtype=y.dtype, device=y.device).reshape(y.numel(), *y.shape)
    rows = None
    if y.requires_grad and len(picks):
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

    rows = list(map(row, y.flatten()))
    return torch.stack(rows).reshape(y.shape + x.shape) if rows else x.new_zeros(y.shape + x.shape)


also_right = [_one_hot, _in_one_batch, _by_backward]
