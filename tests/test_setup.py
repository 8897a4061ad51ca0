"""The ways in: what is installed, what `make` and `.ci/run` do, and what the command `course` takes."""

import contextlib
import http.server
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import tomllib
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pip
import psutil
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from course_utils import install

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


def test_containers_binder_and_the_editor_agree_with_the_project():
    docker = (ROOT / "Dockerfile").read_text()
    binder = (ROOT / "binder" / "requirements.txt").read_text()
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    editor = json.loads((ROOT / ".vscode" / "settings.json").read_text())
    asked = json.loads((ROOT / ".vscode" / "extensions.json").read_text())["recommendations"]

    pythons = re.findall(r"^FROM python:([\d.]+)", docker, re.MULTILINE)
    pythons += re.findall(r"python[-:]([\d.]+)", (ROOT / "binder" / "runtime.txt").read_text())
    pythons += re.findall(r"python:([\d.]+)", container["image"])
    assert len(pythons) == 3
    assert all(SpecifierSet(PROJECT["requires-python"]).contains(f"{version}.0") for version in pythons)

    (in_docker,) = re.findall(r"pip install .*-c constraints\.txt -e '\.\[(.*)\]'", docker)
    (in_binder,) = re.findall(r"^-c \.\./constraints\.txt\n-e \.\[(.*)\]$", binder, re.MULTILINE)
    extras = {*in_docker.split(","), *in_binder.split(",")}
    assert extras <= set(PROJECT["optional-dependencies"])
    needs = [Requirement(line) for extra in extras for line in PROJECT["optional-dependencies"][extra]]
    assert {canonicalize_name(r.name) for r in needs} <= {canonicalize_name(name) for name in PINNED}

    small = install.CPU_BUILDS.partition("=")[2]
    assert f"ARG PIP_EXTRA_INDEX_URL={small}\n" in docker
    assert f"--extra-index-url {small}\n" in binder
    assert container["containerEnv"] == {"PIP_EXTRA_INDEX_URL": small}
    assert container["customizations"]["vscode"]["extensions"] == asked
    assert editor["python.defaultInterpreterPath"].endswith("/.venv/bin/python")
    assert os.access(ROOT / "binder" / "postBuild", os.X_OK)
    # What is run and copied is there, and nothing that a clone lacks is sent to Docker.
    assert {"COPY . .", "RUN rm -r solutions"} <= set(docker.splitlines())
    ignored = set((ROOT / ".gitignore").read_text().split()) - {".pytest_cache/"}
    assert {line.strip("*/") for line in ignored} <= {
        line.strip("*/") for line in (ROOT / ".dockerignore").read_text().split()
    }


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
    """What making this stamp would install. Of the Pythons that it may take only the last is one; it makes
    environments without pip, in a tenth of the time."""
    quick = folder.parent / "quick"
    bare = '[ "$2" != venv ] || set -- "$@" --without-pip'
    quick.write_text(f'#!/bin/sh\n{bare}\nexec "{sys.executable}" "$@"\n')
    quick.chmod(0o755)
    pythons = ["/gone/python3", a_python(folder.parent, "old", "3, 9"), str(quick)]
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


# --- what an installation says ----------------------------------------------------------------------


OFFER = "    make lab PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu\n"


@pytest.fixture
def bare(clone):
    """A fresh clone with an environment that has nothing but pip."""
    (clone / "course_utils").mkdir()
    shutil.copy(ROOT / "course_utils" / "install.py", clone / "course_utils")
    venv.create(clone / ".venv", symlinks=True)
    (site,) = clone.glob(".venv/lib/python*/site-packages")
    (site / "pip").symlink_to(Path(pip.__file__).parent)
    return clone


def a_torch(folder: Path, version: str, modules: dict[str, str] | None = None) -> Path:
    """A wheel that pip installs as torch."""
    info = f"torch-{version}.dist-info"
    files = {
        "torch/__init__.py": "",
        **(modules or {}),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in files)
    folder.mkdir(exist_ok=True)
    wheel = folder / f"torch-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return wheel


def surroundings(bare: Path, links: Path | str, gpu: bool = False) -> dict[str, str]:
    """Variables that let pip find torch at one place alone, with an NVIDIA GPU or without one."""
    bin = bare.parent / "bin"
    bin.mkdir(exist_ok=True)
    smi = bin / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\n{'echo GPU 0: NVIDIA H200' if gpu else 'echo No devices; exit 6'}\n")
    smi.chmod(0o755)
    env = {k: v for k, v in os.environ.items() if not k.startswith("PIP_") and k != "CI"}
    env |= {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(links)}
    return env | {"PATH": f"{bin}:{env['PATH']}"}


INSTALL = [".venv/bin/python", "course_utils/install.py", "lab"]


