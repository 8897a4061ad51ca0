"""Everything is known before anything is copied: the name that each key is meant for, then three lists from
names and shapes. `load_state_dict` works the other way round: it copies tensor after tensor, notes what does
not fit, and raises at the end.

A key is renamed from what it is in `state`, by the one beginning that fits. So two parts can change names,
and a part of a name further inside is left alone. The tensors of `model.state_dict()` share the storage of
the model's: a `copy_` into them changes the Parameters in place, and converts to their dtype.
"""

from collections.abc import Mapping

from torch import Tensor, nn


def load_backbone(
    model: nn.Module, state: Mapping[str, Tensor], renamed: dict[str, str]
) -> dict[str, list[str]]:
    """Loads what fits; returns the names that are missing, unexpected, mismatched."""
    own = model.state_dict()
    names = {key: _name(key, renamed) for key in state}
    fits = {name: state[key] for key, name in names.items() if name in own}
    report = {
        "missing": [name for name in own if name not in fits],
        "unexpected": [key for key, name in names.items() if name not in own],
        "mismatched": [name for name, tensor in fits.items() if tensor.shape != own[name].shape],
    }
    if not report["mismatched"]:
        for name, tensor in fits.items():
            own[name].copy_(tensor)
    return report


def _name(key: str, renamed: dict[str, str]) -> str:
    """The name that the key is meant for."""
    for old, new in renamed.items():
        if key.startswith(old):
            return new + key.removeprefix(old)
    return key


# Other right answers

import re

import torch

from course_utils.exercise import Edit, Wrong


def _lets_torch_load(model, state, renamed):
    keys = {}
    for key in state:
        old = next((old for old in renamed if key.startswith(old)), "")
        keys[renamed.get(old, "") + key[len(old) :]] = key
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    mismatched = [name for name in keys if name in shapes and state[keys[name]].shape != shapes[name]]
    report = {"mismatched": mismatched, "missing": list(shapes.keys() - keys.keys())}
    report["unexpected"] = [keys[name] for name in keys.keys() - shapes.keys()]
    if not mismatched:
        model.load_state_dict({name: state[key] for name, key in keys.items()}, strict=False)
    return report


@torch.no_grad()
def _one_by_one(model, state, renamed):
    own, todo, report = model.state_dict(), [], {"missing": [], "unexpected": [], "mismatched": []}
    missing = set(own)
    for key, tensor in state.items():
        name = key
        for old in renamed:
            if re.match(re.escape(old), key):
                name = renamed[old] + key[len(old) :]
        if name not in own:
            report["unexpected"] += [key]
            continue
        missing.remove(name)
        todo.append((own[name], tensor))
        if own[name].size() != tensor.size():
            report["mismatched"].append(name)
    report["missing"] = sorted(missing)
    for mine, tensor in [] if report["mismatched"] else todo:
        mine[...] = tensor
    return report


also_right = [_lets_torch_load, _one_by_one]


# Mistakes


def _asks_torch_and_skips(model, state, renamed):
    """Loads what fits, and tells the rest."""
    own, found = model.state_dict(), {_name(key, renamed): key for key in state}
    fits = {n: state[k] for n, k in found.items() if n in own and state[k].shape == own[n].shape}
    missing, _ = model.load_state_dict(fits, strict=False)
    mismatched = [n for n in missing if n in found]
    unexpected = [k for n, k in found.items() if n not in own]
    return {
        "missing": [n for n in missing if n not in found],
        "unexpected": unexpected,
        "mismatched": mismatched,
    }


mistakes = [
    Edit(
        "parameters only",
        "own = model.state_dict()",
        "own = dict(model.named_parameters())",
        told_by="loaded",
    ),
    Edit("takes the tensors", "own[name].copy_(tensor)", "own[name].set_(tensor)", told_by="loaded"),
    Edit(
        "tells the new names",
        "[key for key, name in names",
        "[name for key, name in names",
        told_by="reported",
    ),
    Edit(
        "the beginning, anywhere",
        "new + key.removeprefix(old)",
        "key.replace(old, new)",
        told_by="beginnings",
    ),
    Edit(
        "renames again",
        "return new + key.removeprefix(old)",
        "key = new + key.removeprefix(old)",
        told_by="beginnings",
    ),
    Wrong(_asks_torch_and_skips, told_by="nothing_copied"),
    Edit(
        "numbers of elements",
        "tensor.shape != own[name].shape",
        "tensor.numel() != own[name].numel()",
        told_by="nothing_copied",
    ),
]

not_tried = {"hard numbers": "nothing is computed", "seeds": "no draw decides"}
