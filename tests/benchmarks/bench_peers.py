"""Twenty notebooks of five exercises through `course check`, otter-grader and nbgrader, in one run.

All three call the same check functions on the same answers, each as its command does by itself: `course
check` grades as many notebooks at a time as there are cores, the others one after another. The peers live in
a virtual environment of their own, given by PEERS (`make bench-peers` makes it).
"""

import os
import subprocess
import tempfile
import time
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_notebook

from course_utils.lessons import catalog
from tests.benchmarks.bench_course_check import LIGHT, one_more_notebook, solved_notebooks
from tests.benchmarks.table import Row

ROOT = Path(__file__).parent.parent.parent
NOTEBOOKS = 20
IMPORT = "from tests.benchmarks.bare import run_checks"


def rows() -> list[Row]:
    peers = Path(os.environ["PEERS"]).resolve() / "bin"
    course = catalog.load()
    answers = {course.exercise(name).answer_name: name for name in LIGHT}
    with tempfile.TemporaryDirectory() as folder:
        solved = solved_notebooks(Path(folder), LIGHT, NOTEBOOKS)
        one_more = min(one_more_notebook(LIGHT) for _ in range(3))
        alone = min(one_more_notebook(LIGHT, "--jobs", "1") for _ in range(3))
        otter = _otter(peers, Path(folder) / "otter", answers, solved)
        nbgrader = _nbgrader(peers, Path(folder) / "nbgrader", answers)
    said = f"{1000 * one_more:.0f} ms; one at a time {1000 * alone:.0f} ms"
    return [
        Row(
            "one notebook: nbgrader / course check",
            nbgrader / one_more,
            40,
            False,
            detail=f"{nbgrader:.1f} s, {said}",
        ),
        Row(
            "one notebook: otter-grader / course check",
            otter / one_more,
            60,
            False,
            detail=f"{otter:.1f} s, {said}",
        ),
    ]


def _run(command: list[object], cwd: Path) -> float:
    """Runs a peer's command where it can import the course. Returns how many seconds it took."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment["PATH"] = f"{Path(str(command[0])).parent}{os.pathsep}{environment['PATH']}"
    started = time.perf_counter()
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{command} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return time.perf_counter() - started


def _otter(peers: Path, folder: Path, answers: dict[str, str], notebooks: list[Path]) -> float:
    """Seconds that `otter run` takes for one notebook, the mean over all of them."""
    tests = folder / "tests"
    tests.mkdir(parents=True)
    for answer, name in answers.items():
        code = f">>> {IMPORT}\n>>> run_checks({name!r}, {answer})\n"
        case = {"code": code, "hidden": False, "locked": False}
        suite = {"name": name, "points": 1, "suites": [{"cases": [case], "type": "doctest"}]}
        (tests / f"{name}.py").write_text(f"OK_FORMAT = True\ntest = {suite!r}\n")
    _run(
        [peers / "otter", "generate", "-t", tests, "-o", folder / "autograder.zip", "--no-environment"],
        folder,
    )
    total = 0.0
    for notebook in notebooks:
        total += _run(
            [peers / "otter", "run", notebook, "-a", folder / "autograder.zip", "-o", folder], folder
        )
        graded = (folder / "results.json").read_text()
        assert '"score": 0' not in graded, graded
    return total / len(notebooks)


def _nbgrader(peers: Path, folder: Path, answers: dict[str, str]) -> float:
    """Seconds that `nbgrader autograde` takes for one notebook, the mean over all of them."""
    course = catalog.load()
    (folder / "source" / "ps1").mkdir(parents=True)
    cells = [new_code_cell(IMPORT)]
    for answer, name in answers.items():
        cells.append(new_code_cell(course.solution(name).source))
        test = new_code_cell(f"run_checks({name!r}, {answer})")
        test.metadata["nbgrader"] = {
            "schema_version": 3, "grade": True, "solution": False, "locked": True,
            "task": False, "points": 1, "grade_id": name, "cell_type": "code",
        }  # fmt: skip
        cells.append(test)
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(new_notebook(cells=cells, metadata=kernel), folder / "source" / "ps1" / "lesson.ipynb")
    _run([peers / "nbgrader", "generate_assignment", "ps1", "--create"], folder)
    released = (folder / "release" / "ps1" / "lesson.ipynb").read_text()
    for number in range(NOTEBOOKS):
        handed_in = folder / "submitted" / f"reader_{number:02}" / "ps1"
        handed_in.mkdir(parents=True)
        (handed_in / "lesson.ipynb").write_text(released)
    taken = _run([peers / "nbgrader", "autograde", "ps1"], folder)
    graded = len(list((folder / "autograded").glob("*/ps1/lesson.ipynb")))
    assert graded == NOTEBOOKS, f"nbgrader graded {graded} notebooks"
    return taken / NOTEBOOKS
