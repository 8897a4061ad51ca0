"""The lessons as readers get them, run again by nbval: each solved, and beside it what differs as shipped."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess

import nbformat
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_notebook

from course_utils.lessons import catalog
from course_utils.lessons.build import build, kernel_environment, write_solved
from course_utils.lessons.catalog import Course, Lesson
from course_utils.lessons.freshness import strays, why_stale
from course_utils.lessons.notebook_files import MOST_BYTES, write_notebook
from course_utils.lessons.source import notebook_of, role
from course_utils.reader.record import Record
from tests import lesson_states as states
from tests.files import FLIP_ROWS, FLIPPED, write

NBVAL_CFG = Path(__file__).parent / "nbval.cfg"
COURSE = catalog.load(Path(__file__).resolve().parent.parent)

# Those whose pictures are no recordings, which differ from run to run and from machine to machine.
SAME_PICTURES = COURSE.lessons[:4]
WHOLE = COURSE.lessons[:2]

each_lesson = pytest.mark.parametrize("lesson", COURSE.lessons, ids=lambda lesson: lesson.slug)


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory) -> Path:
    """A copy of the course in another folder."""
    root = tmp_path_factory.mktemp("elsewhere")
    for folder in ("notebooks", "exercises", "solutions", "practice"):
        shutil.copytree(COURSE.root / folder, root / folder)
    return root


def stored(lesson: Lesson) -> NotebookNode:
    return nbformat.read(lesson.notebook, as_version=4)


def validate(notebook: NotebookNode, root: Path, folder: Path, *options: str) -> CompletedProcess[str]:
    """Runs the notebook in `folder`, with the course at `root`, and compares each output with the one that is
    stored in it."""
    path = folder / "notebook.ipynb"
    write_notebook(path, notebook)
    nbval = ["--nbval", "--nbval-current-env", "--nbval-sanitize-with", str(NBVAL_CFG)]
    plain = ["-q", "--color=no", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *plain, *nbval, *options, str(path)]
    environment = kernel_environment(root, folder)
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def assert_all_passed(done: CompletedProcess[str], notebook: NotebookNode) -> None:
    cells = sum(cell.cell_type == "code" for cell in notebook.cells)
    assert done.returncode == 0 and f"{cells} passed" in done.stdout, done.stdout + done.stderr


def recorded(lesson: Lesson, folder: Path) -> dict[str, str | None]:
    """The states of the lesson's exercises after a run in `folder`."""
    record = Record(folder / "record.jsonl")
    return {name: record.state(name) for name in lesson.exercise_names}


def test_there_are_lessons_and_nothing_else():
    assert COURSE.lessons
    assert strays(COURSE) == []


@each_lesson
def test_as_a_file(lesson):
    why = why_stale(COURSE, lesson)
    assert why is None, f"{lesson.slug} {why}. To mend this: course build {lesson.slug}"
    assert lesson.notebook.stat().st_size <= MOST_BYTES
    notebook = nbformat.read(lesson.notebook, as_version=4)
    nbformat.validate(notebook)
    assert max(Counter(cell.id for cell in notebook.cells).values()) == 1
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert outputs and not [output for output in outputs if output.output_type == "error"]
    text = lesson.notebook.read_text(encoding="utf-8")
    for word in ("ipykernel_", "widget-view", "widget-state", '"execution":', str(COURSE.root)):
        assert word not in text
    # But for what running it adds, it is what would be made today.
    not_run = {"outputs": [], "execution_count": None}
    made = notebook_of(COURSE, lesson).cells
    assert [cell | not_run for cell in notebook.cells] == [cell | not_run for cell in made]
    # papermill puts what it is given below the one cell that is tagged for it.
    (cell,) = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    names = [target.id for node in ast.parse(cell.source).body for target in getattr(node, "targets", [])]
    assert names == ["DEVICE"]


@each_lesson
def test_the_time_it_takes_is_what_its_parts_take(lesson):
    """For reading a minute for 200 words and up to one for each cell; the exercises are added up."""
    cells = nbformat.read(lesson.notebook, as_version=4).cells
    stated = re.search(
        r"\*\*Core\*\*, (\d+) minutes.* (\d+) minutes of (?:each|it) are reading", cells[0].source
    )
    assert stated, f"{lesson.source} does not say how long it takes"
    core = [exercise for exercise in map(COURSE.exercise, lesson.exercise_names) if exercise.core]
    assert int(stated[1]) == int(stated[2]) + sum(exercise.minutes for exercise in core)
    left = int(stated[2])
    # The task of an exercise is part of its minutes.
    words = sum(len(c.source.split()) for c in cells if c.cell_type == "markdown" and not role(c))
    demonstrations = sum(cell.cell_type == "code" and not role(cell) for cell in cells)
    assert words / 200 <= left <= words / 200 + demonstrations


@each_lesson
def test_solved(lesson, elsewhere, tmp_path):
    """Solved, in another folder, every exercise is passed, and each cell that depends on no answer shows what
    is stored: it does so in both states of the lesson."""
    assert states.read_and_missing_as_shipped(COURSE, lesson) == set()
    notebook = states.solved(COURSE, stored(lesson))
    pictures = ["-p", "tests.nbval_pictures"] if lesson in SAME_PICTURES and sys.platform == "linux" else []
    done = validate(notebook, elsewhere, tmp_path, *pictures)
    assert_all_passed(done, notebook)
    assert recorded(lesson, tmp_path) == dict.fromkeys(lesson.exercise_names, "passed")


