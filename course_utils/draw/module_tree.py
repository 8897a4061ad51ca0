"""What a live model holds, module by module: read off the model, not off its code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

BADGES = ("saved", "moved", "trained", "shared")
LONGEST_BLOCK = 6  # of siblings that repeat
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


@dataclass(frozen=True)
class Node:
    """A module, or a list, tuple, dict or set of modules or tensors that is an attribute. `outside`: not in
    the tree of registered modules; `registered_as`: the paths under which all of it is registered none the
    less; `same`: the path under which this very module has been read before."""

    name: str
    path: str
    what: str
    outside: bool = False
    same: str = ""
    held: tuple[Held, ...] = ()
    below: tuple[Node, ...] = ()
    registered_as: tuple[str, ...] = ()
    times: int = 1

    def walk(self) -> Iterator[Node]:
        """This one and all below it."""
        yield self
        for node in self.below:
            yield from node.walk()

    def tensors(self) -> list[Held]:
        """All that is held here and below, each tensor once."""
        return list({held.ident: held for node in self.walk() for held in node.held}.values())


def said(value: Any) -> str:
    """What was given, in words."""
    name = type(value).__name__
    if isinstance(value, type):
        return f"the class {value.__name__}, not a model made of it"
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}, {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, (list, tuple)) and value:
        return f"a {name} of {len(value)}: {', '.join(map(said, value[:4]))}"
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def must_be_module(model: Any, who: str, depth: Any = None) -> None:
    """Raises `TypeError` for what is no module, `ValueError` for a depth that is none."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"{who} needs a model, an nn.Module; given was {said(model)}")
    if depth is not None and (not isinstance(depth, int) or depth < 0):
        raise ValueError(f"{who}: depth is a number of levels, 0, 1, 2 and so on; given was {depth!r}")


def read(model: nn.Module) -> Node:
    """The tree of a model, unfolded."""
    return _Reader(model).module("", "", model, False)


class _Reader:
    def __init__(self, model: nn.Module) -> None:
        parameters = dict(model.named_parameters(remove_duplicate=False))
        self.registered = {**parameters, **dict(model.named_buffers(remove_duplicate=False))}
        self.parameters = {id(one) for one in parameters.values()}
        # What is in the file, under whatever name.
        self.state = model.state_dict(keep_vars=True)
        self.saved = {*self.state, *map(id, self.state.values())}
        self.places = {id(module): path or "the model" for path, module in model.named_modules()}
        self.names: dict[int, list[str]] = {}
        for path, tensor in self.registered.items():
            self.places.setdefault(id(tensor), path)
            self.names.setdefault(id(tensor), []).append(path)
        self.seen: dict[int, str] = {}

    def module(self, name: str, path: str, module: nn.Module, outside: bool) -> Node:
        what = type(module).__name__
        if outside and id(module) in self.places:
            return Node(name, path, what, True, registered_as=(self.places[id(module)],))
        if id(module) in self.seen:
            return Node(name, path, what, outside, same=self.seen[id(module)])
        self.seen[id(module)] = path or "the model"
        dot = f"{path}." if path else ""
        held = [
            self.held(key, dot + key, "unregistered parameter" if outside else "parameter", one)
            for key, one in module._parameters.items()
        ]
        for key, one in module._buffers.items():
            fleeting = "non-persistent " * (key in module._non_persistent_buffers_set)
            held.append(self.held(key, dot + key, f"{fleeting}buffer", one))
        below = [
            self.module(key, dot + key, one, outside)
            for key, one in module._modules.items()
            if one is not None
        ]
        for key, one in vars(module).items():
            if key in _OWN:
                continue
            if isinstance(one, Tensor):
                held.append(self.held(key, dot + key, "plain attribute", one))
            elif inside := dict(_contents(one)):
                below.append(self.attribute(key, dot + key, one, inside))
        return Node(name, path, what, outside, held=tuple(filter(None, held)), below=tuple(below))

    def attribute(self, name: str, path: str, value: Any, inside: dict[str, Any]) -> Node:
        if isinstance(value, nn.Module):  # written past `__setattr__`
            return self.module(name, path, value, True)
        modules = sum(isinstance(one, nn.Module) for one in inside.values())
        counts = {"module": modules, "tensor": len(inside) - modules}
        counts = " and ".join(counted(number, what) for what, number in counts.items() if number)
        what = f"{type(value).__name__} of {counts}"
        known = tuple(self.places[id(one)] for one in inside.values() if id(one) in self.places)
        if len(known) == len(inside):
            return Node(name, path, what, True, registered_as=known)
        held, below = [], []
        for key, one in inside.items():
            if isinstance(one, nn.Module):
                below.append(self.module(key, path + key, one, True))
            else:
                kind = "unregistered parameter" if isinstance(one, nn.Parameter) else "plain tensor"
                held.append(self.held(key, path + key, kind, one))
        return Node(name, path, what, True, held=tuple(held), below=tuple(below))

    def held(self, name: str, path: str, kind: str, tensor: Tensor | None) -> Held | None:
        if tensor is None:
            return None
        ident, lazy = id(tensor), is_lazy(tensor)
        names = self.names.setdefault(ident, [])
        names += [path] * (path not in names)
        size = (
            ("no size yet", 0) if lazy else (str(tuple(tensor.shape)), tensor.numel() * tensor.element_size())
        )
        saved = path in self.saved or ident in self.saved
        moved = path in self.registered or ident in self.parameters
        trained = tensor.requires_grad and ident in self.parameters
        return Held(name, path, kind, *size, saved, moved, trained, ident, names)


