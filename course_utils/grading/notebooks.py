"""Grades the answers of many notebooks in warm processes.

The checks of one notebook's answers run in one process, those of an exercise in one call. After anything
suspicious (an answer died, ran late, changed what decides a check, left something running) the process is
replaced before the next exercise. Isolated checks and checks on ranks have processes of their own.
"""

from __future__ import annotations

import ast
import marshal
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

# All that grading needs is imported before the first answer runs: it may delete files.
from course_utils import machine
from course_utils.exercise import Check, Exercise
from course_utils.exercise.states import COULD_NOT_CHECK, DIED, PASSED, RAISED, STATES, WRONG
from course_utils.grading import answers, attempt, check_process, tampering
from course_utils.grading.answers import Recipe, UnreadableError
from course_utils.grading.check_process import PREPARING, Asked, Script, Seen, Setting
from course_utils.grading.check_run import Outcome, Place
from course_utils.grading.report import Report
from course_utils.lessons.catalog import Course
from course_utils.processes import ranks, workers

# Seconds that an answer is given, after its deadline was signalled to it, to end by itself.
UNWINDING = 1.0
# Seconds of checking after which a process reports what it has so far.
AT_ONCE = 1.0


# --- what is to be graded ----------------------------------------------------------------------------


@dataclass
class Submitted:
    """One notebook that was read: its answers by exercise, None where there is none."""

    path: Path
    error: str = ""
    answers: list[tuple[Exercise, str, Recipe | None]] = field(default_factory=list)


@dataclass
class Graded:
    """One notebook and what came of each of its exercises; `lessons` beside `reports`."""

    path: Path
    error: str = ""
    reports: list[Report] = field(default_factory=list)
    lessons: list[str] = field(default_factory=list)


def read(path: Path, course: Course) -> Submitted:
    """The answers in the notebook at `path`; what is wrong with it is in `error`."""
    try:
        notebook = answers.read(path)
    except UnreadableError as error:
        return Submitted(path, str(error))
    except RecursionError:
        return Submitted(path, "this notebook cannot be read: something in it is nested too deeply")
    lessons = answers.lessons_of(notebook, course)
    if not lessons:
        return Submitted(path, "this notebook is not of this course: it holds no answer to any exercise")
    found = Submitted(path)
    for lesson in lessons:
        for name in lesson.exercise_names:
            exercise = course.exercise(name)
            found.answers.append((exercise, lesson.slug, notebook.recipe(exercise.answer_name, name)))
    if not found.answers:
        found.error = "this lesson has no exercises"
    return found


# --- grading -----------------------------------------------------------------------------------------


def grade_all(
    submitted: list[Submitted], jobs: int, on_done: Callable[[Path], None] = lambda path: None
) -> list[Graded]:
    """Grades the notebooks, `jobs` at a time; returns what came of each, in the order given.

    `on_done` is called after each. On an interrupt all that runs is ended.
    """
    exercises = {exercise.name: exercise for one in submitted for exercise, _, _ in one.answers}
    grading = _Grading(exercises.values(), len(submitted), jobs)
    pool = ThreadPoolExecutor(max(1, jobs), thread_name_prefix="grading")
    futures: list[Future[Graded]] = []
    try:
        for one in submitted:
            futures.append(pool.submit(grading.grade, one))
            futures[-1].add_done_callback(lambda _, path=one.path: on_done(path))
        return [_result(future, one.path) for future, one in zip(futures, submitted, strict=True)]
    finally:
        # Also on an interrupt: what still runs is ended, and what waits is not begun.
        pool.shutdown(wait=False, cancel_futures=True)
        grading.stop()
        pool.shutdown()


def _result(future: Future[Graded], path: Path) -> Graded:
    """What came of a notebook; its trouble is its own, and costs no other its results."""
    try:
        return future.result()
    except Exception as error:
        return Graded(path, f"it could not be graded: {type(error).__name__}: {error}")


