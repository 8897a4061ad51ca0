"""The lessons on Colab: fetched by their first cell into an empty folder, in a real kernel.

The kernel is a stand-in for Colab's: `google.colab` is loaded in it, the course is not installed, and pip
is a recorder. What it fetches is a local repository made of the files that are tested.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from importlib.metadata import requires, version
from importlib.util import find_spec
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from course_utils.colab import NEEDS
from course_utils.lessons import catalog
from course_utils.lessons.build import kernel_environment
from course_utils.lessons.notebook_files import make_steady
from course_utils.lessons.source import SETUP, colab_badge, colab_cell, notebook_of, role
from tests.files import imported, write

ROOT = Path(__file__).resolve().parent.parent
ADDRESS = "https://github.com/someone/inside-out"
CELL = colab_cell(ADDRESS).source
NOWHERE = "/there/is/no/course"

# Runs before anything else in every Python of the stand-in.
SITECUSTOMIZE = """\
import os, sys
from importlib.machinery import PathFinder
from pathlib import Path

here = Path(__file__).parent
missing = os.environ.get("STAND_IN_MISSING", "").split()


class WithoutTheMissing(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name in missing and not (here / "installed").exists():
            return None
        return super().find_spec(name, path, target)


# The course that is installed here, for those who work on it, is not installed there.
sys.path[:] = [entry for entry in sys.path if entry != COURSE]
sys.meta_path[:] = [
    WithoutTheMissing if finder is PathFinder else finder
    for finder in sys.meta_path
    if finder is PathFinder or finder.find_spec("course_utils", None) is None
]
if os.environ.get("STAND_IN_COLAB"):
    import google.colab  # Colab's kernel has loaded it before the first cell
"""

PIP = """\
import json, os, sys
from pathlib import Path

here = Path(__file__).parent.parent
with (here / "installs").open("a") as log:
    log.write(json.dumps(sys.argv[1:]) + "\\n")
if os.environ.get("STAND_IN_PIP_FAILS"):
    sys.exit("ERROR: No matching\\ndistribution found")
(here / "installed").touch()
"""

BEFORE = """\
try:
    import course_utils
except ModuleNotFoundError as error:
    print(error)
"""
AFTER = """\
import importlib.metadata, json, course_utils, torch
from course_utils.processes import workers
from course_utils.reader.record import open_record

def where():
    import course_utils
    return course_utils.__file__

print(json.dumps({
    "course": course_utils.__file__,
    "in a worker": workers.Worker().call(where, deadline=60.0).value,
    "torch": [torch.__file__, importlib.metadata.version("torch")],
    "record": str(open_record().path),
}))
"""


@dataclass
class StandIn:
    """Colab's machine: an empty folder to work in, and what its Pythons find on their path."""

    work: Path
    there: Path

    def environment(self, repository: Path | str, **more: str) -> dict[str, str]:
        """Colab's, with the settings that the stored outputs were made with."""
        settings = kernel_environment(self.work, self.there)
        for name in ("COURSE_ROOT", "COURSE_RECORD"):
            del settings[name]
        return settings | {
            "PYTHONPATH": str(self.there),
            "PATH": f"{self.there / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "COURSE_REPOSITORY": str(repository),
            "STAND_IN_COLAB": "yes",
            **more,
        }

    def installs(self) -> list[list[str]]:
        """What pip was called with, call by call."""
        log = self.there / "installs"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    def run(self, code: str, environment: dict[str, str]) -> str:
        """What the code prints; it must not raise."""
        command = [sys.executable, "-P", "-c", code]
        done = subprocess.run(command, cwd=self.work, env=environment, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    def show(self, cell: str, environment: dict[str, str]) -> str:
        """What IPython shows of a cell, whether it raises or not."""
        shell = "from IPython.core.interactiveshell import InteractiveShell as S"
        return self.run(f"{shell}; S.instance(colors='NoColor').run_cell({cell!r})", environment)


@pytest.fixture
def colab(tmp_path) -> StandIn:
    there, work = tmp_path / "there", tmp_path / "content"
    files = {
        "google/colab/__init__.py": "",
        "sitecustomize.py": f"COURSE = {str(ROOT)!r}\n{SITECUSTOMIZE}",
        "pip/__init__.py": "",
        "pip/__main__.py": PIP,
    }
    installers = ("pip", "pip3", "uv", "conda")
    files |= {f"bin/{name}": f'#!/bin/sh\nexec "{sys.executable}" -m pip "$@"\n' for name in installers}
    write(there, files)
    for name in installers:
        (there / "bin" / name).chmod(0o755)
    work.mkdir()
    return StandIn(work, there)


@pytest.fixture(scope="module")
def course(tmp_path_factory) -> Path:
    """A repository of the course as it is here, with an address."""
    root = tmp_path_factory.mktemp("repository") / "inside-out"
    for folder in ("course_utils", "exercises", "notebooks", "solutions"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    text = (ROOT / "pyproject.toml").read_text()
    text = re.sub(r"^Repository *=.*\n", "", text, flags=re.MULTILINE)
    assert "\n[project.urls]\n" in text
    address = f'\n[project.urls]\nRepository = "{ADDRESS}"\n'
    (root / "pyproject.toml").write_text(text.replace("\n[project.urls]\n", address))
    commit_all(root)
    return root


def commit_all(root: Path) -> None:
    git = ["git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "All"]):
        subprocess.run([*git, *arguments], check=True, capture_output=True)


@pytest.fixture
def small(tmp_path) -> Path:
    """A repository with no more of the course than the cell itself touches."""
    package = tmp_path / "small" / "course_utils"
    package.mkdir(parents=True)
    shutil.copy(ROOT / "course_utils" / "colab.py", package)
    (package / "__init__.py").write_text("fetched = True\n")
    commit_all(package.parent)
    return package.parent


# --- the lessons ----------------------------------------------------------------------------------------


def test_every_lesson_has_the_badge_and_the_cell(course):
    there = catalog.load(course)
    assert [lesson.slug for lesson in there.lessons] == [lesson.slug for lesson in catalog.load(ROOT).lessons]
    for lesson in there.lessons:
        notebook = notebook_of(there, lesson)
        assert colab_badge(ADDRESS, lesson.slug) in notebook.cells[0].source
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        assert [cell.source for cell in code if role(cell) == SETUP] == [code[0].source] == [CELL]


def test_a_lesson_shows_on_colab_what_it_shows_elsewhere(course, colab):
    there = catalog.load(course)
    lesson = there.lesson("01_tensors")
    shipped = nbformat.read(ROOT / "notebooks" / lesson.notebook.name, as_version=4)
    stored = {cell.id: shown(cell) for cell in shipped.cells if is_steady(cell)}

    notebook = notebook_of(there, lesson)
    (setup,) = [cell for cell in notebook.cells if role(cell) == SETUP]
    at = notebook.cells.index(setup)
    notebook.cells[at + 1 : at + 1] = [new_code_cell("import course_utils", id="fetched")]
    notebook.cells.insert(0, new_code_cell(BEFORE, id="before"))
    notebook.cells.append(new_code_cell(AFTER, id="after"))
    run_notebook(notebook, colab.work, colab.environment(course))
    last = notebook.cells.pop()
    make_steady(notebook)
    cells = {cell.id: cell for cell in notebook.cells}
    for name, outputs in stored.items():
        assert shown(cells[name]) == outputs, name
    assert sum(map(bool, stored.values())) >= 8

    assert cells["before"].outputs[0].text == "No module named 'course_utils'\n"
    assert cells["fetched"].outputs == []
    (said,) = cells[setup.id].outputs
    after = json.loads(last.outputs[0].text)
    clone = colab.work / "inside-out"
    assert Path(after["course"]).resolve() == (clone / "course_utils" / "__init__.py").resolve()
    assert after["in a worker"] == after["course"]
    assert said.text == told(clone, "Nothing had to be installed.")
    assert after["torch"] == [find_spec("torch").origin, version("torch")]
    assert Path(after["record"]).resolve() == (clone / "workspace" / ".record.jsonl").resolve()
    assert colab.installs() == []


def told(course: Path, installed: str) -> str:
    """What the cell prints of a course that was fetched into this folder."""
    torch = f"It runs with the torch that is here, {version('torch')}."
    return f"The course is in {course.resolve()}. {installed} {torch}\n"


def is_steady(cell: nbformat.NotebookNode) -> bool:
    return cell.cell_type == "code" and "nbval-ignore-output" not in cell.metadata.get("tags", [])


def shown(cell: nbformat.NotebookNode) -> list[tuple]:
    """What the outputs of a cell show, without times."""
    times = re.compile(r"\b\d+\.\d+ ?(ns|µs|us|ms|s|min)\b")
    found = []
    for output in cell.outputs:
        text = json.dumps([output.get("text"), output.get("data")], sort_keys=True, ensure_ascii=False)
        found.append((output.output_type, output.get("name"), times.sub("TIME", text)))
    return found


def run_notebook(notebook: nbformat.NotebookNode, folder: Path, environment: dict[str, str]) -> None:
    """Runs every cell in a fresh kernel; raises where one of them does."""
    from jupyter_client.kernelspec import KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient

    kernels = KernelSpecManager(kernel_dirs=[], ensure_native_kernel=True)
    client = NotebookClient(
        notebook,
        km=AsyncKernelManager(kernel_name="python3", kernel_spec_manager=kernels),
        timeout=300,
        resources={"metadata": {"path": str(folder)}},
        store_widget_state=False,
        force_raise_errors=True,
    )
    client.execute(cleanup_kc=True, env=environment)


# --- the cell -------------------------------------------------------------------------------------------


def test_elsewhere_nothing_happens(colab, small):
    """Also where `google.colab` could be imported: that does not make a machine Colab's."""
    environment = colab.environment(small, STAND_IN_COLAB="", STAND_IN_MISSING="psutil")
    look = "import sys; before = list(sys.path)"
    print_change = "print(sys.path == before)"
    assert colab.run(f"{look}\n{CELL}\n{print_change}", environment) == "True\n"
    assert list(colab.work.iterdir()) == []
    assert colab.installs() == []


def test_second_run_and_restart_fetch_nothing(colab, small):
    again = f"""\
import os, sys
once = list(sys.path)
os.environ["COURSE_REPOSITORY"] = "{NOWHERE}"
os.environ["PATH"] = ""  # no git to be found
os.mkdir("elsewhere")
os.chdir("elsewhere")
{CELL}
import course_utils
print(course_utils.fetched, sys.path == once, os.listdir())"""
    said = told(colab.work / "inside-out", "Nothing had to be installed.")
    assert colab.run(f"{CELL}\n{again}", colab.environment(small)) == f"{said}True True []\n"
    restarted = f"{CELL}\nimport course_utils; print(course_utils.fetched)"
    assert colab.run(restarted, colab.environment(NOWHERE)) == f"{said}True\n"
    assert sorted(path.name for path in colab.work.iterdir()) == ["elsewhere", "inside-out"]
    assert colab.installs() == []


def test_the_address_is_the_one_it_was_built_with(colab, small):
    cell = colab_cell(f"file://{small}.git/").source
    assert f'"file://{small}"' in cell
    show = "import course_utils; print(course_utils.__file__)"
    said, shown = colab.run(f"{cell}\n{show}", colab.environment("")).splitlines()
    assert f"{said}\n" == told(colab.work / "small", "Nothing had to be installed.")
    assert Path(shown).resolve() == (colab.work / "small" / "course_utils" / "__init__.py").resolve()


@pytest.mark.parametrize("modules", [["psutil"], [*NEEDS]])
def test_exactly_what_is_missing_is_installed(colab, small, modules):
    environment = colab.environment(small, STAND_IN_MISSING=" ".join(modules))
    look = f"from importlib.util import find_spec; print(*map(bool, map(find_spec, {modules})))"
    before, after = (" ".join([was] * len(modules)) for was in ("False", "True"))
    installed = f"Installed: {', '.join(NEEDS[name] for name in modules)}."
    said = told(colab.work / "inside-out", installed)
    assert colab.run(f"{look}\n{CELL}\n{look}", environment) == f"{before}\n{said}{after}\n"
    (call,) = colab.installs()
    assert call[0] == "install"
    assert [word for word in call[1:] if not word.startswith("-")] == [NEEDS[name] for name in modules]


def test_what_could_not_be_fetched_is_one_sentence_and_nothing_is_lost(colab, small):
    (line,) = colab.show(f"{CELL}\nprint('went on')", colab.environment(NOWHERE)).splitlines()
    assert line.startswith(f"The course could not be fetched from {NOWHERE}: ")
    assert "not exist" in line
    assert list(colab.work.iterdir()) == []
    mine = colab.work / "inside-out" / "mine.txt"
    mine.parent.mkdir()
    mine.write_text("mine")
    (line,) = colab.show(CELL, colab.environment(small)).splitlines()
    assert line.startswith(f"The course could not be fetched from {small}: ")
    assert "already exists" in line
    assert mine.read_text() == "mine"


def test_failed_install_is_one_sentence_and_is_tried_again(colab, small):
    environment = colab.environment(small, STAND_IN_MISSING="psutil")
    (line,) = colab.show(CELL, environment | {"STAND_IN_PIP_FAILS": "yes"}).splitlines()
    assert line == "pip could not install psutil: ERROR: No matching distribution found"
    shown = colab.run(f"{CELL}\nimport course_utils, psutil; print('there')", environment)
    assert shown == told(colab.work / "inside-out", "Installed: psutil.") + "there\n"
    assert len(colab.installs()) == 2


# --- what may have to be installed ----------------------------------------------------------------------

# On Colab with torch (functorch, networkx), with matplotlib (PIL) and with its kernel; never ours to install.
THERE = {"torch", "functorch", "numpy", "networkx", "PIL", "IPython", "tqdm"}
# What lesson 14 looks for before it imports it, and says how to install; what lesson 15 takes from torch for
# NVIDIA GPUs; and what reads notebooks of older formats, which otherwise are said not to be readable.
OPTIONAL = {"onnx", "onnxruntime", "onnxscript", "safetensors", "torchao", "nbformat", "triton"}


def test_needs_are_all_that_a_notebook_imports():
    package = ROOT / "course_utils"
    lessons = [package / "__init__.py", package / "processes" / "forkserver.py"]
    for folder in ("draw", "explore", "measure"):
        lessons += (ROOT / "course_utils" / folder).rglob("*.py")
    for folder in ("exercises", "solutions"):
        lessons += (ROOT / folder).rglob("*.py")
    seen: set[Path] = set()
    outside: set[str] = set()
    while lessons:
        path = lessons.pop()
        if path in seen:
            continue
        seen.add(path)
        for name in imported(path.read_text(encoding="utf-8")):
            parts = name.split(".")
            if parts[0] == "course_utils":
                lessons += modules(parts)
            elif parts[0] not in sys.stdlib_module_names:
                outside.add(parts[0])
    for notebook in (ROOT / "notebooks" / "source").glob("*.md"):
        cells = re.findall(r"^```\{code-cell\}.*?\n(.*?)^```", notebook.read_text(), re.MULTILINE | re.DOTALL)
        names = {name.partition(".")[0] for cell in cells for name in imported(without_options(cell))}
        outside |= names - set(sys.stdlib_module_names) - {"course_utils"}
    assert outside - THERE - OPTIONAL == set(NEEDS)


def modules(parts: list[str]) -> list[Path]:
    base = ROOT.joinpath(*parts)
    return [path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()]


def without_options(cell: str) -> str:
    """A code cell of a lesson's source without its options and without what only IPython reads."""
    lines = re.sub(r"\A---\n.*?\n---\n", "", cell, flags=re.DOTALL).splitlines()
    return "\n".join("pass" if re.match(r"\s*[:%!]", line) else line for line in lines)


def test_needs_cannot_bring_another_torch():
    waiting, seen = [Requirement(text).name for text in NEEDS.values()], set()
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name not in seen:
            seen.add(name)
            needs = [Requirement(text) for text in requires(name) or []]
            waiting += [r.name for r in needs if r.marker is None or r.marker.evaluate({"extra": ""})]
    assert "numpy" in seen and "torch" not in seen


def test_needs_say_what_the_list_of_dependencies_says():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = {Requirement(text).name: text for text in project["dependencies"]}
    needs = {Requirement(text).name: text for text in NEEDS.values() if Requirement(text).name in listed}
    assert needs.items() <= listed.items() and len(needs) > 3