def _contents(value: Any, deep: int = 4) -> Iterator[tuple[str, Any]]:
    """The modules and tensors in a list, tuple, dict or set, and in those in it, by `[index]` or `[key]`."""
    if isinstance(value, (Tensor, nn.Module)):
        yield "", value
    elif isinstance(value, (list, tuple, dict, set, frozenset)) and deep:
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            for rest, found in _contents(one, deep - 1):
                yield f"[{key!r}]{rest}", found


def counted(number: int, what: str) -> str:
    """A number of things, as in "1 module" and "2 modules"."""
    return f"{number:,} {what}{'s' * (number != 1)}"


def fold(node: Node) -> Node:
    """Siblings of one structure that follow each other as one, blocks of such siblings as one block."""
    below, place = [], 0
    signs = [_signature(one, one.path) for one in node.below]
    while place < len(signs):
        length, times = _repeats(signs, place)
        for number in range(place, place + length):
            first, last = node.below[number], node.below[number + (times - 1) * length]
            between = ", " if times == 2 else " … "
            name = first.name if times == 1 else f"{first.name}{between}{last.name}"
            below.append(replace(fold(first), name=name, times=times))
        place += length * times
    return replace(node, below=tuple(below))


def _repeats(signs: list[Any], place: int) -> tuple[int, int]:
    """The block of siblings that repeats from here on: its length, and how often it stands there."""
    best = (1, 1)
    for length in range(1, LONGEST_BLOCK + 1):
        block, times = signs[place : place + length], 1
        while signs[place + times * length : place + (times + 1) * length] == block:
            times += 1
        if times >= (2 if length == 1 else 3) and (times - 1) * length > (best[1] - 1) * best[0]:
            best = (length, times)
    return best


def _signature(node: Node, base: str) -> Any:
    """What two modules have in common that are drawn as one; ties inside of them by names from `base` on."""
    held = []
    for one in node.held:
        inside = all(name.startswith((f"{base}.", f"{base}[")) for name in one.names)
        ties = [name.removeprefix(base) for name in one.names] if inside else one.ident
        more = ties if one.shared else None
        held.append((one.name, one.kind, one.shape, one.bytes, one.saved, one.moved, one.trained, more))
    below = [(one.name, _signature(one, base)) for one in node.below]
    return node.what, node.outside, node.same, node.registered_as, held, below
