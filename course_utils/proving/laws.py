"""The laws that every exercise keeps. Each gives the faults it found, in sentences: none is none. `run` is
`course prove`, for whoever is writing an exercise."""

import contextlib
import io
import re
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from course_utils import machine
from course_utils.exercise import Exercise, Mistake
from course_utils.exercise.states import COULD_NOT_CHECK, FAILED, PASSED, RAISED, WRONG
from course_utils.grading import attempt
from course_utils.grading.report import Report
from course_utils.grading.starter import is_starter
from course_utils.lessons import catalog
from course_utils.lessons.catalog import Course
from course_utils.lessons.solutions import Solution, module_of
from course_utils.processes import client
from course_utils.proving import families, grade_mutants, hard_input, placements, stale
from course_utils.proving.named import names
from course_utils.proving.texts import TO_WRITE, code_lines, faults, given_away, prose, texts
from course_utils.proving.written import edited

MOST_LINES = 320  # of an exercise's file
MOST_COLUMNS = 88  # of code that a reader sees: what a cell of JupyterLab shows beside its side bar
MOST_WORDS = 120  # of a task, code counted as a word
# Of a core exercise; a sitting of the capstone finds all at once what six lessons taught apart.
MOST_MINUTES, SITTING = 20, 60
CHECKS = range(3, 8)
MISTAKES = range(3, 9)


def is_prediction(solution: Solution) -> bool:
    """Whether the answer is what a reader wrote down, not something that does anything."""
    code = getattr(solution.reference, "__code__", None)
    return code is not None and code.co_argcount == 0 and "predict" in code.co_name


def form(exercise: Exercise, solution: Solution) -> Iterator[str]:
    """What an exercise is made of, and how it is written."""
    lines = len(exercise.path.read_text(encoding="utf-8").splitlines())
    if lines > MOST_LINES:
        yield f"its file has {lines} lines, at most {MOST_LINES} are allowed"
    if (words := len(prose(exercise.task).split())) > MOST_WORDS:
        yield f"the task has {words} words, at most {MOST_WORDS} are allowed"
    for line in [*exercise.starter_source.splitlines(), *code_lines(exercise.task)]:
        if len(line) > MOST_COLUMNS:
            yield f"a line of code has {len(line)} characters, at most {MOST_COLUMNS} are allowed: {line}"
    most = SITTING if exercise.topic == "capstone" else MOST_MINUTES
    if exercise.core and exercise.minutes > most:
        yield f"a core exercise takes {most} minutes at most, not {exercise.minutes}"
    if len(exercise.hints) != 3:
        yield f"it has {len(exercise.hints)} hints, not 3"
    predicts = is_prediction(solution)
    if len(exercise.checks) not in CHECKS and not predicts:
        yield f"it has {len(exercise.checks)} checks, not 3 to 7"
    if len(solution.mistakes) not in MISTAKES and not predicts:
        yield f"it lists {len(solution.mistakes)} mistakes, not 3 to 8"
    if not predicts and len(solution.also_right) < 2:
        yield "it has fewer than two other right answers"
    for check in exercise.checks:
        if not check.why:
            yield f"check {check.name} has no why: the paragraph below the first line of its docstring"
    titles = [check.title for check in exercise.checks]
    if len(set(titles)) != len(titles):
        yield "two checks have the same title"
    for where, text in texts(exercise, solution):
        if text.startswith(TO_WRITE):
            yield f"{where} is still to be written"
            continue
        for fault in faults(text):
            yield f"{where} has {fault}"
        if where == "the title" or where.startswith("check "):
            if text.endswith("."):
                yield f"{where} is a title: no full stop"
            if len(text) > 90:
                yield f"{where} does not fit on a line of 90 characters"
        elif text and not text.rstrip().endswith((".", "?", "`", ":", ")", "|", "*")):
            yield f"{where} does not end"
    for number, hint in enumerate(exercise.hints, 1):
        if found := given_away(hint, solution.source):
            yield f"hint {number} holds code of the reference: {found}"


