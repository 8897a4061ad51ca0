"""Grading one more notebook with `course check` against its checks alone, each exercise in a bare fork."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import nbformat

from course_utils.lessons import catalog
from tests.benchmarks.table import Row

FEW, MORE = 5, 40
# Two predictions and three functions with light checks: what is measured is the engine, not the checks.
LIGHT = ("warm_up", "first_prediction", "predict_strides", "sliding_windows", "image_patches")
# These compare tens of thousands of cases.
HEAVY = ("view_strides", "broadcast_strides", "overlaps", "matmul_by_strides", "with_the_grain")


def rows() -> list[Row]:
    return [_one_more("light", LIGHT), _one_more("heavy", HEAVY)]


def _one_more(kind: str, names: Sequence[str]) -> Row:
    turns = ((_bare(names, MORE), one_more_notebook(names, "--jobs", "1")) for _ in range(3))
    bare, ours = zip(*turns, strict=True)
    # The least of three: whatever else the machine does only adds.
    detail = f"{1000 * min(ours):.0f} ms, {1000 * min(bare):.0f} ms"
    what = f"one more notebook, five {kind}: course check / bare forks"
    return Row(what, min(ours) / min(bare), 3, detail=detail)


def one_more_notebook(names: Sequence[str], *options: str) -> float:
    """Seconds that `course check` takes for one more notebook that holds the references of these exercises:
    so many more of them take so much longer, and starting the command does not count."""
    with tempfile.TemporaryDirectory() as folder:
        paths = solved_notebooks(Path(folder), names, FEW + MORE)
        few, many = (_course_check(some, len(names), options) for some in (paths[:FEW], paths))
    return (many - few) / MORE


def solved_notebooks(folder: Path, names: Sequence[str], count: int) -> list[Path]:
    """`count` notebooks that each hold the references of these exercises."""
    course, paths = catalog.load(), []
    for number in range(count):
        cells = [nbformat.v4.new_code_cell(course.solution(name).source) for name in names]
        paths.append(folder / f"reader_{number:03}.ipynb")
        nbformat.write(nbformat.v4.new_notebook(cells=cells), paths[-1])
    return paths


def _course_check(paths: list[Path], exercises: int, options: Sequence[str]) -> float:
    """Seconds that `course check` takes for these notebooks, each with so many solved exercises."""
    command = [sys.executable, "-m", "course_utils.cli", "check", "--json", *options, *map(str, paths)]
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    taken = time.perf_counter() - started
    # The lessons hold more exercises; those are not attempted.
    graded = json.loads(done.stdout)["notebooks"]
    passed = [e["name"] for one in graded for e in one["exercises"] if e["state"] == "passed"]
    assert len(passed) == exercises * len(paths), done.stdout
    return taken


# The same check functions on the same answers, each exercise in a child of a process that has imported
# everything: no limits, no report.
BARE = """
import os, time, torch
from course_utils.lessons import catalog
from tests.benchmarks.bare import run_checks
torch.set_num_threads(1)
def answers():
    # Loaded anew: what their checks have worked out and kept is gone, what they have imported stays.
    catalog._load.cache_clear()
    course = catalog.load()
    return {{name: course.solution(name).reference for name in {names!r}}}
for name, answer in answers().items():
    run_checks(name, answer)
answers = answers()
def one():
    for name, answer in answers.items():
        pid = os.fork()
        if pid == 0:
            run_checks(name, answer)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
one()
started = time.perf_counter()
for _ in range({count}):
    one()
print((time.perf_counter() - started) / {count})
"""


def _bare(names: Sequence[str], count: int) -> float:
    program = BARE.format(names=tuple(names), count=count)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, env=environment
    )
    return float(done.stdout)
