"""Answers to `centre` that break things or cheat, and what must become of each.

None of them is right, but those that only leave something running. Each is put first in a notebook whose
other answers are right.
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


HOSTILE = [
    # --- never comes back ---
    Hostile("endless_loop", "def centre(x):\n    while True:\n        pass", "timed out", "line 2 of cell 2"),
    Hostile(
        "swallows_everything",
        """
def centre(x):
    while True:
        try:
            while True:
                pass
        except BaseException:
            pass
""",
        "timed out",
        "of cell 2",
    ),
    Hostile(
        "native_code",
        "import itertools\n\ndef centre(x):\n    return sum(itertools.repeat(0))",
        "timed out",
        "line 4 of cell 2",
    ),
    Hostile(
        "signals_caught",
        """
import signal

def centre(x):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))
    while True:
        pass
""",
        "timed out",
    ),
    Hostile(
        "alarm_cancelled",
        """
import signal

def centre(x):
    signal.setitimer(signal.ITIMER_REAL, 0)
    while True:
        pass
""",
        "timed out",
    ),
    Hostile(
        "hangs_when_defined",
        "def wait():\n    while True:\n        pass\n\nSIZE = wait()\n\ndef centre(x):\n    return SIZE",
        "timed out",
        "line 2 of cell 2",
    ),
    Hostile(
        "error_that_hangs",
        """
class Slow(Exception):
    def __str__(self):
        while True:
            pass

def centre(x):
    raise Slow
""",
        "timed out",
    ),
    # --- ends its process ---
    Hostile("exits_at_once", "import os\n\ndef centre(x):\n    os._exit(0)", "died", "exit code 0"),
    Hostile("segfault", "import ctypes\n\ndef centre(x):\n    ctypes.string_at(0)", "died", "SIGSEGV"),
    Hostile("kills_its_group", "import os\n\ndef centre(x):\n    os.killpg(0, 9)", "died", "SIGKILL"),
    Hostile(
        "closes_every_descriptor",
        "import os\n\ndef centre(x):\n    os.closerange(0, 1000)\n    return x",
        "died",
    ),
    Hostile(
        "endless_recursion",
        """
import sys

def centre(x):
    sys.setrecursionlimit(10**9)
    return sorted([x], key=centre)
""",
        "died or raised",
    ),
    Hostile("ordinary_recursion", "def centre(x):\n    return centre(x)", "raised", "RecursionError"),
    # --- leaves by the side door ---
    Hostile("exit_in_a_call", "import sys\n\ndef centre(x):\n    sys.exit(0)", "raised", "SystemExit"),
    Hostile(
        "exit_when_defined",
        "import sys\nN = sys.exit(0)\n\ndef centre(x):\n    return N",
        "raised",
        "SystemExit",
    ),
    Hostile("interrupt", "def centre(x):\n    raise KeyboardInterrupt", "raised", "KeyboardInterrupt"),
    Hostile("generator_exit", "def centre(x):\n    raise GeneratorExit", "raised", "GeneratorExit"),
    Hostile(
        "long_message", "def centre(x):\n    raise ValueError('no ' * 100_000_000)", "raised", "ValueError"
    ),
    Hostile(
        "error_without_words",
        """
class Mute(Exception):
    def __str__(self):
        raise ValueError

    __repr__ = __str__

def centre(x):
    raise Mute
""",
        "raised",
        "Mute",
    ),
    Hostile(
        "ends_whoever_unpickles_it",
        """
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
""",
        "raised",
        "Trap",
    ),
    Hostile(
        "says_that_it_could_not_be_checked",
        """
from course_utils.exercise import expect

class Odd(expect.CannotCheck, expect.Mismatch):
    lines, seconds, symptom = [1, None], "soon", {}

def centre(x):
    raise Odd
