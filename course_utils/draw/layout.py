"""Which place of a storage is which element of a tensor: numbers only, so that any tensor will do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

MOST_DIMENSIONS = 4
LETTERS = "ijkl"


def must_be_strided(tensor: Tensor) -> None:
    """Raises `TypeError` for what is no tensor with strides, `ValueError` for more than four dimensions."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"a {type(tensor).__name__} is not a tensor")
    if tensor.layout != torch.strided or tensor.is_quantized:
        kind = "quantized" if tensor.is_quantized else str(tensor.layout).removeprefix("torch.")
        raise TypeError(f"a {kind} tensor has no strides to show")
    if tensor.dim() > MOST_DIMENSIONS:
        raise ValueError(f"{tensor.dim()} dimensions; the picture has room for {MOST_DIMENSIONS}")


def same_storage(a: Tensor, b: Tensor) -> bool:
    """Whether both tensors read one storage."""
    # Not by `data_ptr()`: empty storages, and those on meta, all have address 0.
    return a.untyped_storage()._cdata == b.untyped_storage()._cdata


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

    @property
    def reach(self) -> range:
        """From the first to the last place that is read; empty where none is."""
        if not self.numel:
            return range(0)
        steps = sum((n - 1) * s for n, s in zip(self.size, self.stride, strict=True))
        return range(self.offset, self.offset + steps + 1)

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

    def times(self, address: int) -> int:
        """How many elements of the tensor lie at `address`."""
        return self._readers(address)[0]

    def find(self, address: int) -> tuple[int, ...] | None:
        """An element that lies at `address`, or None where the tensor does not read it."""
        return self._readers(address)[1]

    def _readers(self, address: int) -> tuple[int, tuple[int, ...] | None]:
        if address not in self.reach:
            return 0, None
        moving = [d for d in range(len(self.size)) if self.size[d] > 1 and self.stride[d]]
        moving.sort(key=lambda d: -self.stride[d])
        still = math.prod(self.size[d] for d in range(len(self.size)) if not self.stride[d])
        count, steps = _ways(address - self.offset, [(self.size[d], self.stride[d]) for d in moving])
        if not count:
            return 0, None
        index = [0] * len(self.size)
        for d, i in zip(moving, steps, strict=True):
            index[d] = i
        return count * still, tuple(index)


@dataclass(frozen=True)
class Bounds:
    """The largest value that each number of a layout can take while the others stay, inside the storage."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


def bounds(layout: Layout, most: int = 64) -> Bounds:
    """How far size, stride and offset can be moved, one at a time, so that no element leaves the storage.

    No size goes above `most`, unless it is there already: what has stride 0 could grow for ever. An empty
    dimension counts as one of size 1, so that it can be opened again wherever the others have been moved to.
    """
    steps = [max(n - 1, 0) * s for n, s in zip(layout.size, layout.stride, strict=True)]
    room = layout.length - 1 - layout.offset - sum(steps)
    sizes, strides = [], []
    for n, s, taken in zip(layout.size, layout.stride, steps, strict=True):
        free = room + taken
        longest = -1 if free < 0 else most - 1 if s == 0 else free // s
        sizes.append(max(n, min(longest + 1, most)))
        strides.append(max(s, free // (n - 1) if n > 1 else max(layout.length - 1, 1)))
    return Bounds(tuple(sizes), tuple(strides), max(layout.offset, layout.offset + room))


def _ways(distance: int, dims: list[tuple[int, int]]) -> tuple[int, list[int]]:
    """In how many ways `distance` is a sum of steps along `dims` (size, stride; large strides first), and one
    of them."""
    if not dims:
        return int(distance == 0), []
    if len(dims) == 2:
        return _two_ways(distance, *dims)
    (n, s), rest = dims[0], dims[1:]
    # Only so many steps along this dimension leave what the others can make up for.
    lowest = max(0, -((sum((m - 1) * t for m, t in rest) - distance) // s))
    count, first = 0, []
    for i in range(lowest, min(n - 1, distance // s) + 1):
        more, steps = _ways(distance - i * s, rest)
        if more and not count:
            first = [i, *steps]
        count += more
    return count, first


def _two_ways(distance: int, a: tuple[int, int], b: tuple[int, int]) -> tuple[int, list[int]]:
    """`_ways` for two dimensions without a loop: windows over a long signal overlap a thousand times."""
    (m, s), (n, t) = a, b
    common = math.gcd(s, t)
    if distance < 0 or distance % common:
        return 0, []
    step, modulus = s // common, t // common
    lowest = max(0, -(((n - 1) * t - distance) // s))
    highest = min(m - 1, distance // s)
    # i * step has to leave the same remainder as the distance, so i is known up to the modulus.
    i = distance // common * pow(step, -1, modulus) % modulus
    first = lowest + (i - lowest) % modulus
    if first > highest:
        return 0, []
    return (highest - first) // modulus + 1, [first, (distance - first * s) // t]
