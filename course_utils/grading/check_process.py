"""The inside of a warm process that grades the answers of one notebook.

Exercises arrive as code, not as files: an answer that deletes files takes no checks away. What an answer
leaves behind it (threads, processes, other standard streams) is found here, so that whoever sent it can
go on with a fresh process.
"""

from __future__ import annotations

import _thread
import contextlib
import functools
import linecache
import marshal
import os
import resource
import signal
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import torch

from course_utils.exercise import Check, Exercise, expect
from course_utils.exercise.states import PASSED, RAISED, TIMED_OUT, WRONG
from course_utils.grading import tampering
from course_utils.grading.answers import Recipe
from course_utils.grading.attempt import imported_after, is_starter
from course_utils.grading.check_run import Outcome, Place, conduct, describe_error
from course_utils.grading.clean_room import clean_room
from course_utils.processes import tree

# Seconds that a thread or process which an answer has started may take to end after the answer has.
GRACE = 0.5
# Seconds that one which the system has made may take to be seen by Python.
BEGINNING = 0.2
# Seconds that something may take which is not a check yet: getting ready, making an answer.
PREPARING = 30.0


class Script(NamedTuple):
    """An exercise as it travels: the text of its file and the code made from it."""

    name: str
    module: str
    path: str
    source: str
    code: bytes


@dataclass(frozen=True)
class Seen:
    """What came of one check in this process.

    `starter`: the answer does what the starter does. `disturbed`: this process is not as it was.
    `imported`: the parts of torch that were imported meanwhile, in that order.
    """

    outcome: Outcome
    starter: bool
    disturbed: bool
    imported: tuple[str, ...] = ()


# The name of an exercise, an answer to it, and which checks to run where.
Asked = tuple[str, Recipe, Sequence[tuple[str, Place]]]


def script(exercise: Exercise) -> Script:
    """The exercise in a form in which another process can load it without its file."""
    module = f"exercises.{exercise.topic}.{exercise.name}"
    source = exercise.path.read_text(encoding="utf-8")
    code = compile(source, str(exercise.path), "exec", dont_inherit=True)
    return Script(exercise.name, module, str(exercise.path), source, marshal.dumps(code))


_scripts: dict[str, Script] = {}
_exercises: dict[str, Exercise] = {}
_undisturbed: tuple[Any, ...] = ()
_limited = False


@dataclass(frozen=True)
class Setting:
    """What a process needs before the first check.

    `names`: what the checks use of torch and of Python (see `originals.limit`).
    """

    scripts: tuple[Script, ...]
    names: frozenset[str]
    notebook_folder: str | None = None


def get_ready(names: frozenset[str]) -> None:
    """Does all that a check does, once, before there is anything to check: the first time is the slowest,
    since a forked process copies what it touches. `names` are those of the `Setting` to come."""
    _limit(names)
    conduct(Check("example", "", _example), lambda x: 2 * x.t(), deadline=PREPARING, shared=False)


def _example(answer: Callable[..., Any]) -> None:
    t = expect.given("x = torch.arange(6.0).reshape(2, 3).requires_grad_()", answer=answer)
    y = t.call("answer(x)")
    expect.equal(y.detach(), torch.tensor([[0.0, 6.0], [2.0, 8.0], [4.0, 10.0]]))
    expect.equal(torch.autograd.grad(y.sum(), t.x)[0], torch.full((2, 3), 2.0))


def _limit(names: frozenset[str]) -> None:
    global _limited
    if not _limited:
        tampering.limit(names)
    _limited = True


def begin(setting: Setting, function: Callable[..., Any], *args: Any) -> Any:
    """The first call that checks something: takes the exercises in, then calls the function.

    From here on relative paths lead to a folder that goes with this process.
    """
    global _undisturbed
    _limit(setting.names)
    _scripts.update((one.name, one) for one in setting.scripts)
    if setting.notebook_folder is not None and setting.notebook_folder not in sys.path:
        sys.path.append(setting.notebook_folder)  # a notebook may import what lies beside it
    os.chdir(tempfile.mkdtemp())
    # torch.compile would start a pool of processes that stays.
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    if inductor := sys.modules.get("torch._inductor.config"):
        inductor.compile_threads = 1
    _undisturbed = _state()
    return function(*args)


def _exercise(name: str) -> Exercise:
    """Loaded when it is first asked for: no earlier answer has had its checks in reach."""
    if name not in _exercises:
        one = _scripts[name]
        module = types.ModuleType(one.module)
        module.__file__ = one.path
        sys.modules[one.module] = module
        lines = one.source.splitlines(keepends=True)
        linecache.cache[one.path] = (len(one.source), None, lines, one.path)
        exec(marshal.loads(one.code), module.__dict__)
        _exercises[name] = module.exercise
    return _exercises[name]