def starter(exercise: Exercise) -> Iterator[str]:
    """What the reader starts from is not attempted, and fails where it is graded all the same."""
    typed = starter_as_typed(exercise)
    if not is_starter(exercise, typed):
        yield "the starter as a reader has it is not taken for the starter"
    answers = [typed, lambda *args, **kwargs: None, lambda *args, **kwargs: "four", lambda: 0]
    for nonsense in answers[1:]:
        nonsense.__name__ = exercise.answer_name
    first, *others = grade_mutants.mapped(exercise, lambda answer: _until_it_fails(exercise, answer), answers)
    if first.state not in FAILED:
        yield f"what the reader starts from {_came_out(first)}"
    for report in others:
        if report.state not in FAILED:
            yield f"an answer of another kind {_came_out(report)}"


def _until_it_fails(exercise: Exercise, answer: Any) -> Report:
    """The report of the first check that fails alone; where none does, of all."""
    for check in exercise.checks:
        report = attempt.grade(replace(exercise, checks=[check]), answer, devices=["cpu"])
        if report.state in FAILED:
            return report
    return attempt.grade(exercise, answer)


def _came_out(report: Report) -> str:
    said = {WRONG: "is wrong", RAISED: "raised an error", COULD_NOT_CHECK: "could not be checked"}
    return said.get(report.state, report.state)


def right_answers(exercise: Exercise, solution: Solution, whole: bool = True) -> Iterator[str]:
    """The reference and the other right answers pass, on every device. Not `whole`: the others alone."""
    lacking = {c.name for c in exercise.checks if not all(map(machine.has, c.needs))}
    answers = [solution.reference, *solution.also_right][not whole :]
    reports = grade_mutants.mapped(exercise, lambda answer: attempt.grade(exercise, answer), answers)
    for answer, report in zip(answers, reports, strict=True):
        if report.state != PASSED:
            yield f"{answer.__name__}, a right answer, {_came_out(report)}:\n{report}"
        unknown = {o.check for o in report.outcomes if o.state == COULD_NOT_CHECK}
        if unknown - lacking:
            yield f"{answer.__name__} could not be checked by {', '.join(sorted(unknown - lacking))}"
        if answer is not solution.reference and is_starter(exercise, answer):
            yield f"{answer.__name__} is taken for the starter"
        for check in exercise.checks:
            if "device" in check.wants and check.name not in lacking:
                seen = {o.device for o in report.outcomes if o.check == check.name}
                wanted = {need for need in check.needs if need in ("cuda", "mps")}
                if seen != (wanted or set(machine.devices())):
                    yield f"{check.name} did not run on every device"


def mistakes(course: Course, name: str, rejecting: set[str], whole: bool = True) -> Iterator[str]:
    """Every mistake is rejected, first by the check that it names, and each report can be read. It is graded
    on the CPU: what is wrong there may fail earlier elsewhere. The names of the checks that reject one are
    added to `rejecting`. Not `whole`: no check runs after the one that a mistake names."""
    exercise, solution = course.exercise(name), course.solution(name)
    known = {check.name for check in exercise.checks}
    pasted: set[str] = set()
    answers = [edited(solution, exercise, mistake) for mistake in solution.mistakes]

    def graded(pair: tuple[Mistake, Any]) -> Report:
        names = [check.name for check in exercise.checks]
        upto = len(names) if whole or pair[0].told_by not in known else names.index(pair[0].told_by) + 1
        return attempt.grade(replace(exercise, checks=exercise.checks[:upto]), pair[1], devices=["cpu"])

    reports = grade_mutants.mapped(exercise, graded, zip(solution.mistakes, answers, strict=True))
    for mistake, answer, report in zip(solution.mistakes, answers, reports, strict=True):
        rejecting |= {o.check for o in report.outcomes if o.state in FAILED}
        if is_starter(exercise, answer):
            yield f"the mistake {mistake.label!r} is taken for the starter"
        if mistake.told_by not in known:
            yield f"the mistake {mistake.label!r} names no check of this exercise: {mistake.told_by}"
        elif report.state not in FAILED:
            lacking = next(c for c in exercise.checks if c.name == mistake.told_by).needs
            if all(map(machine.has, lacking)):
                yield f"the mistake {mistake.label!r} {_came_out(report)}"
        elif report.told_by != mistake.told_by:
            by = f"is told by {report.told_by}, not {mistake.told_by}"
            yield f"the mistake {mistake.label!r} {by}\n{report}"
        yield from _readable(exercise, report, f"the mistake {mistake.label!r}", answer, pasted)


