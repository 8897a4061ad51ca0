"""One case for each kind of container. Each makes a new container of the same type from the moved parts, so
the batch itself stays as it is. Tensors that were moved are remembered by their `id`: one that comes again is
found there.

`id` tells tensors apart only as long as they are alive. They are: the batch holds them.
"""

import dataclasses
from typing import Any

import torch
from torch import Tensor


def move_to(batch: Any, device: str | torch.device) -> Any:
    moved = {}

    def move(value: Any) -> Any:
        if isinstance(value, Tensor):
            if id(value) not in moved:
                moved[id(value)] = value.to(device)
            return moved[id(value)]
        if isinstance(value, dict):
            return type(value)({key: move(part) for key, part in value.items()})
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(move, value))
        if isinstance(value, (list, tuple)):
            return type(value)(map(move, value))
        if dataclasses.is_dataclass(value):
            return dataclasses.replace(
                value, **{f.name: move(getattr(value, f.name)) for f in dataclasses.fields(value)}
            )
        return value.to(device) if hasattr(value, "to") else value

    return move(batch)


# Other right answers

import copy

from torch.utils import _pytree as pytree

from course_utils.exercise import Edit, Wrong


def _by_copy(batch, device, seen=None):
    seen = {} if seen is None else seen
    if id(batch) in seen:
        return seen[id(batch)]

    def again(part):
        return _by_copy(part, device, seen)

    if torch.is_tensor(batch):
        seen[id(batch)] = batch.to(device)
        return seen[id(batch)]
    if isinstance(batch, dict):
        new = copy.copy(batch)
        for key in new:
            new[key] = again(new[key])
        return new
    if isinstance(batch, tuple):
        parts = [again(part) for part in batch]
        return batch._make(parts) if hasattr(batch, "_make") else tuple(parts)
    if isinstance(batch, list):
        return [again(part) for part in batch]
    if hasattr(batch, "__dataclass_fields__"):
        new = copy.copy(batch)
        for name in batch.__dataclass_fields__:
            object.__setattr__(new, name, again(getattr(batch, name)))
        return new
    try:
        return batch.to(device)
    except AttributeError:
        return batch


def _by_pytree(batch, device):
    seen = {}

    def leaf(value):
        if dataclasses.is_dataclass(value):
            parts = {f.name: pytree.tree_map(leaf, getattr(value, f.name)) for f in dataclasses.fields(value)}
            return type(value)(**parts)
        if not hasattr(value, "to"):
            return value
        return seen.setdefault(id(value), value.to(device))

    return pytree.tree_map(leaf, batch)


also_right = [_by_copy, _by_pytree]


def _in_place(batch, device):
    if isinstance(batch, Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        for key, value in batch.items():
            batch[key] = _in_place(value, device)
    elif isinstance(batch, list):
        for i, value in enumerate(batch):
            batch[i] = _in_place(value, device)
    return batch


mistakes = [
    Wrong(_in_place, told_by="containers"),
    Edit("no named tuples", 'hasattr(value, "_fields")', "False", told_by="named_tuples"),
    Edit("no dataclasses", "dataclasses.is_dataclass(value)", "False", told_by="named_tuples"),
    Edit("tensors alone", 'value.to(device) if hasattr(value, "to") else value', "value", told_by="custom"),
    Edit("moves each time", "if id(value) not in moved:", "if True:", told_by="shared"),
    Edit(
        "remembers from call to call",
        "device) -> Any:\n    moved = {}\n",
        "device, moved={}) -> Any:\n",
        told_by="containers",
    ),
    Edit("copies", "= value.to(device)", "= value.to(device, copy=True)", told_by="there"),
]

not_tried = {"hard numbers": "nothing is computed"}
equivalent = {
    "line 18: `isinstance(value, tuple) and hasattr(value, '_fields')` -> `hasattr(value, '_fields')`": (
        "in a batch only named tuples have `_fields`"
    ),
}
