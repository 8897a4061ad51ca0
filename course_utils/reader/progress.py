"""What `progress()` shows: one lesson, or the map of all; where the reader stands, and what is next.

Exercises are read, not run: listing them imports no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from course_utils.exercise.states import NOT_ATTEMPTED, PASSED, colour, symbol
from course_utils.lessons.notebook_files import address
from course_utils.reader.stopped import task_cells
from course_utils.words import inline

if TYPE_CHECKING:
    from pathlib import Path

    from course_utils.lessons.catalog import Card, Course, Lesson
    from course_utils.reader.record import Record, Row


@dataclass(frozen=True)
class Entry:
    """One exercise and where the reader stands with it."""

    card: Card
    row: Row | None

    @property
    def state(self) -> str:
        return (self.row and self.row.state) or NOT_ATTEMPTED

    @property
    def words(self) -> str:
        attempts = self.row.attempts if self.row else 0
        many = f", {attempts} attempt{'s' if attempts > 1 else ''}" if attempts else ""
        return f"{self.state}{many}{', solution seen' if self.row and self.row.solution_seen else ''}"


@dataclass(frozen=True)
class Standing:
    """One lesson and where the reader stands in it."""

    lesson: Lesson
    entries: list[Entry]
    minutes_left: tuple[int, int]  # of the core, with the reading; of what goes further

    def of(self, core: bool) -> list[Entry]:
        """The core exercises, or the further ones."""
        return [entry for entry in self.entries if entry.card.core == core]

    def passed(self, core: bool) -> str:
        some = self.of(core)
        return f"{sum(entry.state == PASSED for entry in some)} of {len(some)}"

    def left(self, core: bool) -> int:
        """Minutes for what is not passed; reading belongs to the core."""
        return self.minutes_left[not core]

    @property
    def counts(self) -> tuple[int, int]:
        """How many exercises are passed, and of how many: of the core, of all where nothing is core."""
        some = self.of(True) or self.entries
        return sum(entry.state == PASSED for entry in some), len(some)

    @property
    def heading(self) -> str:
        return f"{self.lesson.number:02d} {self.lesson.title}"


class Progress:
    """Where a reader stands, as text and as HTML: in the lesson `here`, or in all. What it shows is read
    once, when it is made. `due`: how many questions of practice are."""

    def __init__(self, course: Course, record: Record, here: Lesson | None = None, due: int = 0) -> None:
        self.due = f"Practice: {due} question{'s are' if due > 1 else ' is'} due." if due else ""
        rows = record.summary()
        self.notice = record.notice or ""  # of what is wrong now, which reading the record may have mended
        passed = {name for name, row in rows.items() if row.state == PASSED}
        self.all = []
        for lesson in course.lessons:
            entries = [Entry(course.card(name), rows.get(name)) for name in lesson.exercise_names]
            self.all.append(Standing(lesson, entries, course.minutes(lesson, passed)))
        self.here = next((one for one in self.all if here is not None and one.lesson.slug == here.slug), None)

    @property
    def next(self) -> tuple[Standing, Entry] | None:
        """The first exercise that is not passed, core before further; None when all are."""
        for core in (True, False):
            for standing in [self.here] if self.here else self.all:
                for entry in standing.of(core):
                    if entry.state != PASSED:
                        return standing, entry
        return None

    def __repr__(self) -> str:
        lines = _lesson_text(self.here) if self.here else _map_text(self.all)
        following = "Every exercise is passed."
        if self.next:
            standing, entry = self.next
            following = f"Next: {entry.card.full_name} in {standing.heading}"
        due = [f"{self.due} Type: course practice"] if self.due else []
        return "\n".join([*lines, "", following, *due, *(["", self.notice] if self.notice else [])])

    def _repr_html_(self) -> str:
        body = _lesson_html(self.here) if self.here else _map_html(self.all)
        line = "Every exercise is passed."
        if self.next:
            standing, entry = self.next
            [(link, _)] = _linked(standing.lesson, [entry])
            line = f"Next: {link} in {escape(standing.heading)}"
        more = "" if self.here is None else " · <code>progress(all=True)</code> shows the whole course."
        notice = f"<p>{inline(self.notice)}</p>" if self.notice else ""
        due = f"<p>{self.due} <code>practice()</code></p>" if self.due else ""
        return f"{body}<p>{line}{more}</p>{due}{notice}"


def _lesson_text(one: Standing) -> list[str]:
    lines = [one.heading]
    width = max((len(entry.card.full_name) for entry in one.entries), default=0)
    for core, name in ((True, "Core"), (False, "Further")):
        if one.of(core) or one.left(core):
            lines.append(f"{name} · {one.passed(core)} · {one.left(core)} minutes left")
        for entry in one.of(core):
            lines.append(f"  {symbol(entry.state)} {entry.card.full_name:<{width}}  {entry.words}")
    return lines


def _map_text(every: list[Standing]) -> list[str]:
    width = max((len(one.heading) for one in every), default=0)
    lines = []
    for one in every:
        core, further = (
            f"{name} {one.passed(kind)}, {one.left(kind)} min left" if one.of(kind) or one.left(kind) else ""
            for name, kind in (("core", True), ("further", False))
        )
        lines.append(f"{one.heading:<{width}}  {core:<28} {further}".rstrip())
    return [*lines, _sum(every)]


def _sum(every: list[Standing]) -> str:
    """What is left of the course, in hours."""
    core, further = (sum(one.left(kind) for one in every) / 60 for kind in (True, False))
    return f"Left of the course: {core:.1f} hours of core, {core + further:.1f} of everything."


_LEFT = "text-align:left;padding:.1em .9em .1em 0"


def _lesson_html(one: Standing) -> str:
    rows = []
    for core, name in ((True, "Core"), (False, "Further")):
        if one.of(core) or one.left(core):
            head = f"<b>{name}</b> · {one.passed(core)} · {one.left(core)} minutes left"
            rows.append(f'<tr><td colspan="3" style="{_LEFT};padding-top:.6em">{head}</td></tr>')
        for link, entry in _linked(one.lesson, one.of(core)):
            sign = f"color:{colour(entry.state)};font-weight:700"
            rows.append(
                f'<tr><td style="{_LEFT};{sign}">{symbol(entry.state)}</td><td style="{_LEFT}">{link}</td>'
                f'<td style="{_LEFT}">{escape(entry.words)}</td></tr>'
            )
    return (
        f'<p><b>{escape(one.heading)}</b></p><table style="border-collapse:collapse">{"".join(rows)}</table>'
    )


def _map_html(every: list[Standing]) -> str:
    words = ("lesson", "core", "further", "minutes left")
    # Map and table fit side by side beside a file browser.
    narrow, beside = "text-align:left;padding:.1em .8em .1em 0", "display:inline-block;vertical-align:top"
    head = "".join(f'<th style="{narrow}">{word}</th>' for word in words)
    rows = [f"<tr>{head}</tr>"]
    for one in every:
        left = f"{one.left(True)} + {one.left(False)}" if one.of(False) else f"{one.left(True)}"
        cells = (
            _link(one.lesson.notebook.name, escape(one.heading)),
            one.passed(True),
            one.passed(False) if one.of(False) else "",
            left,
        )
        rows.append("<tr>" + "".join(f'<td style="{narrow}">{cell}</td>' for cell in cells) + "</tr>")
    table = f'<table style="border-collapse:collapse">{"".join(rows)}</table><p>{_sum(every)}</p>'
    parts = ((_drawn(every), "margin:0 12px 8px 0"), (table, "margin:0 0 8px 0"))
    return "".join(f'<div style="{beside};{margin}">{part}</div>' for part, margin in parts)


def _drawn(every: list[Standing]) -> str:
    from course_utils.draw.course_map import Stop, course_map

    number = {one.lesson.topic: one.lesson.number for one in every}
    stops = []
    for one in every:
        needs = tuple(number[topic] for topic in one.lesson.needs if topic in number)
        link = f"{one.lesson.slug}.ipynb"
        stops.append(Stop(one.lesson.number, one.lesson.title, link, *one.counts, needs))
    return course_map(stops)


def _linked(lesson: Lesson, entries: list[Entry]) -> list[tuple[str, Entry]]:
    """Each exercise with its full name as a link to its task."""
    cells = task_cells(lesson)
    return [(link_to(lesson, entry.card, cells), entry) for entry in entries]


def link_to(lesson: Lesson, card: Card, cells: dict[str, str], file: Path | None = None) -> str:
    """An exercise's full name as a link to its task: the cell whose id is in `cells`, or else its notebook,
    which is `file` where it is not the lesson's own.

    JupyterLab goes to a cell also in a notebook that it has yet to open; to a heading only once it is drawn,
    and only where all its letters are ASCII: those of tasks begin with a star."""
    there = address(file.name if file else lesson.notebook.name, cells.get(card.name, ""))
    return _link(there, inline(card.full_name))


def _link(there: str, shown: str) -> str:
    return f'<a href="{escape(there)}">{shown}</a>'
