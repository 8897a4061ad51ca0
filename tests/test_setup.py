"""The ways in: what is installed, what `make` and `.ci/run` do, and what the command `course` takes."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DIRECT = [Requirement(line) for line in [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["test"]]]
CONSTRAINTS = [
    line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")
]
PINNED = dict(line.split("==") for line in CONSTRAINTS)


# --- what is installed -------------------------------------------------------------------------------


def test_every_package_that_the_course_needs_here_is_pinned():
    strange = [line for line in CONSTRAINTS if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][0-9a-z.]*", line)]
    assert not strange, "no addresses, no paths, no builds for one kind of machine (+cpu)"
    pinned = {canonicalize_name(name): version for name, version in PINNED.items()}
    assert len(pinned) == len(CONSTRAINTS)
    waiting, seen = list(DIRECT), set()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        # What a torch for GPUs brings: it asks for it by version.
        if name in seen or name.startswith(("nvidia-", "cuda-", "triton")):
            continue
        seen.add(name)
        assert name in pinned, f"constraints.txt lacks {name}"
        assert requirement.specifier.contains(pinned[name]), f"{requirement}, but {pinned[name]} is pinned"
        needs = [Requirement(line) for line in metadata.requires(name) or []]
        extras = requirement.extras or {""}
        waiting += [n for n in needs if not n.marker or any(n.marker.evaluate({"extra": e}) for e in extras)]
    assert len(seen) > 100


def test_conda_gets_python_and_compilers_and_leaves_the_rest_to_pip():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    *conda, last = environment["dependencies"]
    assert last == {"pip": ["-c constraints.txt", "-e .[test]"]}
    parts = [re.fullmatch(r"([\w-]+)(.*)", line).groups() for line in conda]
    ranges = {name: SpecifierSet(versions) for name, versions in parts}
    assert set(ranges) == {"python", "pip", "cxx-compiler", "cmake", "make"}, "the rest is in pyproject.toml"
    assert len(ranges) == len(conda)
    assert ranges["python"] == SpecifierSet(PROJECT["requires-python"])
    assert not {canonicalize_name(r.name) for r in DIRECT} & set(ranges)
    assert environment["name"] == PROJECT["name"]


# --- make --------------------------------------------------------------------------------------------


@pytest.fixture
def clone(tmp_path):
    """A fresh clone, as far as installing is concerned, in a folder with a space in its name."""
    folder = tmp_path / "fresh clone"
    folder.mkdir()
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    return folder


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    """`make` with pip's part replaced by a line that says what it would install."""
    told = "INSTALL=.venv/bin/python -c 'import sys; print(\"install\", *sys.argv[1:])'"
    return subprocess.run(
        ["make", told, *arguments], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )


def a_python(folder: Path, name: str, version: str, has_venv: bool = True) -> str:
    """A Python of another version, as far as the Makefile asks it."""
    path = folder / name
    path.write_text(f"""#!{sys.executable}
import sys
sys.version_info = ({version}, 0, "final", 0)
if {not has_venv}:
    sys.modules["ensurepip"] = None
exec(sys.argv[2])
""")
    path.chmod(0o755)
    return str(path)


def installed(folder: Path, target: str) -> list[str]:
    """What making this stamp would install. Of the Pythons that it may take only the last is one."""
    pythons = ["/gone/python3", a_python(folder.parent, "old", "3, 9"), sys.executable]
    done = make(folder, f".venv/{target}", f"PYTHON={' '.join(pythons)}")
    assert done.returncode == 0, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith("install")]


