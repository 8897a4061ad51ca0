"""Where a reader stopped, read off the record, and where that stands in their notebook."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from course_utils.exercise.states import PASSED
from course_utils.lessons.notebook_files import BEING_BUILT
from course_utils.places import workspace

if TYPE_CHECKING:
    from course_utils.lessons.catalog import Course, Lesson
    from course_utils.reader.record import Row


def lesson_of_last(course: Course, rows: dict[str, Row]) -> Lesson | None:
    """The lesson of the exercise that something was last recorded of; None without one."""
    known = [name for name in course.exercise_names if name in rows]
    return course.lesson_of(max(known, key=lambda name: rows[name].last)) if known else None


def stopped_at(course: Course, lesson: Lesson, rows: dict[str, Row]) -> str | None:
    """The exercise where the reader stopped: the last one that something is recorded of and that is not
    passed; without one, the next after the last one passed, core before further. None where nothing is
    recorded, and where all are passed."""
    names = lesson.exercise_names
    known = sorted((name for name in names if name in rows), key=lambda name: rows[name].last)
    if begun := [name for name in known if rows[name].state != PASSED]:
        return begun[-1]
    after = names.index(known[-1]) + 1 if known else 0
    following = [name for name in (*names[after:], *names[:after]) if name not in rows]
    following.sort(key=lambda name: not course.card(name).core)
    return following[0] if known and following else None


def task_cells(lesson: Lesson, file: Path | None = None) -> dict[str, str]:
    """The ids of the cells that hold a lesson's tasks, by exercise: in `file` or the reader's copy, or where
    there is none, in what is copied; while the lesson is built, in what that becomes. Empty for what is no
    such notebook."""
    built = Path(os.environ.get(BEING_BUILT, ""))
    copied = workspace(lesson.notebook.parent.parent) / lesson.notebook.name
    mine = file or (built if built.name == lesson.notebook.name else copied)
    try:
        text = (mine if mine.exists() else lesson.notebook).read_text(encoding="utf-8")
        cells = [(cell.get("metadata", {}).get("course", {}), cell) for cell in json.loads(text)["cells"]]
        return {ours["exercise"]: str(cell["id"]) for ours, cell in cells if ours.get("role") == "task"}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
