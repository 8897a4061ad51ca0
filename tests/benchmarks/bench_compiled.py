"""What it costs to watch a compiled function, to step through its calls, and to check what compiles."""

import statistics
import subprocess
import sys

import torch

from course_utils import explore, watch_compile
from course_utils.exercise import Check, Exercise, expect
from course_utils.grading import attempt
from tests.benchmarks.table import Row, interleaved, seconds

ALONE = """
import torch
torch.compile(lambda x: x.sin() * 2, backend="eager")(torch.ones(3))
"""


def broken_twice(x):
    y = x.sin() + 1
    print(end="")
    z = y * 2
    print(end="")
    return z - 1


def rows() -> list[Row]:
    return [_first_call(), _step(), _check()]


def _first_call() -> Row:
    x = torch.ones(3)

    def plain() -> None:
        torch.compiler.reset()
        torch.compile(broken_twice, backend="eager")(x)

    def watched() -> None:
        torch.compiler.reset()
        watch_compile(broken_twice)(x)

    plain(), watched()
    with_record, without = interleaved(watched, plain, 9)
    return Row("a first call, three graphs: watched / not", with_record / without, 2)


def _step() -> Row:
    torch.compiler.reset()
    seen = watch_compile(broken_twice)
    for n in (2, 2, 3, 4, 1, 0):
        seen(torch.ones(n))
    explorer = explore.compiled(seen)
    times = []
    for number in (1, 2, 3, 4, 5, 6) * 4:
        times.append(seconds(lambda number=number: explorer.go(number)))
    return Row("compile explorer: another call", 1000 * statistics.median(times), 100, unit="ms")


def _compiles(answer: object) -> None:
    total = torch.compile(answer, backend="eager")(torch.ones(3)).sum()
    expect.equal(total, torch.tensor(6.0))


def _check() -> Row:
    """A check that compiles, in a warm process, against a new Python that compiles the same."""
    exercise = Exercise(minutes=1, hints=[])
    exercise.checks.append(Check("compiles", "It compiles", _compiles, isolated=True, deadline=60))
    exercise.starter_object = _doubled

    def warm() -> None:
        report = attempt.grade(exercise, _doubled)
        assert report.state == "passed", report

    def alone() -> None:
        subprocess.run([sys.executable, "-c", ALONE], check=True)

    warm(), warm(), alone()
    new, kept = interleaved(alone, warm, 5)
    told = f"{1000 * kept:.0f} ms"
    return Row("a check that compiles: new Python / warm", new / kept, 5, at_most=False, detail=told)


def _doubled(x):
    return x * 2
