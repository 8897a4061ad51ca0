"""The laws that every exercise keeps, found automatically: nobody has to remember to test a new one."""

from __future__ import annotations

import itertools
import os
import random
import sys
from pathlib import Path

import laws
import mutate
import pytest
import torch

from course_utils import catalog, check_grading, grader, machine
from course_utils.conduct import COULD_NOT_CHECK, FAILED, PASSED, RAISED, TIMED_OUT, WRONG, Outcome
from course_utils.report import Report

LABELS = laws.labels()
every_exercise = pytest.mark.parametrize("label", LABELS)
# Mutants of each exercise that are graded here; `make mutations` grades all of them.
SAMPLE = 25
every_course = pytest.mark.parametrize("root", laws.ROOTS)


@pytest.fixture(autouse=True)
def as_in_a_readers_kernel(monkeypatch):
    """Nothing in the course's folder can be imported by name."""
    elsewhere = [entry for entry in sys.path if Path(entry).resolve() != laws.ROOTS["course"]]
    monkeypatch.setattr(sys, "path", elsewhere)


def test_both_courses_are_found():
    assert {label.split("/")[0] for label in LABELS} == set(laws.ROOTS)


@every_course
def test_every_file_is_in_a_lesson_and_every_name_has_its_files(root):
    course = catalog.load(laws.ROOTS[root])
    named = {f"{course.lesson_of(name).topic}/{name}.py" for name in course.exercise_names}
    for folder in ("exercises", "solutions"):
        here = laws.ROOTS[root] / folder
        assert {p.relative_to(here).as_posix() for p in here.glob("*/*.py")} == named


# --- the answers that the course carries -------------------------------------------------------------


@every_exercise
def test_starter_is_not_attempted_and_fails(label):
    study = laws.study(label)
    typed = study.starter_as_typed()
    assert grader.is_starter(study.exercise, typed)
    report = study.grade(typed, diagnose=False)
    assert report.state in FAILED, f"what the reader starts from is {report.state}"


@every_exercise
def test_other_answers_are_not_taken_for_the_starter(label):
    study = laws.study(label)
    same = [a.label for a in study.answers if grader.is_starter(study.exercise, a.value)]
    assert not same


@every_exercise
def test_right_answers_pass(label):
    study = laws.study(label)
    for answer in study.right_answers:
        report = study.report(answer)
        assert report.state == PASSED, f"{answer.label}\n{report}"
        unknown = {o.check for o in report.outcomes if o.state == COULD_NOT_CHECK}
        lacking = {c.name for c in study.exercise.checks if not all(map(machine.has, c.needs))}
        assert unknown == lacking, f"{answer.label}\n{report}"


@every_exercise
def test_right_answers_pass_on_every_device(label):
    study = laws.study(label)
    for check in study.exercise.checks:
        if "device" not in check.wants or check.name in _lacking(study):
            continue
        seen = {o.device for o in study.report(study.reference).outcomes if o.check == check.name}
        wanted = {need for need in check.needs if need in ("cuda", "mps")} or set(machine.devices())
        assert seen == wanted


@every_exercise
def test_mistakes_are_rejected_and_named(label):
    study = laws.study(label)
    for answer in study.wrong_answers:
        report = study.report(answer)
        assert report.state in FAILED, f"{answer.label} is {report.state}\n{report}"
        told = f"{answer.label} is taken for {report.diagnosis}\n{report}"
        assert report.diagnosis == answer.expected, told


@every_exercise
def test_forms_behave_differently_from_each_other(label):
    """What behaves alike is a variant: it is recognised without being run."""
    study = laws.study(label)
    for mistake in study.exercise.mistakes:
        forms = [one for one in [*study.mistakes, *study.forms] if one.expected == mistake.name]
        for a, b in itertools.combinations(map(study.report, forms), 2):
            same = [grader.alike(*pair) for pair in zip(a.outcomes, b.outcomes, strict=True)]
            assert not all(same), f"two forms of {mistake.name} behave alike"


@every_exercise
def test_mistakes_run_and_pass_some_check(label):
    study = laws.study(label)
    for answer in [*study.mistakes, *study.forms]:
        report = study.report(answer)
        assert report.passed or laws.never_wrong(report), f"{answer.label} passes no check\n{report}"


@every_exercise
def test_a_mistake_does_the_same_where_notebooks_are_graded(label):
    """There it comes from the text of its file, in a process that never had the file imported."""
    study = laws.study(label)
    mistake = study.mistakes[0]
    outcomes = study.report(mistake).outcomes
    grading = check_grading._Grading([study.exercise], 1, 1)
    try:
        for (check, place), here in zip(grader.visits(study.exercise), outcomes, strict=True):
            if here.state != COULD_NOT_CHECK:
                there = grading._mistakes.run(check, mistake.value, place, check.deadline)
                assert grader.alike(there, here), f"{check.name}: {there.message}\nhere: {here.message}"
    finally:
        grading.stop()


@every_exercise
def test_failing_checks_say_why(label):
    study = laws.study(label)
    for answer in study.wrong_answers:
        for outcome in study.report(answer).outcomes:
            if outcome.state in FAILED:
                assert outcome.message, f"{answer.label}: {outcome.check} says nothing"
                found = laws.faults("\n".join(outcome.message))
                assert not found, f"{answer.label}: {outcome.check}: {outcome.message}"


@every_exercise
def test_answers_of_another_kind_fail(label):
    study = laws.study(label)
    for nonsense in (lambda *args, **kwargs: None, lambda *args, **kwargs: "four", lambda: 0):
        nonsense.__name__ = study.exercise.answer_name
        assert study.grade(nonsense).state in FAILED


