"""The name of a parameter is the path of its layer, a dot, and its own name: all that stands before the last
dot tells the layer, and nothing in the case of the model's own. `named_parameters()` lists a shared parameter
once, under its first name, so each gradient counts once and the squares of all norms add up to that of the
whole gradient.

The norms of the parts are put together as the elements of a vector are: root of the sum of squares. The
first are taken in `float32`, as `float16` has no room for large squares and norms. `item()` gives a Python
number: it has no graph, and on a GPU it waits until the gradient is there, once for each parameter. For a
plot every hundred steps this will do."""

import math

import torch
from torch import nn


def gradient_norms(model: nn.Module) -> dict[str, float | None]:
    found = {}
    for name, p in model.named_parameters():
        layer, _, _ = name.rpartition(".")
        found.setdefault(layer, [])
        if p.grad is not None:
            found[layer].append(torch.linalg.vector_norm(p.grad, dtype=torch.float32).item())
    return {layer: math.hypot(*norms) if norms else None for layer, norms in found.items()}


# Other right answers

import types

from course_utils.exercise import Edit, Wrong


def _module_by_module(model):
    seen, norms = set(), {}
    for path, module in model.named_modules():
        own = [p for p in module._parameters.values() if p is not None and p not in seen]
        seen |= {*own}
        if own:
            grads = [p.grad.float() for p in own if p.grad is not None]
            norms[path] = nn.utils.get_total_norm(grads).item() if grads else None
    return norms


def _one_wait(model):
    """All norms come to the CPU at once."""
    owners = [(name.rpartition(".")[0], p.grad) for name, p in model.named_parameters()]
    squares = [g.detach().double().square().sum() for _, g in owners if g is not None]
    values = iter(torch.stack(squares).tolist())
    sums = {}
    for path, grad in owners:
        so_far = sums.setdefault(path, None)
        if grad is not None:
            sums[path] = (so_far or 0.0) + next(values)
    return {path: None if total is None else total**0.5 for path, total in sums.items()}


also_right = [_module_by_module, _one_wait]


# Mistakes


def _own_parameters_of_all(model):
    found = {}
    for path, module in model.named_modules():
        own = list(module.parameters(recurse=False))
        norms = [p.grad.float().norm().item() for p in own if p.grad is not None]
        if own:
            found[path] = math.hypot(*norms) if norms else None
    return found


def _equal_is_shared(model):
    twin, seen = {}, []
    for name, p in model.named_parameters():
        if not any(p.shape == q.shape and torch.equal(p, q) for q in seen):
            twin[name] = p
        seen.append(p)
    return gradient_norms(types.SimpleNamespace(named_parameters=twin.items))


_NORM = "torch.linalg.vector_norm(p.grad, dtype=torch.float32).item()"

mistakes = [
    Edit("adds up the norms", "math.hypot(*norms)", "sum(norms)", told_by="one_vector"),
    Edit(
        "first part of the name",
        'layer, _, _ = name.rpartition(".")',
        'layer = name.split(".")[0]',
        told_by="own_parameters",
    ),
    Wrong(_own_parameters_of_all, told_by="shared_once"),
    Wrong(_equal_is_shared, told_by="shared_once"),
    Edit("0 for no gradient", "else None", "else 0.0", told_by="without_a_gradient"),
    Edit(
        "leaves frozen layers out",
        "found.setdefault(layer, [])\n        if p.grad is not None:\n            found[layer]",
        "if p.grad is not None:\n            found.setdefault(layer, [])",
        told_by="without_a_gradient",
    ),
    Edit(
        "squares in float16",
        _NORM,
        "(p.grad**2).sum().sqrt().item()",
        told_by="half_precision",
    ),
    Edit(
        "squares in place",
        _NORM,
        "p.grad.detach().float().square_().sum().sqrt().item()",
        told_by="left_alone",
    ),
]

equivalent = {
    f"line 13: `{_NORM}` -> `{_NORM.removesuffix('.item()')}`": "`math.hypot` makes a number of it",
    "line 13: `torch.float32` -> `torch.float64`": "wide enough as well",
}

not_tried = {"hard numbers": "`half_precision` has those of float16", "seeds": "no draw decides"}
