"""Which program did what to which element: what `measure.kernel` gave, as arrays for a picture."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from course_utils.measure.kernel import DID, STORED, KernelTraffic, Outside, touched
from course_utils.measure.kernel_memory import Access

Array = np.ndarray[Any, Any]


class Elements(NamedTuple):
    """Of each element of a tensor, in order: what was done to it, as bits; how often it was loaded; by how
    many programs it was touched, and the first of them; whether it is raced for."""

    did: Array
    loads: Array
    users: Array
    user: Array
    raced: Array


class Seen:
    """A launch. Programs, tensors and sites (lines that load or store one) are spoken of by their number."""

    def __init__(self, traffic: KernelTraffic) -> None:
        self.traffic, self.memories, self.sites = traffic, traffic.launch.memories, traffic.sites
        self.raced = [traffic.tensors[one.names[0]].raced.numpy().ravel() for one in self.memories]
        rows: list[list[Any]] = [[np.zeros((4, 0), dtype=np.int64)] for _ in self.memories]
        for number, site in enumerate(self.sites):
            for access in site.accesses:
                for memory in site.memories:
                    where = self.memories[memory].places(access.addresses, access.itemsize)
                    row = np.broadcast_arrays(where, self.number(access.program), DID[site.kind], number)
                    rows[memory].append(row)
        self.rows = [np.concatenate(row, axis=1) for row in rows]
        self.masks = [self._masks(number) for number in range(len(self.memories))]

    def _masks(self, memory: int) -> Array:
        """What masks leave out of the accesses to this memory: where, counted in its elements from the first,
        by which program, and in which site."""
        held, found = self.memories[memory], [np.zeros((3, 0), dtype=np.int64)]
        for number, site in enumerate(self.sites):
            for access in site.accesses if memory in site.memories else ():
                where = (access.masked - held.start) // held.itemsize
                found.append(np.stack(np.broadcast_arrays(where, self.number(access.program), number)))
        return np.concatenate(found, axis=1)

    def masked(self, memory: int, program: int | None, site: int | None) -> Array:
        """Where this program (None: any) has masked lanes in this site (None: any), from the first element
        on, also behind the last."""
        where, who, at = self.masks[memory]
        kept = (where >= 0) & (program is None or who == program) & (site is None or at == site)
        return np.unique(where[kept])

    def number(self, program: tuple[int, ...]) -> int:
        grid = self.traffic.grid
        return int(np.ravel_multi_index(program[: len(grid)], grid))

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
        *found, did = (one[self.memories[memory].offsets] for one in (loads, users, user, bits))
        return Elements(did, *found, self.raced[memory] & (did > 0))

    def rivals(self, tensor: str, program: int) -> list[tuple[int, ...]]:
        """The other programs that this one races with for elements of a tensor."""
        mine = self.program(program)
        pairs = [one.programs for one in self.traffic.races if one.tensor == tensor and mine in one.programs]
        return sorted({one for pair in pairs for one in pair} - {mine})

    def calls(self, site: int, program: int | None) -> list[Access]:
        return [a for a in self.sites[site].accesses if program in (None, self.number(a.program))]

    def touched(self, site: int, program: int | None) -> tuple[Array, int, int]:
        """What the calls of a site touched: addresses, how many sectors, and how many would have done."""
        calls = self.calls(site, program)
        inside = [access.addresses for access in calls if access.memory is not None]
        return np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *inside])), *touched(calls)[1:]

    def outside(self, program: int | None, site: int | None) -> list[Outside]:
        """What was asked for outside every tensor."""
        of_site = None if site is None else self.sites[site]
        of_program = None if program is None else self.program(program)
        kept = [one for one in self.traffic.outside if of_site in (None, one.site)]
        return [one for one in kept if of_program in (None, one.program)]
