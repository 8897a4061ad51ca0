"""What is too large for a page, made to fit: what comes again and again once, the rest in one row."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy

from course_utils.draw.labels import counted, cut

PAGE = 1180.0  # how high a picture may be, in pixels of the page, without its margins
LONGEST = 1000  # items of a block that is looked for


@dataclass(frozen=True)
class Group:
    """`size` items from `start` on, which come `times` times in a row."""

    start: int
    size: int = 1
    times: int = 1

    def copies(self) -> Iterator[range]:
        """The places of each of them."""
        for number in range(self.times):
            yield range(self.start + number * self.size, self.start + (number + 1) * self.size)


def fold(keys: Sequence[Hashable], least: int = 1) -> list[Group]:
    """The items with these keys, in their order: a block that comes several times in a row is a group where
    it saves so many items, those that save most first; what lies between two of these is a group, too."""
    numbers: dict[Hashable, int] = {}
    items = numpy.array([numbers.setdefault(key, len(numbers)) for key in keys])
    found = []
    for size in range(1, min(len(items) // 2, LONGEST) + 1):
        same = numpy.concatenate(([0], items[size:] == items[:-size], [0]))
        ends = numpy.flatnonzero(numpy.diff(same)).tolist()
        for start, end in zip(ends[::2], ends[1::2], strict=True):
            times = (end - start) // size
            if times and times * size >= least:
                found.append((-times * size, size, start, times + 1))
    groups = []
    taken = numpy.zeros(len(items), bool)
    for _, size, start, times in sorted(found):
        if not taken[start : start + size * times].any():
            taken[start : start + size * times] = True
            groups.append(Group(start, size, times))
    ends = numpy.flatnonzero(numpy.diff(numpy.concatenate(([0], ~taken, [0])))).tolist()
    groups += [Group(start, end - start) for start, end in zip(ends[::2], ends[1::2], strict=True)]
    return sorted(groups, key=lambda group: group.start)


def unnumbered(name: str) -> str:
    """What siblings have in common that differ in a number."""
    return re.sub(r"\d+", "#", name)


def fitting(groups: Sequence[Group], most: float, head: int = 0) -> list[Group]:
    """As many groups from the front as have room in `most` rows, where each that repeats takes `head` more;
    of one without room, as much as there is room for."""
    shown = []
    for group in groups:
        most -= head * (group.times > 1)
        if (size := int(min(group.size, most))) <= 0:
            break
        shown.append(Group(group.start, size, group.times))
        most -= size
    return shown


def left(groups: Sequence[Group], shown: Sequence[Group]) -> Iterator[int]:
    """The items that none of the groups shown speaks for."""
    for number, group in enumerate(groups):
        size = shown[number].size if number < len(shown) else 0
        for places in group.copies():
            yield from places[size:]


def chosen(items: Sequence[object], most: int, wanted: Callable[[int], bool]) -> list[int]:
    """The places of so many of the items: those that are wanted first, the others evenly spread."""
    first = [place for place in range(len(items)) if wanted(place)][:most]
    others = sorted({*range(len(items))} - {*first})
    room = min(most - len(first), len(others))
    spread = [others[number * len(others) // room] for number in range(room)]
    return sorted([*first, *spread])


def rest(kinds: Collection[str], what: str, letters: int) -> str:
    """The row that sums up what has none: "… and 431 nodes more: 120 AddmmBackward0, …"."""
    each = ", ".join(f"{count:,} {kind}" for kind, count in Counter(kinds).most_common())
    return cut(f"… and {counted(len(kinds), what)} more: {each}", letters)
