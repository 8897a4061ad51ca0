"""The lessons of the course as a map: a link for each, below those that it builds on, with what is passed.

HTML of boxes and lines at fixed places, and no picture: words keep their size on a narrow page and have the
colours of its theme, and what a notebook that is not trusted may show (no SVG, no style sheet) is enough.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from course_utils.draw import palette

COLUMNS = 3  # as many as stand beside an open file browser in a window of 900 pixels
WIDE, HIGH = 136, 68  # a box
BESIDE, BETWEEN, EDGE = 12, 24, 6  # from box to box, from row to row, at the sides
WIDTH = COLUMNS * WIDE + (COLUMNS - 1) * BESIDE + 2 * EDGE
LANE, TIP, APART = 5, 6, 16  # from line to line, an arrow's head, two arrows at one box

Point = tuple[float, float]


@dataclass(frozen=True)
class Stop:
    """A lesson: its number, title and link, how many of its exercises count and how many of those are passed,
    and the numbers of the lessons that it builds on. `word`: what is said of it in place of the counts, and
    `fill` the colour that goes with it."""

    number: int
    title: str
    link: str
    passed: int
    of: int
    needs: tuple[int, ...]
    word: str = ""
    fill: str = ""


class Line(NamedTuple):
    """A line across or down, from a lesson `start` on its way to others."""

    start: int
    x: float
    y: float
    right: float
    bottom: float
    arrow: bool = False

    def meets(self, other: Line) -> bool:
        """Whether the two have a point in common."""
        beside = self.x <= other.right and other.x <= self.right
        return beside and self.y <= other.bottom and other.y <= self.bottom

    def lies_on(self, other: Line) -> bool:
        """Whether the two run in one another for a while, or one goes on where the other ends."""
        return self.meets(other) and (self.x == self.right) == (other.x == other.right)


class Plan:
    """Where the boxes are (`places`: row and column by number), and the lines between them."""

    def __init__(self, stops: Sequence[Stop]) -> None:
        self.places = _placed(stops)
        direct = _without_detours(stops)
        self.children: dict[int, list[int]] = defaultdict(list)
        self.parents: dict[int, list[int]] = {}
        for child, needed in direct.items():
            self.parents[child] = sorted(needed, key=lambda n: self.places[n][1])
            for parent in needed:
                self.children[parent].append(child)
        self.rows = 1 + max((row for row, _ in self.places.values()), default=-1)
        # By lesson: the gap between columns through which it reaches rows further down. By row: the lessons
        # whose lines run below it, from top to bottom.
        self.gaps = {n: 0 for n in self.children if any(self._is_far(n, child) for child in self.children[n])}
        self.tracks = {row: [n for n in self.children if self._passes(n, row)] for row in range(self.rows)}
        self._settle()
        self.lines = list(self._all_lines())

    @property
    def height(self) -> float:
        return self.rows * (HIGH + BETWEEN) - BETWEEN + 4 if self.rows else 0

    def corner(self, number: int) -> Point:
        """The upper left corner of a box."""
        row, column = self.places[number]
        return EDGE + column * (WIDE + BESIDE), 2 + row * (HIGH + BETWEEN)

    def _is_far(self, parent: int, child: int) -> bool:
        return self.places[child][0] > self.places[parent][0] + 1

    def _passes(self, parent: int, row: int) -> bool:
        """Whether the lesson has a line across, between this row and the next."""
        start = self.places[parent][0]
        ends = [self.places[child][0] - 1 for child in self.children[parent]]
        return row in ends or (row == start and parent in self.gaps)

    def _settle(self) -> None:
        """Chooses gaps and tracks so that few lines meet, one after another, as long as that helps."""
        least = self._faults()
        for _ in range(2):
            for number in self.gaps:
                for gap in range(COLUMNS + 1):
                    least = self._tried(self.gaps, number, gap, least)
            for row, track in self.tracks.items():
                for order in itertools.permutations(track):
                    least = self._tried(self.tracks, row, list(order), least)

    def _tried(self, where: dict, key: int, value: object, least: float) -> float:
        before, where[key] = where[key], value
        if (found := self._faults()) < least:
            return found
        where[key] = before
        return least

    def _faults(self) -> float:
        lines = list(self._all_lines())
        pairs = [(a, b) for a, b in itertools.combinations(lines, 2) if a.meets(b) and a.start != b.start]
        length = sum(line.right - line.x + line.bottom - line.y for line in lines)
        return sum(20 if a.lies_on(b) else 1 for a, b in pairs) + 1e-4 * length

    def _all_lines(self) -> Iterator[Line]:
        for number in self.children:
            yield from self._lines(number)

    def _lines(self, number: int) -> Iterator[Line]:
        """A line down from the box; across, to the lessons in the next row and to the gap; down the gap, and
        across to lessons in rows further down."""
        x, y = self.corner(number)
        row, x = self.places[number][0], x + WIDE / 2
        yield Line(number, x, y + HIGH, x, self._track(number, row))
        turns = [x]  # where its lines across begin and end in the first row, and in those further down
        if number in self.gaps:
            down = self._gap(number)
            last = max(self.places[child][0] for child in self.children[number]) - 1
            yield Line(number, down, self._track(number, row), down, self._track(number, last))
            turns = [x, down]
        for here in (one for one, track in self.tracks.items() if number in track):
            level = self._track(number, here)
            children = [child for child in self.children[number] if self.places[child][0] == here + 1]
            ends = [self._end(number, child) for child in children]
            across = [at for at, _ in ends] + (turns if here == row else turns[1:])
            if min(across) < max(across):
                yield Line(number, min(across), level, max(across), level)
            for at, bottom in ends:
                yield Line(number, at, level, at, bottom, arrow=True)

    def _end(self, parent: int, child: int) -> Point:
        """Where the line from `parent` reaches `child`."""
        x, y = self.corner(child)
        some = self.parents[child]
        return x + WIDE / 2 + APART * (some.index(parent) - (len(some) - 1) / 2), y

    def _track(self, number: int, row: int) -> float:
        track = self.tracks[row]
        top = 2 + row * (HIGH + BETWEEN) + HIGH
        return top + (BETWEEN - TIP) / 2 + LANE * (track.index(number) - (len(track) - 1) / 2)

    def _gap(self, number: int) -> float:
        """Where in its gap a lesson's line runs: beside those of others."""
        gap = self.gaps[number]
        here = [one for one, other in self.gaps.items() if other == gap]
        middle = EDGE - BESIDE / 2 + gap * (WIDE + BESIDE)
        middle += {0: BESIDE / 2 - EDGE / 2, COLUMNS: EDGE / 2 - BESIDE / 2}.get(gap, 0)
        return middle + LANE * (here.index(number) - (len(here) - 1) / 2)


