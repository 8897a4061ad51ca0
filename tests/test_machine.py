"""What the course says of a machine, against the facts of this one and of made-up ones."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from course_utils import cli, machine
from course_utils.reader import doctor
from tests.files import write

ROOT = Path(__file__).parent.parent


def in_child(code: str, **changes: str | None) -> object:
    """The JSON that `code` prints in a fresh process, with these changes to the environment (None: unset)."""
    environment = {key: value for key, value in {**os.environ, **changes}.items() if value is not None}
    command = [sys.executable, "-c", "import json, os\nfrom course_utils import machine\n" + code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def program(folder: Path, name: str, script: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(0o755)
    return path


@pytest.fixture(scope="module")
def here() -> machine.Machine:
    return machine.describe()


# Facts.


def test_describes_this_machine_and_leaves_cuda_alone(here: machine.Machine) -> None:
    assert (here.python, here.torch) == (platform.python_version(), torch.__version__)
    assert (here.system, here.cmake) == (os.uname().sysname, shutil.which("cmake"))
    assert here.devices == tuple(machine.devices())
    assert 0 < here.memory <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert ("gloo" in here.backends) == torch.distributed.is_gloo_available()
    # In a fresh process, so that a GPU is initialised there and not here. One that has initialised CUDA
    # cannot use it after a fork; one that has described itself can.
    code = """
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
cores = machine.describe().cores
import torch
untouched = not torch.cuda.is_initialized()
child = os.fork()
if child == 0:
    for device in machine.devices():
        assert torch.ones(3, device=device).sum().item() == 3
    os._exit(0)
fine = os.waitpid(child, 0)[1] == 0
print(json.dumps([cores, untouched, fine, machine.devices()]))
"""
    cores, untouched, fine, devices = in_child(code)
    assert cores == 1 if hasattr(os, "sched_setaffinity") else cores >= 1
    assert untouched and fine
    gpus = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    assert devices == ["cpu", *[name for name, there in gpus.items() if there]]


def test_a_package_that_is_missing_or_too_old(tmp_path: Path) -> None:
    old = tmp_path / "nbval-0.1.dist-info"
    old.mkdir()
    (old / "METADATA").write_text("Metadata-Version: 2.1\nName: nbval\nVersion: 0.1\n")
    code = """
from importlib import metadata
find = metadata.version
def version(name):
    if name == "papermill":
        raise metadata.PackageNotFoundError(name)
    return find(name)
