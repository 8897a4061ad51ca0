"""Grades the answers of many notebooks, several at once.

Each exercise runs in a fork of its own, of the warm server: what an answer does to its process dies with it.
One that ends the server costs the others time, and none of their results.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from course_utils.exercise import Exercise
from course_utils.grading import answers, attempt
from course_utils.grading.answers import Recipe, UnreadableError
from course_utils.grading.attempt import Attempt
from course_utils.grading.forks import Forks, will_need
from course_utils.grading.missing import tell_missing
from course_utils.grading.report import Report
from course_utils.grading.starter import same_code
from course_utils.lessons.catalog import Course


@dataclass
class Submitted:
    """One notebook that was read: its answers by exercise, None where there is none; the `names` that it
    defines."""

    path: Path
    error: str = ""
    answers: list[tuple[Exercise, str, Recipe | None]] = field(default_factory=list)
    names: set[str] = field(default_factory=set)


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
    found = Submitted(path, names=notebook.names)
    for lesson in lessons:
        for name in lesson.exercise_names:
            exercise = course.exercise(name)
            found.answers.append((exercise, lesson.slug, notebook.recipe(exercise.answer_name, name)))
    if not found.answers:
        found.error = "this lesson has no exercises"
    return found


def grade_all(submitted: list[Submitted], jobs: int, on_done: Callable[[Graded], None]) -> list[Graded]:
    """Grades the notebooks, `jobs` at a time; returns what came of each, in the order given. `on_done` is
    called with each when it and all before it are done. On an interrupt all that runs is ended."""
    will_need({exercise.name: exercise for one in submitted for exercise, _, _ in one.answers}.values())
    graded: list[Graded] = []
    with Forks() as forks, ThreadPoolExecutor(max(1, jobs)) as pool:
        try:
            futures = [pool.submit(_grade, one, forks) for one in submitted]
            for future, one in zip(futures, submitted, strict=True):
                try:
                    graded.append(future.result())
                except Exception as error:  # its trouble is its own, and costs no other its results
                    why = f"it could not be graded: {type(error).__name__}: {error}"
                    graded.append(Graded(one.path, why))
                on_done(graded[-1])
            return graded
        finally:
            # Also on an interrupt: what still runs is ended, and what waits is not begun.
            pool.shutdown(wait=False, cancel_futures=True)
            forks.stop()


def _grade(one: Submitted, forks: Forks) -> Graded:
    graded, folder = Graded(one.path, one.error), str(one.path.absolute().parent)
    for exercise, lesson, recipe in one.answers:
        if recipe is None or same_code(recipe.source, exercise.started_from(recipe.source)):
            of = exercise.name, exercise.topic, exercise.title, exercise.answer_name
            report = Report(*of, not_attempted=True)
        else:
            report = attempt.report(Attempt(exercise, recipe, folder), forks)
            tell_missing(report, one.names)
        graded.lessons.append(lesson)
        graded.reports.append(report)
    return graded