def test_what_differs_as_shipped(tmp_path):
    """The starters, the checks and the cells that depend on an answer, of all lessons in one kernel."""
    notebook = new_notebook()
    for lesson in COURSE.lessons:
        notebook.cells += states.differs_as_shipped(stored(lesson)).cells
    assert_all_passed(validate(notebook, COURSE.root, tmp_path), notebook)
    for lesson in COURSE.lessons:
        assert recorded(lesson, tmp_path) == dict.fromkeys(lesson.exercise_names)


@pytest.mark.parametrize("lesson", WHOLE, ids=lambda lesson: lesson.slug)
def test_as_shipped(lesson, tmp_path):
    """The whole file, as nobody has touched it."""
    assert_all_passed(validate(stored(lesson), COURSE.root, tmp_path), stored(lesson))


def test_with_a_parameter(tmp_path):
    """papermill sets DEVICE, and runs the solved lesson from its first cell to its last."""
    lesson = WHOLE[0]
    source = write_solved(COURSE, lesson, tmp_path / "solved")
    executed = tmp_path / "executed.ipynb"
    command = [sys.executable, "-m", "papermill", str(source), str(executed), "-p", "DEVICE", "cpu"]
    command += ["--cwd", str(tmp_path), "--no-progress-bar", "--kernel", "python3"]
    environment = kernel_environment(COURSE.root, tmp_path)
    # Of the kernels that are installed, the one of this environment.
    environment = {name: value for name, value in environment.items() if name != "JUPYTER_PATH"}
    environment["JUPYTER_PREFER_ENV_PATH"] = "1"
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert recorded(lesson, tmp_path) == dict.fromkeys(lesson.exercise_names, "passed")
    (given,) = [
        cell
        for cell in nbformat.read(executed, as_version=4).cells
        if "injected-parameters" in cell.metadata.get("tags", [])
    ]
    assert 'DEVICE = "cpu"' in given.source


# --- the tests above can fail -------------------------------------------------------------------------

SETUP = "from course_utils import check"
DRAWS = "import matplotlib.pyplot as plt"
WAITS = """try:  # until it is written
    print(flip_rows(torch.ones(2, 3)).shape)
except NotImplementedError as error:
    print(type(error).__name__)"""
LESSON = f"""---
reading: 1
---

# Small

```{{code-cell}}
:tags: [parameters]

DEVICE = "cuda"
```

```{{code-cell}}
{SETUP}
print("stored", DEVICE)
```

```{{code-cell}}
{DRAWS}
import torch
plt.figure(figsize=(1, 1))
plt.plot([1, 2]);
```

```{{exercise}} flip_rows
```

```{{code-cell}}
{WAITS}
```

```{{code-cell}}
:tags: [nbval-ignore-output]

import os
print("process", os.getpid())
```
"""


@pytest.fixture
def small(tmp_path) -> Course:
    """A course of one exercise whose solution is wrong."""
    files = {
        "exercises/small/flip_rows.py": FLIP_ROWS,
        "solutions/small/flip_rows.py": FLIPPED.replace("flip(0)", "flip(1)"),
        "notebooks/source/01_small.md": LESSON,
    }
    return catalog.load(write(tmp_path / "course", files))


def failures(notebook: NotebookNode, course: Course, folder: Path) -> tuple[list[str], str]:
    """The first lines of the cells that fail, and all that is said of them."""
    folder.mkdir()
    done = validate(notebook, course.root, folder, "-p", "tests.nbval_pictures")
    assert done.returncode == 1
    sources = [cell.source.splitlines()[0] for cell in notebook.cells if cell.cell_type == "code"]
    numbers = re.findall(r"^FAILED .*::Cell (\d+)", done.stdout, re.MULTILINE)
    return [sources[n] for n in map(int, numbers)], done.stdout


def test_a_wrong_stored_output_is_found(small, tmp_path):
    build(small, small.lessons[0])
    built = stored(small.lessons[0])
    for cell in built.cells:
        for output in cell.get("outputs", []):
            if cell.source == "check(flip_rows)":
                output.data["text/html"] += "<i></i>"
            elif "text" in output:
                output.text = output.text.replace("cuda", "mps").replace("Error", "")
            elif "image/png" in output.data:
                output.data["image/png"] = output.data["image/png"].replace("A", "B", 1)
    failed, told = failures(states.solved(small, built), small, tmp_path / "solved")
    assert failed == [SETUP, DRAWS, "_report = check(flip_rows)"]
    assert "mismatch 'stdout'" in told and "mismatch 'image/png'" in told
    assert ": ✗ Rows upside down (`flip_rows`): not yet" in told
    failed, _ = failures(states.differs_as_shipped(built), small, tmp_path / "shipped")
    assert failed == ["check(flip_rows)", WAITS.splitlines()[0]]


def test_a_name_that_only_the_solved_lesson_has_is_found(small):
    source = small.lessons[0].source
    source.write_text(LESSON.replace(WAITS, "np.ones(3)"))
    solution = small.solution("flip_rows")
    small._solutions["flip_rows"] = replace(solution, source=f"import numpy as np\n\n\n{solution.source}")
    assert states.read_and_missing_as_shipped(small, small.lessons[0]) == {"np"}
    source.write_text(LESSON.replace(WAITS, "np.ones(3)").replace(DRAWS, "import numpy as np"))
    assert states.read_and_missing_as_shipped(small, small.lessons[0]) == set()
