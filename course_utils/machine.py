"""What this machine has: devices, cores, memory, a compiler, packages.

Nothing here initialises CUDA: a process that has done so can no longer be forked.
"""

import contextlib
import ctypes
import functools
import importlib.util
import math
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from course_utils.places import OURS
from course_utils.wrong_use import WrongUse, public

# What must be there to import, by need: torch.onnx.export calls onnx and onnxscript.
MODULES = {
    "onnxruntime": ("onnxruntime", "onnx", "onnxscript"),
    "safetensors": ("safetensors",),
    "triton": ("triton",),
}


@dataclass(frozen=True)
class Package:
    """A requirement of the course ("nbval>=0.11"), the version installed (None: none), whether it is met."""

    requirement: str
    installed: str | None
    met: bool


@public
def has(need: str) -> bool:
    """True if a check that needs "cuda", "mps", "compiler", "cmake" or one of `MODULES` can run here. Raises
    `ValueError` for any other need."""
    if need in ("cuda", "mps"):
        return need in devices()
    if need == "compiler":
        compiler = shutil.which(_compiler_name())
        return compiler is not None and _compiler_trouble(compiler) is None
    if need == "cmake":
        return shutil.which("cmake") is not None and _build_tool() is not None
    if need in MODULES:
        return all(importlib.util.find_spec(module) is not None for module in MODULES[need])
    known = ", ".join(("cuda", "mps", "compiler", "cmake", *MODULES))
    raise WrongUse(f"machine.has needs one of {known}; given was {need!r}.")


@functools.cache
def devices() -> list[str]:
    """The kinds of device that torch can use here, "cpu" first."""
    import torch

    found = ["cpu"]
    # `device_count` asks the driver's library; `is_available` would initialise CUDA.
    if torch.cuda.device_count() and not _is_too_old(_nvidia()[1], torch.version.cuda):
        found.append("cuda")
    if torch.backends.mps.is_available():
        found.append("mps")
    return found


def serves(device: str, ranks: int) -> bool:
    """True if so many processes can talk to each other with tensors on this kind of device: each needs a GPU
    of its own, and NCCL."""
    import torch

    if device != "cuda":
        return device == "cpu"
    return torch.cuda.device_count() >= ranks and torch.distributed.is_nccl_available()


def _torch_build() -> str:
    import torch

    if torch.version.cuda:
        return f"CUDA {torch.version.cuda}"
    if torch.version.hip:
        return f"ROCm {torch.version.hip}"
    return "MPS" if torch.backends.mps.is_built() else "CPU"


def _is_too_old(driver_cuda: str | None, torch_cuda: str | None) -> bool:
    try:
        return int(driver_cuda.split(".")[0]) < int(torch_cuda.split(".")[0])
    except (AttributeError, ValueError):
        return False  # one of them is not known, or torch is built for something else


@functools.cache
def _nvidia() -> tuple[tuple[str, ...], str | None]:
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        if nvml.nvmlInit_v2() != 0:
            return (), None
    except (OSError, AttributeError):
        return (), None
    names = []
    count, version = ctypes.c_uint(), ctypes.c_int()
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    for index in range(count.value):
        card, name = ctypes.c_void_p(), ctypes.create_string_buffer(96)
        nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(card))
        if nvml.nvmlDeviceGetName(card, name, len(name)) == 0:
            names.append(name.value.decode(errors="replace"))
    known = nvml.nvmlSystemGetCudaDriverVersion_v2(ctypes.byref(version)) == 0
    nvml.nvmlShutdown()
    return tuple(names), f"{version.value // 1000}.{version.value % 1000 // 10}" if known else None


def _platform() -> str:
    system = f"{platform.system()} {platform.machine()}"
    if sys.platform == "darwin":
        return f"macOS {platform.mac_ver()[0]} {platform.machine()}"
    with contextlib.suppress(OSError, KeyError):
        return f"{platform.freedesktop_os_release()['PRETTY_NAME']}, {system}"
    return system


def _cores() -> int:
    """Cores that this process may use: of its affinity, and of the quota of the container around it."""
    present = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([present, *(math.ceil(quota) for quota in _core_limits(Path("/")))]))


def _core_limits(root: Path) -> Iterator[float]:
    for folder in _control_groups(root, "cpu"):
        words = _read(folder / "cpu.max").split()
        if not words:
            words = [_read(folder / f"cpu.cfs_{what}_us") for what in ("quota", "period")]
        if all(word.isdecimal() for word in words):  # "max" and "-1" are no limit
            yield int(words[0]) / int(words[1])