def test_what_is_installed_is_not_installed_again(clone):
    assert installed(clone, "installed") == ["install -e ."]
    assert installed(clone, "installed") == []
    assert installed(clone, "installed-test") == ["install -e .[test]"]
    assert installed(clone, "installed-test") == []
    assert installed(clone, "installed") == []
    python = clone / ".venv" / "bin" / "python"
    assert python.resolve() == Path(sys.executable).resolve()

    for changed in ("pyproject.toml", "constraints.txt"):
        now = Path(clone, changed).stat().st_mtime
        os.utime(clone / changed, (now, Path(clone, ".venv/installed-test").stat().st_mtime + 1))
        assert make(clone, "-q", ".venv/installed").returncode == 1
        assert make(clone, "-q", ".venv/installed-test").returncode == 1
        os.utime(clone / changed, (now, now))
        assert make(clone, "-q", ".venv/installed").returncode == 0

    moved = clone.rename(clone.with_name("moved"))
    assert installed(moved, "installed") == ["install -e ."]
    assert installed(moved, "installed-test") == ["install -e .[test]"]
    assert installed(moved, "installed") == []

    # An environment whose Python was removed from the machine is made again.
    python = moved / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to("/gone/python3")
    assert installed(moved, "installed") == ["install -e ."]
    assert subprocess.run([python, "-c", ""]).returncode == 0


@pytest.mark.parametrize(
    ("version", "has_venv", "said"),
    [
        ("3, 10", True, "The course needs Python 3.11, 3.12 or 3.13"),
        ("3, 14", True, "make lab PYTHON="),
        ("2, 7", True, "The course needs Python 3.11, 3.12 or 3.13"),
        ("3, 12", False, "apt install python3-venv"),
    ],
)
def test_a_python_that_does_not_do_is_named(clone, tmp_path, version, has_venv, said):
    done = make(clone, "lab", f"PYTHON={a_python(tmp_path, 'other', version, has_venv)}")
    assert done.returncode != 0
    assert said in done.stdout
    assert not Path(clone, ".venv").exists()


# --- .ci/run -----------------------------------------------------------------------------------------


@pytest.fixture
def machine(tmp_path):
    """A folder of commands that is all that `.ci/run` finds; most only write down that they were called."""
    bin = tmp_path / "bin"
    bin.mkdir()
    for name in ("bash", "env", "dirname"):
        (bin / name).symlink_to(shutil.which(name))
    (bin / "python3").symlink_to(sys.executable)
    for name in ("g++", "cmake", "make", "git", "chromium"):
        says(bin, name)
    return bin


def says(bin: Path, name: str, code: int = 0) -> None:
    (bin / name).write_text(f'#!{bin}/bash\necho "{name} $*" >> "{bin}/said"\nexit {code}\n')
    (bin / name).chmod(0o755)


def ci_run(bin: Path, folder: Path) -> tuple[int, list[str], str]:
    """Runs a copy of `.ci/run`: its exit code, the calls it made, what it printed."""
    shutil.copytree(ROOT / ".ci", folder / ".ci", dirs_exist_ok=True)
    done = subprocess.run(
        [folder / ".ci" / "run"],
        env={"PATH": str(bin), "CI": "true"},
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    return done.returncode, (bin / "said").read_text().splitlines(), done.stdout + done.stderr


def test_ci_runs_the_tests_as_the_readme_says(machine, tmp_path):
    assert ci_run(machine, tmp_path) == (0, ["make test"], "")
    says(machine, "make", code=2)
    assert ci_run(machine, tmp_path)[0] == 2
    assert re.search(r"^ +make test\b", (ROOT / "README.md").read_text(), re.MULTILINE)


def test_ci_installs_what_is_missing(machine, tmp_path):
    (machine / "cmake").unlink()
    (machine / "chromium").unlink()
    says(machine, "apt-get")
    # Without root it asks sudo, which here does as it is told.
    (machine / "sudo").write_text(f'#!{machine}/bash\nshift\n"$@"\n')
    (machine / "sudo").chmod(0o755)
    code, said, _ = ci_run(machine, tmp_path)
    install = "apt-get install -y -qq --no-install-recommends cmake chromium"
    assert (code, said) == (0, ["apt-get update -qq", install, "make test"])


def test_ci_says_what_it_cannot_install(machine, tmp_path):
    (machine / "cmake").unlink()
    code, said, printed = ci_run(machine, tmp_path)
    assert (code, said) == (0, ["make test"])
    assert "cmake" in printed


# --- course ------------------------------------------------------------------------------------------


def test_the_command_starts_without_torch_and_jupyter():
    code = "import sys, course_utils.cli; print(*{'torch', 'jupyterlab', 'nbformat'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "\n"
