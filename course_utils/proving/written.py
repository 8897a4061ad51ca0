"""Source text made into an answer: an edited reference, or a mutant of it."""

import linecache
import re
import sys
from types import ModuleType
from typing import Any

from course_utils.exercise import Exercise, Mistake, Wrong
from course_utils.lessons.catalog import CourseError, Solution


def module_of(source: str, name: str, *, importable: bool, **names: Any) -> ModuleType:
    """A module with this source, which `inspect` finds as it finds that of a cell. `importable`: by its name
    too, as the compiler does; `names` stand in it before it runs."""
    file = f"<{name}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    module = ModuleType(name)
    vars(module).update(names, __file__=file)
    if importable:
        sys.modules[name] = module
    exec(compile(source, file, "exec", dont_inherit=True), vars(module))
    return module


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
