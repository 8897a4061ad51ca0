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


def test_describes_this_machine(here: machine.Machine) -> None:
    assert here.python == platform.python_version()
    assert here.torch == torch.__version__
    assert here.system == os.uname().sysname
    assert here.devices == tuple(machine.devices())
    assert 0 < here.memory <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 1 <= here.cores <= os.cpu_count()
    assert here.cmake == shutil.which("cmake")
    assert ("gloo" in here.backends) == torch.distributed.is_gloo_available()
    assert ("nccl" in here.backends) == torch.distributed.is_nccl_available()


def test_devices_are_those_that_compute() -> None:
    # A fresh process, so that a GPU is initialised there and not here.
    code = """
import torch
found = machine.devices()
for device in found:
    assert torch.ones(3, device=device).sum().item() == 3
print(json.dumps([found, torch.cuda.is_available(), torch.backends.mps.is_available()]))
"""
    found, cuda, mps = in_child(code)
    assert found == ["cpu", *["cuda"] * cuda, *["mps"] * mps]


def test_describing_leaves_cuda_alone() -> None:
    code = "machine.describe()\nimport torch\nprint(json.dumps(torch.cuda.is_initialized()))"
    assert in_child(code) is False
    # A process that has initialised CUDA cannot use it after a fork; one that has described itself can.
    code = """
machine.describe()
child = os.fork()
if child == 0:
    import torch
    os._exit(0 if "cuda" not in machine.devices() else torch.ones(1, device="cuda").item() != 1)
print(json.dumps(os.waitpid(child, 0)[1]))
"""
    assert in_child(code) == 0


def test_packages_are_those_of_the_project(here: machine.Machine) -> None:
    by_requirement = {package.requirement: package for package in here.packages}
    assert by_requirement["torch>=2.8"].installed == torch.__version__
    assert by_requirement["torch>=2.8"].met
    assert {"numpy", "nbval>=0.11", "psutil"} <= set(by_requirement)


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


@pytest.mark.skipif(sys.platform != "linux", reason="affinity is a thing of Linux")
def test_cores_are_those_that_this_process_may_use() -> None:
    code = (
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\nprint(json.dumps(machine.describe().cores))"
    )
    assert in_child(code) == 1


def test_limits_of_a_container(tmp_path: Path) -> None:
    # Version 2 of control groups: one tree, limits at any level of it.
    two = tmp_path / "two"
    groups = two / "sys/fs/cgroup"
    (groups / "outer/inner").mkdir(parents=True)
    (two / "proc/self").mkdir(parents=True)
    (two / "proc/self/cgroup").write_text("0::/outer/inner\n")
    (groups / "outer/cpu.max").write_text("150000 100000\n")
    (groups / "outer/inner/cpu.max").write_text("max 100000\n")
    (groups / "outer/inner/memory.max").write_text("1073741824\n")
    (groups / "outer/memory.max").write_text("max\n")
    assert list(machine._core_limits(two)) == [1.5]
    assert list(machine._memory_limits(two)) == [1 << 30]
    # Version 1: a tree for each controller; the group's own name may be one from outside the container.
    one = tmp_path / "one"
    (one / "sys/fs/cgroup/cpu").mkdir(parents=True)
    (one / "sys/fs/cgroup/memory").mkdir(parents=True)
    (one / "proc/self").mkdir(parents=True)
    (one / "proc/self/cgroup").write_text("4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n1:name=x:/\n")
    (one / "sys/fs/cgroup/cpu/cpu.cfs_quota_us").write_text("400000\n")
    (one / "sys/fs/cgroup/cpu/cpu.cfs_period_us").write_text("100000\n")
    (one / "sys/fs/cgroup/memory/memory.limit_in_bytes").write_text("2147483648\n")
    assert list(machine._core_limits(one)) == [4.0]
    assert list(machine._memory_limits(one)) == [2 << 30]
    assert (
        list(machine._core_limits(tmp_path / "mac")) == list(machine._memory_limits(tmp_path / "mac")) == []
    )


# Needs.


def test_a_path_without_a_compiler_has_none(tmp_path: Path) -> None:
    code = "print(json.dumps([machine.has('compiler'), machine.has('cmake'), machine.describe().compiler]))"
    assert in_child(code, PATH=str(tmp_path), CXX=None) == [False, False, None]


def test_the_compiler_is_the_one_that_cxx_names(tmp_path: Path) -> None:
    renamed = program(tmp_path / "bin", "my-c++", f'exec {machine.describe().compiler} "$@"\n')
    code = "print(json.dumps([machine.has('compiler'), machine._compiler()]))"
    assert in_child(code, CXX=str(renamed)) == [True, str(renamed)]
    assert in_child(code, CXX="no-such-compiler") == [False, None]
    assert in_child(code, CXX="") == [False, None]


def test_torch_compile_looks_for_the_same_compiler() -> None:
    code = """
from torch._inductor import config
print(json.dumps([config.cpp.cxx[1], machine._compiler_name()]))
"""
    for cxx in (None, "no-such-compiler"):
        theirs, ours = in_child(code, CXX=cxx)
        assert theirs == ours


