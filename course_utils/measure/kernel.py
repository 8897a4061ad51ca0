"""What a Triton kernel does to memory: bytes, sectors, addresses outside, races."""

from __future__ import annotations

import contextlib
import functools
import itertools
import linecache
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from course_utils.measure.kernel_watch import Access, Array, Launch, Memory, Place, guard, watching
from course_utils.wrong_use import public

SECTOR = 32  # bytes: the least that a GPU's memory hands out

# What a program did to one element, as bits.
_LOADED, _STORED, _ATOMIC = 1, 2, 4
_DID = {"load": _LOADED, "store": _STORED, "atomic": _ATOMIC}
_SHOWN = 5  # of a list, in text


@dataclass(frozen=True, eq=False)
class TensorTraffic:
    """What one tensor was loaded and stored. `loads`, `stores`, `atomics`: how often each element was asked
    for, in the tensor's own shape; several lanes of one load that ask for one element count as one.
    `bytes_loaded`, `bytes_stored`: an atomic does both."""

    name: str
    loads: Tensor
    stores: Tensor
    atomics: Tensor
    bytes_loaded: int
    bytes_stored: int

    @property
    def loaded_again(self) -> int:
        """Elements that were loaded more than once."""
        return int((self.loads + self.atomics > 1).sum())

    @property
    def never_stored(self) -> int:
        """Elements that nothing was stored to."""
        return int((self.stores + self.atomics == 0).sum())

    def __str__(self) -> str:
        told = [f"loaded {self.bytes_loaded:,} bytes", f"stored {self.bytes_stored:,} bytes"]
        if self.loaded_again:
            told.append(f"{self.loaded_again:,} of {self.loads.numel():,} elements loaded more than once")
        if self.bytes_stored and self.never_stored:
            told.append(f"{self.never_stored:,} of {self.loads.numel():,} elements never stored")
        return f"{self.name}: " + ", ".join(told)


@dataclass(frozen=True)
class Site:
    """A line that loads or stores one tensor, over all programs. `sectors`: of 32 bytes, that its calls
    touched; `fewest`: that as many bytes can lie in."""

    kind: str
    line: int
    code: str
    tensor: str
    bytes: int
    sectors: int
    fewest: int

    def __str__(self) -> str:
        what = f"{self.kind} of {self.tensor} in line {self.line}"
        return f"{what}: {self.sectors:,} sectors, {self.fewest:,} at best (`{self.code}`)"


@dataclass(frozen=True)
class Outside:
    """An address that lies in no element of a tensor that was given. `element`: counted from the first of the
    tensor that it is nearest to. It was not carried out."""

    kind: str
    program: tuple[int, ...]
    line: int
    code: str
    tensor: str
    element: int

    def __str__(self) -> str:
        program = _program(self.program)
        return (
            f"{program} {self.kind}s {self.tensor} at element {self.element}, line {self.line}: `{self.code}`"
        )


@dataclass(frozen=True)
class Race:
    """Two programs that use one element, at least one of which stores to it, so that the result depends on
    who comes first. One program twice: two lanes of one store bring it different values."""

    tensor: str
    element: tuple[int, ...]
    programs: tuple[tuple[int, ...], tuple[int, ...]]
    did: tuple[str, str]

    def __str__(self) -> str:
        (one, other), (first, second) = self.programs, self.did
        where = f"{self.tensor}[{', '.join(map(str, self.element))}]"
        if one == other:
            return f"{_program(one)} stores two values to {where} at once"
        return f"{_program(one)} {first}s {where}, and {_program(other)} {second}s it"


@dataclass(frozen=True)
class KernelTraffic:
    """One launch of a kernel. `grid`: programs in each of its dimensions; `tensors`: by the name of the
    parameter; `sites`: line by line; `outside`: each address once for each program and line; `races`: one
    element of each pair of programs that meet; `raced`: how many elements are in one."""

    name: str
    grid: tuple[int, ...]
    tensors: dict[str, TensorTraffic]
    sites: list[Site]
    outside: list[Outside]
    races: list[Race]
    raced: int
    launch: Launch = field(repr=False)

    @property
    def programs(self) -> int:
        """How many ran."""
        return int(np.prod(self.grid))

    @property
    def bytes(self) -> int:
        """Loaded and stored, of all tensors."""
        return sum(t.bytes_loaded + t.bytes_stored for t in set(self.tensors.values()))

    @property
    def sectors(self) -> int:
        """Touched by all loads and stores."""
        return sum(site.sectors for site in self.sites)

    @property
    def fewest_sectors(self) -> int:
        """In which as many bytes can lie."""
        return sum(site.fewest for site in self.sites)

    def of(self, tensor: Tensor) -> TensorTraffic | None:
        """That of the argument that begins where this tensor does; None where none does."""
        for memory in self.launch.memories:
            if memory.real == tensor.data_ptr():
                return self.tensors[memory.names[0]]
        return None

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.programs:,} program{'s' if self.programs != 1 else ''}"]
        lines += [f"  {one}" for one in dict.fromkeys(self.tensors.values())]
        lines += [f"  {site}" for site in self.sites]
        lines.append(_listed("outside every tensor", len(self.outside), self.outside))
        lines.append(_listed("pairs of programs that race", len(self.races), self.races))
        return "\n".join(lines)


