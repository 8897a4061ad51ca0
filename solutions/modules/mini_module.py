"""`m.x = value` calls `__setattr__`. It chooses a place by what the value is. A Parameter goes to one dict, a
module to another. Anything else stays where the name is known already (a new tensor for a buffer, None for a
parameter), or becomes an ordinary attribute. When a name gets another place, the others must forget it. An
ordinary attribute would hide the parameter, and an old parameter would still be trained.

What is in the three dicts isn't in the instance's `__dict__`, so Python calls `__getattr__`, its last resort,
and that looks there. `nn.Module` does the same.

All else is one walk over the tree. `named_parameters` leaves out what it has seen, `state_dict` doesn't. Its
tensors are detached and have the storage of the real ones, so loading can write into them.
"""

from collections.abc import Iterator, Mapping

from torch import Tensor, nn


class MiniModule:
    def __init__(self):
        vars(self).update(_parameters={}, _buffers={}, _modules={}, _temporary=set())

    def __getattr__(self, name):
        for place in ("_parameters", "_buffers", "_modules"):
            if name in vars(self).get(place, {}):
                return vars(self)[place][name]
        raise AttributeError(name)

    def __setattr__(self, name: str, value) -> None:
        places = self._parameters, self._buffers, self._modules
        if isinstance(value, nn.Parameter):
            place = self._parameters
        elif isinstance(value, MiniModule):
            place = self._modules
        else:
            place = next((known for known in places if name in known), vars(self))
            if place is self._parameters and value is not None:
                raise TypeError(f"{name} is a parameter")
        if name not in place and hasattr(self, name):
            delattr(self, name)
        place[name] = value

    def __delattr__(self, name: str) -> None:
        getattr(self, name)  # raises if there is none
        for place in (vars(self), self._parameters, self._buffers, self._modules):
            place.pop(name, None)
        self._temporary.discard(name)

    def register_buffer(self, name: str, tensor: Tensor, persistent: bool = True) -> None:
        self._buffers[name] = tensor
        self._temporary.discard(name)
        if not persistent:
            self._temporary.add(name)

    def _walk(self, prefix=""):
        """Every module with what its names begin with; a shared one at each of its places."""
        yield prefix, self
        for name, module in self._modules.items():
            if module is not None:
                yield from module._walk(f"{prefix}{name}.")

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        seen = set()
        for prefix, module in self._walk():
            for name, parameter in module._parameters.items():
                if parameter is not None and parameter not in seen:
                    seen.add(parameter)
                    yield prefix + name, parameter

    def state_dict(self) -> dict[str, Tensor]:
        state = {}
        for prefix, module in self._walk():
            for name, tensor in {**module._parameters, **module._buffers}.items():
                if tensor is not None and name not in module._temporary:
                    state[prefix + name] = tensor.detach()
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        own = self.state_dict()
        if own.keys() != state.keys():
            raise RuntimeError(f"missing or unexpected: {sorted(own.keys() ^ state.keys())}")
        for name, tensor in own.items():
            tensor.copy_(state[name])


# Other right answers

import torch

from course_utils.exercise import Edit, Wrong


class _AsksItsAttributes:
    """Ordinary attributes, and a note of which of them are buffers."""

    def __init__(self):
        self._saved = {}

    def __setattr__(self, name, value):
        if isinstance(vars(self).get(name), nn.Parameter) and type(value) is Tensor:
            raise TypeError(f"a tensor for the parameter {name}")
        super().__setattr__(name, value)

    def register_buffer(self, name, tensor, persistent=True):
        setattr(self, name, tensor)
        self._saved[name] = persistent

    def __delattr__(self, name):
        super().__delattr__(name)
        self._saved.pop(name, None)

    def _own(self, kind):
        return [(name, value) for name, value in vars(self).items() if isinstance(value, kind)]

    def named_parameters(self):
        found = dict(self._own(nn.Parameter))
        for name, module in self._own(_AsksItsAttributes):
            found |= {f"{name}.{key}": parameter for key, parameter in module.named_parameters()}
        first = {id(p): name for name, p in reversed(found.items())}
        return [(name, p) for name, p in found.items() if first[id(p)] == name]

    def state_dict(self):
        state = {n: t.data for n, t in self._own(nn.Parameter)}
        state |= {n: t for n, t in self._own(Tensor) if n not in state and self._saved.get(n)}
        for name, module in self._own(_AsksItsAttributes):
            state |= {name + "." + key: tensor for key, tensor in module.state_dict().items()}
        return state

    @torch.no_grad()
    def load_state_dict(self, state):
        own = self.state_dict()
        if set(own) ^ set(state):
            raise RuntimeError(f"missing: {set(own) - set(state)}, unexpected: {set(state) - set(own)}")
        for name in state:
            own[name][...] = state[name]


class _ListsFirst(MiniModule):
    def named_parameters(self):
        own = [(name, p) for name, p in self._parameters.items() if p is not None]
        for name, module in self._modules.items():
            own += [(f"{name}.{key}", p) for key, p in (module.named_parameters() if module else ())]
        return iter([pair for i, pair in enumerate(own) if all(pair[1] is not p for _, p in own[:i])])


also_right = [_AsksItsAttributes, _ListsFirst]


# Mistakes


class _SearchesLists(MiniModule):
    def named_parameters(self):
        yield from super().named_parameters()
        for name, value in vars(self).items():
            if isinstance(value, list):
                yield from ((f"{name}.{i}", p) for i, p in enumerate(value) if isinstance(p, nn.Parameter))


_EITHER = "{**module._parameters, **module._buffers}.items():\n                if parameter is"
mistakes = [
    Edit("names without a path", 'f"{prefix}{name}."', '""', told_by="registered"),
    Wrong(_SearchesLists, told_by="outside"),
    Edit(
        "buffers are parameters",
        "module._parameters.items():\n                if parameter is",
        _EITHER,
        told_by="outside",
    ),
    Edit("shared counted twice", " and parameter not in seen", "", told_by="shared"),
    Edit("copies the state", "tensor.detach()", "tensor.detach().clone()", told_by="saved"),
    Edit("takes the tensors it is given", "tensor.copy_(", "tensor.set_(", told_by="loaded"),
    Edit("the old place remembers", "            delattr(self, name)", "            pass", told_by="changed"),
    Edit(
        "a new tensor is no buffer",
        "next((known for known in places if name in known), vars(self))",
        "vars(self)",
        told_by="changed",
    ),
]

equivalent = {
    "line 12: `{}` removed": "makes a difference where a module is copied or unpickled, which is not asked",
}

not_tried = {
    "hard numbers": "nothing is computed",
    "left alone": "in_place looks at storage and objects",
}
