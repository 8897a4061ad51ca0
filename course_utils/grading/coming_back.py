"""`resume()`: what the exercise needs where a reader stopped, run out of the notebook as it was last saved.

That is the lesson's set-up, the answer's last definition and what the cell of its check reads, with all that
these need in turn (see `answers`): the same that `course check` takes, and no demonstration.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import linecache
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from course_utils.grading import answers
from course_utils.grading.answers import Submission, UnreadableError
from course_utils.grading.cells import Unit
from course_utils.lessons.catalog import Course, Lesson
from course_utils.reader.progress import link_to
from course_utils.reader.record import Record, Row
from course_utils.reader.stopped import lesson_of_last, stopped_at, task_cells
from course_utils.words import inline

NOTHING = "When you come back, run this cell to go on."
GO_ON = "To read on, run all cells above it too: click the task, then Run, Run All Above Selected Cell."


@dataclass
class Resumed:
    """What a reader is told on coming back. `where`: the exercise's full name; `link` leads to its task.
    `begun`: something is recorded of it."""

    where: str
    link: str
    begun: bool
    told: list[str] = field(default_factory=list)

    @property
    def _what(self) -> str:
        return "You stopped at" if self.begun else "All that you began here is passed. Next is"

    def __repr__(self) -> str:
        return "\n".join([f"{self._what} {self.where}. {self.told[0]}", *self.told[1:]])

    def _repr_html_(self) -> str:
        first, *rest = map(inline, self.told)
        return f"<p>{self._what} {self.link}. {first}</p>" + "".join(f"<p>{line}</p>" for line in rest)


@dataclass(frozen=True)
class Said:
    """One line, where nothing was run. `link`: the line with links in it, as HTML, where it has any."""

    line: str
    link: str = ""

    def __repr__(self) -> str:
        return self.line

    def _repr_html_(self) -> str | None:
        return f"<p>{self.link}</p>" if self.link else None


def resume(
    course: Course, record: Record, lesson: Lesson | None, file: Path | None, names: dict[str, Any]
) -> Resumed | Said:
    """Runs in `names`, those of the notebook in `file`, what the exercise needs where the reader stopped, and
    says what was run. What raises is told, and keeps nothing else from running."""
    rows = record.summary()
    if not rows:
        return Said(NOTHING)
    notebook, trouble = None, "It is not known here which file this notebook is in."
    if file is not None:
        try:
            notebook = answers.read(file)
        except (UnreadableError, RecursionError) as error:
            trouble = f"{file.name}: {error}."
    if lesson is None and notebook is not None:
        lesson = next(iter(answers.lessons_of(notebook, course)), None)
    if lesson is None:
        return Said(trouble if notebook is None else "This notebook is not of this course.")
    name = stopped_at(course, lesson, rows)
    if name is None:
        passed = any(one in rows for one in lesson.exercise_names)
        return _all_passed(course, rows, lesson) if passed else Said(NOTHING)
    card = course.card(name)
    found = Resumed(card.full_name, link_to(lesson, card, task_cells(lesson, file), file), name in rows)
    if notebook is None:
        found.told.append(f"{trouble} So nothing was run: run its cells from the top.")
        return found
    units = notebook.needed(card.answer_name, name, names.keys())
    count, troubles = _run(notebook, units, names)
    from_cells = f"{count} cell{'' if count == 1 else 's'} of {file.name} as it was last saved"
    found.told = [f"What this exercise needs was run: {from_cells}.", *troubles]
    if lacking := _lacking(units, names, card.answer_name):
        listed = ", ".join(f"`{one}`" for one in lacking)
        found.told.append(f"No cell of {file.name} makes {listed}.")
    found.told.append(GO_ON)
    return found


def _all_passed(course: Course, rows: dict[str, Row], lesson: Lesson) -> Said:
    """What is said in a lesson that is done: with the way to where the reader stopped in another one."""
    said, other = "Every exercise of this lesson is passed.", lesson_of_last(course, rows)
    if other is None or other == lesson or (name := stopped_at(course, other, rows)) is None:
        return Said(said)
    card, where = course.card(name), f"{other.number:02d} {other.title}"
    said += f" {'You stopped at' if name in rows else 'Next is'}"
    link = link_to(other, card, task_cells(other))
    return Said(f"{said} {card.full_name} in {where}.", f"{said} {link} in {inline(where)}.")


def _run(notebook: Submission, units: list[Unit], names: dict[str, Any]) -> tuple[int, list[str]]:
    """Runs the units; how many cells they are of, and a sentence for each that raised."""
    told: list[str] = []
    files = {unit.piece.filename: _shown(notebook.sources[unit.piece.filename]) for unit in units}
    for unit in units:
        piece = unit.piece
        try:
            code = compile(
                "\n" * (piece.first_line - 1) + piece.source,
                files[piece.filename],
                "exec",
                flags=notebook.flags,
                dont_inherit=True,
            )
            with contextlib.redirect_stdout(io.StringIO()):
                exec(code, names)
        except Exception as error:
            begins = next(filter(None, map(str.strip, notebook.sources[piece.filename].splitlines())), "")
            lost = [f"`{name}`" for name in sorted(unit.binds) if name not in names]
            without = f"{', '.join(lost)} could not be had: the" if lost else "The"
            said = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}".rstrip(": ")
            told.append(f"{without} cell that begins `{begins}` raised `{said}`.")
    return len(files), told


def _shown(source: str) -> str:
    """The file that the cell's code is compiled for: the one that IPython gives it, so that tracebacks,
    `inspect.getsource` and breakpoints find it as if the cell had been run."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is not None:
        return shell.compile.cache(source, shell.execution_count, raw_code=source)
    name = f"<cell {abs(hash(source))}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    return name


def _lacking(units: list[Unit], names: dict[str, Any], answer: str) -> list[str]:
    """The names that were read, or are asked for, and that no unit was to make."""
    wanted = {answer}.union(*(now | later for now, later in (unit.reads for unit in units)))
    made = set().union(*(unit.binds for unit in units))
    return sorted(wanted - made - set(names) - set(dir(builtins)) - {"__class__"})
