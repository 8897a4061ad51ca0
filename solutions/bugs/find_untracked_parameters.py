"""`nn.Module.__setattr__` looks at what is assigned: a parameter goes into `_parameters`, a module into
`_modules`, and a list becomes a plain attribute. `parameters()` walks through `_modules` and collects
`_parameters`; it does not look into a list. This function walks through all of it, and takes away what
`parameters()` yields.

Objects are known by their identity. `tensor in list` asks `==`, which compares elements. The set of ids does
two things: it begins with all that is registered, and it stops the walk at what was seen before, such as a
list that holds the model itself.
"""

import torch
from torch import nn


def find_untracked_parameters(model: nn.Module, batch, loss_fn) -> list[str]:
    """Names of tensors that ask for training and that no optimizer will be given"""
    seen = {id(p) for p in model.parameters()}
    found = []

    def look(value, name):
        inside = {}
        if id(value) in seen:
            return
        seen.add(id(value))
        if isinstance(value, nn.Module):
            inside = {**value._modules, **value._parameters, **value._buffers, **vars(value)}
        elif isinstance(value, dict):
            inside = value
        elif isinstance(value, (list, tuple)):
            inside = dict(enumerate(value))
        elif isinstance(value, torch.Tensor) and value.is_leaf and value.requires_grad:
            found.append(name)
        for key, inner in inside.items():
            look(inner, f"{name}.{key}" if name else str(key))

    look(model, "")
    return found


# Other right answers

from course_utils.exercise import Edit, Wrong


def _with_a_stack(model, batch, loss_fn):
    registered = ("_modules", "_parameters", "_buffers")
    tracked, seen, names, waiting = [*model.parameters()], {}, [], [("", model)]
    while waiting:
        name, value = waiting.pop()
        if id(value) in seen:
            continue
        seen[id(value)], inside = value, {}
        if isinstance(value, nn.Module):
            inside = {k: v for k, v in vars(value).items() if k not in registered}
            inside |= value._buffers | value._parameters | value._modules
        elif isinstance(value, dict):
            inside = value
        elif isinstance(value, (list, tuple)):
            inside = {str(i): inner for i, inner in enumerate(value)}
        elif isinstance(value, torch.Tensor) and value.requires_grad and value.grad_fn is None:
            names += [] if any(value is p for p in tracked) else [name]
        waiting += [(f"{name}.{key}".lstrip("."), inner) for key, inner in inside.items()]
    return names


def _all_paths(model, batch, loss_fn):
    def leaves(value, path, above):
        if any(value is one for one in above):
            return
        if isinstance(value, torch.Tensor) and value.is_leaf and value.requires_grad:
            yield value, ".".join(path)
        elif isinstance(value, nn.Module):
            for part in (vars(value), value._buffers, value._parameters, value._modules):
                yield from leaves(part, path, [*above, value])
        elif isinstance(value, (list, tuple, dict)):
            for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
                yield from leaves(inner, [*path, str(key)], [*above, value])

    found = dict(leaves(model, [], []))
    return [found[tensor] for tensor in found.keys() - {*model.parameters()}]


also_right = [_with_a_stack, _all_paths]


# Mistakes


def _lists_of_the_model(model, batch, loss_fn):
    found = []
    for name, value in vars(model).items():
        if isinstance(value, (list, tuple)):
            for i, module in enumerate(value):
                if isinstance(module, nn.Module):
                    found += [f"{name}.{i}.{p}" for p, _ in module.named_parameters()]
    return found


mistakes = [
    Wrong(_lists_of_the_model, told_by="in_containers"),
    Edit("no dicts", "isinstance(value, dict)", "value is None", told_by="in_containers"),
    Edit(
        "forgets what is registered", "{id(p) for p in model.parameters()}", "set()", told_by="in_containers"
    ),
    Edit("no buffers", ", **value._buffers", "", told_by="without_a_module"),
    Edit(
        "parameters only",
        "isinstance(value, torch.Tensor) and value.is_leaf",
        "isinstance(value, nn.Parameter)",
        told_by="without_a_module",
    ),
    Edit("frozen ones too", "value.is_leaf and value.requires_grad", "value.is_leaf", told_by="healthy"),
    Edit("results too", "value.is_leaf and value.requires_grad", "value.requires_grad", told_by="healthy"),
    Edit("unfreezes", "found = []", "found = []\n    model.requires_grad_(True)", told_by="left_alone"),
]
not_tried = {"hard numbers": "no element is read", "dtypes": "no element is read"}
