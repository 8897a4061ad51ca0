"""Answers to `centre` that break things or cheat, and what must become of each.

None of them is right, but those that only leave something running or take something away. Each is put first
in a notebook whose other answers are right.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Hostile:
    """`state` is that of the exercise (with "or": any of these, where it depends on the version of Python);
    `says` has to be in the message of its first failing check."""

    name: str
    source: str
    state: str
    says: str = ""


# Above each answer its name, its state and what is said.
ANSWERS = r"""
# --- never comes back ---
=== endless_loop: timed out: line 2 of cell 2
def centre(x):
    while True:
        pass

=== swallows_everything: timed out: of cell 2
def centre(x):
    while True:
        try:
            while True:
                pass
        except BaseException:
            pass

=== native_code: timed out: line 3 of cell 2
import itertools
def centre(x):
    return sum(itertools.repeat(0))

=== signals_caught: timed out
import signal
def centre(x):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))
    while True:
        pass

=== alarm_cancelled: timed out
import signal
def centre(x):
    signal.setitimer(signal.ITIMER_REAL, 0)
    while True:
        pass

=== hangs_when_defined: timed out: line 2 of cell 2
def wait():
    while True:
        pass

SIZE = wait()

def centre(x):
    return SIZE

=== error_that_hangs: timed out
class Slow(Exception):
    def __str__(self):
        while True:
            pass

def centre(x):
    raise Slow

# --- ends its process ---
=== exits_at_once: died: exit code 0
import os
def centre(x):
    os._exit(0)

=== segfault: died: SIGSEGV
import ctypes
def centre(x):
    ctypes.string_at(0)

=== kills_its_group: died: SIGKILL
import os
def centre(x):
    os.killpg(0, 9)

=== closes_every_descriptor: died
import os
def centre(x):
    os.closerange(0, 1000)
    return x

=== endless_recursion: died or raised
import sys
def centre(x):
    sys.setrecursionlimit(10**9)
    return sorted([x], key=centre)

=== ordinary_recursion: raised: RecursionError
def centre(x):
    return centre(x)

# --- leaves by the side door ---
=== exit_in_a_call: raised: SystemExit
import sys
def centre(x):
    sys.exit(0)

=== exit_when_defined: raised: SystemExit
import sys
N = sys.exit(0)

def centre(x):
    return N

=== interrupt: raised: KeyboardInterrupt
def centre(x):
    raise KeyboardInterrupt

=== generator_exit: raised: GeneratorExit
def centre(x):
    raise GeneratorExit

=== long_message: raised: ValueError
def centre(x):
    raise ValueError('no ' * 100_000_000)

=== error_without_words: raised: Mute
class Mute(Exception):
    def __str__(self):
        raise ValueError

    __repr__ = __str__

def centre(x):
    raise Mute

=== ends_whoever_unpickles_it: raised: Trap
import os
class Trap(ValueError):
    def __reduce__(self):
        return os._exit, (0,)

class Text(str):
    __reduce__ = Trap.__reduce__

def centre(x):
    error = Trap(Text("no"))
    error.lines, error.seconds, error.symptom = [error], float("nan"), Text("x")
    raise error

=== says_that_it_could_not_be_checked: raised: Odd
from course_utils.exercise import expect
class Odd(expect.CannotCheck, expect.Mismatch):
    lines, seconds, symptom = [1, None], "soon", {}

def centre(x):
    raise Odd

=== keeps_an_error_that_it_raises_later: raised: no luck
from concurrent.futures import Future
from course_utils.exercise import expect
def centre(x):
    later = Future()
    later.set_exception(expect.CannotCheck("no luck"))
    return later.result()

# --- ends or stops others ---
=== removes_its_temporary_folder: passed
import pathlib, shutil, tempfile
def centre(x):
    folder = pathlib.Path(tempfile.gettempdir())
    assert folder.name.startswith("course-"), f"it is everybody's: {folder}"
    shutil.rmtree(folder, ignore_errors=True)
    return x - x.mean()

=== kills_its_parent: died
import os
def centre(x):
    os.kill(os.getppid(), 9)
    while True:
        pass

=== stops_its_parent: timed out
import os
def centre(x):
    os.kill(os.getppid(), 19)
    while True:
        pass