def _readable(exercise: Exercise, report: Report, whose: str, answer: Any, pasted: set[str]) -> Iterator[str]:
    checks = {check.name: check for check in exercise.checks}
    for outcome in report.outcomes:
        if outcome.state not in FAILED:
            continue
        if not outcome.message:
            yield f"{whose}: {outcome.check} says nothing"
            continue
        for fault in faults("\n".join([*outcome.message, outcome.symptom])):
            yield f"{whose}: {outcome.check} says {fault}: {outcome.message}"
        if outcome.state == WRONG and not checks[outcome.check].ranks and outcome.check not in pasted:
            pasted.add(outcome.check)
            if fault := _does_not_run(outcome.message[0], exercise.answer_name, answer):
                yield f"{whose}: the example of {outcome.check} does not run when pasted: {fault}"


def _does_not_run(shown: str, name: str, answer: Any) -> str:
    """Why the example of a message cannot be pasted into a cell; no text where it can. What the answer itself
    raises is no fault of the example."""
    if not shown.startswith("for"):
        return ""
    code = shown.removeprefix("for\n") if "\n" in shown else shown.removeprefix("for `").removesuffix("`")
    names = {"torch": torch, "nn": torch.nn, "F": torch.nn.functional, "np": np, name: answer}
    names["dist"] = torch.distributed
    quiet = io.StringIO()
    try:
        program = compile(code, "<example>", "exec", dont_inherit=True)
        with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet), torch.enable_grad():
            exec(program, names)
    except SyntaxError as error:
        if error.filename == "<example>":
            return f"{error}\n{code}"
    except NameError as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        if last.filename == "<example>":
            return f"{error}\n{code}"
    except BaseException:
        pass
    return ""


