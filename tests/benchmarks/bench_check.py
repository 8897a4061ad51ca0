"""What `check()` costs in the kernel, and what the engine adds to the checks' own work."""

import statistics
import time
import warnings
from pathlib import Path

import torch

from course_utils import catalog, evidence, grader, machine
from course_utils.conduct import Place, conduct
from course_utils.exercise import Check
from course_utils.notebook import check
from tests.benchmarks.table import Row, interleaved, seconds

TOY = Path(__file__).parent.parent / "toy_course"


def rows() -> list[Row]:
    course = catalog.load()
    added, whole = [], []
    for exercise in course.exercises.values():
        reference = course.solution(exercise.name).reference
        check(reference, record=False)  # what is imported or started once
        whole.append(statistics.median(seconds(lambda a=reference: check(a, record=False)) for _ in range(5)))
        for one, place in grader.visits(exercise, ["cpu"]):
            if not one.isolated and not one.ranks and all(machine.has(need) for need in one.needs):
                bare, ours = interleaved(
                    lambda c=one, a=reference, p=place: _bare(c, a, p),
                    lambda c=one, a=reference, p=place: conduct(c, a, p, deadline=10),
                    15,
                )
                added.append(1000 * (ours - bare))
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
            "check() over all exercises, median",
            1000 * statistics.median(whole),
            100,
            unit="ms",
            detail=f"worst {1000 * max(whole):.0f}",
        ),
    ]


def _bare(check: Check, answer: object, place: Place) -> None:
    extra = {"device": torch.device("cpu")} if "device" in check.wants else {}
    with evidence.silent(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a check may do what torch warns of
        check.function(answer, **extra)


def _looks(answer: object) -> None:
    evidence.record("looked", True)
    time.sleep(0)


def _isolated_ms() -> float:
    one = Check("looks", "It looks", _looks, isolated=True, deadline=30)
    runner = grader.KernelRunner()
    runner.run(one, len, Place(), 30)
    return 1000 * statistics.median(seconds(lambda: runner.run(one, len, Place(), 30)) for _ in range(20))
