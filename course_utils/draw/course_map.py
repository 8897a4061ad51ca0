"""The lessons of the course and what each builds on, filled as far as they are done."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from course_utils.draw.labels import Label
from course_utils.draw.picture import Picture
from course_utils.draw.shapes import WIDTH, Scene, to_picture

WIDE, HIGH, GAP, STEP, BAR, SMALL = 128.0, 50.0, 15.0, 78.0, 6.0, 10.5


@dataclass(frozen=True)
class Stop:
    """A lesson: its number and title, the share of it that is done, the numbers that it builds on."""

    number: int
    title: str
    done: float
    needs: tuple[int, ...]


def course_map(stops: Sequence[Stop]) -> Picture:
    """A box for each lesson, below those that it builds on: filled when it is done, with a bar on the way."""
    rows: dict[int, int] = {}
    for stop in sorted(stops, key=lambda one: one.number):
        rows[stop.number] = 1 + max((rows[n] for n in stop.needs if n in rows), default=-1)
    places: dict[int, tuple[float, float]] = {}
    scene = Scene("")
    for row in sorted(set(rows.values())):
        here = [stop.number for stop in stops if rows[stop.number] == row]
        left = (WIDTH - len(here) * WIDE - (len(here) - 1) * GAP) / 2
        places |= {n: (left + i * (WIDE + GAP), 2 + STEP * row) for i, n in enumerate(here)}
    for stop in stops:
        x, y = places[stop.number]
        for needed in stop.needs:
            if needed in places:
                a, b = places[needed]
                scene.line(((a + WIDE / 2, b + HIGH), (x + WIDE / 2, y)), 1.0, arrow=True)
        words = [f"{stop.number:02d} {stop.title}"]
        lines = textwrap.wrap(words[0], 21)[:3]
        filled = stop.done >= 1
        top = y + HIGH / 2 - 2 - 13 * (len(lines) - 1) / 2
        said = tuple(Label(x + WIDE / 2, top + 13 * i, line, SMALL, "middle") for i, line in enumerate(lines))
        scene.box(x, y, WIDE, HIGH, "rank" if filled else "", said, line=1.2)
        if 0 < stop.done < 1:
            scene.box(x, y + HIGH - BAR, WIDE * stop.done, BAR, "rank", line=0)
    scene.height = 4 + STEP * max(rows.values(), default=0) + HIGH
    done = [f"{stop.number:02d}" for stop in stops if stop.done >= 1]
    scene.description = f"{len(stops)} lessons; done: {', '.join(done) or 'none yet'}."
    return to_picture(scene)
