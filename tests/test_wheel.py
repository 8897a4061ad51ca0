"""The course from its wheel, as `pipx run` has it: nothing but the wheel is installed, and work begins in an
empty folder. torch and the other packages are borrowed from the environment that tests."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import tomllib
import urllib.request
import venv
from pathlib import Path

import pytest

from course_utils.lessons import catalog
from course_utils.lessons.build import write_solved

ROOT = Path(__file__).resolve().parent.parent
COURSE = ("course_utils", "exercises", "notebooks", "practice", "solutions")


@pytest.fixture(scope="module")
def course(tmp_path_factory) -> Path:
    """The command `course` of an environment with the wheel, built from a copy: building leaves files."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in COURSE:
        shutil.copytree(ROOT / name, folder / "src" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("LICENSE", "README.md", "pyproject.toml", "setup.py"):
        shutil.copy(ROOT / name, folder / "src")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    built = [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, folder / "src"]
    subprocess.run(built, check=True)
    (wheel,) = folder.glob("*.whl")
    shutil.rmtree(folder / "src")
    venv.create(folder / "env")
    python = folder / "env" / "bin" / "python"
    subprocess.run(
        [*pip, "--python", python, "install", "--no-deps", "--no-index", "--no-compile", wheel], check=True
    )
    (packages,) = folder.glob("env/lib/python*/site-packages")
    borrowed = [path for path in sys.path if path.endswith("-packages")]
    # Added as folders, in which no `.pth` file counts: the course that is installed here is not borrowed.
    (packages / "borrowed.pth").write_text("\n".join(borrowed) + "\n")
    return folder / "env" / "bin" / "course"


@pytest.fixture
def empty(tmp_path, monkeypatch) -> Path:
    """An empty folder to work in, and a home of its own."""
    for name in ("COURSE_ROOT", "COURSE_RECORD", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HOME", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    return tmp_path / "empty"


def run(course: Path, *words: str | Path, code: int = 0) -> str:
    done = subprocess.run([course, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (code, ""), done
    return done.stdout


def test_the_whole_course_is_in_it(course):
    shipped = next(course.parent.parent.glob("lib/python*/site-packages/pytorch_inside_out"))
    here = {path.relative_to(ROOT) for name in COURSE[1:] for path in (ROOT / name).rglob("*.py")}
    here |= {path.relative_to(ROOT) for path in (ROOT / "notebooks").glob("*.ipynb")}
    here |= {path.relative_to(ROOT) for path in (ROOT / "notebooks" / "source").iterdir()}
    there = {path.relative_to(shipped) for path in shipped.rglob("*.*") if "__pycache__" not in path.parts}
    assert there == here | {Path("pyproject.toml")}


def test_a_reader_works_in_the_current_folder(course, empty):
    assert "workspace/01_tensors.new.ipynb" in run(course, "copy", "01")
    assert "01 Storage, strides and views  " in run(course, "progress")
    assert "What lessons taught is asked here" in run(course, "practice")
    needs = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    doctor = run(course, "doctor").splitlines()
    assert f"    All {len(needs)} that the course asks for are installed." in doctor
    assert sorted(path.name for path in empty.rglob("*")) == ["01_tensors.new.ipynb", "workspace"]


def test_answers_are_graded(course, empty):
    here = catalog.load(ROOT)
    solved = write_solved(here, here.lesson("01_tensors"), empty)
    (graded,) = json.loads(run(course, "check", "--json", "--save-progress", solved))["notebooks"]
    assert {one["state"] for one in graded["exercises"]} == {"passed"}
    assert {one["name"] for one in graded["exercises"]} == set(here.lesson("01").exercise_names)
    assert "Core · 4 of 4" in run(course, "progress", "01")
    assert (empty / "workspace" / ".record.jsonl").exists()


def test_jupyterlab_starts_on_lesson_00(course, empty):
    command = [course, "lab", "--no-browser", "--ip", "0.0.0.0"]  # as in a container
    lab = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        address = next((line.strip() for line in lab.stdout if line.startswith("http")), "")
        assert re.match(r"http://localhost:\d+/lab/tree/00_start_here\.ipynb\?token=", address)
        with urllib.request.urlopen(address, timeout=30) as answer:
            assert b"jupyter-config-data" in answer.read()
        lab.send_signal(signal.SIGINT)
        assert lab.wait(60) == 0
    finally:
        lab.kill()
        lab.wait()
        lab.stdout.close()
    copied = {path.name for path in (empty / "workspace").glob("*.ipynb")}
    assert copied == {path.name for path in (ROOT / "notebooks").glob("*.ipynb")}


def test_a_notebook_s_kernel_finds_the_record_beside_it(course, empty):
    (empty / "workspace").mkdir()
    look = (
        "import os; from course_utils.reader import record; os.chdir('/'); print(record.open_record().path)"
    )
    python = course.with_name("python")
    for folder in (empty, empty / "workspace"):
        done = subprocess.check_output([python, "-c", look], cwd=folder, text=True)
        assert Path(done.strip()).parent.samefile(empty / "workspace")