class _Grading:
    """What the notebooks of one run share: the exercises, the processes, and their limits."""

    def __init__(self, exercises: Collection[Exercise], notebooks: int, jobs: int) -> None:
        self.scripts = {exercise.name: check_process.script(exercise) for exercise in exercises}
        codes = [marshal.loads(script.code) for script in self.scripts.values()]
        self._names = frozenset(tampering.names_used(codes))
        self.processes = _Processes(_imports_of(self.scripts.values()), self._names, spare=notebooks > 1)
        self._jobs = jobs

    def grade(self, one: Submitted) -> Graded:
        """Everything about one notebook; what cannot be graded says so in its `error`."""
        graded = Graded(one.path, one.error)
        given = [(exercise, recipe) for exercise, _, recipe in one.answers if recipe is not None]
        scripts = [self.scripts[exercise.name] for exercise, _ in given]
        setting = Setting(tuple(scripts), self._names, str(one.path.absolute().parent))
        runner = _AnswerRunner(self.processes, setting)
        try:
            for exercise, lesson, recipe in one.answers:
                graded.lessons.append(lesson)
                if recipe is None:
                    graded.reports.append(_not_attempted(exercise))
                else:
                    graded.reports.append(self._report(given, runner))
                    del given[0]
        finally:
            runner.close()
        return graded

    def _report(self, given: list[tuple[Exercise, Recipe]], runner: _AnswerRunner) -> Report:
        """Of the first of these answers; the others are to follow. Where a process did not answer it is tried
        once more, and then it could not be checked."""
        for _ in range(2):
            try:
                return self._judge(given, runner)
            except workers.WorkersError as error:
                trouble = error
                runner.replace()
        exercise, _ = given[0]
        report = Report(exercise.name, exercise.topic, exercise.title, exercise.answer_name)
        for check, place in attempt.visits(exercise):
            why = [f"its process did not answer: {trouble}"]
            report.outcomes.append(Outcome(check.name, check.title, COULD_NOT_CHECK, why, place.device))
        return report

    def _judge(self, given: list[tuple[Exercise, Recipe]], runner: _AnswerRunner) -> Report:
        exercise, recipe = given[0]
        shared = runner.begin(given)
        report = _attempt(exercise, recipe, runner)
        if report.state in (WRONG, RAISED, DIED) and (shared or (self._jobs > 1 and _was_bystander(report))):
            # Perhaps it was an earlier answer of the same notebook, or another notebook's, that spoiled it.
            runner.replace()
            runner.begin(given[:1])
            report = _attempt(exercise, recipe, runner)
        return report

    def stop(self) -> None:
        """Ends every process that is left."""
        self.processes.stop()


def _not_attempted(exercise: Exercise) -> Report:
    return Report(exercise.name, exercise.topic, exercise.title, exercise.answer_name, not_attempted=True)


def _was_bystander(report: Report) -> bool:
    """Whether a process died because the server of all of them did: any answer may have killed it."""
    return any("warm server" in line for outcome in report.outcomes for line in outcome.message)


def _attempt(exercise: Exercise, recipe: Recipe, runner: _AnswerRunner) -> Report:
    report = Report(exercise.name, exercise.topic, exercise.title, exercise.answer_name)
    for outcome in attempt.outcomes(exercise, recipe, runner):
        report.outcomes.append(outcome)
        if runner.starter:
            break
    if runner.is_starter(recipe):
        report.not_attempted, report.outcomes = True, []
    return attempt.explained(report, exercise)


def _imports_of(scripts: Iterable[Script]) -> list[str]:
    """The modules that exercises import: a process that has them already is quicker to begin."""
    found = {"course_utils.grading.check_process"}
    for script in scripts:
        for node in ast.walk(ast.parse(script.source)):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module)
                found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return sorted(name for name in found if name in sys.modules)


# --- processes ---------------------------------------------------------------------------------------


class _Processes:
    """Fresh processes, the next one made ready while the one before works; and the end of used ones."""

    def __init__(self, preload: list[str], names: frozenset[str], spare: bool) -> None:
        self._preload = preload
        self._names = names
        self._keep_spare = spare
        self._spare: workers.Worker | None = None
        self._used: set[workers.Worker] = set()
        self._lock = threading.Lock()
        self._stopped = False
        self._closing = ThreadPoolExecutor(1, thread_name_prefix="closing")

    def take(self) -> workers.Worker:
        """A process that no answer has run in."""
        with self._lock:
            if self._stopped:
                raise workers.WorkersError("it was interrupted")
            worker, self._spare = self._spare or self._new(), None
            self._used.add(worker)
        if not worker.done:
            workers.attend([worker], PREPARING)
            if worker.finish().state != "returned":  # another one that need not get ready
                self.give_back(worker)
                return self.take()
        return worker

    def provide(self) -> None:
        """Starts a process for whoever comes next, which gets ready by itself."""
        with self._lock:
            if self._keep_spare and self._spare is None and not self._stopped:
                self._spare = self._new()
                self._spare.begin(check_process.get_ready, self._names)

    def give_back(self, worker: workers.Worker) -> None:
        """Ends a process, in the background."""
        with self._lock:
            if worker in self._used:
                self._used.remove(worker)
                self._closing.submit(worker.close)

    def import_first(self, names: Sequence[str]) -> None:
        """From here on new processes have these parts of torch: what one notebook's checks needed, the
        next one's will need too, and importing the compiler takes longer than grading."""
        if not names:
            return
        with self._lock:
            self._preload += names
            if self._spare is not None:
                self._closing.submit(self._spare.close)
                self._spare = None

    def stop(self) -> None:
        """Ends them all; returns when they are gone."""
        with self._lock:
            self._stopped = True
            left = [*self._used, *([self._spare] if self._spare is not None else [])]
            self._used.clear()
            self._spare = None
        for worker in left:
            worker.close()
        self._closing.shutdown()

    def _new(self) -> workers.Worker:
        preload, self._preload = self._preload, []
        return workers.Worker(preload=preload)