@public
def kernel(
    kernel: Any, grid: tuple[int, ...] | Callable[..., Any], *args: Any, **constants: Any
) -> KernelTraffic:
    """Launches `kernel[grid](*args, **constants)` in Triton's interpreter, and tells what it did to memory.

    Its tensors are written as in any launch. An address outside every tensor is told and not carried out.
    Raises `RuntimeError` where Triton is missing or compiles (`TRITON_INTERPRET=1` was not set before it was
    imported), and what the kernel raises.
    """
    with kernels() as found:
        kernel[grid](*args, **constants)
    return found[-1]


@public
def guard_kernels() -> None:
    """From here on kernels that Triton interprets in this process stay inside their tensors: what one asks
    for outside is not carried out, and a warning says so. (On a GPU it would read or write other memory.)

    Raises `RuntimeError` where Triton is missing or compiles.
    """
    guard()


@public
@contextlib.contextmanager
def kernels(shuffle: int | None = None) -> Iterator[list[KernelTraffic]]:
    """Notes what each launch within the block does to memory, in order; complete when the block is left.

        with measure.kernels() as launches:
            y = softmax(x)
        launches[0].tensors["x"].bytes_loaded

    The interpreter runs program after program, so that a race may give the right numbers there. `shuffle`:
    they run in an order that is drawn with this seed.
    """
    found: list[KernelTraffic] = []
    with watching(shuffle) as launches:
        try:
            yield found
        finally:
            found += map(_told, launches)


def _told(launch: Launch) -> KernelTraffic:
    known = [[a for a in launch.accesses if a.memory == i] for i in range(len(launch.memories))]
    tensors: dict[str, TensorTraffic] = {}
    races: list[Race] = []
    raced = 0
    for memory, accesses in zip(launch.memories, known, strict=True):
        traffic = _traffic(memory, accesses)
        tensors |= dict.fromkeys(memory.names, traffic)
        found, elements = _races(memory, accesses, launch)
        races += found
        raced += elements
    outside = [one for a in launch.accesses if a.memory is None for one in _outside(launch, a)]
    grid = launch.grid[: _dimensions(launch)]
    return KernelTraffic(launch.name, grid, tensors, _sites(launch), outside, races, raced, launch)


def _traffic(memory: Memory, accesses: list[Access]) -> TensorTraffic:
    counts = {kind: np.zeros(memory.span, dtype=np.int64) for kind in _DID}
    moved = {"load": 0, "store": 0}
    for access in accesses:
        addresses = np.unique(access.addresses)
        first = (addresses - memory.start) // memory.itemsize
        np.add.at(counts[access.place.kind], first, 1)
        for kind in moved:
            if access.place.kind in (kind, "atomic"):
                moved[kind] += len(addresses) * access.itemsize
    by_element = [torch.from_numpy(counts[kind][memory.offsets]).reshape(memory.shape) for kind in _DID]
    return TensorTraffic(_name(memory), *by_element, moved["load"], moved["store"])


