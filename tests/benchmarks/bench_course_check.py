"""Grading one more notebook with `course check` against its checks alone in a bare forked child."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nbformat

from course_utils import catalog
from tests.benchmarks.table import Row

NOTEBOOKS = 20


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        paths = five_exercise_notebooks(Path(folder), 2 * NOTEBOOKS)
        ratios = []
        for _ in range(3):
            few, many = _course_check(paths[:NOTEBOOKS]), _course_check(paths)
            one_more = (many - few) / NOTEBOOKS
            ratios.append((one_more, _bare(NOTEBOOKS)))
    ours = statistics.median(pair[0] for pair in ratios)
    bare = statistics.median(pair[1] for pair in ratios)
    detail = f"{1000 * ours:.0f} ms, {1000 * bare:.0f} ms"
    return [Row("one more notebook: course check / bare forked child", ours / bare, 3, detail=detail)]


def five_exercises() -> list[str]:
    """The first five exercises of the course."""
    return catalog.load().exercise_names[:5]


def five_exercise_notebooks(folder: Path, count: int) -> list[Path]:
    """`count` notebooks that each hold the references of the first five exercises."""
    course, paths = catalog.load(), []
    for number in range(count):
        cells = [nbformat.v4.new_code_cell(course.solution(name).source) for name in five_exercises()]
        paths.append(folder / f"reader_{number:03}.ipynb")
        nbformat.write(nbformat.v4.new_notebook(cells=cells), paths[-1])
    return paths


def _course_check(paths: list[Path]) -> float:
    command = [sys.executable, "-m", "course_utils.cli", "check", "--json", "--jobs", "1", *map(str, paths)]
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    taken = time.perf_counter() - started
    # The lessons hold more than five exercises; those of the others are not attempted.
    graded = json.loads(done.stdout)["notebooks"]
    passed = [e["name"] for one in graded for e in one["exercises"] if e["state"] == "passed"]
    assert len(passed) == 5 * len(paths), done.stdout
    return taken


# The same check functions on the same answers, in children of a process that has it all imported: no
# evidence, no limits, no report.
BARE = """
import os, time, torch
from course_utils import catalog
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
    pid = os.fork()
    if pid == 0:
        for name, answer in answers.items():
            run_checks(name, answer)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
one()
started = time.perf_counter()
for _ in range({count}):
    one()
print((time.perf_counter() - started) / {count})
"""


def _bare(count: int) -> float:
    program = BARE.format(names=five_exercises(), count=count)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, env=environment
    )
    return float(done.stdout)
