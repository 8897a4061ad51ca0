"""What `check()` costs in the kernel, and what the engine adds to the checks' own work."""

import functools
import statistics
import sys
import time
import warnings

import cloudpickle

from course_utils import machine
from course_utils.exercise import Check, Exercise, expect
from course_utils.grading import attempt
from course_utils.grading.check_run import Place, fixtures, run
from course_utils.lessons import catalog
from course_utils.notebook import check
from tests.benchmarks.table import Row, interleaved, seconds


def rows() -> list[Row]:
    course = catalog.load()
    added, in_kernel, elsewhere = [], [], []
    # One in four, of every lesson: all of them take ten minutes.
    for exercise in map(course.exercise, course.exercise_names[::4]):
        reference = course.solution(exercise.name).reference
        check(reference, save_progress=False)  # what is imported or started once
        took = statistics.median(seconds(lambda a=reference: check(a, save_progress=False)) for _ in range(5))
        if apart := sum(1 for one in exercise.checks if one.isolated or one.ranks):
            elsewhere.append(1000 * took / apart)
        else:
            in_kernel.append(1000 * took)
        for one, place in attempt.visits(exercise, ["cpu"]):
            if not one.isolated and not one.ranks and all(machine.has(need) for need in one.needs):
                bare = functools.partial(_bare, one, reference, place)
                ours = functools.partial(run, one, reference, place, deadline=60)
                without, with_it = interleaved(bare, ours, 15 if seconds(bare) < 0.1 else 3)
                added.append(1000 * (with_it - without))
    return [
        Row(
            "engine's share of a plain check",
            statistics.median(added),
            5,
            unit="ms",
            detail=f"worst {max(added):.1f}",
        ),
        Row("engine's share of an isolated check", _isolated_ms(), 40, unit="ms"),
        Row(
            "check() of an exercise without processes, median",
            statistics.median(in_kernel),
            100,
            unit="ms",
            detail=f"worst {max(in_kernel):.0f}",
        ),
        Row(
            "check() of one with processes, for each such check, median",
            statistics.median(elsewhere),
            200,
            unit="ms",
            detail=f"worst {max(elsewhere):.0f}",
        ),
    ]


def _bare(check: Check, answer: object, place: Place) -> None:
    with warnings.catch_warnings(), fixtures(check, place) as given:
        warnings.simplefilter("ignore")  # a check may do what torch warns of
        check.function(answer, **given)


def _looks(answer: object) -> None:
    expect.looked()
    time.sleep(0)


def _isolated_ms() -> float:
    # As exercises do: each process would import this module, and what it needs.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    exercise = Exercise(minutes=1, hints=[])
    exercise.checks.append(Check("looks", "It looks", _looks, isolated=True, deadline=30))
    exercise.starter_object = len
    attempt.grade(exercise, len)
    return 1000 * statistics.median(seconds(lambda: attempt.grade(exercise, len)) for _ in range(20))
