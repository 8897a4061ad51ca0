"""The lessons on Colab: fetched by their first cell into an empty folder, in a real kernel.

The kernel is a stand-in for Colab's: `google.colab` is loaded in it, the course is not installed, and pip
is a recorder. What it fetches is a local repository made of the files that are tested.
"""

from __future__ import annotations

import ast
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

ROOT = Path(__file__).resolve().parent.parent
LESSONS = ("00_start_here", "01_tensors")
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
    for name, text in files.items():
        (there / name).parent.mkdir(parents=True, exist_ok=True)
        (there / name).write_text(text)
    for name in installers:
        (there / "bin" / name).chmod(0o755)
    work.mkdir()
    return StandIn(work, there)


@pytest.fixture(scope="module")
def course(tmp_path_factory) -> Path:
    """A repository of the course as it is here, with an address, and with two lessons built from that."""
    root = tmp_path_factory.mktemp("repository") / "inside-out"
    for folder in ("course_utils", "exercises", "notebooks", "solutions"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    text = (ROOT / "pyproject.toml").read_text()
    text = re.sub(r"^Repository *=.*\n", "", text, flags=re.MULTILINE)
    assert "\n[project.urls]\n" in text
    address = f'\n[project.urls]\nRepository = "{ADDRESS}"\n'
    (root / "pyproject.toml").write_text(text.replace("\n[project.urls]\n", address))
    commit_all(root)
    build = [sys.executable, "-m", "course_utils.cli", "build", *LESSONS]
    environment = {**os.environ, "COURSE_ROOT": str(root), "PYTHONPATH": str(root)}
    done = subprocess.run(build, cwd=root.parent, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
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


@pytest.mark.parametrize("slug", LESSONS)
def test_lesson_runs_on_colab(slug, course, colab):
    built = nbformat.read(course / "notebooks" / f"{slug}.ipynb", as_version=4)
    (setup,) = [cell for cell in built.cells if role(cell) == SETUP]
    assert setup.outputs == []  # it was built elsewhere, and did nothing there
    stored = {cell.id: shown(cell) for cell in built.cells if is_steady(cell)}

    at = built.cells.index(setup)
    built.cells[at + 1 : at + 1] = [new_code_cell("import course_utils", id="fetched")]
    built.cells.insert(0, new_code_cell(BEFORE, id="before"))
    built.cells.append(new_code_cell(AFTER, id="after"))
    run_notebook(built, colab.work, colab.environment(course))
    make_steady_but_last(built)
    fresh = {cell.id: shown(cell) for cell in built.cells if cell.id in stored}
    for name, outputs in stored.items():
        assert fresh[name] == outputs, name
    assert sum(map(bool, stored.values())) >= 8

    cells = {cell.id: cell for cell in built.cells}
    assert cells["before"].outputs[0].text == "No module named 'course_utils'\n"
    assert cells[setup.id].outputs == cells["fetched"].outputs == []
    after = json.loads(cells["after"].outputs[0].text)
    clone = colab.work / "inside-out"
    assert Path(after["course"]).resolve() == (clone / "course_utils" / "__init__.py").resolve()
    assert after["in a worker"] == after["course"]
    assert after["torch"] == [find_spec("torch").origin, version("torch")]
    assert Path(after["record"]).resolve() == (clone / "workspace" / ".record.jsonl").resolve()
    assert colab.installs() == []


def is_steady(cell: nbformat.NotebookNode) -> bool:
    return cell.cell_type == "code" and "nbval-ignore-output" not in cell.metadata.get("tags", [])


def make_steady_but_last(notebook: nbformat.NotebookNode) -> None:
    last = notebook.cells.pop()
    make_steady(notebook)
    notebook.cells.append(last)


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
    assert colab.run(f"{CELL}\n{again}", colab.environment(small)) == "True True []\n"
    restarted = f"{CELL}\nimport course_utils; print(course_utils.fetched)"
    assert colab.run(restarted, colab.environment(NOWHERE)) == "True\n"
    assert sorted(path.name for path in colab.work.iterdir()) == ["elsewhere", "inside-out"]
    assert colab.installs() == []


def test_the_address_is_the_one_it_was_built_with(colab, small):
    cell = colab_cell(f"file://{small}.git/").source
    assert f'"file://{small}"' in cell
    show = "import course_utils; print(course_utils.__file__)"
    shown = colab.run(f"{cell}\n{show}", colab.environment(""))
    assert Path(shown.strip()).resolve() == (colab.work / "small" / "course_utils" / "__init__.py").resolve()


@pytest.mark.parametrize("module", NEEDS)
def test_exactly_what_is_missing_is_installed(colab, small, module):
    environment = colab.environment(small, STAND_IN_MISSING=module)
    look = f"from importlib.util import find_spec; print(find_spec('{module}') is not None)"
    assert colab.run(f"{look}\n{CELL}\n{look}", environment) == "False\nTrue\n"
    (call,) = colab.installs()
    assert call[0] == "install"
    assert [word for word in call[1:] if not word.startswith("-")] == [NEEDS[module]]


def test_failed_clone_is_one_sentence(colab):
    said = colab.show(f"{CELL}\nprint('went on')", colab.environment(NOWHERE))
    (line,) = said.splitlines()
    assert line.startswith(f"The course could not be fetched from {NOWHERE}: ")
    assert "not exist" in line
    assert list(colab.work.iterdir()) == []


def test_what_stands_in_the_way_is_named_and_kept(colab, small):
    (colab.work / "inside-out").mkdir()
    mine = colab.work / "inside-out" / "mine.txt"
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
    assert shown == "there\n"
    assert len(colab.installs()) == 2


# --- what may have to be installed ----------------------------------------------------------------------

# On Colab with torch (functorch, networkx), with matplotlib (PIL) and with its kernel; never ours to install.
THERE = {"torch", "functorch", "numpy", "networkx", "PIL", "IPython", "tqdm"}
# What lesson 14 looks for before it imports it, and says how to install.
OPTIONAL = {"onnx", "onnxruntime", "onnxscript", "safetensors"}


def test_needs_are_all_that_a_notebook_imports():
    package = ROOT / "course_utils"
    lessons = [package / "__init__.py", package / "processes" / "worker_server.py"]
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


def imported(text: str) -> set[str]:
    """The modules that a text imports anywhere in it, for more than its annotations."""
    found: set[str] = set()
    waiting: list[ast.AST] = [ast.parse(text)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            waiting += node.orelse
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        waiting += ast.iter_child_nodes(node)
    return found


def modules(parts: list[str]) -> list[Path]:
    base = ROOT.joinpath(*parts)
    return [path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()]


def without_options(cell: str) -> str:
    """A code cell of a lesson's source without its options and without what only IPython reads."""
    lines = re.sub(r"\A---\n.*?\n---\n", "", cell, flags=re.DOTALL).splitlines()
    return "\n".join("pass" if re.match(r"\s*[:%!]", line) else line for line in lines)


def test_needs_cannot_bring_another_torch():
    waiting = [Requirement(text).name for text in NEEDS.values()]
    assert "torch" in closure(["torch"]) and "sympy" in closure(["torch"])
    assert "numpy" in closure(waiting)
    assert "torch" not in closure(waiting)


def closure(names: list[str]) -> set[str]:
    """The packages that these need, and the ones that those need, by their canonical names."""
    found: set[str] = set()
    waiting = [canonicalize_name(name) for name in names]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            wanted = [Requirement(text) for text in requires(name) or []]
            there = [r for r in wanted if r.marker is None or r.marker.evaluate({"extra": ""})]
            waiting += [canonicalize_name(r.name) for r in there]
    return found


def test_needs_say_what_the_list_of_dependencies_says():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = {Requirement(text).name: text for text in project["dependencies"]}
    needs = {Requirement(text).name: text for text in NEEDS.values()}
    both = listed.keys() & needs.keys()
    assert {"cloudpickle", "ipywidgets", "matplotlib"} <= both
    assert {name: needs[name] for name in both} == {name: listed[name] for name in both}
