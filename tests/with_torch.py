"""The course with another version of torch: `make test-with TORCH=2.14.1`.

It is installed, with what the course and its tests need, into an environment of its own below `build/`. There
the lessons are run: where an output is another one than the stored, a line says what it was and what it is.
These are the claims that changed with the version. Then come the solved lessons, the laws of all exercises,
and the private names of torch.

    python tests/with_torch.py 2.14.1 [LESSON ...]

With lessons (slugs), only these are run, and nothing after them. Exit code: 1 where a test or a cell fails.
"""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

ROOT = Path(__file__).resolve().parent.parent
TESTS = ["tests/test_torch_private.py", "tests/test_notebooks.py::test_solved", "tests/test_laws.py"]
WIDTH = 78  # letters of a line of an output


def main(version: str, *lessons: str) -> int:
    """Runs all of it, or some lessons, with this version of torch; the exit code."""
    python = installed(version)
    code = subprocess.run([python, __file__, "--inside", *lessons], cwd=ROOT).returncode
    if not lessons:
        ran = subprocess.run([python, "-m", "pytest", "-q", "-n", "2", *TESTS], cwd=ROOT)
        code = code or ran.returncode
    return min(code, 1)


def installed(version: str) -> Path:
    """The Python of an environment with this version of torch, made where it isn't there."""
    folder = ROOT / "build" / f"torch-{version}"
    python = folder / "bin" / "python"
    if not (folder / "installed").exists():
        venv.create(folder, clear=True, with_pip=True)
        pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
        others = folder / "constraints.txt"
        others.write_text(re.sub(r"^torch==.*\n", "", pins, flags=re.MULTILINE), encoding="utf-8")
        pip = [python, "-m", "pip", "install", "--disable-pip-version-check"]
        subprocess.run([*pip, "-c", others, f"torch=={version}", "-e", ".[test]"], cwd=ROOT, check=True)
        (folder / "installed").touch()
    return python


def run_lessons(names: list[str]) -> int:
    """Runs lessons (none: all) in this environment and prints what differs; how many did not run through."""
    import nbformat
    import torch

    from course_utils.lessons import catalog
    from course_utils.lessons.build import BuildError, execute
    from course_utils.lessons.notebook_files import make_steady
    from course_utils.lessons.source import notebook_of

    course, failed, changed = catalog.load(ROOT), 0, 0
    print(f"Outputs that are others with torch {torch.__version__} than the stored ones:", flush=True)
    for lesson in course.lessons:
        if names and lesson.slug not in names:
            continue
        notebook = notebook_of(course, lesson)
        try:
            execute(notebook, course.root)
        except BuildError as error:
            failed += 1
            print(f"\n{lesson.slug}: {str(error).splitlines()[0]}", flush=True)
        # Those behind a cell that failed were not run, and say nothing.
        notebook.cells = [c for c in notebook.cells if c.get("execution_count")]
        make_steady(notebook)
        stored = nbformat.read(lesson.notebook, as_version=4)
        for cell, before, after in differences(stored, notebook):
            changed += 1
            print(f"\n{lesson.slug}: {cell}\n    was  {before}\n    is   {after}", flush=True)
    print(f"\n{changed} outputs differ, {failed} lessons did not run to their end", flush=True)
    return failed


def differences(stored: dict, fresh: dict) -> Iterator[tuple[str, str, str]]:
    """The cells that show something else than the stored ones: how each begins, and the first line that
    differs, before and after. Cells whose outputs are a matter of the machine are left out."""
    known = {cell["id"]: cell for cell in stored["cells"] if cell["cell_type"] == "code"}
    for cell in fresh["cells"]:
        old = known.get(cell["id"])
        ignored = "nbval-ignore-output" in cell["metadata"].get("tags", [])
        if old is None or ignored:
            continue
        before, after = lines_of(old), lines_of(cell)
        if before != after:
            pairs = itertools.zip_longest(before, after, fillvalue="(nothing)")
            was, now = next((a, b) for a, b in pairs if a != b)
            yield cell["source"].strip().splitlines()[0][:WIDTH], was[:WIDTH], now[:WIDTH]


def lines_of(cell: dict) -> list[str]:
    """What the cell shows as text, line by line; a picture is a line."""
    found: list[str] = []
    for output in cell["outputs"]:
        if "text" in output:
            found += output["text"].splitlines()
        elif "ename" in output:
            found.append(f"{output['ename']}: {output['evalue']}")
        elif data := output.get("data"):
            kinds = [kind for kind in data if kind not in ("text/plain", "text/html")]
            text = data.get("text/plain") or data.get("text/html") or ""
            found += [*text.splitlines(), *(f"{kind}, {crc32(str(data[kind]).encode()):x}" for kind in kinds)]
    return found


if __name__ == "__main__":
    if sys.argv[1] == "--inside":
        sys.path.insert(0, str(ROOT))
        sys.exit(run_lessons(sys.argv[2:]))
    sys.exit(main(*sys.argv[1:]))