def test_a_compiler_counts_when_it_compiles(tmp_path: Path) -> None:
    broken = program(
        tmp_path / "broken", "c++", "echo 'input:1:10: fatal error: Python.h: No such file' >&2; exit 1\n"
    )
    code = "print(json.dumps([machine.has('compiler'), machine._compiler_trouble(machine._compiler())]))"
    has, trouble = in_child(code, CXX=str(broken))
    assert (has, trouble) == (False, "input:1:10: fatal error: Python.h: No such file")
    # The real compiler without the real headers.
    code = "import sysconfig\nsysconfig.get_path = lambda name: '/nowhere'\n" + code
    has, trouble = in_child(code)
    assert (has, "Python.h" in trouble) == (False, True)


def test_cmake_needs_something_to_build_with(tmp_path: Path) -> None:
    folder = program(tmp_path / "bin", "cmake", "exit 0\n").parent
    code = "print(json.dumps(machine.has('cmake')))"
    assert in_child(code, PATH=str(folder), CMAKE_GENERATOR="") is False
    program(folder, "ninja", "exit 0\n")
    assert in_child(code, PATH=str(folder), CMAKE_GENERATOR="") is False
    assert in_child(code, PATH=str(folder), CMAKE_GENERATOR="Ninja Multi-Config") is True
    program(folder, "make", "exit 0\n")
    assert in_child(code, PATH=str(folder), CMAKE_GENERATOR="") is True


def test_a_package_counts_when_all_that_it_takes_can_be_imported() -> None:
    hidden = """
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name: find(name) if name not in {hidden} else None
print(json.dumps([machine.has("onnxruntime"), machine.has("safetensors")]))
"""
    assert in_child(hidden.format(hidden=[])) == [True, True]
    for module in ("onnx", "onnxscript", "onnxruntime"):
        assert in_child(hidden.format(hidden=[module])) == [False, True]
    assert in_child(hidden.format(hidden=["safetensors"])) == [True, False]


def test_an_unknown_need_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="no such need: tpu"):
        machine.has("tpu")


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


def test_an_apple_gpu(able: machine.Machine) -> None:
    described = dataclasses.replace(able, system="Darwin", devices=("cpu", "mps"), gpus=(), torch_build="MPS")
    assert "on the Apple GPU," in advised(described)["GPU sections"].text


def test_no_compiler(able: machine.Machine) -> None:
    without = dataclasses.replace(able, compiler=None, compiler_name="g++")
    found = missing(without)
    assert set(found) == {"torch.compile", "C++ programs"}
    assert found["torch.compile"].install == {
        "Debian, Ubuntu": "sudo apt install g++",
        "conda": "conda install -c conda-forge cxx-compiler",
    }
    assert "called g++" in found["torch.compile"].text
    on_a_mac = missing(dataclasses.replace(without, system="Darwin"))
    assert set(on_a_mac["torch.compile"].install) == {"conda", "macOS"}


def test_no_python_headers(able: machine.Machine) -> None:
    trouble = "input:1:10: fatal error: Python.h: No such file or directory"
    found = missing(dataclasses.replace(able, compiler_trouble=trouble, python="3.12.4"))
    assert set(found) == {"torch.compile"}
    assert found["torch.compile"].install["Debian, Ubuntu"] == "sudo apt install python3.12-dev"


def test_a_compiler_that_is_too_old(able: machine.Machine) -> None:
    trouble = "g++: error: unrecognized command line option '-std=c++20'"
    found = missing(dataclasses.replace(able, compiler_trouble=trouble))
    assert trouble in found["torch.compile"].text


def test_no_cmake(able: machine.Machine) -> None:
    for change in ({"cmake": None}, {"build_tool": None}):
        found = missing(dataclasses.replace(able, **change))
        assert found["C++ programs"].install["Debian, Ubuntu"] == "sudo apt install cmake make"
    neither = missing(dataclasses.replace(able, cmake=None, compiler=None))["C++ programs"]
    assert "a C++ compiler and CMake must" in neither.text
    assert neither.install["Debian, Ubuntu"] == "sudo apt install g++ && sudo apt install cmake make"


def test_no_gloo(able: machine.Machine) -> None:
    assert set(missing(dataclasses.replace(able, backends=()))) == {"Distributed training"}
    assert "one core" in advised(dataclasses.replace(able, cores=1))["Distributed training"].text


def test_packages_that_are_not_there(able: machine.Machine) -> None:
    packages = (
        machine.Package("jupyterlab>=4.2", None, False),
        machine.Package("nbval>=0.11", "0.1", False),
        machine.Package("numpy", "2.0", True),
    )
    (advice,) = missing(dataclasses.replace(able, packages=packages)).values()
    assert "jupyterlab>=4.2 (not installed), nbval>=0.11 (0.1)" in advice.text
    assert advice.install == {"pip": "python -m pip install 'jupyterlab>=4.2' 'nbval>=0.11'"}


def test_course_doctor_prints_all_of_it(here: machine.Machine, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"Python {here.python} · torch {here.torch} ")
    for advice in doctor.advice(here):
        mark = "✓" if advice.state == "ok" else "✗"
        assert f"\n{mark} {advice.topic}\n    {advice.text[:30]}" in said
        assert all(f"      {where}: {command}" in said for where, command in advice.install.items())
