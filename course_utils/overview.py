"""The page that `progress()` shows: all lessons and exercises, where the reader stands, what is next."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from course_utils.conduct import NOT_ATTEMPTED, PASSED
from course_utils.report import colour, symbol

if TYPE_CHECKING:
    from course_utils.catalog import Course
    from course_utils.record import Record


class Progress:
    """Where a reader stands, as text and as HTML. What it shows is read once, when it is made."""

    def __init__(self, course: Course, record: Record) -> None:
        self.notice = record.notice or ""
        rows = record.summary()
        self.lessons = [
            (lesson, [_entry(course, name, rows.get(name)) for name in lesson.exercise_names])
            for lesson in course.lessons
        ]

    @property
    def next(self) -> tuple[str, str] | None:
        """(lesson, answer's name) of the first exercise that is not passed; None when all are."""
        for lesson, entries in self.lessons:
            for entry in entries:
                if entry["state"] != PASSED:
                    return lesson.slug, entry["answer"]
        return None

    def __repr__(self) -> str:
        lines = []
        for lesson, entries in self.lessons:
            lines.append(f"{lesson.number:02d} {lesson.title} · {_passed(entries)} of {len(entries)}")
            width = max((len(entry["answer"]) for entry in entries), default=0)
            for entry in entries:
                words = f"{entry['state']}{_attempts(entry)}"
                lines.append(f"  {symbol(entry['state'])} {entry['answer']:<{width}}  {words}")
        lines += ["", self._next_line()]
        if self.notice:
            lines += ["", self.notice]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = []
        for lesson, entries in self.lessons:
            head = f"<b>{lesson.number:02d} {escape(lesson.title)}</b> · {_passed(entries)} of {len(entries)}"
            rows.append(f'<tr><td colspan="3" style="text-align:left;padding-top:.7em">{head}</td></tr>')
            rows += [_row(entry) for entry in entries]
        below = [self._next_line(), self.notice]
        lines = "".join(f"<p>{escape(line)}</p>" for line in below if line)
        return f'<table style="border-collapse:collapse">{"".join(rows)}</table>{lines}'

    def _next_line(self) -> str:
        if self.next is None:
            return "Every exercise is passed."
        return f"Next: {self.next[1]} in {self.next[0]}"


_LEFT = "text-align:left;padding:.1em .9em .1em 0"


def _row(entry: dict[str, Any]) -> str:
    sign = f'<td style="{_LEFT};color:{colour(entry["state"])};font-weight:700">{symbol(entry["state"])}</td>'
    name = f'<td style="{_LEFT}"><code>{escape(entry["answer"])}</code> {escape(entry["title"])}</td>'
    state = f'<td style="{_LEFT}">{escape(entry["state"] + _attempts(entry))}</td>'
    return f"<tr>{sign}{name}{state}</tr>"


def _entry(course: Course, name: str, row: Any) -> dict[str, Any]:
    exercise = course.exercise(name)
    return {
        "answer": exercise.answer_name,
        "title": exercise.title,
        "state": (row.state if row is not None else None) or NOT_ATTEMPTED,
        "attempts": row.attempts if row is not None else 0,
        "solution_seen": bool(row is not None and row.solution_seen),
    }


def _passed(entries: list[dict[str, Any]]) -> int:
    return sum(entry["state"] == PASSED for entry in entries)


def _attempts(entry: dict[str, Any]) -> str:
    count = entry["attempts"]
    words = "" if not count else f", {count} attempt{'s' if count > 1 else ''}"
    return words + (", solution seen" if entry["solution_seen"] else "")