def _sites(launch: Launch) -> list[Site]:
    sums: dict[tuple[Place, int], list[int]] = {}
    for access in launch.accesses:
        if access.memory is not None:
            addresses = np.unique(access.addresses)
            size = len(addresses) * access.itemsize
            touched = len(np.unique(addresses // SECTOR))
            row = sums.setdefault((access.place, access.memory), [0, 0, 0])
            for i, value in enumerate((size, touched, -(-size // SECTOR))):
                row[i] += value
    return [
        Site(place.kind, place.line, _code(place), _name(launch.memories[memory]), *row)
        for (place, memory), row in sorted(sums.items(), key=lambda item: item[0][0].line)
    ]


def _outside(launch: Launch, access: Access) -> Iterator[Outside]:
    place, program = access.place, access.program[: _dimensions(launch)]
    for address in np.unique(access.addresses).tolist():
        away = functools.partial(_away, address=address)
        nearest = min(launch.memories, key=away, default=None)
        name = _name(nearest) if nearest else "no tensor"
        element = (address - nearest.start) // nearest.itemsize if nearest else address
        yield Outside(place.kind, program, place.line, _code(place), name, element)


def _away(memory: Memory, address: int) -> int:
    """How many bytes it is from the nearer end."""
    return max(memory.start - address, address - memory.end + 1, 0)


def _races(memory: Memory, accesses: list[Access], launch: Launch) -> tuple[list[Race], int]:
    """Of each pair of programs the first element that they race for, and how many elements are raced for."""
    if not any(a.place.kind != "load" for a in accesses):
        return [], 0
    races: dict[Any, Race] = {}
    raced = set()

    def race(at: int, one: Array, other: Array, did: tuple[str, str]) -> None:
        raced.add(at)
        pair = tuple(tuple(map(int, program[: _dimensions(launch)])) for program in (one, other))
        if pair not in races:
            (first,) = np.flatnonzero(memory.offsets == at)[:1]
            element = tuple(map(int, np.unravel_index(first, memory.shape)))
            races[pair] = Race(_name(memory), element, pair, did)  # type: ignore[arg-type]

    for access in accesses:
        if access.differ:
            found, times = np.unique((access.addresses - memory.start) // memory.itemsize, return_counts=True)
            for at in found[times > 1].tolist():
                race(at, access.program, access.program, ("store", "store"))  # type: ignore[arg-type]
    users = _users(memory, accesses)
    seen = set()
    for at, did in users.items():
        raced.add(at)
        if (pattern := tuple(did.items())) not in seen:
            seen.add(pattern)
            for (one, first), (other, second) in itertools.combinations(pattern, 2):
                if _conflict(first, second):
                    race(at, one, other, (_verb(first), _verb(second)))
    return list(races.values()), len(raced)


def _users(memory: Memory, accesses: list[Access]) -> dict[int, dict[tuple[int, int, int], int]]:
    """What each program did to an element, as bits, for the elements that are raced for."""
    numbers: dict[tuple[int, int, int], int] = {}
    columns = []
    for access in accesses:
        where = (np.unique(access.addresses) - memory.start) // memory.itemsize
        program = numbers.setdefault(access.program, len(numbers))
        columns.append(np.stack([where, *np.broadcast_arrays(program, _DID[access.place.kind], where)[:2]]))
    where, program, did = np.concatenate(columns, axis=1)
    keys, inverse = np.unique(where * len(numbers) + program, return_inverse=True)
    together = np.zeros(len(keys), dtype=np.int64)
    np.bitwise_or.at(together, inverse, did)
    places, start, count = np.unique(keys // len(numbers), return_index=True, return_counts=True)
    anything = np.bitwise_or.reduceat(together, start)
    plain = np.bitwise_or.reduceat(together & (_LOADED | _STORED), start)
    written = (anything & _STORED > 0) | ((anything & _ATOMIC > 0) & (plain > 0))
    programs = list(numbers)
    return {
        int(places[i]): {
            programs[key % len(numbers)]: int(bits)
            for key, bits in zip(keys[start[i] :][: count[i]], together[start[i] :][: count[i]], strict=True)
        }
        for i in np.flatnonzero(written & (count > 1))
    }


def _conflict(one: int, other: int) -> bool:
    """Whether two programs that did this to one element depend on who came first: at least one of them
    wrote, and not both by atomics alone."""
    return bool((one | other) & (_STORED | _ATOMIC)) and not one == other == _ATOMIC


def _verb(did: int) -> str:
    """The strongest thing that was done."""
    return "store" if did & _STORED else "atomically change" if did & _ATOMIC else "load"


def _dimensions(launch: Launch) -> int:
    """Of the grid, without those at its end that have one program."""
    return max((i + 1 for i, size in enumerate(launch.grid) if size > 1), default=1)


def _name(memory: Memory) -> str:
    return ", ".join(memory.names)


def _code(place: Place) -> str:
    return linecache.getline(place.file, place.line).strip()


def _program(index: tuple[int, ...]) -> str:
    return f"program {index[0] if len(index) == 1 else index}"


def _listed(what: str, count: int, shown: list[Any]) -> str:
    first = f"  {what}: {count:,}"
    return "\n".join(
        [first, *(f"    {one}" for one in shown[:_SHOWN]), *(["    …"] if count > _SHOWN else [])]
    )