def run(asked: Sequence[Asked], seconds: float) -> list[tuple[str, list[Seen]]]:
    """Plain checks of some answers, one after another, for as long as nothing suspicious happens and for
    about so many seconds. Returns what came of those that ran, at least of the first."""
    until = time.monotonic() + seconds
    found: list[tuple[str, list[Seen]]] = []
    for name, recipe, visits in asked:
        seen: list[Seen] = []
        found.append((name, seen))
        for check, place in visits:
            seen.append(_run_one(name, recipe, _check(name, check), place))
            if seen[-1].starter or seen[-1].disturbed or time.monotonic() > until:
                break
        if _state() != _undisturbed:
            seen[-1] = replace(seen[-1], disturbed=True)
        if seen[-1].disturbed or time.monotonic() > until:
            break
    return found


def _run_one(name: str, recipe: Recipe, check: Check, place: Place) -> Seen:
    """One plain check. An answer that leaves a thread or a process behind does not pass."""
    modules, native = len(sys.modules), _native_threads()
    try:
        outcome = conduct(check, recipe, place, check.deadline, shared=False)
    except KeyboardInterrupt as error:  # nobody sits here who could have pressed a key
        outcome = Outcome(check.name, check.title, RAISED, describe_error(error, check), place.device)
    left = _left_behind(native)
    if left and outcome.state == PASSED:
        outcome.state, outcome.message = WRONG, [f"your answer left {left} running"]
    disturbed = bool(left) or outcome.disturbed or outcome.state == TIMED_OUT
    return Seen(outcome, starter_made(name, recipe), disturbed, imported_after(modules))


def run_alone(name: str, recipe: Recipe, check: str, place: Place) -> Seen:
    """One isolated check, in a process that nothing else will run in; whoever asked watches the time."""
    modules = len(sys.modules)
    outcome = conduct(_check(name, check), recipe, place, shared=False)
    return Seen(outcome, starter=False, disturbed=True, imported=imported_after(modules))


def run_rank(
    rank: int, world_size: int, setting: Setting, name: str, recipe: Recipe, check: str, device: str | None
) -> Outcome:
    """One rank of a check on ranks."""
    return begin(setting, run_alone, name, recipe, check, Place(device, rank, world_size)).outcome


def starter(name: str, recipe: Recipe) -> bool:
    """Whether the answer does what the starter does."""
    with clean_room(), contextlib.suppress(BaseException):
        recipe.make()
    return starter_made(name, recipe)


def _check(name: str, check: str) -> Check:
    return next(one for one in _exercise(name).checks if one.name == check)


@functools.cache
def starter_made(name: str, recipe: Recipe) -> bool:
    """The same for an answer that was made already; one that could not be made is no starter."""
    try:
        return recipe.made and is_starter(_exercise(name), recipe.make())
    except BaseException:  # an answer that cannot even be looked at is not what the course wrote
        return False


# --- what an answer leaves ---------------------------------------------------------------------------


def _left_behind(native: int) -> str:
    """What still runs that did not when this process began, after some time to end; "" for nothing.

    `native`: how many threads the system knew before. One more may be a thread that Python has started
    and not counted yet, so that gets a moment to begin.
    """
    begun = time.monotonic() + BEGINNING
    while not _running() and _native_threads() > native and time.monotonic() < begun:
        time.sleep(0.005)
    until = time.monotonic() + GRACE
    while left := _running():
        if time.monotonic() > until:
            return left
        time.sleep(0.01)
    return ""


def _running() -> str:
    if _threads() > (_undisturbed[0] if _undisturbed else 0):
        return "a thread"
    return "a process" if _has_children() else ""


def _threads() -> int:
    """How many threads there are, without those that a library keeps for itself, as tqdm does."""
    return _thread._count() - sum(_is_of_a_library(type(thread)) for thread in threading.enumerate())


def _native_threads() -> int:
    """How many threads the system knows. On Linux no file is opened for it: an answer may have taken from
    this process the right to open one."""
    try:
        return Path("/proc/self/task").stat().st_nlink - 2  # one link for each thread, and two for the folder
    except FileNotFoundError:
        return psutil.Process().num_threads()


def _is_of_a_library(kind: type) -> bool:
    module = sys.modules.get(kind.__module__)
    return "site-packages" in (getattr(module, "__file__", None) or "")


def _has_children() -> bool:
    """Also of processes that were cut loose: orphans below this process become its children."""
    tracker = getattr(sys.modules.get("multiprocessing.resource_tracker"), "_resource_tracker", None)
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if pid == 0:
            # Python's own bookkeeper of shared memory stays for as long as its process.
            return tree.children(os.getpid()) != [getattr(tracker, "_pid", None)]


def _state() -> tuple[Any, ...]:
    """What answers may change in this process for those that come after them."""
    return (
        _threads(),
        tuple(_identity(fd) for fd in (0, 1, 2)),
        _folder(),
        tuple(signal.getsignal(number) for number in _SIGNALS),
        signal.getitimer(signal.ITIMER_REAL)[0] > 0,
        resource.getrlimit(resource.RLIMIT_AS),
        sys.gettrace(),
        sys.getprofile(),
        tuple(sys.path),
        tuple(sys.meta_path),
    )


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGHUP, signal.SIGCHLD)


def _folder() -> str:
    try:
        return os.getcwd()  # noqa: PTH109
    except OSError:
        return ""


def _identity(fd: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(fd)
    except OSError:
        return None
    return found.st_dev, found.st_ino


# Once here, where this is imported before processes are forked, and not in each of them.
tampering.changes()