def mutations(
    course: Course, name: str, rejecting: set[str], count: int | None, ran: Counter[str]
) -> Iterator[str]:
    """Mutants of the reference are rejected; those that are listed survive; each check rejects something.
    `count`: so many mutants, the same every time; None for all. `rejecting`: the checks that are known to.
    `ran["mutants"]` becomes how many were tried."""
    exercise, solution = course.exercise(name), course.solution(name)
    lacking = {c.name for c in exercise.checks if not all(map(machine.has, c.needs))}
    with grade_mutants.MutantGrader(course.root, name) as one:
        if one.trouble:
            yield f"none was tried: {one.trouble}"
            return
        listed = solution.equivalent
        tried = {v.mutant.description: v for v in one.try_all(one.sample(count), listed)}
        ran["mutants"] = len(tried)
        rejecting |= {verdict.check for verdict in tried.values()}
        for description, verdict in tried.items():
            if verdict.state == grade_mutants.SURVIVED and description not in listed:
                yield _survives(description, solution)
        by_name = {mutant.description: mutant for mutant in one.mutants}
        for description, why in listed.items():
            if description not in by_name:
                yield f"{description} is listed, and is no mutant of the reference"
            elif count is None and tried[description].state != grade_mutants.SURVIVED:
                yield f"{description} is listed as equivalent, and does not survive"
            if not why.strip():
                yield f"{description} does not say why it is equivalent"
        if len(listed) > max(2, len(one.mutants) // 15):
            yield f"{len(listed)} of {len(one.mutants)} mutants are listed as equivalent"
        for check in exercise.checks:
            if check.name in rejecting | lacking:
                continue
            if not any(
                one.try_mutant(m, only=check.name).state == grade_mutants.REJECTED for m in one.mutants
            ):
                yield f"check {check.name} rejects no wrong answer at all"


def _survives(description: str, solution: Solution) -> str:
    line = re.match(r"line (\d+):", description)
    shown = f", in `{solution.source.splitlines()[int(line[1]) - 1].strip()}`" if line else ""
    todo = "Add a check that sees it, or list it in `equivalent` with the reason."
    return f"no check sees this change of the reference: {description}{shown}. {todo}"


def starter_as_typed(exercise: Exercise) -> Any:
    """The starter as a reader has it: from its source, in a module of its own."""
    names = dict(vars(sys.modules[exercise.starter_object.__module__]), __name__="__main__")
    source, name = exercise.starter_source, f"cell of {exercise.name}"
    return getattr(module_of(source, name, importable=False, **names), exercise.answer_name)


def prove(
    course: Course, name: str, count: int | None = None, ran: Counter[str] | None = None
) -> Iterator[tuple[str, list[str]]]:
    """(law, its faults) for one exercise, one law after another. `ran` is filled with how much was tried."""
    ran = Counter() if ran is None else ran
    exercise, solution = course.exercise(name), course.solution(name)
    rejecting: set[str] = set()
    yield "form", list(form(exercise, solution))
    yield "names", list(names(course, name))
    yield "hard input", [] if is_prediction(solution) else list(hard_input.faults(exercise, solution))
    yield "starter", list(starter(exercise))
    wrong = list(right_answers(exercise, solution))
    yield "right answers", wrong
    if any(fault.startswith(f"{solution.reference.__name__}, a right answer,") for fault in wrong):
        yield "the rest", ["not tried until the solution passes: mistakes and mutations are made of it"]
        return
    grade_mutants.warm_up()
    yield "mistakes", list(mistakes(course, name, rejecting))
    yield "mutations", list(mutations(course, name, rejecting, count, ran))
    ran["checks"] = len(exercise.checks)
    ran["cases"] = sum(len(check.cases) for check in exercise.checks)
    ran["answers"] = 1 + len(solution.also_right) + len(solution.mistakes)


def run(names: list[str], sample: int | None = None) -> int:
    """`course prove`: proves these exercises and families of questions, or all, and prints the faults and how
    much was tried; of exercises that are named also what is to be mended around them. Returns 0 where there
    is no fault. Raises `CourseError` where there is none of that name, or its file is not whole."""
    course = catalog.load()
    asked = [name for name in course.family_names if name in names or not names]
    named = [course.name_for(word) or word for word in names if word not in asked]
    for name in named:
        course.lesson_of(name)
    # As in a reader's kernel: nothing in the course's folder can be imported by name.
    sys.path = [entry for entry in sys.path if Path(entry).resolve() != course.root]
    client.warm_up()
    bad = sum(not families.report(course, name) for name in asked)
    if not names:
        bad += not placements.report(course)
    for name in named if names else course.exercise_names:
        started, found, ran = time.perf_counter(), 0, Counter()
        for law, faults_found in prove(course, name, sample, ran):
            found += len(faults_found)
            for fault in faults_found:
                print(f"  {law}: {fault}", flush=True)
        bad += bool(found)
        says = f"{found} fault{'s' * (found > 1)}" if found else "holds"
        much = ", ".join(f"{ran[what]} {what}" for what in ("checks", "cases", "answers", "mutants"))
        seconds = time.perf_counter() - started
        where = " and ".join(machine.devices())
        head = f"{'✗' if found else '✓'} {course.card(name).full_name}: {says}"
        print(f"{head} ({much} on {where}, {seconds:.1f} s)", flush=True)
    for todo in stale.to_mend(course, named):
        print(f"  also: {todo}")
    return 1 if bad else 0
