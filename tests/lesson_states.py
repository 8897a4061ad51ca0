"""A built lesson as notebooks that prove both of its states, solved and as shipped, in little more than one
run: the two differ in the starters, the checks, and the few cells that depend on an answer."""

from __future__ import annotations

import ast
from copy import deepcopy
from itertools import chain

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook

from course_utils.grading import cells
from course_utils.grading.cells import Unit
from course_utils.lessons.catalog import Course, Lesson
from course_utils.lessons.source import CHECK, STARTER, notebook_of, role

NOT_COMPARED = "nbval-ignore-output"
PASSED = """\
_report = check({0})
assert "(`{0}`): passed" in repr(_report).splitlines()[0], repr(_report)
_report"""


def solved(course: Course, built: NotebookNode) -> NotebookNode:
    """The notebook with the references in place of the starters; a check raises unless it passes. The cells
    that depend on an answer run, and are not compared with what is stored."""
    notebook = deepcopy(built)
    waiting = {cell.id for cell in depend_on_an_answer(notebook)}
    for cell in notebook.cells:
        if role(cell) == STARTER:
            cell.source = course.solution(cell.metadata.course.exercise).source.strip("\n")
        elif role(cell) == CHECK:
            cell.source = PASSED.format(course.exercise(cell.metadata.course.exercise).answer_name)
        tags = cell.metadata.get("tags", [])
        if (role(cell) == CHECK or cell.id in waiting) and NOT_COMPARED not in tags:
            cell.metadata["tags"] = [*tags, NOT_COMPARED]
    return notebook


def differs_as_shipped(built: NotebookNode) -> NotebookNode:
    """A notebook of the starters, the checks and the cells that depend on an answer, as stored; above
    each what it needs of the other cells, not compared."""
    kept = {cell.id for cell in _code(built) if role(cell) in (STARTER, CHECK)}
    kept |= {cell.id for cell in depend_on_an_answer(built)}
    needed: set[str] = set()
    found: list[NotebookNode] = []
    for cell in reversed(_code(built)):
        chosen = []
        for unit in reversed(_units(cell)):
            if cell.id in kept or needed & (unit.binds | unit.changes):
                needed = (needed - (set() if unit.partial else unit.binds)) | _reads_of_others(unit)
                chosen.insert(0, unit.piece.source)
        if cell.id in kept:
            found.insert(0, cell)
        elif chosen:
            found.insert(0, new_code_cell("\n".join(chosen), metadata={"tags": [NOT_COMPARED]}))
    return new_notebook(cells=found)


def depend_on_an_answer(built: NotebookNode) -> list[NotebookNode]:
    """The cells that read the name of an answer, or a name that was made with one. Checks are not counted."""
    starters = [cell for cell in _code(built) if role(cell) == STARTER]
    names = set(chain.from_iterable(unit.binds for cell in starters for unit in _units(cell)))
    found = []
    for cell in _code(built):
        if role(cell) is not None:
            continue
        for unit in _units(cell):
            if _reads(unit) & names:
                names |= unit.binds | unit.changes
                found += [cell] if cell not in found[-1:] else []
            elif not unit.partial:
                names -= unit.binds
    return found


def read_and_missing_as_shipped(course: Course, lesson: Lesson) -> set[str]:
    """The names that a cell reads and that at its place only the solved lesson has."""
    shipped, solved = (_code(notebook_of(course, lesson, solved=state)) for state in (False, True))
    have: set[str] = set()
    only_solved: set[str] = set()
    missing: set[str] = set()
    for ours, theirs in zip(shipped, solved, strict=True):
        if role(theirs) == STARTER:
            only_solved |= set(chain.from_iterable(unit.binds for unit in _units(theirs)))
        for unit in _units(ours):
            have |= unit.binds
            if role(ours) is None:
                missing |= _reads(unit) & (only_solved - have)
    return missing


def _code(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def _units(cell: NotebookNode) -> list[Unit]:
    return cells.units(cell.source, "", 0)[0]


def _reads(unit: Unit) -> set[str]:
    return unit.reads[0] | unit.reads[1]


def _reads_of_others(unit: Unit) -> set[str]:
    """Without the variables of a loop or a block, which it binds before it reads them."""
    block = any(isinstance(node, (ast.For, ast.With, ast.If, ast.Try)) for node in unit.nodes)
    return _reads(unit) - unit.binds if block else _reads(unit)