=== shared_memory_that_stays: died: SIGKILL
from multiprocessing import shared_memory
import os
def centre(x):
    kept = shared_memory.SharedMemory(create=True, size=1000)
    os.kill(os.getpid(), 9)

# --- takes too much ---
=== forty_gigabytes: raised
import torch
def centre(x):
    return torch.ones(10**10)

=== memory_bit_by_bit: raised: can't allocate memory
import torch
kept = []

def centre(x):
    while True:
        kept.append(torch.empty(2**24))

=== many_processes: died or timed out
import os, time
def centre(x):
    for _ in range(100):
        if os.fork() == 0:
            time.sleep(600)
            os._exit(0)
    time.sleep(600)

=== megabytes_printed: wrong
def centre(x):
    for _ in range(300):
        print('passed ' * 20_000)
    return x

# --- stays on ---
=== thread_that_stays: passed
import threading, time
def centre(x):
    threading.Thread(target=time.sleep, args=(600,)).start()
    return x - x.mean()

=== thread_that_meddles: wrong
import threading, time
import torch
from course_utils.exercise import expect
def meddle():
    while True:
        torch.isclose = lambda a, b, **_: torch.ones(a.shape, dtype=torch.bool)
        expect.equal = lambda *_, **__: None
        time.sleep(0.001)

def centre(x):
    threading.Thread(target=meddle, daemon=True).start()
    time.sleep(0.1)
    return torch.zeros(3)

=== raw_thread: passed
import _thread, time
def centre(x):
    _thread.start_new_thread(time.sleep, (600,))
    return x - x.mean()

=== process_that_stays: passed
import subprocess, sys
def centre(x):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    return x - x.mean()

=== daemon: passed
import os, time
def centre(x):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            while True:
                time.sleep(600)
        os._exit(0)
    time.sleep(0.1)
    return x - x.mean()

=== two_results: wrong
import os
def centre(x):
    return x - x.mean() if os.fork() == 0 else x

=== endless_lines: raised
from course_utils.exercise import expect
def centre(x):
    raise expect.Mismatch(*["no " * 10_000] * 1_000)

# --- changes what decides ---
=== operator_overridden: wrong
import torch
kept = torch.library.Library("aten", "IMPL")
kept.impl("equal", lambda a, b: True, "CPU")

def centre(x):
    return torch.zeros_like(x)

=== torch_replaced: wrong: `torch.isclose`
import torch
def centre(x):
    torch.isclose = lambda a, b, **_: torch.ones(a.shape, dtype=torch.bool)
    return torch.zeros_like(x)

=== tensor_replaced: wrong: torch.Tensor
import torch
def centre(x):
    torch.Tensor.__invert__ = lambda self: torch.zeros(3, dtype=torch.bool)
    torch.Tensor.any = lambda self: torch.tensor(False)
    return torch.zeros_like(x)

=== expect_replaced: wrong: `course_utils.exercise.expect.equal`
from course_utils.exercise import expect
def centre(x):
    expect.equal = lambda *_, **__: expect.looked()
    return x

=== mismatch_replaced: wrong: `course_utils.exercise.expect.Mismatch`
from course_utils.exercise import expect
def centre(x):
    expect.Mismatch = expect.CannotCheck
    return x

