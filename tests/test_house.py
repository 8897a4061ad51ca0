"""What may import what, and how what is public is described."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

from tests.files import imported

ROOT = Path(__file__).parent.parent
EXERCISES = sorted((ROOT / "exercises").glob("*/*.py"))


def ours(path: Path) -> set[str]:
    """What a file imports of the course, anywhere in it."""
    names = imported(path.read_text(encoding="utf-8"))
    return {name for name in names if name.startswith("course_utils.")}


@pytest.mark.parametrize("path", EXERCISES, ids=lambda path: path.stem)
def test_an_exercise_imports_what_is_made_for_it(path):
    allowed = ("course_utils.exercise", "course_utils.measure", "course_utils.cpp")
    assert not [name for name in ours(path) if not name.startswith(allowed)]


# What each room may import of the others; what lies beside them (`notebook`, `cli`, `clinic`) may import all.
ROOMS = {
    "measure": set(),
    "processes": {"measure"},
    "exercise": {"measure"},
    "watching": {"measure", "processes"},
    "draw": {"measure", "watching"},
    "lessons": {"exercise"},
    "reader": {"draw", "exercise", "lessons"},
    "questions": {"lessons", "processes"},
    "practice": {"draw", "exercise", "lessons", "questions", "reader"},
    "grading": {"exercise", "lessons", "processes", "reader"},
    "explore": {"draw", "lessons", "measure", "watching"},
    "diagnosis": {"lessons", "measure"},
    "book": {"draw", "explore", "lessons"},
    "proving": {"exercise", "grading", "lessons", "practice", "processes", "questions"},
}
# What is flat and may be imported everywhere: what the machine has, where files lie, programs in C++,
# articles, whose a line of code is, private names of torch, and what is said of wrong use.
FLAT = {"machine", "places", "cpp", "cpp_server", "stacks", "words", "torch_private", "wrong_use"}


def test_arrows_between_rooms_run_one_way():
    package = ROOT / "course_utils"
    assert {path.parent.name for path in package.glob("*/__init__.py")} == set(ROOMS)
    for room, may in ROOMS.items():
        for path in (package / room).rglob("*.py"):
            reached = {name.split(".")[1] for name in ours(path)}
            assert reached <= may | FLAT | {room}, f"{path} imports {sorted(reached - may - FLAT - {room})}"


def test_what_is_flat_and_imported_everywhere_imports_no_room():
    for name in FLAT:
        reached = {found.split(".")[1] for found in ours(ROOT / "course_utils" / f"{name}.py")}
        assert reached <= FLAT, f"{name} imports {sorted(reached - FLAT)}"


def test_no_file_is_too_long():
    for path in (ROOT / "course_utils").rglob("*.py"):
        lines = len(path.read_text(encoding="utf-8").splitlines())
        assert lines <= 400, f"{path} has {lines} lines"


def test_what_exercises_are_made_of_knows_nothing_of_how_they_are_run():
    allowed = tuple(f"course_utils.{name}" for name in ("exercise", "measure", *FLAT))
    for path in (ROOT / "course_utils" / "exercise").rglob("*.py"):
        assert not [name for name in ours(path) if not name.startswith(allowed)], path


PUBLIC = ("course_utils", "diagnosis", "measure", "draw", "explore", "exercise", "exercise.expect")


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_docstring_says_what_is_done(name):
    """Not "What ..." or "Whether ...": a sentence that can be read without having read others."""
    module = importlib.import_module(name if name == "course_utils" else f"course_utils.{name}")
    for public in module.__all__:
        thing = getattr(module, public)
        if inspect.isfunction(thing) or inspect.isclass(thing):
            text = inspect.getdoc(thing) or ""
            assert text and not re.match(r"(What|Where|Whether|How|Who|When)\b", text), f"{name}.{public}"
