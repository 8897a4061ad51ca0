"""What a live model holds, module by module: read off the model, not off its code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from course_utils import torch_private
from course_utils.draw.labels import counted
from course_utils.measure.storage import own_bytes, tensors_in

BADGES = ("saved", "moved", "trained", "shared")
# What every module has of its own: hooks, not tensors.
_OWN = frozenset(vars(nn.Module()))


@dataclass(frozen=True)
class Held:
    """A tensor under one of its `names`; `ident` is the same for the same tensor."""

    name: str
    path: str
    kind: str
    shape: str
    bytes: int
    saved: bool
    moved: bool
    trained: bool
    ident: int
    names: list[str]

    @property
    def shared(self) -> bool:
        return len(self.names) > 1

    @property
    def badges(self) -> tuple[bool, ...]:
        return tuple(getattr(self, badge) for badge in BADGES)


@dataclass(frozen=True, eq=False)
class Node:
    """A module, or a list, tuple, dict or set of modules or tensors that is an attribute. `outside`: not in
    the tree of registered modules."""

    name: str
    path: str
    what: str
    outside: bool
    held: list[Held]
    below: list[Node]

    def walk(self) -> Iterator[Node]:
        """This one and all below it."""
        yield self
        for node in self.below:
            yield from node.walk()

    def like(self, numbers: dict[Any, int]) -> int:
        """A number that it has in common with every module of equal structure. `numbers`: those in use."""
        held = tuple((one.name, one.kind, one.shape, one.bytes, one.badges) for one in self.held)
        below = tuple((one.name, one.like(numbers)) for one in self.below)
        numbers[id(self)] = found = numbers.setdefault((self.what, self.outside, held, below), len(numbers))
        return found

    def tensors(self) -> list[Held]:
        """All that is held here and below, each tensor once."""
        return list({held.ident: held for node in self.walk() for held in node.held}.values())


def read(model: nn.Module) -> Node:
    """The tree of a model."""
    return _Reader(model).module("", "", model, False)


class _Reader:
    def __init__(self, model: nn.Module) -> None:
        parameters = dict(model.named_parameters(remove_duplicate=False))
        self.registered = {**parameters, **dict(model.named_buffers(remove_duplicate=False))}
        self.parameters = {id(one) for one in parameters.values()}
        # What is in the file, under whatever name.
        state = model.state_dict(keep_vars=True)
        self.saved = {*state, *map(id, state.values())}
        self.packed = _packed(state, self.registered)
        self.inside = {*map(id, model.modules()), *map(id, self.registered.values())}
        self.names: dict[int, list[str]] = {}
        for path, tensor in self.registered.items():
            self.names.setdefault(id(tensor), []).append(path)

    def module(self, name: str, path: str, module: nn.Module, outside: bool) -> Node:
        dot = f"{path}." if path else ""
        node = Node(name, path, type(module).__name__, outside, [], [])
        parameters, buffers = torch_private.parameters(module), torch_private.buffers(module)
        unsaved = torch_private.unsaved_buffers(module)
        kinds = dict.fromkeys(parameters, "unregistered parameter" if outside else "parameter")
        kinds |= {key: "non-persistent buffer" if key in unsaved else "buffer" for key in buffers}
        for key, one in (*parameters.items(), *buffers.items()):
            if one is not None:
                node.held.append(self.held(key, dot + key, kinds[key], one))
        for key, one in self.packed.get(path, ()) if not outside else ():
            node.held.append(self.held(key, dot + key, "packed", one))
        for key, one in torch_private.submodules(module).items():
            if one is not None:
                node.below.append(self.module(key, dot + key, one, outside))
        for key, one in vars(module).items():
            if key in _OWN:
                continue
            inside = dict(_contents(one))
            if isinstance(one, Tensor):
                node.held.append(self.held(key, dot + key, "plain attribute", one))
            elif not all(id(each) in self.inside for each in inside.values()):
                node.below.append(self.attribute(key, dot + key, one, inside))
        return node

    def attribute(self, name: str, path: str, value: Any, inside: dict[str, Any]) -> Node:
        modules = sum(isinstance(one, nn.Module) for one in inside.values())
        counts = {"module": modules, "tensor": len(inside) - modules}
        counts = " and ".join(counted(number, what) for what, number in counts.items() if number)
        node = Node(name, path, f"{type(value).__name__} of {counts}", True, [], [])
        for key, one in inside.items():
            if isinstance(one, nn.Module):
                node.below.append(self.module(key, path + key, one, True))
            else:
                kind = "unregistered parameter" if isinstance(one, nn.Parameter) else "plain tensor"
                node.held.append(self.held(key, path + key, kind, one))
        return node

    def held(self, name: str, path: str, kind: str, tensor: Tensor) -> Held:
        ident = id(tensor)
        names = self.names.setdefault(ident, [])
        names += [path] * (path not in names)
        saved = path in self.saved or ident in self.saved
        moved = path in self.registered or ident in self.parameters
        trained = tensor.requires_grad and ident in self.parameters
        lazy = is_lazy(tensor)  # its shape comes with the first batch
        shape, size = ("no shape yet", 0) if lazy else (str(tuple(tensor.shape)), own_bytes(tensor))
        return Held(name, path, kind, shape, size, saved, moved, trained, ident, names)


def _packed(state: Mapping[str, Any], registered: Mapping[str, Tensor]) -> dict[str, list]:
    """By the path of their module, the quantized tensors that only `state_dict()` unpacks, and what is packed
    with them."""
    found: dict[str, list] = {}
    for path, value in state.items():
        where, _, name = path.rpartition(".")
        tensors = [] if path in registered else list(tensors_in(value))
        if any(one.is_quantized for one in tensors):
            names = [name] if len(tensors) == 1 else [f"{name}[{n}]" for n in range(len(tensors))]
            found.setdefault(where, []).extend(zip(names, tensors, strict=True))
    return found


def _contents(value: Any) -> Iterator[tuple[str, Any]]:
    """The modules and tensors in a list, tuple, dict or set, and in those in it, by `[index]` or `[key]`."""
    if isinstance(value, (Tensor, nn.Module)):
        yield "", value
    elif isinstance(value, (list, tuple, dict, set)):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            for rest, found in _contents(one):
                yield f"[{key!r}]{rest}", found
