"""A name that an answer needs, that a cell of the lesson makes, and that the notebook lacks: the cell was not
run, or is gone."""

import re
from collections.abc import Container

from course_utils.exercise.states import FAILED, RAISED
from course_utils.grading.cells import units
from course_utils.grading.report import Report
from course_utils.lessons import catalog
from course_utils.lessons.above import cells_above, exercises_above

_NOT_DEFINED = re.compile(r"NameError: name '(\w+)' is not defined")


def tell_missing(report: Report, there: Container[str]) -> None:
    """Where the first check that failed raised a `NameError` for a name that is not `there`, in the notebook,
    the report says which cell of the lesson makes it, instead of what the check is about."""
    first = next((outcome for outcome in report.outcomes if outcome.state in FAILED), None)
    if first is None or first.state != RAISED:
        return
    found = _NOT_DEFINED.search("\n".join(first.message))
    if found and found[1] not in there and (where := _made_above(report.exercise, found[1])):
        report.symptom, report.why = f"`{found[1]}` is {where}.", ""


def _made_above(exercise: str, name: str) -> str:
    """Where the lesson makes the name above the exercise, and what to do; no text where it does not."""
    course = catalog.load()
    lesson = course.lesson_of(exercise)
    for source in reversed(cells_above(lesson, exercise)):
        found = units(source, "", 0)[0]
        # What a loop or a branch leaves behind is not what an answer is made with.
        if making := [u for u in found if name in u.binds and (u.imports or not u.partial)]:
            is_setup = any("check" in unit.binds for unit in found)  # it imports what a reader calls
            cell = "set-up cell" if is_setup else f"cell that begins `{source.splitlines()[0]}`"
            return f"{'imported' if making[-1].imports else 'defined'} in the {cell}: run it"
    if name in {course.card(one).answer_name for one in exercises_above(lesson, exercise)}:
        return "the answer to an exercise above: run its cell"
    return ""
