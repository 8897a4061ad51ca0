"""What a Triton kernel does to memory: bytes, sectors, addresses outside, races."""

from __future__ import annotations

import contextlib
import itertools
import linecache
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from course_utils.measure.kernel_memory import Access, Array, Launch, Memory, Place, pieces
from course_utils.measure.kernel_watch import guard, watching
from course_utils.wrong_use import public

SECTOR = 32  # bytes: the least that a GPU's memory hands out

# What a program did to one element, as bits.
LOADED, STORED, ATOMIC = 1, 2, 4
DID = {"load": LOADED, "store": STORED, "atomic": ATOMIC}
_SHOWN = 5  # of a list, in text


@dataclass(frozen=True, eq=False)
class TensorTraffic:
    """What one tensor was loaded and stored. `loads`, `stores`, `atomics`: how often each element was asked
    for, in the tensor's own shape; several lanes of one load that ask for one element count as one. `raced`:
    which are raced for. `bytes_loaded`, `bytes_stored`: an atomic does both. What lies in two tensors that
    overlap counts for both."""

    name: str
    loads: Tensor
    stores: Tensor
    atomics: Tensor
    raced: Tensor
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
    """A line that loads or stores one tensor, or one of several that overlap, over all programs. `sectors`:
    of 32 bytes, that its calls touched; `fewest`: that as many bytes can lie in. `accesses`: its calls, also
    what of them lies outside; `memories`: the numbers of its tensors in `launch`."""

    kind: str
    file: str
    line: int
    code: str
    tensor: str
    bytes: int
    sectors: int
    fewest: int
    memories: tuple[int, ...] = field(repr=False)
    accesses: list[Access] = field(repr=False, compare=False)

    def __str__(self) -> str:
        what = f"{self.kind} of {self.tensor} in line {self.line}"
        return f"{what}: {self.sectors:,} sectors, {self.fewest:,} at best (`{self.code}`)"


@dataclass(frozen=True)
class Outside:
    """An address that lies in no element of a tensor that was given. `element`: counted from the first of the
    tensor that it is nearest to. It was not carried out."""

    site: Site
    program: tuple[int, ...]
    tensor: str
    element: int

    def __str__(self) -> str:
        what = f"{_program(self.program)} {self.site.kind}s {self.tensor} at element {self.element}"
        return f"{what}, line {self.site.line}: `{self.site.code}`"