# --- the checks, tried on mechanical changes of the reference -------------------------------------------


@every_exercise
def test_mutants_of_the_reference_are_rejected(label):
    study = laws.study(label)
    with mutate.Bench(study.course.root, study.name) as bench:
        assert not bench.unusable, "the reference does not pass where its mutants are graded"
        verdicts = [bench.try_mutant(mutant) for mutant in bench.sample(SAMPLE)]
        passed = [v.mutant.description for v in verdicts if v.state == mutate.SURVIVED]
        assert set(passed) <= set(bench.listed)


@every_exercise
def test_mutants_that_are_listed_survive_and_make_no_difference(label):
    study = laws.study(label)
    with mutate.Bench(study.course.root, study.name) as bench:
        by_name = {mutant.description: mutant for mutant in bench.mutants}
        for description, why in bench.listed.items():
            assert description in by_name, f"{description} is no mutant of the reference"
            assert bench.try_mutant(by_name[description]).state == mutate.SURVIVED, description
            assert bench.agrees(by_name[description]), f"{description} gives something else"
            assert why.strip(), f"{description} does not say why"
        assert len(bench.listed) <= mutate.may_survive(len(bench.mutants))


@every_exercise
def test_every_check_alone_rejects_something(label):
    study = laws.study(label)
    if not (idle := [name for name in study.idle_checks() if name not in _lacking(study)]):
        return
    with mutate.Bench(study.course.root, study.name) as bench:
        for name in idle:
            tried = (bench.try_mutant(mutant, only=name) for mutant in bench.mutants)
            assert any(v.state == mutate.REJECTED for v in tried), f"{name} rejects no wrong answer at all"


# --- the same for everybody, every time --------------------------------------------------------------


@pytest.fixture
def odd_state(tmp_path, monkeypatch):
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
    hook.remove()
    torch.autograd.set_detect_anomaly(False)
    torch.set_printoptions(profile="default")
    torch.set_float32_matmul_precision(precision)
    torch.set_default_dtype(kept[0])
    torch.set_num_threads(kept[1])
    torch.set_rng_state(kept[2])
    random.setstate(kept[3])


@every_exercise
def test_another_run_in_an_odd_session_gives_the_same_report_and_changes_nothing(label, odd_state):
    study = laws.study(label)
    usual = [(answer, study.report(answer)) for answer in [study.reference, *study.few_that_fail_all()]]
    before = odd_state()
    for answer, report in usual:
        again = study.grade(answer.value)
        assert laws.comparable(again) == laws.comparable(report), answer.label
        after = odd_state()
        assert [name for name in before if before[name] != after[name]] == [], answer.label


# --- what an exercise is made of ---------------------------------------------------------------------


@every_exercise
def test_an_exercise_is_whole(label):
    study = laws.study(label)
    exercise, few = study.exercise, study.is_prediction
    assert len(exercise.checks) >= 4
    assert len(exercise.mistakes) >= (2 if few else 4)
    assert len({check.name for check in exercise.checks}) == len(exercise.checks)
    assert len({check.title for check in exercise.checks}) == len(exercise.checks)
    assert len({mistake.name for mistake in exercise.mistakes}) == len(exercise.mistakes)
    assert len(exercise.hints) == 3
    assert 1 <= exercise.minutes <= 60
    if not few:
        assert sum(bool(mistake.variants) for mistake in exercise.mistakes) >= 2
        assert len(study.solution.also_right) >= 2


@every_exercise
def test_variants_and_other_answers_are_written_independently(label):
    study = laws.study(label)
    seen = {}
    for answer in study.answers:
        code = repr(grader.fingerprint(answer.value))
        assert code not in seen, f"{answer.label} is {seen[code]} again"
        seen[code] = answer.label


@every_exercise
def test_texts_are_in_the_voice_of_the_course(label):
    study = laws.study(label)
    for where, text in laws.texts(study.exercise, study.solution):
        assert text.strip(), f"{where} is empty"
        assert not laws.faults(text), f"{where}: {', '.join(laws.faults(text))}"
        if where == "the title" or where.startswith("check "):
            assert not text.endswith("."), f"{where} is a title: no full stop"
            assert len(text) <= 90, f"{where} does not fit on a line"
        else:
            assert text.rstrip().endswith((".", "?", "`", ":", ")", "|", "*")), f"{where} does not end"


@every_exercise
def test_hints_do_not_give_the_answer_away(label):
    study = laws.study(label)
    for number, hint in enumerate(study.exercise.hints, 1):
        found = laws.given_away(hint, study.solution.source)
        assert not found, f"hint {number} holds code of the reference: {found}"


@every_course
def test_lessons_are_in_the_voice_of_the_course(root):
    for lesson in catalog.load(laws.ROOTS[root]).lessons:
        assert not laws.faults(lesson.source.read_text(encoding="utf-8")), lesson.source.name


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
    assert laws.faults(text) == found


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
    assert bool(laws.given_away(hint, source)) == given_away


def test_answers_that_only_raise_need_pass_nothing():
    def report(*states):
        return Report("e", "t", "E", outcomes=[Outcome("c", "c", state) for state in states])

    assert laws.never_wrong(report(RAISED, TIMED_OUT, COULD_NOT_CHECK))
    assert not laws.never_wrong(report(RAISED, WRONG))
    assert not laws.never_wrong(report(COULD_NOT_CHECK))


def _lacking(study):
    return {check.name for check in study.exercise.checks if not all(map(machine.has, check.needs))}