def _memory_limits(root: Path) -> Iterator[int]:
    for folder in _control_groups(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            if (limit := _read(folder / name)).isdecimal():
                yield int(limit)


def _control_groups(root: Path, controller: str) -> Iterator[Path]:
    """The folders that describe this process's control group and all groups around it."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / (controller if controllers else "")
        folder = mount / group.lstrip("/")
        # Inside a container the group has a name from outside, and its folder is the mount itself.
        yield from (place for place in (folder, *folder.parents) if place.is_relative_to(mount))


def _read(path: Path) -> str:
    """What stands in the file; nothing where there is none."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _compiler_name() -> str:
    # As torch.compile does it: on Linux it does not look for clang++ by itself.
    return os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")


@functools.cache
def _compiler_trouble(compiler: str | None) -> str | None:
    """What the compiler says to the headers and the language standard that torch.compile needs."""
    if compiler is None:
        return None
    if sys.platform == "darwin" and compiler.startswith("/usr/bin/"):
        # Without the command line tools this is a stand-in that opens a window.
        selected = subprocess.run(["xcode-select", "-p"], capture_output=True, check=False)
        if selected.returncode:
            return "the command line tools are not installed"
    source = "#include <Python.h>\n#include <vector>\n"
    include = sysconfig.get_path("include")
    command = [compiler, "-std=c++20", "-fsyntax-only", f"-I{include}", "-x", "c++", "-"]
    if sys.platform == "linux":
        source += "#include <omp.h>\n"
        command.insert(1, "-fopenmp")
    try:
        tried = subprocess.run(command, input=source, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if tried.returncode == 0:
        return None
    said = tried.stderr.strip().splitlines() or [f"exit code {tried.returncode}"]
    return next((line for line in said if "error" in line), said[0])


def _build_tool() -> str | None:
    return shutil.which("ninja" if os.environ.get("CMAKE_GENERATOR", "").startswith("Ninja") else "make")


def _backends() -> tuple[str, ...]:
    from torch import distributed

    if not distributed.is_available():
        return ()
    return tuple(name for name in ("gloo", "nccl", "mpi") if getattr(distributed, f"is_{name}_available")())


def _packages() -> tuple[Package, ...]:
    import tomllib

    from packaging.requirements import Requirement

    project = tomllib.loads((OURS / "pyproject.toml").read_text(encoding="utf-8"))
    found = []
    for text in project["project"]["dependencies"]:
        wanted, installed = Requirement(text), None
        with contextlib.suppress(metadata.PackageNotFoundError):
            installed = metadata.version(wanted.name)
        met = installed is not None and wanted.specifier.contains(installed, prereleases=True)
        found.append(Package(text, installed, met))
    return tuple(found)


def _memory() -> int:
    import psutil

    return min([psutil.virtual_memory().total, *_memory_limits(Path("/"))])


def _here(find: Callable[[], Any]) -> Any:
    return field(default_factory=find)


@dataclass(frozen=True)
class Machine:
    """What is here. Texts are for people; `memory` is in bytes. `cores` and `memory` are what this process
    may use, which in a container is less than there is. `devices` are those that torch can use. `gpus` are
    the NVIDIA cards that the driver knows and `driver_cuda` is the CUDA version that it supports, whatever
    torch makes of them. `compiler` is the C++ compiler that torch.compile would call, and `compiler_trouble`
    what it said."""

    python: str = _here(platform.python_version)
    system: str = _here(platform.system)
    torch: str = _here(lambda: importlib.import_module("torch").__version__)
    torch_build: str = _here(_torch_build)
    cores: int = _here(_cores)
    memory: int = _here(_memory)
    devices: tuple[str, ...] = _here(lambda: tuple(devices()))
    gpus: tuple[str, ...] = _here(lambda: _nvidia()[0])
    driver_cuda: str | None = _here(lambda: _nvidia()[1])
    compiler_name: str = _here(_compiler_name)
    compiler: str | None = _here(lambda: shutil.which(_compiler_name()))
    compiler_trouble: str | None = _here(lambda: _compiler_trouble(shutil.which(_compiler_name())))
    cmake: str | None = _here(lambda: shutil.which("cmake"))
    build_tool: str | None = _here(_build_tool)
    backends: tuple[str, ...] = _here(_backends)
    packages: tuple[Package, ...] = _here(_packages)
    platform: str = _here(_platform)

    @property
    def driver_is_too_old(self) -> bool:
        """True if the driver's CUDA is of an older major version than torch's: then no kernel runs."""
        return _is_too_old(self.driver_cuda, self.torch_build.removeprefix("CUDA "))


@public
def describe() -> Machine:
    """This machine. Takes a fraction of a second once torch is imported."""
    return Machine()
