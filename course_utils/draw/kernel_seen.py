"""Which program did what to which element: what `measure.kernel` gave, as arrays for a picture."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from course_utils.measure.kernel import SECTOR, KernelTraffic, Outside

Array = np.ndarray[Any, Any]
LOADED, STORED, ATOMIC = 1, 2, 4
_DID = {"load": LOADED, "store": STORED, "atomic": ATOMIC}


class Elements(NamedTuple):
    """Of each element of a tensor, in order: what was done to it, as bits; how often it was loaded; by how
    many programs it was touched, and the first of them; whether it is raced for."""

    did: Array
    loads: Array
    users: Array
    user: Array
    raced: Array


class Seen:
    """A launch. Programs and sites (lines that load or store one tensor) are spoken of by their number."""

    def __init__(self, traffic: KernelTraffic) -> None:
        self.traffic, self.memories, self.sites = traffic, traffic.launch.memories, traffic.sites
        known = [a for a in traffic.launch.accesses if a.memory is not None]
        keys = sorted(dict.fromkeys((a.place, a.memory) for a in known), key=lambda key: key[0].line)
        self.memory_of = [memory for _, memory in keys]  # in the order of `sites`
        self.calls: list[list[tuple[int, int, Array]]] = [[] for _ in keys]
        rows: list[list[Any]] = [[np.zeros((4, 0), dtype=np.int64)] for _ in self.memories]
        self.raced = [np.zeros(memory.span, dtype=bool) for memory in self.memories]
        for access in known:
            memory, site = self.memories[access.memory], keys.index((access.place, access.memory))
            addresses, times = np.unique(access.addresses, return_counts=True)
            where = (addresses - memory.start) // memory.itemsize
            who = int(np.ravel_multi_index(access.program[: len(traffic.grid)], traffic.grid))
            rows[access.memory].append(np.broadcast_arrays(where, who, _DID[access.place.kind], site))
            self.calls[site].append((who, access.itemsize, addresses))
            self.raced[access.memory][where[times > 1]] |= access.differ
        self.rows = [np.concatenate(row, axis=1) for row in rows]
        for (where, who, did, _), raced in zip(self.rows, self.raced, strict=True):

            def users(bits: int, where: Array = where, who: Array = who, did: Array = did) -> Array:
                pairs = np.unique((where * traffic.programs + who)[did & bits > 0])
                return np.bincount(pairs // traffic.programs, minlength=len(raced))  # noqa: B023

            by_atomics = (users(ATOMIC) > 0) & (users(LOADED | STORED) > 0)
            raced |= ((users(STORED) > 0) | by_atomics) & (users(LOADED | STORED | ATOMIC) > 1)

    def program(self, number: int) -> tuple[int, ...]:
        return tuple(map(int, np.unravel_index(number, self.traffic.grid)))

    def elements(self, memory: int, program: int | None, site: int | None) -> Elements:
        """What this program (None: any) did in this site (None: any)."""
        where, who, did, at = self.rows[memory]
        kept = (program is None or who == program) & (at == (at if site is None else site))
        where, who, did = where[kept], who[kept], did[kept]
        bits, user = np.zeros((2, self.memories[memory].span), dtype=np.int64)
        np.bitwise_or.at(bits, where, did)
        used, first = np.divmod(np.unique(where * self.traffic.programs + who)[::-1], self.traffic.programs)
        user[used] = first  # the last that is written is the first program
        users, loads = (np.bincount(one, minlength=len(bits)) for one in (used, where[did & ~STORED > 0]))
        found = (bits, loads, users, user, self.raced[memory] & (bits > 0))
        return Elements(*(one[self.memories[memory].offsets] for one in found))

    def rivals(self, memory: int, program: int | None) -> list[tuple[int, ...]]:
        """The other programs that use an element for which this one races."""
        where, who, _, _ = self.rows[memory]
        shared = np.isin(where, where[who == program]) & self.raced[memory][where]
        return [self.program(one) for one in np.unique(who[shared]).tolist() if one != program]

    def touched(self, site: int, program: int | None) -> tuple[Array, int, int]:
        """What the calls of a site touched: addresses, how many sectors, and how many would have done."""
        calls = [call for call in self.calls[site] if program in (None, call[0])]
        sectors = sum(len(np.unique(addresses // SECTOR)) for _, _, addresses in calls)
        fewest = sum(-(-len(addresses) * size // SECTOR) for _, size, addresses in calls)
        every = np.concatenate([np.zeros(0, dtype=np.int64), *(addresses for *_, addresses in calls)])
        return np.unique(every), sectors, fewest

    def outside(self, program: int | None, site: int | None) -> list[Outside]:
        """What was asked for outside every tensor."""
        index = None if program is None else self.program(program)
        told = [(one.kind, one.line, one.tensor) for one in self.sites]
        return [
            one
            for one in self.traffic.outside
            if index in (None, one.program)
            and (site is None or (one.kind, one.line, one.tensor) == told[site])
        ]