metadata.version = version
print(json.dumps([[p.requirement, p.installed] for p in machine.describe().packages if not p.met]))
"""
    unmet = in_child(code, PYTHONPATH=str(tmp_path))
    assert unmet == [["nbval>=0.11", "0.1"], ["papermill>=2.6", None]]


LIMITS = {
    # Version 2 of control groups: one tree, limits at any level of it.
    "two": {
        "proc/self/cgroup": "0::/outer/inner\n",
        "sys/fs/cgroup/outer/cpu.max": "150000 100000\n",
        "sys/fs/cgroup/outer/inner/cpu.max": "max 100000\n",
        "sys/fs/cgroup/outer/inner/memory.max": "1073741824\n",
        "sys/fs/cgroup/outer/memory.max": "max\n",
    },
    # Version 1: a tree for each controller; the group's own name may be one from outside the container.
    "one": {
        "proc/self/cgroup": "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n1:name=x:/\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "150000\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "1073741824\n",
    },
    "mac": {},
}


@pytest.mark.parametrize("root", LIMITS)
def test_limits_of_a_container(tmp_path: Path, root: str) -> None:
    write(tmp_path, LIMITS[root])
    assert list(machine._core_limits(tmp_path)) == ([1.5] if LIMITS[root] else [])
    assert list(machine._memory_limits(tmp_path)) == ([1 << 30] if LIMITS[root] else [])


# Needs.


def test_the_compiler_is_the_one_that_cxx_names_or_none(tmp_path: Path) -> None:
    renamed = program(tmp_path / "bin", "my-c++", f'exec {machine.describe().compiler} "$@"\n')
    code = "print(json.dumps([machine.has('compiler'), machine.describe().compiler, machine.has('cmake')]))"
    assert in_child(code, CXX=str(renamed))[:2] == [True, str(renamed)]
    assert in_child(code, CXX="no-such-compiler")[:2] == [False, None]
    assert in_child(code, PATH=str(tmp_path), CXX=None) == [False, None, False]
    with pytest.raises(ValueError, match="given was .tpu."):
        machine.has("tpu")


def test_a_compiler_counts_when_it_compiles(tmp_path: Path) -> None:
    broken = program(
        tmp_path / "broken", "c++", "echo 'input:1:10: fatal error: Python.h: No such file' >&2; exit 1\n"
    )
    code = "print(json.dumps([machine.has('compiler'), machine.describe().compiler_trouble]))"
    has, trouble = in_child(code, CXX=str(broken))
    assert (has, trouble) == (False, "input:1:10: fatal error: Python.h: No such file")
    # The real compiler without the real headers.
    code = "import sysconfig\nsysconfig.get_path = lambda name: '/nowhere'\n" + code
    has, trouble = in_child(code)
    assert (has, "Python.h" in trouble) == (False, True)


def test_cmake_needs_something_to_build_with_and_a_package_all_that_it_takes(tmp_path: Path) -> None:
    folder = program(tmp_path / "bin", "cmake", "exit 0\n").parent
    code = """
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name: find(name) if name != os.environ["HIDDEN"] else None
print(json.dumps([machine.has(name) for name in ("cmake", "onnxruntime", "safetensors")]))
"""
    given = {"PATH": str(folder), "CMAKE_GENERATOR": "", "HIDDEN": ""}
    assert in_child(code, **given) == [False, True, True]
    program(folder, "ninja", "exit 0\n")
    assert in_child(
        code,
        **given,
    ) == [False, True, True]
    ninja = given | {"CMAKE_GENERATOR": "Ninja Multi-Config", "HIDDEN": "onnxscript"}
    assert in_child(code, **ninja) == [True, False, True]
    program(folder, "make", "exit 0\n")
    assert in_child(code, **given | {"HIDDEN": "safetensors"}) == [True, True, False]


DRIVER = r"""
#include <cstring>
extern "C" {
int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int* version) { *version = 12040; return 0; }
int nvmlDeviceGetCount_v2(unsigned* count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** card) {
    *card = (void*)(0x700000000000 + index);  // more than an int can hold
    return 0;
}
int nvmlDeviceGetName(void* card, char* name, unsigned length) {
    std::strncpy(name, card == (void*)0x700000000001 ? "Second Card" : "First Card", length);
    return 0;
}
}
"""


@pytest.mark.skipif(sys.platform != "linux", reason="NVIDIA's driver is for Linux")
def test_reads_what_the_driver_says(tmp_path: Path) -> None:
    # A library with the driver's functions, called as the driver's is.
    source = tmp_path / "driver.cpp"
    source.write_text(DRIVER)
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run([machine.describe().compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    code = "print(json.dumps(machine._nvidia()))"
    assert in_child(code, LD_LIBRARY_PATH=str(tmp_path)) == [["First Card", "Second Card"], "12.4"]


# Advice.


@pytest.fixture
def able(here: machine.Machine) -> machine.Machine:
    """A Linux machine that has everything."""
    return dataclasses.replace(
        here,
        system="Linux",
        torch_build="CUDA 13.0",
        devices=("cpu", "cuda"),
        gpus=("NVIDIA H200", "NVIDIA H200"),
        driver_cuda="13.0",
        compiler="/usr/bin/g++",
        compiler_trouble=None,
        cmake="/usr/bin/cmake",
        build_tool="/usr/bin/make",
        backends=("gloo", "nccl"),
        packages=(machine.Package("numpy", "2.0", True),),
    )


def advised(described: machine.Machine) -> dict[str, doctor.Advice]:
    return {advice.topic: advice for advice in doctor.advice(described)}


def missing(described: machine.Machine) -> dict[str, doctor.Advice]:
    return {topic: advice for topic, advice in advised(described).items() if advice.state == "missing"}


def test_a_machine_that_has_everything(able: machine.Machine) -> None:
    assert missing(able) == {}
    assert all(advice.install == {} for advice in doctor.advice(able))
    assert "on NVIDIA H200," in advised(able)["GPU sections"].text
    assert "NCCL" in advised(able)["Distributed training"].text
    assert "✗" not in doctor.report(able)
    on_a_mac = dataclasses.replace(able, system="Darwin", devices=("cpu", "mps"), gpus=(), torch_build="MPS")
    assert "on the Apple GPU," in advised(on_a_mac)["GPU sections"].text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"gpus": (), "driver_cuda": None, "torch_build": "CPU"}, "torch finds no GPU here."),
        ({"torch_build": "CPU"}, "but this torch is built for CPU. https://pytorch.org"),
        ({"driver_cuda": "12.9"}, "its driver supports CUDA 12.9 and this torch is built for CUDA 13.0."),
        ({}, "CUDA_VISIBLE_DEVICES"),
        ({"torch_build": "ROCm 6.4", "gpus": ()}, "torch finds no GPU here."),
    ],
)
def test_why_there_is_no_gpu(able: machine.Machine, change: dict, said: str) -> None:
    described = dataclasses.replace(able, devices=("cpu",), **change)
    (advice,) = missing(described).values()
    assert said in advice.text
    assert 'Cells titled "On a GPU" show a recorded run' in advice.text


HEADERS = "input:1:10: fatal error: Python.h: No such file or directory"
OLD = "g++: error: unrecognized command line option '-std=c++20'"
PACKAGES = (
    machine.Package("jupyterlab>=4.2", None, False),
    machine.Package("nbval>=0.11", "0.1", False),
    machine.Package("numpy", "2.0", True),
)


@pytest.mark.parametrize(
    ("change", "topics", "said", "install"),
    [
        ({"compiler": None, "compiler_name": "g++"}, ["torch.compile", "C++ programs"], "called g++",
         {"Debian, Ubuntu": "sudo apt install g++", "conda": "conda install -c conda-forge cxx-compiler"}),
        ({"compiler": None, "system": "Darwin"}, ["torch.compile", "C++ programs"], "", {"macOS": ""}),
        ({"compiler_trouble": HEADERS, "python": "3.12.4"}, ["torch.compile"], "",
         {"Debian, Ubuntu": "sudo apt install python3.12-dev"}),
        ({"compiler_trouble": OLD}, ["torch.compile"], OLD, {}),
        ({"cmake": None}, ["C++ programs"], "", {"Debian, Ubuntu": "sudo apt install cmake make"}),
        ({"build_tool": None}, ["C++ programs"], "", {"Debian, Ubuntu": "sudo apt install cmake make"}),
        ({"backends": ()}, ["Distributed training"], "", {}),
        ({"packages": PACKAGES}, ["Packages"], "jupyterlab>=4.2 (not installed), nbval>=0.11 (0.1)",
         {"pip": "python -m pip install 'jupyterlab>=4.2' 'nbval>=0.11'"}),
    ],
)  # fmt: skip
def test_what_is_missing_and_how_to_install_it(able, change, topics, said, install) -> None:
    found = missing(dataclasses.replace(able, **change))
    assert set(found) == set(topics)
    first = found[topics[0]]
    assert said in first.text
    assert all(first.install[where].startswith(command) for where, command in install.items())


def test_course_doctor_prints_all_of_it(here: machine.Machine, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"Python {here.python} · torch {here.torch} ")
    for advice in doctor.advice(here):
        mark = "✓" if advice.state == "ok" else "✗"
        assert f"\n{mark} {advice.topic}\n    {advice.text[:30]}" in said
        assert all(f"      {where}: {command}" in said for where, command in advice.install.items())
