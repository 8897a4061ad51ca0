"""Builds the notebooks: source and exercises in, executed notebook out, only where something changed."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from course_utils.lessons import catalog, claims, glossary
from course_utils.lessons.catalog import Course, CourseError, Lesson
from course_utils.lessons.freshness import stamp, strays, why_stale
from course_utils.lessons.notebook_files import BEING_BUILT, TooLarge, make_steady, write_notebook

# nbformat, jupytext and nbclient are imported by what builds: `--check` is to be quick.
if TYPE_CHECKING:
    from nbformat import NotebookNode

CELL_TIMEOUT = 300  # seconds

# Settings of whoever builds that could show in an output: they do not reach the kernel.
_PERSONAL = re.compile(r"(COURSE|TORCH|PYTORCH|IPYTHON|JPY|MPL|OMP|MKL|KMP|GOMP|PYTHON)\w*|FORCE_COLOR|LINES")


class BuildError(Exception):
    """A lesson does not run from its first cell to its last; the message names the cell and why."""


def run_build(
    names: list[str], check: bool, force: bool, solved: Path | None, gpu_outputs: bool = False
) -> int:
    """`course build`: the notebooks of the lessons `names` (number, topic or slug; none: all). The options
    are those of the command; what `solved` writes is not run, papermill does that. Returns the exit code: 0
    all is well, 1 something is stale or could not be built, 2 there are no lessons. Raises `CourseError`
    where there is no such lesson."""
    course = catalog.load()
    lessons = [course.lesson(Path(name).stem) for name in names] or course.lessons
    if not lessons:
        print(f"There are no lessons in {course.root / 'notebooks' / 'source'}.")
        return 2
    if check:
        return _say_what_is_stale(course, lessons, whole=not names)
    failed = 0
    for lesson in lessons:
        try:
            if gpu_outputs:
                print(f"{lesson.slug}: {store_gpu_outputs(course, lesson)} cells stored", flush=True)
            elif solved is not None:
                print(f"{lesson.slug}: {write_solved(course, lesson, solved)}", flush=True)
            elif force or why_stale(course, lesson):
                started = time.monotonic()
                build(course, lesson)
                print(f"{lesson.slug}: built in {time.monotonic() - started:.0f} s", flush=True)
            else:
                print(f"{lesson.slug}: up to date", flush=True)
            if not gpu_outputs and solved is None:
                failed += _say(f"{lesson.slug}: {fault}" for fault in claims.faults(course, lesson))
        except (BuildError, CourseError, TooLarge) as error:
            print(f"{lesson.slug}: not built. {error}", flush=True)
            failed += 1
    if not names and not failed and not gpu_outputs and solved is None and glossary.write(course):
        print("glossary: written", flush=True)
    return 1 if failed else 0


def _say_what_is_stale(course: Course, lessons: list[Lesson], whole: bool) -> int:
    unknown = strays(course) if whole else []
    stale = {lesson.slug: why for lesson in lessons if (why := why_stale(course, lesson))}
    for slug, why in stale.items():
        print(f"{slug} {why}")
    for path in unknown:
        print(f"{path} has no source")
    outdated = whole and glossary.is_stale(course)
    if outdated:
        print("the glossary is older than the lessons")
    if stale or outdated:
        print(f"To mend this: course build {'' if outdated else ' '.join(stale)}".rstrip())
    if unknown:
        print(f"To mend this: rm {' '.join(map(str, unknown))}")
    whole_lessons = (lesson for lesson in lessons if lesson.slug not in stale)
    unfounded = _say(f"{one.slug}: {fault}" for one in whole_lessons for fault in claims.faults(course, one))
    if stale or unknown or outdated or unfounded:
        return 1
    print(f"{len(lessons)} of {len(lessons)} lessons are up to date")
    return 0


def _say(faults: Iterable[str]) -> bool:
    """Prints each; true if there was one."""
    found = list(faults)
    print("".join(f"{fault}\n" for fault in found), end="", flush=True)
    return bool(found)


def build(course: Course, lesson: Lesson) -> None:
    """Runs the lesson and writes its notebook. Raises `BuildError` where a cell fails, `CourseError` where
    the source is not a lesson, `TooLarge` where the notebook would be; the notebook that was there then stays
    as it was."""
    from course_utils.lessons.source import notebook_of

    notebook = notebook_of(course, lesson)
    made_from = stamp(course, lesson, notebook)  # taken before the run: what changes meanwhile is newer
    execute(notebook, course.root, name=lesson.notebook.name)
    make_steady(notebook)
    notebook.metadata["course"] = made_from
    write_notebook(lesson.notebook, notebook)


def write_solved(course: Course, lesson: Lesson, folder: Path) -> Path:
    """Writes the lesson with the references in place of the starters, not run, and returns its path."""
    from course_utils.lessons.source import notebook_of

    path = folder / lesson.notebook.name
    write_notebook(path, notebook_of(course, lesson, solved=True))
    return path


def store_gpu_outputs(course: Course, lesson: Lesson) -> int:
    """Runs the solved lesson on the GPU and keeps what its cells tagged `gpu` show. Returns how many. Raises
    `BuildError` where a cell fails."""
    import torch

    from course_utils.lessons import gpu_outputs
    from course_utils.lessons.source import CHECK, notebook_of, role

    notebook = notebook_of(course, lesson, solved=True)
    notebook.cells = [cell for cell in notebook.cells if role(cell) != CHECK]  # they show nothing of a GPU's
    if not any(map(gpu_outputs.is_tagged, notebook.cells)):
        return 0
    execute(notebook, course.root, device="cuda")
    make_steady(notebook)
    return gpu_outputs.keep(lesson, notebook, f"{torch.cuda.get_device_name()}, torch {torch.__version__}")


def execute(notebook: NotebookNode, root: Path, device: str = "cpu", name: str = "being_built.ipynb") -> None:
    """Runs every cell in a fresh kernel of this Python, in an empty folder; links to cells are those of this
    notebook where it is called `name`. Raises `BuildError` for the first cell that raises or runs longer than
    `CELL_TIMEOUT` seconds."""
    # The file of fonts that matplotlib makes on its first import is made here, so that no kernel
    # remarks on it.
    import matplotlib.font_manager  # noqa: F401
    from jupyter_client.kernelspec import KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    # Without folders to look in, "python3" is this Python and no kernel that somebody installed.
    kernels = KernelSpecManager(kernel_dirs=[], ensure_native_kernel=True)
    running: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder, "work")
        work.mkdir()
        write_notebook(Path(folder, name), notebook)
        environment = kernel_environment(root, Path(folder), device)
        client = NotebookClient(
            notebook,
            km=AsyncKernelManager(kernel_name="python3", kernel_spec_manager=kernels),
            timeout=CELL_TIMEOUT,
            startup_timeout=CELL_TIMEOUT,
            # On a busy machine what a cell printed may come seconds after its end: that is waited for.
            iopub_timeout=CELL_TIMEOUT,
            raise_on_iopub_timeout=True,
            resources={"metadata": {"path": str(work)}},
            record_timing=False,
            store_widget_state=False,
            force_raise_errors=True,  # whatever its tags: papermill stops at every error
            extra_arguments=["--log-level=ERROR"],
            on_cell_start=lambda cell, cell_index: running.update(cell=cell, index=cell_index),
        )
        try:
            client.execute(cleanup_kc=True, env={**environment, BEING_BUILT: str(Path(folder, name))})
        except CellTimeoutError:
            raise BuildError(f"{_cell(running)} was still running after {CELL_TIMEOUT} seconds") from None
        except DeadKernelError:
            raise BuildError(f"{_cell(running)} ended the kernel") from None
        except CellExecutionError as error:
            raised = f"raised {error.ename}: {error.evalue}"
            text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))  # without colours
            raise BuildError(f"{_cell(running)} {raised}\n\n{text}") from None


def kernel_environment(root: Path, folder: Path, device: str = "cpu") -> dict[str, str]:
    """The environment in which a lesson's outputs come out the same on every run and machine. `root`: the
    course; `folder`: an empty folder for its record and for all that programs keep between runs; `device`:
    what lessons run on. On the CPU no GPU is visible."""
    import matplotlib

    kept = {name: value for name, value in os.environ.items() if not _PERSONAL.fullmatch(name)}
    return kept | {
        "COURSE_ROOT": str(root),
        "COURSE_RECORD": str(folder / "record.jsonl"),
        "COURSE_DEVICE": device,
        "COURSE_QUIET": "1",  # no line on how far a slow report is
        **({"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}),
        # The package that builds is the one that the lesson imports, wherever the other one is installed.
        "PYTHONPATH": str(Path(__file__).resolve().parent.parent.parent),
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "2",
        "OMP_WAIT_POLICY": "passive",  # several kernels at a time do not wait for each other in busy loops
        "MKL_NUM_THREADS": "2",
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "MATPLOTLIBRC": str(Path(matplotlib.get_data_path(), "matplotlibrc")),
        "IPYTHONDIR": str(folder / "ipython"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),  # a warm one compiles less, and counts so
        "COLUMNS": "100",
        "TERM": "dumb",
        "NO_COLOR": "1",
        "PYTHON_COLORS": "0",
    }


def _cell(running: dict[str, Any]) -> str:
    if not running:
        return "The kernel, before the first cell,"
    first, *_ = running["cell"].source.strip().splitlines() or [""]
    return f"Cell {running['index']} (`{first.strip()}`)"
