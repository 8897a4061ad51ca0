"""What `check()` costs in the kernel, and what the engine adds to the checks' own work."""

import functools
import statistics
import sys
import time
import warnings

import cloudpickle

from course_utils import machine
from course_utils.exercise import Check, Exercise, cases, expect
from course_utils.grading import attempt
from course_utils.grading.check_run import Place, fixtures, run
from course_utils.lessons import catalog
from course_utils.notebook import check
from tests.benchmarks.table import Row, interleaved, seconds

# Of a report, once all is warm: without processes at the 95th percentile, with processes, and where a check
# builds C++ or a package. In milliseconds.
TAIL, SLOWEST, SLOWEST_BUILT = 500, 5000, 10_000

_started: list[str] = []  # the programs that this process has started since it is audited


def rows() -> list[Row]:
    sys.addaudithook(lambda event, args: _started.append(args[0]) if event == "subprocess.Popen" else None)
    course = catalog.load()
    added, every = [], []
    for number, exercise in enumerate(map(course.exercise, course.exercise_names)):
        reference = course.solution(exercise.name).reference
        check(reference, save_progress=False)  # what is imported or started once
        before = len(_started)
        took = [seconds(lambda a=reference: check(a, save_progress=False)) for _ in range(3)]
        # A check may also start a program of its own.
        apart = _in_processes(exercise) + (len(_started) - before) // len(took)
        every.append((exercise, 1000 * statistics.median(took), apart))
        if number % 4 == 0:  # one in four, of every lesson: all of them take ten minutes
            added += _added(exercise, reference)
    _print_slowest(every)
    in_kernel = [took for exercise, took, apart in every if not apart and not _builds(exercise)]
    elsewhere = [(took, apart) for exercise, took, apart in every if apart and not _builds(exercise)]
    built = [took for exercise, took, _ in every if _builds(exercise)]
    return [
        Row(
            "engine's share of a plain check",
            statistics.median(added),
            5,
            unit="ms",
            detail=f"worst {max(added):.1f}",
        ),
        Row("engine's share of an isolated check", _isolated_ms(), 40, unit="ms"),
        Row("check() of an exercise without processes, median", statistics.median(in_kernel), 100, unit="ms"),
        Row("the same, 95th percentile", statistics.quantiles(in_kernel, n=20)[-1], TAIL, unit="ms"),
        Row(
            "check() of one with processes, for each such check, median",
            statistics.median(took / apart for took, apart in elsewhere),
            200,
            unit="ms",
        ),
        Row("check() of one with processes, the slowest", max(elsewhere)[0], SLOWEST, unit="ms"),
        Row("check() of one that builds, the slowest", max(built), SLOWEST_BUILT, unit="ms"),
    ]


def _in_processes(exercise: Exercise) -> int:
    """How many of its checks have processes of their own."""
    return sum(1 for one in exercise.checks if one.isolated or one.ranks)


def _builds(exercise: Exercise) -> bool:
    """Whether a check of it needs a compiler."""
    return any(need in ("compiler", "cmake") for one in exercise.checks for need in one.needs)


def _print_slowest(every: list[tuple[Exercise, float, int]]) -> None:
    for exercise, took, apart in sorted(every, key=lambda item: -item[1])[:10]:
        how = "builds" if _builds(exercise) else f"{apart} processes"
        print(f"  {exercise.name:<34} {took:>7.0f} ms   {how}", flush=True)


def _added(exercise: Exercise, reference: object) -> list[float]:
    """What the engine adds to each plain check, in milliseconds."""
    found = []
    for one, place in attempt.visits(exercise, ["cpu"]):
        if not one.isolated and not one.ranks and all(machine.has(need) for need in one.needs):
            bare = functools.partial(_bare, one, reference, place)
            ours = functools.partial(run, one, reference, place, deadline=60)
            without, with_it = interleaved(bare, ours, 15 if seconds(bare) < 0.1 else 3)
            found.append(1000 * (with_it - without))
    return found


def _bare(check: Check, answer: object, place: Place) -> None:
    with warnings.catch_warnings(), fixtures(check, place) as given:
        warnings.simplefilter("ignore")  # a check may do what torch warns of
        cases.call(check, answer, given)


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