@pytest.mark.parametrize(
    ("versions", "gpu", "offered"),
    [
        (["2.13.0"], False, sys.platform == "linux"),
        (["2.13.0"], True, False),
        (["2.13.0", "2.13.0+cpu"], False, False),
        (["2.13.0+cu130"], False, False),
    ],
)
def test_a_torch_for_gpus_is_not_fetched_unasked(bare, tmp_path, versions, gpu, offered):
    links = [a_torch(tmp_path / "links", version) for version in versions][0].parent
    env = surroundings(bare, links, gpu)
    # Its input is nothing that ends, and it waits for none.
    with subprocess.Popen(
        [*INSTALL, "torch"], cwd=bare, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        said = process.stdout.read()
        assert process.wait(60) == 0
    assert f"torch-{versions[-1]}-py3-none-any.whl: " in said
    assert (OFFER in said) == offered
    assert ("unpacked 5 GB" in said) == (sys.platform == "linux" and versions == ["2.13.0"])
    assert re.search(r"\nInstalled in \d+ s\. What pip said is in .*/install\.log\n$", said)


def test_the_readme_says_how_big_it_is_as_the_installation_does():
    readme = (ROOT / "README.md").read_text()
    assert OFFER in readme
    said = " ".join(readme.split())
    for size in (install.WITH_CUDA, install.WITHOUT_CUDA, install.ON_MACOS, install.ALL_ELSE):
        assert size in said
    assert OFFER.split()[-1] in (ROOT / "environment.yml").read_text()


class Terminal:
    """A program that was started at a terminal: what it has shown, what is typed."""

    def __init__(self, command: list[str], cwd: Path, env: dict[str, str]) -> None:
        self.ours, theirs = os.openpty()
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
        self.process = subprocess.Popen(command, cwd=cwd, env=env, start_new_session=True, **streams)
        os.close(theirs)
        self.said = ""

    def until(self, text: str | None) -> None:
        """Reads until this was shown; None: to the end."""
        with contextlib.suppress(OSError):  # EIO: nobody writes any more
            while text is None or text not in self.said:
                self.said += os.read(self.ours, 1000).decode().replace("\r\n", "\n")
        assert text is None or text in self.said, self.said

    def type(self, line: str) -> None:
        os.write(self.ours, line.encode() + b"\n")

    def interrupt(self) -> None:
        """What Ctrl+C does: all that runs here is told. First the program has to wait for an answer: Python
        forgets a signal that comes between the prompt and the reading until something was typed."""
        while psutil.Process(self.process.pid).status() != psutil.STATUS_SLEEPING:
            time.sleep(0.01)
        os.killpg(self.process.pid, signal.SIGINT)

    def end(self) -> int:
        self.until(None)
        os.close(self.ours)
        return self.process.wait(60)


@pytest.mark.skipif(sys.platform != "linux", reason="nothing is asked elsewhere")
@pytest.mark.parametrize(("answer", "extra"), [("", True), ("n", False), (None, None)])
def test_at_a_terminal_the_build_without_cuda_is_had_by_an_answer(bare, tmp_path, answer, extra):
    env = surroundings(bare, a_torch(tmp_path / "links", "2.13.0").parent)
    terminal = Terminal([*INSTALL, "torch"], bare, env | {"PIP_VERBOSE": "2"})
    terminal.until("[Y/n] ")
    assert OFFER in terminal.said
    if answer is None:
        terminal.interrupt()
        assert terminal.end() == 130
        assert "Stopped. `make lab` starts anew." in terminal.said
        assert not Path(bare, ".venv", "install.log").exists()
        return
    terminal.type(answer)
    assert terminal.end() == 0
    (ignored,) = re.findall("Ignoring indexes: (.*)", Path(bare, ".venv", "install.log").read_text())
    assert ("https://download.pytorch.org/whl/cpu" in ignored) == extra


def test_an_installation_that_fails_shows_the_end_of_what_pip_says(bare, tmp_path):
    (tmp_path / "links").mkdir()
    # As an environment is that was stopped while it was made: without pip.
    next(bare.glob(".venv/lib/python*/site-packages/pip")).unlink()
    done = subprocess.run(
        ["make", "lab"],
        cwd=bare,
        env=surroundings(bare, tmp_path / "links"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    log = bare / ".venv" / "install.log"
    assert done.returncode != 0
    assert f"    {log.read_text().splitlines()[-1]}\n" in done.stderr
    assert f"All: {log}\n" in done.stderr
    assert "No matching distribution found for setuptools" in done.stderr
    assert sorted(path.name for path in log.parent.iterdir() if "install" in path.name) == ["install.log"]


def test_an_installation_shows_how_far_it_is_and_starts_anew_when_it_was_stopped(bare, tmp_path):
    # A wheel that takes long: to fetch, since half of it comes late, and to install, since pip compiles it.
    slow = {f"torch/slow{n}.py": "x = [" + "f(1)," * 100_000 + "]" for n in range(50)}
    wheel = a_torch(tmp_path / "links", "2.13.0+cpu", {**slow, "torch/big": os.urandom(10**6).hex()})
    content, rest = wheel.read_bytes(), threading.Event()

    class Site(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = f"<a href='{wheel.name}'>{wheel.name}</a>".encode()
            body = content if self.path.endswith(".whl") else page
            self.send_response(200)
            self.send_header("Content-Type", "text/html" if body is page else "application/zip")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with contextlib.suppress(ConnectionError):  # whoever only asked for the name has gone
                self.wfile.write(body[: len(body) // 2])
                assert body is page or rest.wait(60)
                self.wfile.write(body[len(body) // 2 :])

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        env = surroundings(bare, f"http://127.0.0.1:{server.server_port}/")
        terminal = Terminal([*INSTALL, "torch"], bare, env)
        terminal.until(" MB: torch-2.13.0+cpu-py3-none-any.whl")
        rest.set()
        terminal.until("Installing: torch, 1 of 1")
        written = ".venv/lib/python*/site-packages/torch-2.13.0+cpu.dist-info/METADATA"
        while terminal.process.poll() is None and not list(bare.glob(written)):
            time.sleep(0.02)
        terminal.interrupt()
        assert terminal.end() == 130
        server.shutdown()
    assert re.search(r"\rFetching: 1 package found, 0\.\d MB of 1\.\d MB: torch", terminal.said)
    assert not Path(bare, ".venv", "tmp").exists()

    # What is there looks to pip as if torch were installed; so the environment is made again.
    assert list(bare.glob(written))
    assert installed(bare, "installed") == ["install -e ."]
    assert not list(bare.glob(".venv/lib/python*/site-packages/torch*"))
    assert installed(bare, "installed") == []


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
