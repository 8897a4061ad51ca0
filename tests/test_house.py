"""What may import what."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXERCISES = sorted((ROOT / "exercises").glob("*/*.py"))


def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.startswith("course_utils.")}


@pytest.mark.parametrize("path", EXERCISES, ids=lambda path: path.stem)
def test_an_exercise_imports_what_is_made_for_it(path):
    allowed = ("course_utils.exercise", "course_utils.measure", "course_utils.cpp")
    assert not [name for name in imported(path) if not name.startswith(allowed)]


def test_what_exercises_are_made_of_knows_nothing_of_how_they_are_run():
    allowed = ("course_utils.exercise", "course_utils.measure", "course_utils.machine")
    for path in (ROOT / "course_utils" / "exercise").rglob("*.py"):
        assert not [name for name in imported(path) if not name.startswith(allowed)], path
