"""What was noted of a kernel's launch: the memory that it was given, and what its programs asked for."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Place:
    """One line of a kernel that does something. `kind`: load, store, atomic or dot."""

    kind: str
    file: str
    line: int


@dataclass(frozen=True, eq=False)
class Access:
    """What one program asked for in one call: the addresses of its live lanes, in bytes, each once and in
    order; the memory that they lie in (of those that overlap, the first), None for outside; `itemsize`: bytes
    of one lane; `block`: the shape of all lanes, masked ones too. `differ`: the addresses to which lanes of
    one store bring different values. `masked`: those of the lanes that the mask leaves out, told once where
    one call asks for several memories."""

    place: Place
    program: tuple[int, int, int]
    addresses: Array
    itemsize: int
    memory: int | None
    block: tuple[int, ...]
    differ: Array = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    masked: Array = field(default_factory=lambda: np.zeros(0, dtype=np.int64))


@dataclass(frozen=True)
class Memory:
    """What one tensor, or several that are the same memory, were given as. `start`: the address that the
    kernel is given; `real`: the one it has; `offsets`: for each element, in order, how many elements behind
    the first one it lies."""

    names: tuple[str, ...]
    shape: tuple[int, ...]
    itemsize: int
    start: int
    real: int
    offsets: Array

    @functools.cached_property
    def contiguous(self) -> bool:
        return len(self.offsets) == self.span

    @functools.cached_property
    def span(self) -> int:
        """Elements from the first to the last, gaps included."""
        return int(self.offsets.max()) + 1 if len(self.offsets) else 0

    @property
    def end(self) -> int:
        return self.start + self.span * self.itemsize

    @functools.cached_property
    def elements(self) -> Array:
        """Which places from the first to the last are elements, not gaps."""
        found = np.zeros(self.span, dtype=bool)
        found[self.offsets] = True
        return found

    def holds(self, addresses: Array, itemsize: int) -> Array:
        """Which of these lie whole in an element."""
        within = (addresses >= self.start) & (addresses + itemsize <= self.end)
        if not self.contiguous:
            where = np.clip((addresses - self.start) // self.itemsize, 0, self.span - 1)
            within &= self.elements[where]
        return within

    def places(self, addresses: Array, itemsize: int) -> Array:
        """Where what it holds of these lies, counted in its elements from the first, each once."""
        held = addresses[self.holds(addresses, itemsize)] - self.start
        return np.unique(pieces(held, itemsize, self.itemsize) // self.itemsize)

    def overlaps(self, other: Memory) -> bool:
        if self.start >= other.end or other.start >= self.end:
            return False
        piece = min(self.itemsize, other.itemsize)
        mine = pieces(self.start + self.offsets * self.itemsize, self.itemsize, piece)
        return bool(other.holds(mine, piece).any())


@dataclass
class Launch:
    """One launch of a kernel, as it was watched. `together`: the numbers of memories that overlap, of all.
    `loose`: loads whose mask left something out, with no `other` for it; `rounds`: each `tl.dot` that rounds
    float32 to TF32 on a GPU."""

    name: str
    grid: tuple[int, int, int] = (1, 1, 1)
    memories: list[Memory] = field(default_factory=list)
    together: list[tuple[int, ...]] = field(default_factory=list)
    accesses: list[Access] = field(default_factory=list)
    loose: set[Place] = field(default_factory=set)
    rounds: set[Place] = field(default_factory=set)


def pieces(addresses: Array, itemsize: int, piece: int) -> Array:
    """The addresses of the pieces that items there consist of; those of smaller items are kept."""
    return (addresses[:, None] + np.arange(0, itemsize, piece)).ravel()
