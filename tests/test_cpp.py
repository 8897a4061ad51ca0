"""Programs are built once, kept whole, and run without Python."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from course_utils import catalog, cpp, machine

ROOT = Path(__file__).parent.parent
# Without torch's headers, which take most of the time.
SMALL = '#include <cstdio>\nint main(int n, char** words) {{ std::printf("{}"); return n - 1; }}\n'

pytestmark = pytest.mark.skipif(
    not (machine.has("compiler") and machine.has("cmake")), reason="needs a C++ compiler and cmake"
)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "pytorch-inside-out" / "cpp"


@pytest.fixture
def counted(monkeypatch):
    """The steps of the builds that were made."""
    steps = []
    call = cpp._call
    monkeypatch.setattr(cpp, "_call", lambda command: (steps.append(command), call(command))[1])
    return steps


def test_a_program_is_built_once_and_kept_in_a_folder_of_its_own(cache, counted):
    program = cpp.build(SMALL.format("one"), "small")
    assert program.parent.parent == cache
    assert len(counted) == 2
    assert cpp.run(program) == cpp.Ran(0, "one", "")
    assert cpp.build(SMALL.format("one"), "small") == program
    assert len(counted) == 2
    assert {path.name for path in program.parent.iterdir()} == {"small", "lock"}


def test_what_it_is_built_from_is_its_key(cache, monkeypatch):
    keys = [cpp._key("a", "x"), cpp._key("b", "x"), cpp._key("a", "y")]
    monkeypatch.setattr(torch, "__version__", "9.9.9")
    keys.append(cpp._key("a", "x"))
    monkeypatch.setattr(cpp, "_PROJECT", cpp._PROJECT + "\n")
    keys.append(cpp._key("a", "x"))
    monkeypatch.setattr(cpp, "_torch_root", lambda: "/elsewhere")
    keys.append(cpp._key("a", "x"))
    assert len(set(keys)) == len(keys)


def test_what_a_killed_build_left_is_not_taken_for_a_program(cache, counted):
    source = SMALL.format("whole")
    folder = cache / f"small-{cpp._key(source, 'small')}"
    (folder / "build-killed" / "made").mkdir(parents=True)
    (folder / "build-killed" / "made" / "small").write_text("half")
    program = cpp.build(source, "small")
    assert counted
    assert cpp.run(program).stdout == "whole"
    assert not (folder / "build-killed").exists()


def test_a_build_that_is_killed_leaves_nothing_in_the_way(cache):
    code = "from course_utils import cpp; cpp.build('#include <torch/script.h>\\nint main() {}', 'killed')"
    child = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, start_new_session=True)
    end = time.monotonic() + 120
    while not list(cache.glob("killed-*/build-*/made/CMakeCache.txt")) and time.monotonic() < end:
        time.sleep(0.05)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    (folder,) = cache.glob("killed-*")
    assert not (folder / "killed").exists()
    with cpp._alone(folder):  # the lock went with the process
        pass
    assert not list(folder.glob("build-*/CMakeLists.txt"))


def test_two_processes_that_build_the_same_make_one_program(cache):
    code = (
        "from course_utils import cpp\n"
        f"program = cpp.build({SMALL.format('both')!r}, 'small')\n"
        "print(cpp.run(program).stdout)"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE) for _ in range(2)
    ]
    assert [child.communicate()[0] for child in children] == [b"both\n"] * 2
    (folder,) = cache.iterdir()
    assert {path.name for path in folder.iterdir()} == {"small", "lock"}


def test_where_nothing_can_be_locked_it_is_built_all_the_same(cache, monkeypatch):
    import fcntl

    def refuse(*_):
        raise OSError("no locks here")

    monkeypatch.setattr(fcntl, "flock", refuse)
    program = cpp.build(SMALL.format("unlocked"), "small")
    assert cpp.run(program).stdout == "unlocked"


def test_what_the_compiler_says_is_raised(cache):
    with pytest.raises(cpp.BuildError) as raised:
        cpp.build("int main() { return nowhere; }", "broken")
    lines = raised.value.lines
    assert lines[0].startswith("main.cpp:1:21: error:")
    assert "nowhere" in lines[0]
    assert len(lines) <= cpp.ERROR_LINES
    assert not list(cache.glob("*/broken"))


def test_what_the_linker_says_is_raised(cache):
    with pytest.raises(cpp.BuildError, match="nowhere"):
        cpp.build("void nowhere(); int main() { nowhere(); }", "broken")


def test_what_cmake_says_is_raised(cache, monkeypatch):
    monkeypatch.setattr(cpp, "_FIND_TORCH", "find_package(Nonesuch REQUIRED)\n")
    monkeypatch.setattr(cpp, "_NAME_LIBRARIES", "find_package(Nonesuch REQUIRED)\n")
    with pytest.raises(cpp.BuildError, match="CMake Error"):
        cpp.build(SMALL.format("never"), "small")


def test_without_cmake_or_a_place_to_write_it_says_so(cache, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(cpp.BuildError, match="cmake"):
        cpp.build(SMALL.format("never"), "small")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(cpp.BuildError, match="NotADirectoryError"):
        cpp.build(SMALL.format("never"), "small")


@pytest.mark.skipif(not shutil.which("make") or not shutil.which("ninja"), reason="needs make and ninja")
def test_ninja_is_taken_where_nothing_else_is_asked_for(cache, counted, monkeypatch):
    monkeypatch.delenv("CMAKE_GENERATOR", raising=False)
    cpp.build(SMALL.format("ninja"), "small")
    assert "Ninja" in counted[0]
    monkeypatch.setenv("CMAKE_GENERATOR", "Unix Makefiles")
    assert cpp.run(cpp.build(SMALL.format("make"), "small")).stdout == "make"
    assert "Ninja" not in counted[2]


def test_a_torch_for_gpus_needs_no_toolkit(cache, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "12.6")
    assert "find_package" not in cpp.cmake_text("small")
    source = '#include <c10/core/DeviceType.h>\n#include <cstdio>\nint main() { std::puts("found"); }\n'
    assert cpp.run(cpp.build(source, "small")).stdout == "found\n"


@pytest.mark.parametrize("name", ["", "two words", "a/b", "1st", "größe"])
def test_names_that_are_none(cache, name):
    with pytest.raises(ValueError, match="no name for a program"):
        cpp.build(SMALL.format("never"), name)


def test_a_relative_cache_folder_is_ignored(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    assert cpp.cache_folder() == tmp_path / ".cache" / "pytorch-inside-out" / "cpp"


def test_a_program_runs_in_an_empty_environment_and_says_how_it_ended(cache):
    source = (
        "#include <cstdio>\n#include <cstdlib>\n#include <string>\n#include <unistd.h>\n"
        "extern char** environ;\n"
        "int main(int n, char** words) {\n"
        '  std::string what = n > 1 ? words[1] : "";\n'
        '  if (what == "abort") std::abort();\n'
        '  if (what == "hang") sleep(60);\n'
        '  std::printf("%s", environ[0] ? environ[0] : "empty");\n'
        '  std::fprintf(stderr, "%s", what.c_str());\n'
        "  return n;\n"
        "}\n"
    )
    program = cpp.build(source, "small")
    assert cpp.run(program) == cpp.Ran(1, "empty", "")
    assert cpp.run(program, "two words", 3) == cpp.Ran(3, "empty", "two words")
    assert cpp.run(program, "abort").returncode == -signal.SIGABRT
    with pytest.raises(TimeoutError, match=r"small was still running after 0\.2 seconds"):
        cpp.run(program, "hang", timeout=0.2)


def test_the_program_of_the_lesson_reads_a_module_and_nothing_else(tmp_path):
    course = catalog.load(ROOT)
    program = cpp.build(course.exercise("run_in_cpp").checks[0].function.__globals__["PROGRAM"], "reader")
    traced = torch.jit.trace(lambda x: x.sum(1, keepdim=True) / 3, torch.ones(1, 2, dtype=torch.float64))
    traced.save(tmp_path / "module.pt")
    ran = cpp.run(program, tmp_path / "module.pt", "1 2; 3 4", "-1e-3 0")
    assert ran.returncode == 0
    assert [float(word) for word in ran.stdout.split()] == [3 / 3, 7 / 3, -1e-3 / 3]
    wrong = cpp.run(program, tmp_path / "module.pt", "1 2; 3")
    assert wrong.returncode == 3
    torch.save({"weight": torch.ones(1)}, tmp_path / "state.pt")
    for name in ("state.pt", "nothing.pt"):
        ran = cpp.run(program, tmp_path / name, "1 2")
        assert (ran.returncode, ran.stdout) == (2, "")
        assert ran.stderr.startswith("this file is not a TorchScript module: ")
        assert "frame #" not in ran.stderr
