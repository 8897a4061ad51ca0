"""The laws that every exercise keeps, found automatically: nobody has to remember to test a new one."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import sys
from pathlib import Path

import pytest
import torch

from course_utils.grading import attempt
from course_utils.lessons import catalog
from course_utils.proving import laws, texts
from course_utils.proving.written import edited

ROOTS = {
    "course": Path(__file__).resolve().parent.parent,
    "toy": Path(__file__).resolve().parent / "toy_course",
}
LABELS = [f"{root}/{name}" for root, path in ROOTS.items() for name in catalog.load(path).exercise_names]
every_exercise = pytest.mark.parametrize("label", LABELS)
every_course = pytest.mark.parametrize("root", ROOTS)
# Mutants of each exercise that are graded here, the same every time; `make proof` grades all of them.
SAMPLE = 4


@pytest.fixture(autouse=True)
def as_in_a_readers_kernel(monkeypatch):
    """Nothing in the course's folder can be imported by name."""
    elsewhere = [entry for entry in sys.path if Path(entry).resolve() != ROOTS["course"]]
    monkeypatch.setattr(sys, "path", elsewhere)


def _found(label):
    root, name = label.split("/")
    course = catalog.load(ROOTS[root])
    return course, name, course.exercise(name), course.solution(name)


def none(faults):
    """Each fault is told whole."""
    if found := list(faults):
        pytest.fail("\n".join(found), pytrace=False)


def test_both_courses_are_found():
    assert {label.split("/")[0] for label in LABELS} == set(ROOTS)


@every_course
def test_every_file_is_in_a_lesson_and_every_name_has_its_files(root):
    course = catalog.load(ROOTS[root])
    named = {f"{course.lesson_of(name).topic}/{name}.py" for name in course.exercise_names}
    for folder in ("exercises", "solutions"):
        here = ROOTS[root] / folder
        assert {p.relative_to(here).as_posix() for p in here.glob("*/*.py")} == named


@every_course
def test_a_lesson_has_at_most_five_core_exercises_or_more_short_ones(root):
    course = catalog.load(ROOTS[root])
    for lesson in course.lessons:
        core = {n: e.minutes for n in lesson.exercise_names if (e := course.exercise(n)).core}
        assert len(core) <= 5 or sum(core.values()) <= 65, f"{lesson.slug}: {core}"


@every_course
def test_no_two_exercises_of_a_lesson_share_a_title(root):
    """A title leads to its task: the link goes to the first heading of this text."""
    course = catalog.load(ROOTS[root])
    for lesson in course.lessons:
        titles = [catalog.anchor(course.card(name).title) for name in lesson.exercise_names]
        assert len(set(titles)) == len(titles), lesson.slug


@every_exercise
def test_form(label):
    _, _, exercise, solution = _found(label)
    none(laws.form(exercise, solution))


@every_exercise
def test_starter_is_not_attempted_and_fails(label):
    _, _, exercise, _ = _found(label)
    none(laws.starter(exercise))


@every_exercise
def test_right_answers_pass(label):
    _, _, exercise, solution = _found(label)
    none(laws.right_answers(exercise, solution))


@functools.cache
def _mistakes(label):
    """The faults of the law on mistakes, and the checks that reject one; `make proof` goes on after it."""
    course, name, _, _ = _found(label)
    rejecting = set()
    return list(laws.mistakes(course, name, rejecting, whole=False)), rejecting


@every_exercise
def test_mistakes_are_rejected_first_by_the_check_that_they_name(label):
    none(_mistakes(label)[0])


@every_exercise
def test_mutants_are_rejected_and_every_check_rejects_something(label):
    course, name, _, _ = _found(label)
    rejecting = set(_mistakes(label)[1])
    none(laws.mutations(course, name, rejecting, SAMPLE))


# --- the same for everybody, every time --------------------------------------------------------------


@contextlib.contextmanager
def odd_session(tmp_path, monkeypatch):
    """A reader's session in which little is as usual; gives a function that says what it is now."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEFT_BY_READER", "1")
    kept = torch.get_default_dtype(), torch.get_num_threads(), torch.get_rng_state(), random.getstate()
    precision = torch.get_float32_matmul_precision()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(3)
    torch.manual_seed(5)
    random.seed(5)
    torch.set_float32_matmul_precision("high")
    torch.set_printoptions(precision=2)
    torch.autograd.set_detect_anomaly(True)
    hook = torch.nn.modules.module.register_module_forward_hook(lambda *args: None)
    try:
        with torch.no_grad(), torch.autocast("cpu", enabled=True):
            yield lambda: {
                "default dtype": torch.get_default_dtype(),
                "default device": torch.get_default_device(),
                "threads": torch.get_num_threads(),
                "torch's random state": torch.get_rng_state().tolist(),
                "random state": random.getstate(),
                "grad mode": torch.is_grad_enabled(),
                "inference mode": torch.is_inference_mode_enabled(),
                "autocast": torch.is_autocast_enabled("cpu"),
                "anomaly detection": torch.is_anomaly_enabled(),
                "precision of products": torch.get_float32_matmul_precision(),
                "print options": str(torch.tensor(1 / 3)),
                "folder": Path.cwd(),
                "environment": dict(os.environ),
                "global hooks": dict(torch.nn.modules.module._global_forward_hooks),
                "torch.equal": torch.equal,
            }
    finally:
        hook.remove()
        torch.autograd.set_detect_anomaly(False)
        torch.set_printoptions(profile="default")
        torch.set_float32_matmul_precision(precision)
        torch.set_default_dtype(kept[0])
        torch.set_num_threads(kept[1])
        torch.set_rng_state(kept[2])
        random.setstate(kept[3])


@pytest.mark.parametrize("label", [label for label in LABELS if _found(label)[2].core])
def test_an_odd_session_gives_the_same_report_and_is_left_as_it_was(label, tmp_path, monkeypatch):
    _, _, exercise, solution = _found(label)
    answers = [solution.reference, *(edited(solution, exercise, m) for m in solution.mistakes[:1])]
    usual = [str(attempt.grade(exercise, answer)) for answer in answers]
    with odd_session(tmp_path, monkeypatch) as now:
        before = now()
        for answer, report in zip(answers, usual, strict=True):
            assert str(attempt.grade(exercise, answer)) == report
            after = now()
            assert [name for name in before if before[name] != after[name]] == []


# --- the laws can be broken ---------------------------------------------------------------------------


@every_course
def test_lessons_are_in_the_voice_of_the_course(root):
    for lesson in catalog.load(ROOTS[root]).lessons:
        assert not texts.faults(lesson.source.read_text(encoding="utf-8")), lesson.source.name


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
