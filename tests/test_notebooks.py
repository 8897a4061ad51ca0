"""The lessons as readers get them, run again: as shipped by nbval, solved by papermill."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import nbformat
import pytest

from course_utils.lessons import catalog
from course_utils.lessons.build import build, kernel_environment, write_solved
from course_utils.lessons.catalog import Course, Lesson
from course_utils.lessons.freshness import strays, why_stale
from course_utils.lessons.notebook_files import MOST_BYTES
from course_utils.lessons.source import CHECK, role
from course_utils.reader.record import open_record
from tests.files import FLIP_ROWS, FLIPPED, write

NBVAL_CFG = Path(__file__).parent / "nbval.cfg"
COURSE = catalog.load(Path(__file__).resolve().parent.parent)

each_lesson = pytest.mark.parametrize("lesson", COURSE.lessons, ids=lambda lesson: lesson.slug)


def validate(course: Course, notebook: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a copy of the notebook in `folder`, and compares each output with the stored one."""
    copy = folder / notebook.name
    shutil.copy(notebook, copy)
    nbval = ["--nbval", "--nbval-current-env", "--nbval-sanitize-with", str(NBVAL_CFG)]
    plain = ["-q", "--color=no", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *plain, *nbval, str(copy)]
    environment = kernel_environment(course.root, folder)
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def solve(course: Course, lesson: Lesson, folder: Path) -> tuple[dict[str, str | None], dict[str, str]]:
    """Runs the solved lesson. Returns for each exercise its recorded state and what its check printed."""
    source = write_solved(course, lesson, folder / "solved")
    executed = folder / "executed.ipynb"
    command = [sys.executable, "-m", "papermill", str(source), str(executed), "-p", "DEVICE", "cpu"]
    command += ["--cwd", str(folder), "--no-progress-bar", "--kernel", "python3"]
    environment = kernel_environment(course.root, folder)
    # Of the kernels that are installed, the one of this environment.
    environment = {name: value for name, value in environment.items() if name != "JUPYTER_PATH"}
    environment["JUPYTER_PREFER_ENV_PATH"] = "1"
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    record = open_record(Path(environment["COURSE_RECORD"]))
    states = {name: record.state(name) for name in lesson.exercise_names}
    printed = {
        cell.metadata.course.exercise: "".join(o.get("data", {}).get("text/plain", "") for o in cell.outputs)
        for cell in nbformat.read(executed, as_version=4).cells
        if role(cell) == CHECK
    }
    return states, printed


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
def test_as_shipped(lesson, tmp_path):
    done = validate(COURSE, lesson.notebook, tmp_path)
    mend = f"Where the new output is the right one: course build --force {lesson.slug}"
    assert done.returncode == 0, done.stdout + done.stderr + mend
    cells = [c for c in nbformat.read(lesson.notebook, as_version=4).cells if c.cell_type == "code"]
    assert f"{len(cells)} passed" in done.stdout


# Those whose outputs are not mostly recordings, which differ from run to run.
@pytest.mark.parametrize("lesson", COURSE.lessons[:4], ids=lambda lesson: lesson.slug)
def test_rebuilt_elsewhere(lesson, tmp_path, monkeypatch):
    """The course copied to another folder and built from a third comes out the same, pictures too."""
    root = tmp_path / "copy"
    for folder in ("notebooks", "exercises", "solutions"):
        shutil.copytree(COURSE.root / folder, root / folder)
    monkeypatch.chdir(tmp_path)
    course = catalog.load(root)
    build(course, course.lesson(lesson.slug))
    assert comparable(root / "notebooks" / lesson.notebook.name) == comparable(lesson.notebook)


def comparable(notebook: Path) -> list[dict]:
    """The cells without the outputs that are tagged as machine-dependent. Pictures are drawn to the same
    pixel by the same build of matplotlib; they are compared on the platform that the lessons are built on."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    for cell in cells:
        if "nbval-ignore-output" in cell["metadata"].get("tags", []):
            cell["outputs"] = []
        for output in cell.get("outputs", []):
            if sys.platform != "linux" and "image/png" in output.get("data", {}):
                output["data"]["image/png"] = ""
    return cells


@each_lesson
def test_solved(lesson, tmp_path):
    states, printed = solve(COURSE, lesson, tmp_path)
    assert states == dict.fromkeys(lesson.exercise_names, "passed")
    for name in lesson.exercise_names:
        answer = COURSE.exercise(name).answer_name
        assert f"{answer}: passed" in printed[name].splitlines()[0]


# --- the tests above can fail -------------------------------------------------------------------------

LESSON = """---
reading: 1
---

# Small

```{code-cell}
:tags: [parameters]

DEVICE = "cuda"
```

```{code-cell}
from course_utils import check
print("stored", DEVICE)
```

```{exercise} flip_rows
```

```{code-cell}
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


def test_a_wrong_stored_output_is_found(small, tmp_path):
    lesson = small.lessons[0]
    build(small, lesson)
    (tmp_path / "right").mkdir()
    done = validate(small, lesson.notebook, tmp_path / "right")
    assert done.returncode == 0, done.stdout + done.stderr
    text = lesson.notebook.read_text()
    for right, wrong in (("stored cuda", "stored mps"), ("</b>", "<i></i></b>")):
        assert right in text
        text = text.replace(right, wrong)
    lesson.notebook.write_text(text)
    (tmp_path / "wrong").mkdir()
    done = validate(small, lesson.notebook, tmp_path / "wrong")
    assert done.returncode == 1
    assert "Cell outputs differ" in done.stdout
    assert "2 failed, 3 passed" in done.stdout
