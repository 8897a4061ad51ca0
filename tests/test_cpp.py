"""Programs are built once, kept whole, and run without Python.

A build takes ten seconds and more, so two are made here: the program of the lesson, where it is not in the
cache yet, and one that does not compile. For all else a step that takes no time stands in for cmake.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from course_utils import cpp, machine
from course_utils.lessons import catalog

ROOT = Path(__file__).parent.parent
SH = Path("/bin/sh")

needs_a_compiler = pytest.mark.skipif(
    not (machine.has("compiler") and machine.has("cmake")), reason="needs a C++ compiler and cmake"
)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "two words"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder / "pytorch-inside-out" / "cpp"


@pytest.fixture
def steps(cache, monkeypatch):
    """The steps of the builds that are made. In the place of cmake, the second makes the program: a script
    of which the source is the text."""
    steps = []

    def stand_in(command):
        steps.append(command)
        if "--build" in command:
            made = Path(command[-1])
            made.mkdir()
            (made / "small").write_text("#!/bin/sh\n" + (made.parent / "main.cpp").read_text())
            (made / "small").chmod(0o755)

    monkeypatch.setattr(cpp, "_call", stand_in)
    return steps


# --- the cache ------------------------------------------------------------------------------------------


def test_a_program_is_built_once_and_kept_in_a_folder_of_its_own(cache, steps):
    program = cpp.build("printf one", "small")
    assert program.parent.parent == cache
    assert len(steps) == 2
    assert cpp.run(program) == cpp.Ran(0, "one", "")
    assert cpp.build("printf one", "small") == program
    assert len(steps) == 2
    assert {path.name for path in program.parent.iterdir()} == {"small", "lock"}
    assert cpp.build("printf two", "small") != program
    assert len(steps) == 4
    for name in ("", "two words", "a/b", "1st", "größe"):
        with pytest.raises(ValueError, match="no name for a program"):
            cpp.build("", name)


def test_what_it_is_built_from_is_its_key(monkeypatch):
    keys = [cpp._key("a", "x"), cpp._key("b", "x"), cpp._key("a", "y")]
    changes = [(torch, "__version__", "9"), (cpp, "_PROJECT", "more"), (cpp, "_torch_root", lambda: "/else")]
    for owner, name, value in changes:
        monkeypatch.setattr(owner, name, value)
        keys.append(cpp._key("a", "x"))
    assert len(set(keys)) == 6


def test_a_build_that_is_killed_leaves_nothing_in_the_way(cache, steps):
    code = (
        "import time\nfrom course_utils import cpp\n"
        "cpp._call = lambda command: time.sleep(120)\ncpp.build('printf killed', 'small')"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    end = time.monotonic() + 120
    while not list(cache.glob("small-*/build-*/CMakeLists.txt")) and time.monotonic() < end:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    (folder,) = cache.glob("small-*")
    assert not (folder / "small").exists()
    assert cpp.run(cpp.build("printf killed", "small")).stdout == "killed"  # the lock went with the process
    assert not list(folder.glob("build-*")) and len(steps) == 2


def test_two_that_build_the_same_at_once_make_one_program(cache, steps, monkeypatch):
    quick = cpp._call
    monkeypatch.setattr(cpp, "_call", lambda command: (time.sleep(0.2), quick(command)))
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: cpp.build("printf both", "small"), range(2))
    assert first == second
    assert cpp.run(first).stdout == "both"
    assert len(steps) == 2
    assert {path.name for path in first.parent.iterdir()} == {"small", "lock"}


# --- the steps of a build ---------------------------------------------------------------------------------


def test_what_a_step_says_is_raised_and_without_words_how_it_ended(monkeypatch):
    with pytest.raises(cpp.BuildError, match="main.cpp:3: error: nowhere"):
        cpp._call(["sh", "-c", "echo in /tmp/build-abc/main.cpp:3: error: nowhere; exit 1"])
    with pytest.raises(cpp.BuildError, match="`sh` ended with exit code 4"):
        cpp._call(["sh", "-c", "exit 4"])
    monkeypatch.setenv("LANGUAGE", "fr")
    with pytest.raises(cpp.BuildError, match="^error: en$"):
        cpp._call(["sh", "-c", "echo error: $LANGUAGE; exit 1"])


def test_who_interrupts_a_step_ends_all_that_it_started(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    main = threading.get_ident()

    def waits_for_the_step():
        running = traceback.extract_stack(sys._current_frames()[main])
        return "communicate" in [frame.name for frame in running]

    def interrupt():
        with (tmp_path / "pipe").open() as pipe:  # waits until the step has opened it too
            while not waits_for_the_step():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)
            return pipe.read()  # to the end of all that could write

    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(interrupt)
        with pytest.raises(KeyboardInterrupt):
            cpp._call(["sh", "-c", f"(sleep 60; echo late) >'{tmp_path}/pipe' & wait"])
    assert written.result() == ""


FOLDER = "/a b/c d/build-x1"
SAID = f"In file included from {FOLDER}/main.cpp:1:\n{FOLDER}/main.cpp:2:1: error: no\n"
LINKED = "/usr/bin/ld: /a b/build-x1/main.o: undefined\n"


@pytest.mark.parametrize(
    ("said", "lines"),
    [
        ("-- a\nCMake Error at CMakeLists.txt:6:\n\n  Not found\n--\n", ["CMake Error", "Not found", "--"]),
        ("one\ntwo\nthree\nfour\n", ["two", "three", "four"]),
        (SAID + LINKED, ["main.cpp:2:1: error", "/usr/bin/ld: main.o: undefined"]),
        ("x.cpp: error: 1\n" * 9, ["x.cpp: error: 1"] * cpp.ERROR_LINES),
    ],
)
def test_the_first_lines_of_what_went_wrong(said, lines):
    found = cpp._errors(said)
    assert len(found) == len(lines)
    assert all(line.startswith(start) for line, start in zip(found, lines, strict=True))


def test_without_cmake_or_a_place_to_write_it_says_so(cache, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(cpp.BuildError, match="cmake"):
        cpp.build("never", "small")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(cpp.BuildError, match="NotADirectoryError"):
        cpp.build("never", "small")


def test_a_program_runs_in_an_empty_environment_and_says_how_it_ended(monkeypatch):
    monkeypatch.setenv("LEFT_BY_READER", "1")
    assert "LEFT_BY_READER" not in cpp.run(Path("/usr/bin/env")).stdout
    assert cpp.run(SH, "-c", 'printf "$1" >&2; exit $2', "sh", "two words", 3) == cpp.Ran(3, "", "two words")
    assert cpp.run(SH, "-c", "kill -ABRT $$").returncode == -signal.SIGABRT
    with pytest.raises(TimeoutError, match=r"sh was still running after 0\.2 seconds"):
        cpp.run(SH, "-c", "exec sleep 60", timeout=0.2)


# --- with a compiler --------------------------------------------------------------------------------------


@needs_a_compiler
def test_what_does_not_compile_says_where_and_a_torch_for_gpus_needs_no_toolkit(cache, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "12.6")
    assert "find_package" not in cpp.cmake_text("broken")
    # The header is torch's own: that it is no error shows that the torch was found.
    with pytest.raises(cpp.BuildError) as raised:
        cpp.build("#include <c10/core/DeviceType.h>\nint main() { return nowhere; }", "broken")
    lines = raised.value.lines
    assert lines[0].startswith("main.cpp:2:21: error:")
    assert "nowhere" in lines[0]
    assert len(lines) <= cpp.ERROR_LINES
    assert not list(cache.glob("*/broken"))


@needs_a_compiler
def test_the_program_of_the_lesson_reads_a_module_and_nothing_else(tmp_path):
    course = catalog.load(ROOT)
    program = cpp.build(course.exercise("run_in_cpp").checks[0].function.__globals__["_PROGRAM"], "reader")
    traced = torch.jit.trace(lambda x: x.sum(1, keepdim=True) / 3, torch.ones(1, 2, dtype=torch.float64))
    torch.jit.save(traced, str(tmp_path / "module.pt"))
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
