"""What a reader calls in a notebook: `check`, `hint`, `solution`, `progress`, and a few helpers."""

from __future__ import annotations

import functools
import os
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from course_utils.wrong_use import public

if TYPE_CHECKING:  # imported by what uses them: a lesson's first cell should not wait for all of this
    import torch

    from course_utils.exercise import Exercise
    from course_utils.grading.coming_back import Resumed, Said
    from course_utils.grading.report import Note, Report
    from course_utils.lessons.catalog import Lesson
    from course_utils.practice.card import Card
    from course_utils.reader.progress import Progress
    from course_utils.reader.record import Record

Answer = Any  # a function or a class, or its name

# After this many attempts the solution is shown without asking twice.
ATTEMPTS_BEFORE_SOLUTION = 3


@public
def check(answer: Answer, *, save_progress: bool = True) -> Report | Note:
    """Grades an answer: a function or a class that has the name of an exercise, or that name.

    `save_progress=False` shows the report without counting an attempt. After a pass none is counted either.
    """
    from course_utils.exercise.states import FAILED, PASSED
    from course_utils.grading import attempt, starter
    from course_utils.grading.check_run import keep_for_debugger
    from course_utils.grading.missing import tell_missing
    from course_utils.grading.report import Note, Report
    from course_utils.reader import waiting

    names = _names_of_reader()
    exercise = _find(answer, names)
    if isinstance(exercise, Note):
        return exercise
    if isinstance(answer, str):
        name = exercise.answer_name
        if name not in names:
            return Note(f"There is no `{name}` yet.", f"Run the cell that defines it, then `check({name})`.")
        answer = names[name]
    _warm_up_for(exercise)
    if starter.is_starter(exercise, answer):
        return Report(exercise.name, exercise.topic, exercise.title, exercise.answer_name, not_attempted=True)
    with waiting.told(len(attempt.visits(exercise))) as begins:
        report = attempt.grade(exercise, answer, begins=begins)
    tell_missing(report, names)
    if broken := [outcome for outcome in report.outcomes if outcome.error is not None]:
        (its_check,) = (one for one in exercise.checks if one.name == broken[0].check)
        keep_for_debugger(broken[0].error, its_check)
    if report.state == PASSED:
        report.solution = _course().solution(exercise.name)
    elif report.state in FAILED:
        shown = _record().hints(exercise.name)
        if shown < len(exercise.hints):
            report.hint = (shown + 1, len(exercise.hints), exercise.hints[shown])
    if save_progress and _record().state(exercise.name) != PASSED:
        counts = report.state, report.passed, report.total
        _record().add_attempt(exercise.name, exercise.topic, *counts, told_by=report.told_by)
    if save_progress:
        report.notice = _record().news() or ""
    return report


@public
def hint(answer: Answer) -> Note:
    """Reveals the next hint of an exercise, and repeats those already seen. Before them stands the rule
    behind the check that failed last."""
    from course_utils.grading.report import Note

    exercise = _find(answer, _names_of_reader())
    if isinstance(exercise, Note):
        return exercise
    total = len(exercise.hints)
    seen = min(_record().reveal_hint(exercise.name), total)
    body = "\n".join(f"{i}. {text}" for i, text in enumerate(exercise.hints[:seen], 1))
    failed = _record().failed_check(exercise.name)
    for one in exercise.checks:
        if one.name == failed:
            body = f"What failed last: *{one.title}*. {' '.join(one.why.split())}\n\n{body}"
    if seen == total:
        body += f"\n\nThat was the last one. `solution({exercise.answer_name})` shows one way."
    return Note(f"{exercise.full_name} · hint {seen} of {total}", body)


@public
def solution(answer: Answer) -> Note:
    """Shows why an exercise's solution works, and its code: after passing, after three attempts, or
    when asked twice."""
    from course_utils.grading.report import Note

    exercise = _find(answer, _names_of_reader())
    if isinstance(exercise, Note):
        return exercise
    kept, name = _record(), exercise.answer_name
    asked = kept.ask_solution(exercise.name)
    earned = kept.state(exercise.name) == "passed" or kept.attempts(exercise.name) >= ATTEMPTS_BEFORE_SOLUTION
    if not earned and asked < 2:
        return Note(
            f"{exercise.full_name} · the solution is one more call away",
            f"You have not passed it yet. `hint({name})` is the smaller step. "
            f"To see the solution all the same, call `solution({name})` once more.",
        )
    kept.see_solution(exercise.name)
    found = _course().solution(exercise.name)
    return Note(exercise.full_name, found.why, found.source)


