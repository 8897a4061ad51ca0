"""What an exercise points to by name is there: a reader has run the cells above it, and nothing else."""

import ast
import builtins
import re
import sys
from collections.abc import Iterable, Iterator

from course_utils.grading.cells import units
from course_utils.lessons.above import cells_above, exercises_above
from course_utils.lessons.catalog import Course
from course_utils.proving.texts import code_in

# Names that a reader takes for modules, beside those of Python's own library.
ALIASES = {"torch", "nn", "F", "np", "dist", "fx"}


def names(course: Course, name: str) -> Iterator[str]:
    """The cells of the lesson above an exercise define what its starter reads, import the modules that the
    task and the hints name in code, and those that the reference imports."""
    exercise, lesson = course.exercise(name), course.lesson_of(name)
    there = {course.card(one).answer_name for one in exercises_above(lesson, name)}
    modules: set[str] = set()
    for source in cells_above(lesson, name):
        for unit in units(source, "", 0)[0]:
            there |= unit.binds
            modules |= _imported(unit.nodes)
    (typed,) = units(exercise.starter_source, "", 0)[0]
    for read in sorted(set().union(*typed.reads) - there - typed.binds - {*dir(builtins), "__class__"}):
        yield f"the starter reads `{read}`, which no cell of the lesson above it defines"
    there |= _local_names(typed.nodes)
    hints = [(f"hint {number}", hint) for number, hint in enumerate(exercise.hints, 1)]
    for where, text in [("the task", exercise.task), *hints]:
        for root in sorted(_roots(text) & (ALIASES | sys.stdlib_module_names) - there):
            yield f"{where} names `{root}`, which no cell of the lesson above it imports"
    for module in sorted(_imported(ast.parse(course.solution(name).source).body) - modules):
        yield f"the reference imports `{module}`, and no cell of the lesson above it does"


def _imported(statements: Iterable[ast.stmt]) -> set[str]:
    """The modules that are imported, or imported from."""
    found: set[str] = set()
    for node in statements:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def _local_names(statements: Iterable[ast.stmt]) -> set[str]:
    """The parameters and variables of what is defined here, at any depth."""
    parts = [part for statement in statements for part in ast.walk(statement)]
    stored = {p.id for p in parts if isinstance(p, ast.Name) and isinstance(p.ctx, ast.Store)}
    return stored | {part.arg for part in parts if isinstance(part, ast.arg)}


def _roots(text: str) -> set[str]:
    """`a` of each `a.b` in the code of the text."""
    return set(re.findall(r"(?<![\w.\"'/)\]])([A-Za-z_]\w*)\.(?=[A-Za-z_])", "\n".join(code_in(text))))
