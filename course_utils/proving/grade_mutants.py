"""Grades mutants of one exercise, each up to the first check that rejects it."""

from __future__ import annotations

import ast
import contextlib
import functools
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from course_utils import machine, torch_private
from course_utils.exercise import Check, Exercise
from course_utils.exercise.states import COULD_NOT_CHECK, FAILED, PASSED, RAISED
from course_utils.grading import attempt
from course_utils.grading.check_run import Outcome, Place, run
from course_utils.grading.forks import READY_TO_COMPILE
from course_utils.lessons import catalog
from course_utils.processes.client import ServerProcess
from course_utils.processes.result import Result
from course_utils.processes.workers import Worker, close_all, tried_again
from course_utils.proving.mutants import Mutant, mutants
from course_utils.proving.wrappers import build, digest, wrapper_mutants

# A mutant gets this many times the seconds that the reference took, and no less than the second number.
TIMES, AT_LEAST = 5.0, 1.0

# So many at once where all checks are on ranks: most of the time goes into ranks that wait for each other.
AT_ONCE = 3
MUTANTS_AT_ONCE = 2  # elsewhere: each in a process of its own

T = TypeVar("T")
REJECTED, SURVIVED, NO_CHANGE = "rejected", "survived", "no change"


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant. *rejected*: `check` failed, and `how` is its state. *no change*: what was
    wrapped around the answer never made a difference, so there was no mutant."""

    mutant: Mutant
    state: str
    check: str = ""
    how: str = ""


def all_on_ranks(exercise: Exercise) -> bool:
    """Whether all checks are on ranks, which have processes of their own."""
    return all(check.ranks for check in exercise.checks)


def mapped(exercise: Exercise, grade: Callable[[Any], T], answers: Iterable[Any]) -> list[T]:
    """What `grade` gives for each answer, in their order. Checks in this process need its main thread."""
    if not all_on_ranks(exercise):
        return [grade(answer) for answer in answers]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(grade, answers))


def warm_up() -> None:
    """Where right answers have brought the compiler in, the processes of the mutants have it from the start.
    Returns at once."""
    if torch_private.DYNAMO in sys.modules:
        Worker(preload=(READY_TO_COMPILE,)).close()


class MutantGrader:
    """The mutants run in warm processes; one that does not end, or ends its process, costs that process.
    Checks on ranks have processes of their own anyway."""

    def __init__(self, root: Path, name: str) -> None:
        self.root, self.name = root, name
        course = catalog.load(root)
        self.exercise, self.solution = course.exercise(name), course.solution(name)
        self._folder = tempfile.TemporaryDirectory(prefix="mutants-")
        self._idle: list[Worker] = []
        self._times: dict[str, float] = {}
        source, answer = self.solution.source, self.exercise.answer_name
        self.mutants = [*mutants(source), *wrapper_mutants(source, answer)]
        self.trouble = ""  # why no mutant can be tried

    def __enter__(self) -> MutantGrader:
        # The reference as mutants are made of it, by which their time is measured.
        same = Mutant("nothing changed", ast.unparse(ast.parse(self.solution.source)))
        mark = Path(self._folder.name) / digest(same)
        here = [check for check in self._checks() if not check.ranks]
        result = self._call(_time_reference, same, mark, [check.name for check in here], deadline=300)
        if result.state != "returned":
            self.trouble = f"the reference {result.describe()}"
            return self
        for check in self._checks():
            if check.ranks:
                answer = build(same, self.exercise.answer_name, mark)
                outcome = attempt.on_ranks(check, answer, Place(), check.deadline)
                result.value[check.name] = outcome.state, outcome.seconds
        self._times = {name: max(AT_LEAST, TIMES * seconds) for name, (_, seconds) in result.value.items()}
        failing = [f"{name} ({state})" for name, (state, _) in result.value.items() if state != PASSED]
        if failing:
            reference = "the reference, without what stands below `# Other right answers`,"
            self.trouble = f"{reference} does not pass {', '.join(failing)}"
        return self

    def __exit__(self, *_: object) -> None:
        close_all(self._idle)
        self._folder.cleanup()

    def sample(self, count: int | None) -> list[Mutant]:
        """The same `count` mutants on every run, chosen by their digest; all for None."""
        return self.mutants if count is None else sorted(self.mutants, key=digest)[:count]

    def try_all(self, wanted: list[Mutant], listed: Collection[str]) -> list[Verdict]:
        """The verdict on each, as `try_mutant` gives it; `listed` are the descriptions to be patient with."""
        together = AT_ONCE if all_on_ranks(self.exercise) else MUTANTS_AT_ONCE
        patient = [mutant.description in listed for mutant in wanted]
        with ThreadPoolExecutor(together) as pool:
            return list(pool.map(functools.partial(self.try_mutant, together=together), wanted, patient))

    def try_mutant(
        self, mutant: Mutant, patient: bool = False, only: str | None = None, together: int = 1
    ) -> Verdict:
        """Grades the mutant up to the first check that fails; `only`: by that check alone. `patient`: with
        the deadlines of the checks, for what should pass also on a busy machine. `together`: how many are
        tried at the same time."""
        mark = Path(self._folder.name) / digest(mutant)
        checks = [check for check in self._checks() if only in (None, check.name)]
        times = {c.name: c.deadline if patient else self._times[c.name] * together for c in checks}
        here = [(check.name, times[check.name]) for check in checks if not check.ranks]
        passed = False
        if here:
            result = self._call(_try, mutant, mark, here, deadline=sum(t for _, t in here) + 5)
            if result.state != "returned":
                return Verdict(mutant, REJECTED, "", result.state)
            name, state = result.value
            if state in FAILED:
                return Verdict(mutant, REJECTED, name, state)
            passed = state == PASSED
        for check in checks:
            if check.ranks:
                answer = build(mutant, self.exercise.answer_name, mark)
                outcome = attempt.on_ranks(check, answer, Place(), times[check.name])
                if outcome.state in FAILED:
                    return Verdict(mutant, REJECTED, check.name, outcome.state)
                passed = passed or outcome.state == PASSED
        if not passed:
            return Verdict(mutant, REJECTED, "", COULD_NOT_CHECK)
        if mutant.marked and not mark.exists():
            return Verdict(mutant, NO_CHANGE)
        return Verdict(mutant, SURVIVED)

    def _checks(self) -> list[Check]:
        return [c for c in self.exercise.checks if all(map(machine.has, c.needs))]

    def _call(self, function: Callable[..., Any], *args: Any, deadline: float) -> Result:
        def once(server: ServerProcess | None) -> list[Result]:
            worker = Worker(server=server) if server else self._worker()
            result = worker.call(function, self.root, self.name, *args, deadline=deadline)
            if result.state == "returned" and not server:
                self._idle.append(worker)
            else:
                worker.close()
            return [result]

        return tried_again(once)[0]

    def _worker(self) -> Worker:
        with contextlib.suppress(IndexError):  # all are at work
            return self._idle.pop()
        return Worker()


def _compile_eagerly() -> None:
    """What the compiler would generate code for runs as it is: a mutant is no test of the generator."""
    torch_private.CompileWrapper.__call__ = lambda self, module, inputs: module.forward


def _run(check: Check, answer: Any, deadline: float) -> Outcome:
    if dynamo := sys.modules.get(torch_private.DYNAMO):
        dynamo.reset()
    device = next((need for need in check.needs if need in ("cuda", "mps")), "cpu")
    return run(check, answer, Place(device if "device" in check.wants else None), deadline)


def _time_reference(
    root: Path, name: str, same: Mutant, mark: Path, checks: list[str]
) -> dict[str, tuple[str, float]]:
    _compile_eagerly()
    exercise = catalog.load(root).exercise(name)
    answer, found = build(same, exercise.answer_name, mark, importable=True), {}
    for check in exercise.checks:
        if check.name in checks:
            modules = len(sys.modules)
            outcome = _run(check, answer, check.deadline)
            if len(sys.modules) > modules:  # it imported, which takes no time again
                outcome = _run(check, answer, check.deadline)
            found[check.name] = outcome.state, outcome.seconds
    return found


def _try(
    root: Path, name: str, mutant: Mutant, mark: Path, checks: list[tuple[str, float]]
) -> tuple[str, str]:
    """(check, state) of the first check that fails; *passed* where one passed and none failed."""
    _compile_eagerly()
    exercise = catalog.load(root).exercise(name)
    by_name = {check.name: check for check in exercise.checks}
    passed = False
    try:
        answer = build(mutant, exercise.answer_name, mark, importable=True)
    except Exception:  # a class body that raises, say
        return "", RAISED
    for check, deadline in checks:
        outcome = _run(by_name[check], answer, deadline)
        if outcome.state in FAILED:
            return check, outcome.state
        passed = passed or outcome.state == PASSED
    return "", PASSED if passed else COULD_NOT_CHECK
