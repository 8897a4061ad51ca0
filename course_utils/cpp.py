"""Small C++ programs against the LibTorch that is inside the installed torch: built once, kept, and run
without Python.

A build takes some ten seconds, so programs are kept in the user's cache folder, each in a folder of its own
that is named after all that it depends on. What stands there is whole: a program is built elsewhere and
moved to its place when it is finished.
"""

import contextlib
import fcntl
import hashlib
import os
import platform
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from course_utils.wrong_use import WrongUse, public

_AS_TEXT = {"encoding": "utf-8", "errors": "replace"}  # what a program writes

# How many lines of a compiler's errors are worth reading: those that follow come from the first.
ERROR_LINES = 3

# A torch that was built for a GPU asks for the whole toolkit of that GPU to be found. What runs on the CPU
# needs two libraries of it, so there they are named.
_FIND_TORCH = """\
find_package(Torch REQUIRED)
set(CMAKE_CXX_FLAGS "${CMAKE_CXX_FLAGS} ${TORCH_CXX_FLAGS}")
"""
_NAME_LIBRARIES = """\
find_library(TORCH_CPU torch_cpu PATHS "@ROOT@/lib" NO_DEFAULT_PATH REQUIRED)
find_library(C10 c10 PATHS "@ROOT@/lib" NO_DEFAULT_PATH REQUIRED)
find_library(TORCH torch PATHS "@ROOT@/lib" NO_DEFAULT_PATH REQUIRED)
set(TORCH_LIBRARIES "-Wl,--no-as-needed,--allow-shlib-undefined" ${TORCH} ${TORCH_CPU} ${C10})
include_directories(SYSTEM "@ROOT@/include" "@ROOT@/include/torch/csrc/api/include")
add_compile_definitions(_GLIBCXX_USE_CXX11_ABI=@ABI@)
"""
_PROJECT = """\
cmake_minimum_required(VERSION 3.18)
project(@NAME@ CXX)
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_BUILD_RPATH "@ROOT@/lib")
@TORCH@
add_executable(@NAME@ main.cpp)
target_link_libraries(@NAME@ ${TORCH_LIBRARIES})
"""


class BuildError(Exception):
    """The program could not be built; `lines` is what the compiler or CMake said first."""

    def __init__(self, *lines: str) -> None:
        self.lines = list(lines)
        super().__init__("\n".join(lines))


class Ran(NamedTuple):
    """The exit code and the output of a program. A negative `returncode` is the signal that ended it."""

    returncode: int
    stdout: str
    stderr: str


@public
def build(source: str, name: str) -> Path:
    """Builds the program of this C++20 source, or takes it from the cache where it was built before. `name`
    is what the program is called: letters, digits and underscores. Raises `BuildError` where the source does
    not compile, where there is no cmake, and where the cache cannot be written to."""
    if not re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII):
        raise WrongUse(f"{name!r} is no name for a program: letters, digits and underscores")
    return keep(name, source, lambda place: _build_in(place, source, name))


@public
def keep(name: str, source: str, make: Callable[[Path], Path]) -> Path:
    """Returns the file of that name, from the cache where it was made before, from the same source. `make`
    gets an empty folder and returns the file that it wrote there. Raises `BuildError` where the cache cannot
    be written to."""
    folder = cache_folder() / f"{Path(name).stem}-{_key(source, name)}"
    kept = folder / name
    if kept.is_file():
        return kept
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder):
            if not kept.is_file():  # another process may have made it meanwhile
                # A compiler that was interrupted may still be writing here.
                place = tempfile.TemporaryDirectory(prefix="build-", dir=folder, ignore_cleanup_errors=True)
                with place as made:
                    make(Path(made)).replace(kept)
    except OSError as error:
        raise BuildError(f"{type(error).__name__}: {error}") from error
    return kept


@public
def run(program: Path, *args: object, timeout: float = 60.0) -> Ran:
    """Runs the program with an empty environment: there is no Python in it, and no path to one. Raises
    `TimeoutError` where it has not ended after `timeout` seconds."""
    command = [str(program), *map(str, args)]
    try:
        done = subprocess.run(command, env={}, capture_output=True, timeout=timeout, **_AS_TEXT)
    except FileNotFoundError:
        raise WrongUse(f"cpp.run needs the path of a program that is there; given was {program!s}.") from None
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"{Path(program).name} was still running after {timeout:g} seconds") from None
    return Ran(done.returncode, done.stdout, done.stderr)


def cmake_text(name: str) -> str:
    """Returns the CMakeLists.txt of a program of that name."""
    cpu = torch.version.cuda is None and torch.version.hip is None
    text = _PROJECT.replace("@TORCH@", _FIND_TORCH if cpu else _NAME_LIBRARIES)
    abi = str(int(torch.compiled_with_cxx11_abi()))
    return text.replace("@NAME@", name).replace("@ROOT@", _torch_root()).replace("@ABI@", abi)


def cache_folder() -> Path:
    """Returns the folder where programs are kept: `$XDG_CACHE_HOME/pytorch-inside-out/cpp`, by default under
    `~/.cache`."""
    configured = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # A relative one is to be ignored, says the standard.
    base = configured if configured.is_absolute() else Path("~/.cache").expanduser()
    return base / "pytorch-inside-out" / "cpp"


def _key(source: str, name: str) -> str:
    parts = source, cmake_text(name), torch.__version__, _torch_root(), platform.platform()
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:16]


def _torch_root() -> str:
    return Path(torch.__file__).resolve().parent.as_posix()


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time, where the file system can lock; a lock goes with the process that held it.
    Nothing depends on it: two that build at once put the same program into the same place."""
    with (folder / "lock").open("w") as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
            # Whoever began one of these is gone.
            for left in folder.glob("build-*"):
                shutil.rmtree(left, ignore_errors=True)
        yield


def _build_in(place: Path, source: str, name: str) -> Path:
    (place / "main.cpp").write_text(source, encoding="utf-8")
    (place / "CMakeLists.txt").write_text(cmake_text(name), encoding="utf-8")
    made = place / "made"
    prefix = f"-DCMAKE_PREFIX_PATH={torch.utils.cmake_prefix_path}"
    configure = ["cmake", "-S", str(place), "-B", str(made), "-DCMAKE_BUILD_TYPE=Release", prefix]
    if shutil.which("ninja") and "CMAKE_GENERATOR" not in os.environ:
        configure += ["-G", "Ninja"]
    _call(configure)
    _call(["cmake", "--build", str(made)])
    return made / name


def _call(command: list[str]) -> None:
    """Runs a step of the build. Where this is interrupted the compiler is too, with all that it started."""
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "LANGUAGE": "en"},  # `_errors` looks for the English word
        process_group=0,
        **_AS_TEXT,
    ) as process:
        try:
            said = process.communicate()[0]
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    if process.returncode:
        raise BuildError(*_errors(said) or [f"`{command[0]}` ended with exit code {process.returncode}"])


def _errors(said: str) -> list[str]:
    """The first lines that speak of an error, without the folder that nobody will find again."""
    # The name of a folder may have spaces in it.
    folder = re.compile(r"/[^:'\"]*/build-[^/\s]*/")
    lines = [folder.sub("", line).strip() for line in said.splitlines() if line.strip()]
    wanted = [i for i, line in enumerate(lines) if re.search(r"\berror\b|undefined", line, re.IGNORECASE)]
    if not wanted:
        return lines[-ERROR_LINES:]
    if lines[wanted[0]].startswith("CMake Error"):  # what is wrong stands below
        return lines[wanted[0] : wanted[0] + ERROR_LINES]
    return [lines[i] for i in wanted[:ERROR_LINES]]
