"""Both methods do something to every tensor and keep the rest. So what they share is a method of its own: a
new batch, with a new dictionary, of what a function makes of each tensor.

The loader knows nothing of the type. It sees that there is a `pin_memory`, calls it (with workers, in a
thread beside the training loop) and takes what comes back for the batch.
"""

from collections.abc import Callable

import torch
from torch import Tensor


class PinnableBatch:
    """What a collate function returns"""

    def __init__(self, inputs: dict[str, Tensor], target: Tensor, ids: list[str]):
        self.inputs, self.target, self.ids = inputs, target, ids

    def pin_memory(self) -> "PinnableBatch":
        return self._map(lambda x: x.pin_memory())

    def to(self, device: str | torch.device, non_blocking: bool = False):
        return self._map(lambda x: x.to(device, non_blocking=non_blocking))

    def _map(self, change: Callable[[Tensor], Tensor]) -> "PinnableBatch":
        inputs = {name: change(x) for name, x in self.inputs.items()}
        return PinnableBatch(inputs, change(self.target), self.ids)


# Other right answers

import copy
import dataclasses
from dataclasses import dataclass

from course_utils.exercise import Edit, Wrong


@dataclass
class Replaced:
    inputs: dict[str, Tensor]
    target: Tensor
    ids: list[str]

    def pin_memory(self):
        inputs = dict(zip(self.inputs, map(Tensor.pin_memory, self.inputs.values()), strict=True))
        return dataclasses.replace(self, inputs=inputs, target=self.target.pin_memory())

    def to(self, device, non_blocking=False):
        moved = {k: torch.empty_like(x, device=device) for k, x in self.inputs.items()}
        for k, x in self.inputs.items():
            moved[k].copy_(x, non_blocking)
        target = self.target.to(device=device, non_blocking=non_blocking)
        return dataclasses.replace(self, inputs=moved, target=target)


class Copied(PinnableBatch):
    def pin_memory(self):
        return self._copy("pin_memory")

    def to(self, *args, **kwargs):
        return self._copy("to", *args, **kwargs)

    def _copy(self, method, device=None, non_blocking=False):
        how = {"device": device, "non_blocking": non_blocking} if method == "to" else {}
        other = copy.copy(self)
        other.inputs = self.inputs.copy()
        for name in other.inputs:
            other.inputs[name] = getattr(other.inputs[name], method)(**how)
        other.target = getattr(other.target, method)(**how)
        return other


also_right = [Replaced, Copied]


class InPlace(PinnableBatch):
    def _map(self, change):
        self.inputs = {name: change(x) for name, x in self.inputs.items()}
        self.target = change(self.target)
        return self


class SameDictionary(PinnableBatch):
    def _map(self, change):
        for name, x in self.inputs.items():
            self.inputs[name] = change(x)
        return type(self)(self.inputs, change(self.target), self.ids)


mistakes = [
    Edit(
        "not the dictionary",
        "return self._map(lambda x: x.pin_memory())",
        "return PinnableBatch(self.inputs, self.target.pin_memory(), self.ids)",
        told_by="pins",
    ),
    Edit(
        "returns nothing",
        "return self._map(lambda x: x.pin_memory())",
        "self._map(lambda x: x.pin_memory())",
        told_by="pins",
    ),
    Edit("the inputs alone", "change(self.target)", "self.target.pin_memory()", told_by="moves"),
    Edit(
        "the device of the first call",
        "return self._map(lambda x: x.to(device, non_blocking=non_blocking))",
        "self.there = vars(self).get('there', device)\n"
        "        return self._map(lambda x: x.to(self.there, non_blocking=non_blocking))",
        told_by="moves",
    ),
    Edit("waits", "non_blocking=non_blocking", "non_blocking=False", told_by="non_blocking"),
    Wrong(InPlace, told_by="left_alone"),
    Wrong(SameDictionary, told_by="left_alone"),
]
not_tried = {
    "hard numbers": "nothing is computed",
    "dtypes": "the three tensors have three dtypes, and keep them",
}
