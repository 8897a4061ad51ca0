"""A mistake made into an answer: an edited reference, or what stands in its place."""

import re
from typing import Any

from course_utils.exercise import Exercise, Mistake, Wrong
from course_utils.lessons.catalog import CourseError
from course_utils.lessons.solutions import Solution, module_of


def edited(solution: Solution, exercise: Exercise, mistake: Mistake) -> Any:
    """The mistake as an answer. Raises `CourseError` where an edit does not fit the reference."""
    if isinstance(mistake, Wrong):
        return mistake.answer
    if (count := solution.source.count(mistake.old)) != 1:
        raise CourseError(f"{solution.path}: {mistake.old!r} stands {count} times in the reference, not once")
    label = re.sub(r"\W", "_", mistake.label)
    # Below `solutions`, whose modules travel to other processes whole.
    name = f"solutions.{exercise.topic}.{exercise.name}.{label}"
    source = solution.source.replace(mistake.old, mistake.new)
    return getattr(module_of(source, name, importable=True), exercise.answer_name)