@dataclass(frozen=True)
class Race:
    """Two programs that use one element, at least one of which stores to it, so that the result depends on
    who comes first. One program twice: two lanes of one store bring it different values. Locks are not known:
    what one protects is told."""

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
    element of each pair of programs that meet."""

    name: str
    grid: tuple[int, ...]
    tensors: dict[str, TensorTraffic]
    sites: list[Site]
    outside: list[Outside]
    races: list[Race]
    launch: Launch = field(repr=False)

    @property
    def programs(self) -> int:
        """How many ran."""
        return int(np.prod(self.grid))

    @property
    def bytes(self) -> int:
        """Loaded and stored, of all tensors."""
        return sum(site.bytes * (1 + (site.kind == "atomic")) for site in self.sites)

    @property
    def sectors(self) -> int:
        """Touched by all loads and stores."""
        return sum(site.sectors for site in self.sites)

    @property
    def fewest_sectors(self) -> int:
        """In which as many bytes can lie."""
        return sum(site.fewest for site in self.sites)

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


def touched(accesses: Iterable[Access]) -> tuple[int, int, int]:
    """How many bytes they asked for that lie in tensors, in how many sectors each for itself, and how many
    sectors as many bytes can lie in."""
    inside = [access for access in accesses if access.memory is not None]
    sizes = [len(access.addresses) * access.itemsize for access in inside]
    sectors = (1 + np.count_nonzero(np.diff(access.addresses // SECTOR)) for access in inside)
    return sum(sizes), int(sum(sectors)), sum(-(-size // SECTOR) for size in sizes)


def _told(launch: Launch) -> KernelTraffic:
    races: dict[Any, Race] = {}
    tensors: dict[int, TensorTraffic] = {}
    for numbers in launch.together:
        accesses = [access for access in launch.accesses if access.memory == numbers[0]]
        memories = [launch.memories[number] for number in numbers]
        raced = _races(launch, memories, accesses, races)
        tensors |= {n: _traffic(m, accesses, raced) for n, m in zip(numbers, memories, strict=True)}
    sites = _sites(launch)
    return KernelTraffic(
        launch.name,
        launch.grid[: _dimensions(launch)],
        {name: tensors[n] for n, memory in enumerate(launch.memories) for name in memory.names},
        sites,
        [one for site in sites for one in _outside(launch, site)],
        list(races.values()),
        launch,
    )


def _traffic(memory: Memory, accesses: list[Access], raced: Array) -> TensorTraffic:
    """`raced`: addresses of what is raced for."""
    counts = {kind: np.zeros(memory.span, dtype=np.int64) for kind in DID}
    moved = {"load": 0, "store": 0}
    for access in accesses:
        counts[access.place.kind][memory.places(access.addresses, access.itemsize)] += 1
        for kind in moved:
            if access.place.kind in (kind, "atomic"):
                moved[kind] += int(memory.holds(access.addresses, access.itemsize).sum()) * access.itemsize
    fought = np.zeros(memory.span, dtype=bool)
    fought[memory.places(raced, 1)] = True
    each = [*(counts[kind] for kind in DID), fought]
    by_element = [torch.from_numpy(one[memory.offsets]).reshape(memory.shape) for one in each]
    return TensorTraffic(_name(memory), *by_element, moved["load"], moved["store"])


def _sites(launch: Launch) -> list[Site]:
    found: dict[tuple[Place, tuple[int, ...]], list[Access]] = {}
    for access in launch.accesses:
        near = _nearest(launch, int(access.addresses[0])) if access.memory is None else access.memory
        numbers = next((one for one in launch.together if near in one), ())
        found.setdefault((access.place, numbers), []).append(access)
    return [
        Site(p.kind, p.file, p.line, _code(p), _names(launch, numbers, each), *touched(each), numbers, each)
        for (p, numbers), each in sorted(found.items(), key=lambda item: item[0][0].line)
    ]


def _names(launch: Launch, numbers: tuple[int, ...], accesses: list[Access]) -> str:
    """Of the tensors that overlap those that hold something that was asked for."""
    every = [launch.memories[number] for number in numbers]
    held = [m for m in every if any(m.holds(a.addresses, a.itemsize).any() for a in accesses)]
    return ", ".join(map(_name, held or every)) or "no tensor"


def _outside(launch: Launch, site: Site) -> Iterator[Outside]:
    for access in site.accesses:
        program = access.program[: _dimensions(launch)]
        for address in access.addresses.tolist() if access.memory is None else ():
            name, element = "no tensor", address
            if launch.memories:
                memory = launch.memories[_nearest(launch, address)]
                name, element = _name(memory), (address - memory.start) // memory.itemsize
            yield Outside(site, program, name, element)


def _nearest(launch: Launch, address: int) -> int | None:
    """The number of the memory that this lies nearest to."""

    def away(number: int) -> int:
        memory = launch.memories[number]
        return max(memory.start - address, address - memory.end + 1, 0)

    return min(range(len(launch.memories)), key=away, default=None)


def _races(launch: Launch, memories: list[Memory], accesses: list[Access], races: dict[Any, Race]) -> Array:
    """Notes of each pair of programs the first element that they race for, and gives the addresses of what
    is raced for. The memories: one, or several that overlap."""
    if not any(a.place.kind != "load" for a in accesses):
        return np.zeros(0, dtype=np.int64)

    def race(at: int, one: Array, other: Array, did: tuple[str, str]) -> None:
        pair = tuple(tuple(map(int, program[: _dimensions(launch)])) for program in (one, other))
        if (memories[0].names, pair) not in races:
            memory = next(m for m in memories if m.holds(np.array([at]), 1).any())
            (first,) = np.flatnonzero(memory.offsets == (at - memory.start) // memory.itemsize)[:1]
            element = tuple(map(int, np.unravel_index(first, memory.shape)))
            races[pair] = Race(_name(memory), element, pair, did)  # type: ignore[arg-type]

    # What is raced for are elements; of a tensor that is given as views of two types, the smaller ones.
    piece = min(one.itemsize for one in (*memories, *accesses))
    twice = []
    for access in accesses:
        for at in pieces(access.differ, access.itemsize, piece).tolist():
            race(at, access.program, access.program, ("store", "store"))  # type: ignore[arg-type]
            twice.append(at)
    users = _users(accesses, piece)
    seen = set()
    for at, did in users.items():
        if (pattern := tuple(did.items())) not in seen:
            seen.add(pattern)
            for (one, first), (other, second) in itertools.combinations(pattern, 2):
                if _conflict(first, second):
                    race(at, one, other, (_verb(first), _verb(second)))
    return np.unique(np.array([*users, *twice], dtype=np.int64))


def _users(accesses: list[Access], piece: int) -> dict[int, dict[tuple[int, int, int], int]]:
    """What each program did to a piece of so many bytes, as bits, for the pieces that are raced for."""
    numbers: dict[tuple[int, int, int], int] = {}
    columns = []
    least = min(int(access.addresses[0]) for access in accesses)
    for access in accesses:
        where = pieces(access.addresses, access.itemsize, piece) - least
        program = numbers.setdefault(access.program, len(numbers))
        columns.append(np.stack([where, *np.broadcast_arrays(program, DID[access.place.kind], where)[:2]]))
    where, program, did = np.concatenate(columns, axis=1)
    keys, inverse = np.unique(where * len(numbers) + program, return_inverse=True)
    together = np.zeros(len(keys), dtype=np.int64)
    np.bitwise_or.at(together, inverse, did)
    places, start, count = np.unique(keys // len(numbers), return_index=True, return_counts=True)
    anything = np.bitwise_or.reduceat(together, start)
    plain = np.bitwise_or.reduceat(together & (LOADED | STORED), start)
    written = (anything & STORED > 0) | ((anything & ATOMIC > 0) & (plain > 0))
    programs = list(numbers)
    return {
        int(places[i]) + least: {
            programs[key % len(numbers)]: int(bits)
            for key, bits in zip(keys[start[i] :][: count[i]], together[start[i] :][: count[i]], strict=True)
        }
        for i in np.flatnonzero(written & (count > 1))
    }


def _conflict(one: int, other: int) -> bool:
    """Whether two programs that did this to one element depend on who came first: at least one of them
    wrote, and not both by atomics alone."""
    return bool((one | other) & (STORED | ATOMIC)) and not one == other == ATOMIC


def _verb(did: int) -> str:
    """The strongest thing that was done."""
    return "store" if did & STORED else "atomically change" if did & ATOMIC else "load"


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
