"""Which place of a storage is which element of a tensor: numbers only, so that any tensor will do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from course_utils import torch_private
from course_utils.words import with_article
from course_utils.wrong_use import WrongUse

MOST_DIMENSIONS = 4
MOST_PLACES, MOST_ELEMENTS = 100, 300  # of a storage, of a tensor
LETTERS = "ijkl"


def must_be_drawable(tensor: Tensor) -> None:
    """Raises `TypeError` for what is no tensor with strides, `ValueError` for one that is too large."""
    if not isinstance(tensor, Tensor):
        raise WrongUse(f"{with_article(type(tensor).__name__)} is not a tensor")
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise WrongUse("a tensor that is sparse or quantized has no strides to show")
    places = Layout.of(tensor).length
    for count, what, most in (
        (tensor.dim(), "dimensions", MOST_DIMENSIONS),
        (places, "places in its storage", MOST_PLACES),
        (tensor.numel(), "elements", MOST_ELEMENTS),
    ):
        if count > most:
            raise WrongUse(f"a tensor with {count:,} {what}; the picture has room for {most}")


def same_storage(a: Tensor, b: Tensor) -> bool:
    """Whether both tensors read one storage."""
    # Not by `data_ptr()`: empty storages, and those on meta, all have address 0.
    key = torch_private.storage_key
    return key(a.untyped_storage()) == key(b.untyped_storage())


@dataclass(frozen=True)
class Layout:
    """How a tensor reads its storage; all distances in elements, `length` of them in the storage."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    length: int

    @classmethod
    def of(cls, tensor: Tensor) -> Layout:
        length = tensor.untyped_storage().nbytes() // tensor.element_size()
        return cls(tuple(tensor.size()), tuple(tensor.stride()), tensor.storage_offset(), length)

    @property
    def numel(self) -> int:
        return math.prod(self.size)

    def addresses(self) -> list[int]:
        """Where the elements lie, in the order of reading."""
        found = [self.offset]
        for n, step in zip(self.size, self.stride, strict=True):
            found = [place + i * step for place in found for i in range(n)]
        return found

    def address(self, index: Sequence[int]) -> int:
        """Where element `index` lies. Raises `IndexError` where the tensor has no such element."""
        if len(index) != len(self.size) or not all(0 <= i < n for i, n in zip(index, self.size, strict=True)):
            raise IndexError(f"a tensor of size {self.size} has no element {list(index)}")
        return self.offset + sum(i * s for i, s in zip(index, self.stride, strict=True))

    def formula(self, index: Sequence[int]) -> str:
        """The address of element `index`, spelled out: letters, numbers, sum."""
        terms = zip(LETTERS, index, self.stride, strict=False)
        numbers = " + ".join([str(self.offset), *(f"{i}*{s}" for _, i, s in terms)])
        letters = " + ".join(["offset", *(f"{LETTERS[d]}*stride[{d}]" for d in range(len(self.size)))])
        total = f" = {self.address(index)}" if self.size else ""
        return f"{letters} = {numbers}{total}"

    def index(self, place: int) -> tuple[int, ...]:
        """The element that comes `place`-th when the tensor is read in order."""
        found = []
        for n in reversed(self.size):
            place, i = divmod(place, n)
            found.append(i)
        return tuple(reversed(found))

    def place(self, index: Sequence[int]) -> int:
        """The number of element `index` in the order of reading."""
        place = 0
        for i, n in zip(index, self.size, strict=True):
            place = place * n + i
        return place

    def find(self, address: int) -> tuple[int, ...] | None:
        """The first element that lies at `address`, or None where the tensor does not read it."""
        found = self.addresses()
        return self.index(found.index(address)) if address in found else None


@dataclass(frozen=True)
class Bounds:
    """The largest value that each number of a layout can take while the others stay, inside the storage."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


def bounds(layout: Layout) -> Bounds:
    """How far size, stride and offset can be moved, one at a time, so that no element leaves the storage, and
    there is room for all of them in the picture.

    An empty dimension counts as one of size 1, so that it can be opened again wherever the others have been
    moved to.
    """
    steps = [max(n - 1, 0) * s for n, s in zip(layout.size, layout.stride, strict=True)]
    room = layout.length - 1 - layout.offset - sum(steps)
    numel = math.prod(max(n, 1) for n in layout.size)
    sizes, strides = [], []
    for n, s, taken in zip(layout.size, layout.stride, steps, strict=True):
        free, most = room + taken, MOST_ELEMENTS // (numel // max(n, 1))
        longest = -1 if free < 0 else most - 1 if s == 0 else free // s
        sizes.append(max(n, min(longest + 1, most)))
        strides.append(max(s, free // (n - 1) if n > 1 else max(layout.length - 1, 1)))
    return Bounds(tuple(sizes), tuple(strides), max(layout.offset, layout.offset + room))