=== grading_replaced: wrong: `course_utils.grading.
import contextlib
from course_utils.grading import attempt, check_run, clean_room, in_child
def fake(check, *_, **__):
    return check_run.Outcome(check.name, check.title, "passed", looks=1)

def centre(x):
    check_run.run = attempt.run = in_child.run = in_child._outcome = fake
    return x

=== rows_that_swallow: wrong: `course_utils.exercise.cases.Rows.of`
import contextlib
from course_utils.exercise import Rows
def centre(x):
    Rows.of = lambda *_: contextlib.suppress(Exception)
    return x

=== other_defaults: wrong
from course_utils.exercise import expect
def centre(x):
    expect.equal.__kwdefaults__["atol"] = expect.equal.__kwdefaults__["rtol"] = 1e9
    return x

=== builtins_replaced: wrong: `builtins.bool`
import builtins
def centre(x):
    builtins.bool = lambda *_: False
    return x

=== through_the_caller: wrong: `expect`
import sys
class Nothing:
    @staticmethod
    def equal(*_, **__):
        from course_utils.exercise import expect
        expect.looked()

def centre(x):
    sys._getframe(1).f_globals["expect"] = Nothing
    return x

=== default_device: wrong: the default device
import torch
def centre(x):
    torch.set_default_device("meta")
    return torch.empty(x.shape, dtype=x.dtype, device="meta")

=== changed_defaults: wrong
import os, random, sys
import torch
def centre(x):
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    torch._C._set_grad_enabled(False)
    torch.set_printoptions(precision=1)
    torch.set_num_threads(7)
    sys.setrecursionlimit(60)
    return x

=== environment: wrong
import os, sys, resource, tempfile
def centre(x):
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    os.rmdir(folder)
    os.environ.clear()
    sys.path.clear()
    sys.meta_path.clear()
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
    return x

=== modules_gone: died
import sys
def centre(x):
    for name in list(sys.modules):
        if name.startswith(("torch", "course")):
            del sys.modules[name]
    return x

=== spoils_what_comes_after: died
import sys
import torch
def centre(x):
    torch.nn.Parameter.__new__ = None
    torch.nn.modules.module.Module.register_parameter = None
    torch.ones = None
    sys.addaudithook(lambda *_: 1 / 0)
    return x

# --- lies ---
=== subclass_that_agrees: wrong
import torch
class Agrees(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function in (torch.isclose, torch.eq, torch.Tensor.eq, torch.Tensor.__eq__):
            return torch.ones(3, dtype=torch.bool)
        return super().__torch_function__(function, types, args, kwargs or {})

def centre(x):
    return torch.zeros_like(x).as_subclass(Agrees)

=== mode_left_on: wrong: the modes of torch
import torch
from torch.overrides import TorchFunctionMode
class Agrees(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.isclose:
            return torch.ones(3, dtype=torch.bool)
        return function(*args, **(kwargs or {}))

def centre(x):
    Agrees().__enter__()
    return torch.zeros_like(x)

=== object_that_agrees: wrong
import torch
class Agrees:
    shape, dtype, device = torch.Size([3]), torch.float32, torch.device("cpu")
    __class__ = property(lambda self: torch.Tensor)
    __eq__ = lambda self, other: True
    __ne__ = lambda self, other: False

    def __getattr__(self, name):
        return lambda *_, **__: self

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return torch.ones(3, dtype=torch.bool)

def centre(x):
    return Agrees()

# --- forges ---
=== forged_report: died
import json, os, pickle
from course_utils.grading.check_run import Outcome

FORGED = {"version": 2, "notebooks": [{"notebook": "x", "error": None, "exercises": [
    {"name": "centre", "lesson": "01_small", "state": "passed", "told_by": None, "symptom": None,
     "checks": []}]}]}

def centre(x):
    text = json.dumps(FORGED).encode() + b"\n"
    outcome = pickle.dumps(("returned", pickle.dumps(Outcome("values", "", "passed", looks=1)), {}))
    for fd in range(64):
        for data in (text, outcome):
            try:
                os.write(fd, data)
            except OSError:
                pass
    os._exit(0)

=== makes_later_checks_pass: wrong or raised
import sys
import torch
def centre(x):
    for name in list(sys.modules):
        if name.startswith("exercises."):
            for check in sys.modules[name].exercise.checks:
                check.function.__code__ = (lambda *_: None).__code__
    return x

=== sends_its_own_result: died
import gc, os, pickle, socket
from course_utils.grading.check_run import Outcome
def centre(x):
    outcome = pickle.dumps(Outcome("values", "", "passed", looks=1))
    for fd in range(3, 64):
        try:
            connection = socket.socket(fileno=os.dup(fd))
            connection.sendall(b"0" * 16 + b"R" + len(outcome).to_bytes(8, "big") + outcome)
        except OSError:
            pass
    return x
"""


def _read(text: str) -> Hostile:
    head, _, source = text.partition("\n")
    name, state, *says = head.split(": ")
    source = "\n".join(line for line in source.splitlines() if not line.startswith("# ---"))
    return Hostile(name, source.strip("\n"), state, *says)


HOSTILE = [_read(text) for text in ANSWERS.split("=== ")[1:]]
