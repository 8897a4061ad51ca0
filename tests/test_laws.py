"""The laws that every exercise keeps, found automatically: nobody has to remember to test a new one."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from course_utils.grading import attempt
from course_utils.lessons import catalog, claims
from course_utils.proving import hard_input, laws, named, texts
from course_utils.proving.written import edited
from tests.files import FLIP_ROWS, FLIPPED, write
from tests.test_clean_room import STATE

ROOT = Path(__file__).resolve().parent.parent
COURSE = catalog.load(ROOT)
every_exercise = pytest.mark.parametrize("name", COURSE.exercise_names)
# Mutants of each exercise that are graded here, the same every time; `make proof` grades all of them.
SAMPLE = 2


@pytest.fixture(autouse=True)
def as_in_a_readers_kernel(monkeypatch):
    """Nothing in the course's folder can be imported by name."""
    elsewhere = [entry for entry in sys.path if Path(entry).resolve() != ROOT]
    monkeypatch.setattr(sys, "path", elsewhere)


def none(faults):
    """Each fault is told whole."""
    if found := list(faults):
        pytest.fail("\n".join(found), pytrace=False)


def test_every_file_is_in_a_lesson_and_every_name_has_its_files():
    named = {f"{COURSE.lesson_of(name).topic}/{name}.py" for name in COURSE.exercise_names}
    for folder in (ROOT / "exercises", ROOT / "solutions"):
        assert {path.relative_to(folder).as_posix() for path in folder.glob("*/*.py")} == named


@pytest.mark.parametrize("lesson", COURSE.lessons, ids=lambda lesson: lesson.slug)
def test_lessons(lesson):
    """At most five core exercises or more short ones, one voice, and what shows a claim is there."""
    core = {n: e.minutes for n in lesson.exercise_names if (e := COURSE.exercise(n)).core}
    assert len(core) <= 5 or sum(core.values()) <= 65, core
    assert not texts.faults(lesson.source.read_text(encoding="utf-8"))
    none(f"notebooks/claims/{lesson.slug}.md: {fault}" for fault in claims.faults(COURSE, lesson))


@every_exercise
def test_form(name):
    none(laws.form(COURSE.exercise(name), COURSE.solution(name)))


@every_exercise
def test_what_is_named_is_there(name):
    none(named.names(COURSE, name))


@every_exercise
def test_hard_input_is_tried_or_the_solution_says_why_not(name):
    if not laws.is_prediction(COURSE.solution(name)):
        none(hard_input.faults(COURSE.exercise(name), COURSE.solution(name)))


@every_exercise
def test_starter_is_not_attempted_and_fails(name):
    none(laws.starter(COURSE.exercise(name)))


@every_exercise
def test_right_answers_pass(name):
    """But for the reference: the solved lesson passes by it, and mutants are made of it."""
    none(laws.right_answers(COURSE.exercise(name), COURSE.solution(name), whole=False))


@functools.cache
def _mistakes(name):
    """The faults of the law on mistakes, and the checks that reject one; `make proof` goes on after it."""
    rejecting = set()
    return list(laws.mistakes(COURSE, name, rejecting, whole=False)), rejecting


@every_exercise
def test_mistakes_are_rejected_first_by_the_check_that_they_name(name):
    none(_mistakes(name)[0])


@every_exercise
def test_mutants_are_rejected_and_every_check_rejects_something(name):
    none(laws.mutations(COURSE, name, set(_mistakes(name)[1]), SAMPLE, Counter()))


# --- the same for everybody, every time --------------------------------------------------------------


# Of what a reader may have set, by the names in `STATE`.
ODD = ["default dtype", "threads", "matmul precision", "anomaly", "print options", "grad mode", "autocast"]
ODD += ["torch's random state", "random state", "folder", "environment", "hooks on every module"]


@pytest.mark.parametrize("name", [name for name in COURSE.exercise_names if COURSE.exercise(name).core])
def test_an_odd_session_gives_the_same_report_and_is_left_as_it_was(name):
    exercise, solution = COURSE.exercise(name), COURSE.solution(name)
    cases = [(exercise, solution.reference)]
    for mistake in solution.mistakes[:1]:  # up to the check that tells it
        names = [check.name for check in exercise.checks]
        upto = replace(exercise, checks=exercise.checks[: names.index(mistake.told_by) + 1])
        cases.append((upto, edited(solution, exercise, mistake)))
    usual = [str(attempt.grade(*case)) for case in cases]
    with contextlib.ExitStack() as session:
        for now, put, unusual, _ in map(STATE.get, ODD):
            session.callback(put, now())
            put(unusual)
        for case, report in zip(cases, usual, strict=True):
            assert str(attempt.grade(*case)) == report
            assert [state for state in ODD if STATE[state][0]() != STATE[state][2]] == []


# --- the laws can be broken ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("You simply copy it.", ["'simply'"]),
        ("Just do it. Obviously!", ["'Just'", "'Obviously'", "an exclamation mark"]),
        ("`just` and `x != y` are code.", []),
        ("```python\nif x != y:\n    just()\n```\nAdjust it.", []),
        ("It is <object at 0x7f00deadbeef>.", ["an address"]),
        ("Storage, justified.", []),
    ],
)
def test_words_that_are_not_written(text, found):
    assert texts.faults(text) == found


@pytest.mark.parametrize(
    ("hint", "given_away"),
    [
        ("Try `x.view(-1).sum( dim=0 )`.", True),
        ("`y = x.view(-1).sum(dim=0)` is all.", True),
        ("`Tensor.sum` adds up.", False),
        ("What does `x.view(-1)` look like?", False),
    ],
)
def test_hints_that_give_the_answer_away(hint, given_away):
    source = "def f(x):\n    y = x.view(-1).sum(dim=0)\n    return y\n"
    assert bool(texts.given_away(hint, source)) == given_away


def test_names_that_are_not_there(tmp_path):
    task = "Count, as `queue.get()` of a `x.shape` does: `np.sum(x)`, `json.dumps`, `'math.pi'`.\n"
    exercise = FLIP_ROWS.replace("Return the", f"{task}Return the")
    exercise = exercise.replace("def flip_rows(x)", "def flip_rows(x, queue=SIZE)")
    files = {
        "notebooks/source/01_shapes.md": LESSON_WITH_CELLS,
        "exercises/shapes/flip_rows.py": exercise.replace("import torch\n", "import torch\n\nSIZE = 3\n"),
        "solutions/shapes/flip_rows.py": FLIPPED.replace('"""\n\n', '"""\n\nimport json\nimport math\n\n', 1),
    }
    course = catalog.load(write(tmp_path, files))
    assert list(named.names(course, "flip_rows")) == [
        "the starter reads `SIZE`, which no cell of the lesson above it defines",
        "the task names `np`, which no cell of the lesson above it imports",
        "the reference imports `math`, and no cell of the lesson above it does",
    ]


LESSON_WITH_CELLS = """# Shapes

```{code-cell}
:tags: [gpu]
import json

from torch import nn
```

```{exercise} flip_rows
```

```{code-cell}
import math

import numpy as np

SIZE = 3
```
"""