""",
        "raised",
        "Odd",
    ),
    # --- ends or stops others ---
    Hostile(
        "kills_its_parent",
        "import os\n\ndef centre(x):\n    os.kill(os.getppid(), 9)\n    while True:\n        pass",
        "died",
    ),
    Hostile(
        "stops_its_parent",
        "import os\n\ndef centre(x):\n    os.kill(os.getppid(), 19)\n    while True:\n        pass",
        "timed out",
    ),
    Hostile(
        "shared_memory_that_stays",
        """
from multiprocessing import shared_memory
import os

def centre(x):
    kept = shared_memory.SharedMemory(create=True, size=1000)
    os.kill(os.getpid(), 9)
""",
        "died",
        "SIGKILL",
    ),
    # --- takes too much ---
    Hostile("forty_gigabytes", "import torch\n\ndef centre(x):\n    return torch.ones(10**10)", "raised"),
    Hostile(
        "memory_bit_by_bit",
        "import torch\nkept = []\n\ndef centre(x):\n    while True:\n        kept.append(torch.empty(2**24))",
        "raised",
        "can't allocate memory",
    ),
    Hostile(
        "many_processes",
        """
import os, time

def centre(x):
    for _ in range(100):
        if os.fork() == 0:
            time.sleep(600)
            os._exit(0)
    time.sleep(600)
""",
        "died or timed out",
    ),
    Hostile(
        "megabytes_printed",
        "def centre(x):\n    for _ in range(300):\n        print('passed ' * 20_000)\n    return x",
        "wrong",
    ),
    # --- stays on ---
    Hostile(
        "thread_that_stays",
        """
import threading, time

def centre(x):
    threading.Thread(target=time.sleep, args=(600,)).start()
    return x - x.mean()
""",
        "passed",
    ),
    Hostile(
        "thread_that_meddles",
        """
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
""",
        "wrong",
    ),
    Hostile(
        "raw_thread",
        """
import _thread, time

def centre(x):
    _thread.start_new_thread(time.sleep, (600,))
    return x - x.mean()
""",
        "passed",
    ),
    Hostile(
        "process_that_stays",
        """
import subprocess, sys

def centre(x):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    return x - x.mean()
""",
        "passed",
    ),
    Hostile(
        "daemon",
        """
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
""",
        "passed",
    ),
    Hostile(
        "two_results",
        """
import os

def centre(x):
    return x - x.mean() if os.fork() == 0 else x
""",
        "wrong",
    ),
    Hostile(
        "endless_lines",
        """
from course_utils.exercise import expect

def centre(x):
    raise expect.Mismatch(*["no " * 10_000] * 1_000)
""",
        "raised",
    ),
    # --- changes what decides ---
    Hostile(
        "operator_overridden",
        """
import torch
kept = torch.library.Library("aten", "IMPL")
kept.impl("equal", lambda a, b: True, "CPU")

def centre(x):
    return torch.zeros_like(x)
""",
        "wrong",
    ),
    Hostile(
        "torch_replaced",
        """
import torch

def centre(x):
    torch.isclose = lambda a, b, **_: torch.ones(a.shape, dtype=torch.bool)
    return torch.zeros_like(x)
""",
        "wrong",
        "`torch.isclose`",
    ),
    Hostile(
        "tensor_replaced",
        """
import torch

def centre(x):
    torch.Tensor.__invert__ = lambda self: torch.zeros(3, dtype=torch.bool)
    torch.Tensor.any = lambda self: torch.tensor(False)
    return torch.zeros_like(x)
""",
        "wrong",
        "torch.Tensor",
    ),
    Hostile(
        "expect_replaced",
        """
from course_utils.exercise import expect

def centre(x):
    expect.equal = lambda *_, **__: expect.looked()
    return x
""",
        "wrong",
        "`course_utils.exercise.expect.equal`",
    ),
    Hostile(
        "mismatch_replaced",
        """
from course_utils.exercise import expect

def centre(x):
    expect.Mismatch = expect.CannotCheck
    return x
""",
        "wrong",
        "`course_utils.exercise.expect.Mismatch`",
    ),
    Hostile(
        "grading_replaced",
        """
