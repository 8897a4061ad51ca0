"""A picture to arrive at, and whether a tensor looks like it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from course_utils.draw.layout import must_be_drawable, same_storage


@dataclass(frozen=True)
class Verdict:
    """Whether the goal is reached; if not, what is right already, where that is worth saying."""

    reached: bool
    text: str = ""


@dataclass(frozen=True)
class Goal:
    """A picture to arrive at. Where it reads the storage of the start, it asks for the same elements of that
    storage; where it has one of its own, for the same values."""

    target: Tensor
    start: Tensor

    def __post_init__(self) -> None:
        must_be_drawable(self.target)

    @property
    def shares(self) -> bool:
        return same_storage(self.target, self.start)

    def judge(self, tensor: Tensor) -> Verdict:
        if tuple(tensor.size()) != tuple(self.target.size()) or tensor.dtype != self.target.dtype:
            return Verdict(False)
        if not self.shares:
            return Verdict(same_values(tensor, self.target))
        if same_elements(tensor, self.target):
            return Verdict(True)
        if not same_values(tensor, self.target):
            return Verdict(False)
        if same_storage(tensor, self.target):
            return Verdict(False, "The values are right, but they are read from other places of the storage.")
        return Verdict(False, "The values are right, but they are copies: the goal reads the first storage.")


def same_elements(a: Tensor, b: Tensor) -> bool:
    """Whether both tensors have the same size and are, element by element, the same places of one storage."""
    if a.size() != b.size() or not same_storage(a, b) or a.element_size() != b.element_size():
        return False
    walked = [d for d in range(a.dim()) if a.size(d) > 1]
    same_strides = all(a.stride(d) == b.stride(d) for d in walked)
    return not a.numel() or (a.storage_offset() == b.storage_offset() and same_strides)


def same_values(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one size hold equal values, NaN being equal to NaN."""
    return bool(torch.isclose(a, b, 0, 0, equal_nan=True).all())