@public
def starter(answer: Answer) -> Note:
    """Gives an exercise's first cell back, as it was: in a new cell below. Your own is left alone. Where
    each reader has a copy of their own, that one."""
    from IPython import get_ipython

    from course_utils.grading.report import Note

    exercise = _find(answer, _names_of_reader())
    if isinstance(exercise, Note):
        return exercise
    title = f"{exercise.full_name} · the first cell, as it was"
    code = _record().own_copy(exercise)
    shell = get_ipython()
    if getattr(shell, "kernel", None) is None:
        return Note(title, "", code)
    shell.set_next_input(code.strip("\n"))
    return Note(title, "It stands in a new cell below. Your own is left alone.")


@public
def placement(*, anew: bool = False) -> Card:
    """Finds out what you know, by at most fifteen questions, and says where you start. It can be stopped and
    called again: it goes on where it was, unless `anew`."""
    from course_utils.practice.card import Card
    from course_utils.practice.sitting import PlacementSitting
    from course_utils.questions.maker import maker

    sitting = PlacementSitting(_course(), _record(), maker(), anew)
    answered = f"{sitting.asked} are answered. " if sitting.asked else ""
    start = (
        f"At most {sitting.most} questions, about ten minutes: what does the last line show? {answered}"
        '"I don\'t know" is an answer that helps. Stop when you like.'
    )
    return _on_the_table(Card(sitting, start))


@public
def practice() -> Card:
    """Asks what is due today: about ten questions on what you have learned, before you forget it."""
    from course_utils.practice.card import Card
    from course_utils.practice.sitting import PracticeSitting
    from course_utils.questions.maker import maker

    sitting = PracticeSitting(_course(), _record(), maker())
    card = Card(sitting, f"{sitting.most} questions on what you have learned; {len(sitting.due)} are due.")
    if not sitting.due:
        card.end()
    return _on_the_table(card)


@public
def answer(number: int | None = None) -> Note:
    """Answers the question of `placement()` or `practice()` that is asked, where there are no widgets: by its
    number, 0 for "I don't know"; without a number it goes on."""
    from course_utils.grading.report import Note

    if _table is None:
        return Note("No question is asked.", "`practice()` and `placement()` ask some.")
    sitting = _table.sitting
    most = len(sitting.question.choices) if sitting.question else 0
    if number is not None and (type(number) is not int or not 0 <= number <= most):
        wanted = f"a number from 0 to {most}" if sitting.question else "`answer()`: no question is asked now"
        return Note(f"There is no answer {number!r}.", f"Wanted: {wanted}.")
    return Note("", _table.answer(number))


_table: Card | None = None  # what was asked last


def _on_the_table(card: Card) -> Card:
    global _table
    _table = card
    return card


@public
def progress(*, all: bool = False, reset: Answer = None) -> Progress | Note:
    """Shows where you stand in this lesson and what is next.

    `all=True`, and where no lesson is open: the map of the whole course. `reset`: an answer or its name,
    whose attempts and hints count no more; in your record they stay, as forgotten.
    """
    from course_utils.grading.report import Note
    from course_utils.practice import cards
    from course_utils.reader.progress import Progress

    names = _names_of_reader()
    begun_anew = ""
    if reset is not None:
        exercise = _find(reset, names)
        if isinstance(exercise, Note):
            return exercise
        stood = _record().forget(exercise.name)
        attempts = f"{stood.attempts} attempt{'' if stood.attempts == 1 else 's'}"
        hints = f"{stood.hints} hint{'' if stood.hints == 1 else 's'}"
        begun_anew = f"{exercise.full_name} begins anew: {attempts} and {hints} are forgotten."
    due = len(cards.of_reader(_course(), _record())[1])
    shown = Progress(_course(), _record(), None if all else _lesson_here(names), due)
    shown.notice = " ".join(part for part in (begun_anew, shown.notice) if part)
    return shown


@public
def resume() -> Resumed | Said:
    """Runs what the exercise needs where you stopped, out of this notebook as it was last saved, and says
    where that is. For after a restart; works in any cell."""
    from course_utils.grading import coming_back

    names = _names_of_reader()
    file = _file_of(names)
    found = file if file is not None and file.is_file() else None
    return coming_back.resume(_course(), _record(), _lesson_here(names), found, names)


@public
def device(name: str | torch.device | None = None) -> torch.device:
    """The device that a lesson's cells use: `name`, else COURSE_DEVICE, else the best one present."""
    import torch

    from course_utils import machine

    return torch.device(name or os.environ.get("COURSE_DEVICE") or machine.devices()[-1])