class _AnswerRunner:
    """Runs the checks of one notebook's answers (a `grader.Runner`)."""

    def __init__(self, processes: _Processes, setting: Setting) -> None:
        self._processes = processes
        self._setting = setting
        self._worker: workers.Worker | None = None
        self._fresh = True
        self._disturbed = False
        self._careful = False
        self._ahead: dict[str, _Ahead] = {}
        self._exercise: Exercise | None = None
        self._known: dict[tuple[str, str | None], Outcome] = {}
        self.starter: bool | None = None

    def begin(self, given: list[tuple[Exercise, Recipe]]) -> bool:
        """From here on the checks are those of the first of these answers; the others are to follow.

        True: another answer has run in the process before it.
        """
        self._exercise, _ = given[0]
        if self._disturbed:
            self.replace()
        if self._exercise.name not in self._ahead and not self._careful:
            self._run_ahead(given)
        ahead = self._ahead.pop(self._exercise.name, _Ahead(not self._fresh))
        self._known, self.starter = ahead.outcomes, ahead.starter
        return ahead.shared

    def _run_ahead(self, given: list[tuple[Exercise, Recipe]]) -> None:
        """Runs the plain checks of these answers together: asking for each costs more than most checks.

        Where the process dies or runs late nothing is known, and from then on each is asked for by itself.
        """
        asked = [(exercise.name, recipe, _plain_visits(exercise)) for exercise, recipe in given]
        asked = [one for one in asked if one[2]]
        if not asked:
            return
        longest = max(check.deadline for exercise, _ in given for check in exercise.checks)
        shared = not self._fresh
        found = self._ask(asked, AT_ONCE, AT_ONCE + longest + UNWINDING).value
        self._careful = found is None
        for name, seen in found or ():
            outcomes = {(one.outcome.check, one.outcome.device): one.outcome for one in seen}
            self._ahead[name] = _Ahead(shared, seen[-1].starter if seen else None, outcomes)
            shared = True

    def _ask(self, asked: list[Asked], seconds: float, deadline: float) -> workers.Result:
        """Plain checks in the process that has run the earlier ones; the value is that of
        `check_process.run`, or None where the call failed."""
        result = self._call(check_process.run, asked, seconds, deadline=deadline)
        if result.state != "returned" or not _is_found(result.value, asked):
            result.value = None
            self._disturbed = True
            return result
        seen = [one for _, several in result.value for one in several]
        self._disturbed = seen[-1].disturbed
        self._processes.import_first([name for one in seen for name in one.imported])
        return result

    def _call(self, function: Callable[..., Any], *args: Any, deadline: float) -> workers.Result:
        if self._worker is None:
            self._worker = self._processes.take()
            self._processes.provide()  # now, while this one works
        if self._fresh:
            function, args = check_process.begin, (self._setting, function, *args)
        self._fresh = False
        result = self._worker.call(function, *args, deadline=deadline)
        if not self._worker.alive:
            self.replace()
        return result

    def replace(self) -> None:
        """The next check begins in a fresh process."""
        if self._worker is not None:
            self._processes.give_back(self._worker)
        self._worker, self._fresh, self._disturbed = None, True, False

    def close(self) -> None:
        """Ends what is left."""
        self.replace()

    def run(self, check: Check, answer: Recipe, place: Place, deadline: float) -> Outcome:
        """One check; also asks whether the answer is the starter, where that is not known yet."""
        if (check.ranks or check.isolated) and self.is_starter(answer):
            return Outcome(check.name, check.title, COULD_NOT_CHECK)
        if check.ranks:
            return self._on_ranks(check, answer, place, deadline)
        if check.isolated:
            return self._alone(check, answer, place, deadline)
        return self._here(check, answer, place, deadline)

    def _here(self, check: Check, answer: Recipe, place: Place, deadline: float) -> Outcome:
        if (check.name, place.device) in self._known:
            return _whole(self._known[check.name, place.device], check, place)
        if self._disturbed:
            self.replace()
        asked = [(self._exercise.name, answer, [(check.name, place)])]
        result = self._ask(asked, 0.0, deadline + UNWINDING)
        if result.value is not None:
            seen = result.value[0][1][0]
            self.starter, result.value = seen.starter, seen.outcome
        return _outcome(result, check, answer, place, deadline)

    def _alone(self, check: Check, answer: Recipe, place: Place, deadline: float) -> Outcome:
        worker = self._processes.take()
        try:
            asked = self._exercise.name, answer, check.name, place
            arguments = self._setting, check_process.run_alone, *asked
            result = worker.call(check_process.begin, *arguments, deadline=deadline)
        finally:
            self._processes.give_back(worker)
        if result.state == "returned" and type(result.value) is Seen:
            self._processes.import_first(result.value.imported)
            result.value = result.value.outcome
        return _outcome(result, check, answer, place, deadline)

    def _on_ranks(self, check: Check, answer: Recipe, place: Place, deadline: float) -> Outcome:
        arguments = self._setting, self._exercise.name, answer, check.name, place.device
        results = ranks.ranks(check_process.run_rank, check.ranks, *arguments, deadline=deadline)
        found = [_outcome(result, check, answer, place, deadline) for result in results]
        return attempt.combine_ranks(found, check, place)

    def is_starter(self, answer: Recipe) -> bool:
        """Whether the answer does what the starter does."""
        if self.starter is None:
            name = self._exercise.name
            result = self._call(check_process.starter, name, answer, deadline=PREPARING)
            self.starter = result.state == "returned" and result.value is True
        return self.starter