def _placed(stops: Sequence[Stop]) -> dict[int, tuple[int, int]]:
    """The row and the column of each lesson, by number. They are read in their order; each row takes as many
    as are ready for it, which is when all that they build on stand above."""
    left = sorted(stops, key=lambda one: one.number)
    places: dict[int, tuple[int, int]] = {}
    known = {one.number for one in left}
    for row in range(len(left)):
        ready = [one for one in left if all(n in places for n in one.needs if n in known)][:COLUMNS]
        columns = range(COLUMNS) if len(ready) > 2 else {0: (), 1: (1,), 2: (0, 2)}[len(ready)]
        places |= {one.number: (row, column) for one, column in zip(ready, columns, strict=True)}
        left = [one for one in left if one not in ready]
    return places


def _without_detours(stops: Sequence[Stop]) -> dict[int, set[int]]:
    """What each lesson builds on, without what that builds on in its turn."""
    needs = {one.number: {n for n in one.needs if any(n == other.number for other in stops)} for one in stops}
    above: dict[int, set[int]] = {}
    for number in sorted(needs):
        above[number] = set().union(needs[number], *(above.get(n, set()) for n in needs[number]))
    return {
        number: {n for n in needed if not any(n in above.get(m, ()) for m in needed)}
        for number, needed in needs.items()
    }


def course_map(stops: Sequence[Stop]) -> str:
    """HTML: a box for each lesson, a link with its title and how much of it is passed; arrows come from the
    lessons that it builds on."""
    plan = Plan(stops)
    parts = [part for line in plan.lines for part in _drawn(line)]
    parts += [_box(stop, *plan.corner(stop.number)) for stop in stops]
    return (
        f'<div style="position:relative;width:{WIDTH}px;height:{plan.height:g}px;margin:6px 0 10px">'
        f"{''.join(parts)}</div>"
    )


def _drawn(line: Line) -> Iterator[str]:
    # A line is 2 wide, and its middle is where the plan says.
    down = line.x == line.right
    more = f"height:{line.bottom - line.y + 2:g}px" if down else f"width:{line.right - line.x + 2:g}px"
    yield _at(line.x - 1, line.y - 1, f"{more};border-{'left' if down else 'top'}:2px solid {palette.LINE}")
    if line.arrow:
        sides = "".join(f";border-{side}:{TIP}px solid transparent" for side in ("left", "right"))
        shape = f"width:0;height:0{sides};border-top:{TIP + 1}px solid {palette.LINE}"
        yield _at(line.x - TIP, line.bottom - TIP - 1, shape)


def _at(x: float, y: float, more: str, inside: str = "") -> str:
    return f'<div style="position:absolute;left:{x:g}px;top:{y:g}px;{more}">{inside}</div>'


def _box(stop: Stop, x: float, y: float) -> str:
    done = not stop.word and 0 < stop.of <= stop.passed
    fill = palette.RANK if done else stop.fill
    frame = (
        f"width:{WIDE}px;height:{HIGH}px;box-sizing:border-box;border:2px solid {palette.LINE};"
        f"border-radius:6px;padding:2px 6px 0;overflow:hidden"
    )
    bar, ink = "", ""
    if fill:
        frame += f";background-color:{fill}"
        ink = f";color:{palette.INK}"
    elif not stop.word:
        share = round(100 * stop.passed / stop.of) if stop.of else 0
        full = (
            f'<span style="display:block;height:6px;width:{share}%;background-color:{palette.RANK}"></span>'
        )
        bar = (
            '<span style="position:absolute;left:6px;bottom:6px;width:62px;height:6px;overflow:hidden;'
            f'border:1px solid {palette.LINE};border-radius:4px">{full}</span>'
        )
    said = stop.word or f"{'✓ ' if done else ''}{stop.passed} of {stop.of}"
    return _at(
        x,
        y,
        frame,
        f'{bar}<a href="{escape(stop.link, quote=True)}" style="display:block;height:{HIGH}px{ink}">'
        '<span style="display:block;font-size:13px;line-height:15px">'
        f"<b>{stop.number:02d}</b> {escape(stop.title)}</span> "
        '<span style="position:absolute;right:6px;bottom:1px;font-size:12px;line-height:16px">'
        f"{escape(said)}</span></a>",
    )