@public
def run_ranks(
    fn: Callable[..., Any], world_size: int, *args: Any, deadline: float = 30.0, trace: bool = False
) -> Any:
    """Runs `fn(rank, world_size, *args)` in `world_size` real processes that form a process group.

    Prints what each rank printed, labelled, and returns what each returned, in the order of ranks.
    Raises `RankError` where a rank raised, died, or had not returned after `deadline` seconds; no
    process is left running.

    `trace=True` returns a `Trace` of what each rank did when, whatever became of them: `draw.lanes` draws
    it, `explore.lanes` steps through it, and `watching.lanes.trace_from_here()`, called in `fn`, leaves out
    what came before.
    """
    from course_utils.watching import run_ranks as several

    return several.run_ranks(fn, world_size, *args, deadline=deadline, trace=trace)


@public
def show_error(statement: Callable[[], Any]) -> None:
    """Calls `statement` and prints what it raised, so that a cell can show an error and go on.

        show_error(lambda: x.t().view(-1))

    Raises `AssertionError` where nothing was raised: the lesson then claims something false.
    """
    from course_utils.grading.check_run import steady

    try:
        statement()
    except Exception as error:
        # A notebook breaks long lines anywhere, also inside words.
        text = f"{type(error).__name__}: {steady(str(error))}"
        # An error that is shown by lines of its own, one for each rank, keeps them.
        lines = text.splitlines() if hasattr(error, "_render_traceback_") else [text]
        for line in lines:
            indent = line[: len(line) - len(line.lstrip())] + "    " * (len(lines) > 1)
            print(textwrap.fill(line, 72, break_long_words=False, subsequent_indent=indent))
    else:
        raise AssertionError("this was expected to raise an error, and did not")


def _names_of_reader() -> dict[str, Any]:
    """The names of the notebook, or of the module, from which the function that asks was called."""
    return sys._getframe(3).f_globals  # beyond that function and the test of its arguments


def _course() -> Any:
    from course_utils.lessons import catalog

    return catalog.load()


@functools.cache
def _record_at(path: str | None) -> Record:
    from course_utils.reader.record import open_record

    return open_record()


def _record() -> Record:
    return _record_at(os.environ.get("COURSE_RECORD"))


def _lesson_here(names: dict[str, Any]) -> Lesson | None:
    """The lesson of the notebook whose names these are, by its file or else by the answers in it; None where
    they don't tell."""
    file = _file_of(names)
    slug = file.name.partition(".")[0] if file else ""
    for lesson in _course().lessons:
        if lesson.slug == slug:
            return lesson
    answered = [
        lesson
        for lesson in _course().lessons
        if any(_course().card(name).answer_name in names for name in lesson.exercise_names)
    ]
    return answered[0] if len(answered) == 1 else None


def _file_of(names: dict[str, Any]) -> Path | None:
    """The file of the notebook whose names these are, as VS Code or Jupyter gives it."""
    file = names.get("__vsc_ipynb_file__") or os.environ.get("JPY_SESSION_NAME")
    return Path(str(file)) if file else None


def _find(answer: Any, namespace: dict[str, Any]) -> Exercise | Note:
    """The exercise that an answer (or its name) belongs to, or a note that says why there is none."""
    from course_utils.grading.report import Note
    from course_utils.lessons.catalog import nearest

    course = _course()
    words = [answer] if isinstance(answer, str) else [getattr(answer, "__name__", "")]
    if not isinstance(answer, str):
        # A lambda or a partial has no name of its own; the name that it is bound to counts.
        words += [word for word, value in namespace.items() if value is answer]
    for word in words:
        if word and (name := course.name_for(word)):
            return course.exercise(name)
    called = "for this value: it has no name. It may be what your function returned."
    if words[0]:
        names = [course.card(name).answer_name for name in course.exercise_names]
        called = f"called `{words[0]}`{nearest(words[0], names) or '.'}"
    return Note(
        f"There is no exercise {called}",
        "Pass the function or the class that the exercise asks for, under the name that it asks for. "
        "`progress()` lists those of this lesson.",
    )


def _warm_up_for(exercise: Exercise) -> None:
    """Starts the warm processes in the background where this lesson will need them."""
    texts = (path.read_text(encoding="utf-8") for path in exercise.path.parent.glob("*.py"))
    if any("isolated=True" in text or "ranks=" in text for text in texts):
        from course_utils.processes import client

        client.warm_up()