@dataclass
class _Ahead:
    """What is known of one answer before its checks are asked for. `shared`: an answer had run before."""

    shared: bool
    starter: bool | None = None
    outcomes: dict[tuple[str, str | None], Outcome] = field(default_factory=dict)


def _plain_visits(exercise: Exercise) -> list[tuple[str, Place]]:
    """The checks that run in the process of the notebook, and that this machine can run."""
    return [
        (check.name, place)
        for check, place in attempt.visits(exercise)
        if not (check.isolated or check.ranks) and all(map(machine.has, check.needs))
    ]


def _is_found(value: Any, asked: list[Asked]) -> bool:
    """Whether this is what `check_process.run` returns."""
    try:
        return bool(value) and all(
            name == wanted[0] and seen and all(type(one) is Seen for one in seen)
            for (name, seen), wanted in zip(value, asked, strict=False)
        )
    except (TypeError, ValueError):
        return False


def _outcome(result: workers.Result, check: Check, answer: Recipe, place: Place, deadline: float) -> Outcome:
    """What came back as an outcome."""
    if result.position is not None:
        result.position.frames = [_with_line(frame, answer) for frame in result.position.frames]
    outcome = attempt.outcome_of(result, check, place, deadline)
    if outcome is result.value:
        return _whole(outcome, check, place)
    outcome.seconds = result.seconds
    return outcome


def _whole(outcome: Outcome, check: Check, place: Place) -> Outcome:
    """Only a whole outcome of this very check counts."""
    if outcome.check != check.name or outcome.device != place.device or outcome.state not in STATES:
        message = ["its process sent something that is not the outcome of this check"]
        return Outcome(check.name, check.title, DIED, message, place.device)
    if outcome.state == PASSED and not outcome.looks:
        outcome.state, outcome.message = COULD_NOT_CHECK, ["the check looked at nothing"]
    return outcome


def _with_line(frame: Any, answer: Recipe) -> Any:
    """The frame with its line of the notebook; nothing else is the reader's."""
    for piece in answer.pieces:
        lines = piece.source.split("\n")
        if piece.filename == frame.file and 0 <= frame.line - piece.first_line < len(lines):
            return replace(frame, source=lines[frame.line - piece.first_line].strip(), readers=True)
    return replace(frame, readers=False)
