"""What stands in a lesson above one of its exercises."""

import re

from course_utils.lessons.catalog import EXERCISE_FENCE, Lesson

# A code cell of a source: its fence, the options of the notebook's format, the code.
_CELL = re.compile(r"^(`{3,})\{code-cell\}[^\n]*\n(?::[^\n]*\n)*(.*?)^\1[ \t]*$", re.MULTILINE | re.DOTALL)


def cells_above(lesson: Lesson, exercise: str) -> list[str]:
    """The code of the lesson's own cells above the exercise, from the top."""
    text = lesson.source.read_text(encoding="utf-8")
    (end,) = (fence.start() for fence in EXERCISE_FENCE.finditer(text) if fence[1] == exercise)
    return [cell[2].strip("\n") for cell in _CELL.finditer(text[:end])]


def exercises_above(lesson: Lesson, exercise: str) -> tuple[str, ...]:
    """The exercises of the lesson that come before this one."""
    return lesson.exercise_names[: lesson.exercise_names.index(exercise)]