import contextlib
from course_utils.grading import attempt, check_run, clean_room

def fake(check, *_, **__):
    return check_run.Outcome(check.name, check.title, "passed", looks=1)

def centre(x):
    check_run.run = attempt.run = attempt._outcome = fake
    return x
""",
        "wrong",
        "`course_utils.grading.",
    ),
    Hostile(
        "other_defaults",
        """
from course_utils.exercise import expect

def centre(x):
    expect.equal.__kwdefaults__["atol"] = expect.equal.__kwdefaults__["rtol"] = 1e9
    return x
""",
        "wrong",
    ),
    Hostile(
        "builtins_replaced",
        """
import builtins

def centre(x):
    builtins.bool = lambda *_: False
    return x
""",
        "wrong",
        "`builtins.bool`",
    ),
    Hostile(
        "through_the_caller",
        """
import sys

class Nothing:
    @staticmethod
    def equal(*_, **__):
        from course_utils.exercise import expect
        expect.looked()

def centre(x):
    sys._getframe(1).f_globals["expect"] = Nothing
    return x
""",
        "wrong",
        "`expect`",
    ),
    Hostile(
        "default_device",
        """
import torch

def centre(x):
    torch.set_default_device("meta")
    return torch.empty(x.shape, dtype=x.dtype, device="meta")
""",
        "wrong",
        "the default device",
    ),
    Hostile(
        "changed_defaults",
        """
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
""",
        "wrong",
    ),
    Hostile(
        "environment",
        """
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
""",
        "wrong",
    ),
    Hostile(
        "modules_gone",
        """
import sys

def centre(x):
    for name in list(sys.modules):
        if name.startswith(("torch", "course")):
            del sys.modules[name]
    return x
""",
        "died",
    ),
    Hostile(
        "spoils_what_comes_after",
        """
import sys
import torch

def centre(x):
    torch.nn.Parameter.__new__ = None
    torch.nn.modules.module.Module.register_parameter = None
    torch.ones = None
    sys.addaudithook(lambda *_: 1 / 0)
    return x
""",
        "died",
    ),
    # --- lies ---
    Hostile(
        "subclass_that_agrees",
        """
import torch

class Agrees(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function in (torch.isclose, torch.eq, torch.Tensor.eq, torch.Tensor.__eq__):
            return torch.ones(3, dtype=torch.bool)
        return super().__torch_function__(function, types, args, kwargs or {})

def centre(x):
    return torch.zeros_like(x).as_subclass(Agrees)
""",
        "wrong",
    ),
    Hostile(
        "mode_left_on",
        """
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
""",
        "wrong",
        "the modes of torch",
    ),
    Hostile(
        "object_that_agrees",
        """
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
""",
        "wrong",
    ),
    # --- forges ---
    Hostile(
        "forged_report",
        """
import json, os, pickle
from course_utils.grading.check_run import Outcome

FORGED = {"version": 2, "notebooks": [{"notebook": "x", "error": None, "exercises": [
    {"name": "centre", "lesson": "01_small", "state": "passed", "told_by": None, "symptom": None,
     "checks": []}]}]}

def centre(x):
    text = json.dumps(FORGED).encode() + b"\\n"
    outcome = pickle.dumps(("returned", pickle.dumps(Outcome("values", "", "passed", looks=1)), {}))
    for fd in range(64):
        for data in (text, outcome):
            try:
                os.write(fd, data)
            except OSError:
                pass
    os._exit(0)
""",
        "died",
    ),
    Hostile(
        "makes_later_checks_pass",
        """
import sys
import torch

def centre(x):
    for name in list(sys.modules):
        if name.startswith("exercises."):
            for check in sys.modules[name].exercise.checks:
                check.function.__code__ = (lambda *_: None).__code__
    return x
""",
        "wrong or raised",
    ),
    Hostile(
        "sends_its_own_result",
        """
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
""",
        "died",
    ),
]
