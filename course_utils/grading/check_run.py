"""Runs one check on one answer, in this process, and says what came of it.

The same function runs in the reader's kernel and, for isolated checks and ranks, in a worker.
"""

from __future__ import annotations

import contextlib
import math
import re
import resource
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import torch

from course_utils import stacks, torch_private
from course_utils.exercise import Check, cases, expect
from course_utils.exercise.states import (
    COULD_NOT_CHECK,
    DIED,
    FAILED,
    PASSED,
    RAISED,
    STATES,
    TIMED_OUT,
    WRONG,
)
from course_utils.grading.clean_room import Room, clean_room
from course_utils.grading.recipe import ToMake
from course_utils.processes import limits

# What one plain check may allocate in the reader's kernel beyond what is there already, in bytes.
MEMORY_CEILING = 4 * 2**30
# Of a message: letters in a line, and lines.
MOST_LETTERS, MOST_LINES = 2_000, 40
# Seconds by which a deadline waits for an import to end.
IMPORTING = 20.0
# How a rank of a deadlock is told.
NEVER = "it would never have ended"


class DeadlinePassed(BaseException):
    """Raised into an answer that is still running at its deadline. Not an `Exception`, so that an
    answer which swallows those does not swallow this."""


@dataclass(frozen=True)
class Place:
    """Where and among whom a check runs."""

    device: str | None = None
    rank: int = 0
    world_size: int = 1


@dataclass
class Outcome:
    """What came of one check. `message` is what the reader is told, line by line, code in backticks; where it
    passed, what it noted; `symptom`, a true sentence about the answer, where one is known; `why`, what is
    told in the place of the check's. `device` is None for a check that does not ask for one. `looks`: how
    often it looked at something. `disturbed`: the answer changed what decides checks. `error` is the live
    exception, in the process where it was raised."""

    check: str
    title: str
    state: str
    message: list[str] = field(default_factory=list)
    device: str | None = None
    symptom: str = ""
    why: str = ""
    seconds: float = 0.0
    looks: int = 0
    disturbed: bool = False
    error: BaseException | None = None

    def as_plain(self) -> dict[str, Any]:
        """What of it travels from the process of an answer: data that JSON can hold."""
        kept = ("check", "state", "message", "device", "symptom", "why", "seconds", "looks", "disturbed")
        return {name: getattr(self, name) for name in kept}

    @classmethod
    def of_plain(cls, data: Any, check: Check, place: Place) -> Outcome:
        """From what `as_plain` gave in a process that may do what it likes: anything but an outcome of this
        very check there is *died*, and what looked at nothing is no pass."""
        found = cls(check.name, check.title, DIED, ["its process sent what is not the outcome of this check"])
        found.device = place.device
        try:
            whole = (data["check"], data["device"]) == (check.name, place.device)
            seconds, looks = float(data["seconds"]), int(data["looks"])
            symptom, why = data["symptom"], data["why"]
            lines = data["message"]
            whole = whole and data["state"] in STATES and math.isfinite(seconds)
            whole = whole and isinstance(symptom, str) and isinstance(why, str)
            whole = whole and isinstance(lines, list) and all(isinstance(line, str) for line in lines)
        except (TypeError, KeyError, ValueError, OverflowError):
            return found
        if whole:
            found.state, found.message = data["state"], limited(lines)
            found.symptom, found.why = symptom[:MOST_LETTERS], why[:MOST_LETTERS]
            found.seconds, found.looks = max(0.0, seconds), looks
            found.disturbed = data.get("disturbed") is True
        if found.state == PASSED and looks <= 0:
            found.state, found.message = COULD_NOT_CHECK, ["the check looked at nothing"]
        return found


def limited(lines: Sequence[str]) -> list[str]:
    """The message without what is too much for anybody to read, or for a process to keep."""
    cut = [line if len(line) <= MOST_LETTERS else line[:MOST_LETTERS] + " …" for line in lines[:MOST_LINES]]
    return [*cut, "…"] if len(lines) > MOST_LINES else cut


def run(
    check: Check,
    answer: Any,
    place: Place = Place(),  # noqa: B008
    deadline: float | None = None,
    shared: bool = True,
) -> Outcome:
    """Runs the check in a clean room. `answer` is the object itself, or a `ToMake`.
    Everything that the answer raises becomes an outcome, except `KeyboardInterrupt`. `deadline` (seconds) is
    enforced as well as a process can enforce it on itself; None: somebody else does. `shared`: see
    `clean_room`."""
    outcome = Outcome(check.name, check.title, COULD_NOT_CHECK, device=place.device)
    started = time.perf_counter()
    inside = contextlib.ExitStack()
    with inside, clean_room(shared) as room, expect.looking() as looks, fixtures(check, place) as values:
        lost, notes = inside.enter_context(_lost_in_threads()), inside.enter_context(expect.noting())
        try:
            with _alarm(deadline), _memory_ceiling(deadline), _own_names(check, room):
                if isinstance(answer, ToMake):
                    answer = answer.make()
                cases.call(check, answer, values)
            outcome.state, outcome.message = PASSED, notes
        except (expect.Mismatch, expect.CannotCheck) as error:
            if _by_the_answer(error, check):
                outcome.state, outcome.error = RAISED, error
                outcome.message = describe_error(error, check, expect.example())
            elif isinstance(error, expect.Mismatch):
                outcome.state, outcome.message = WRONG, [steady(line) for line in error.lines]
                outcome.symptom, outcome.why = error.symptom, error.why
            else:
                outcome.state, outcome.message = COULD_NOT_CHECK, [str(error)]
        except torch_private.Gone as error:  # nothing is known of the answer
            outcome.message = [str(error)]
        except DeadlinePassed as error:
            outcome.state = TIMED_OUT
            outcome.message = [still_running(deadline, stacks.Position(readers_frames(error, check)))]
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # sys.exit() in an answer is an answer that raised
            outcome.state, outcome.error = RAISED, error
            outcome.message = describe_error(error, check, expect.example())
    outcome.seconds = time.perf_counter() - started
    if outcome.state in FAILED and lost:
        # What the check itself raised stays what its message ends in.
        at = max(0, len(outcome.message) - 2) if outcome.state == RAISED else len(outcome.message)
        told = min(" ".join(describe_error(error, check)[:2]) for error in lost)
        outcome.message.insert(at, f"raised in another thread: {told}")
    if room.disturbed:
        outcome.state, outcome.message = WRONG, [_put_back(sorted(set(room.disturbed)))]
        outcome.symptom, outcome.why, outcome.disturbed = "", "", True
    if outcome.state == PASSED and not looks:
        outcome.state, outcome.message = COULD_NOT_CHECK, ["the check looked at nothing"]
    outcome.looks, outcome.message = len(looks), limited(outcome.message)
    outcome.symptom = outcome.symptom[:MOST_LETTERS]
    return outcome


def _by_the_answer(error: BaseException, check: Check) -> bool:
    """Whether the answer raised it, itself, through the course's assertions or through something that keeps
    what it is given and raises it later: only a check may say that an answer is wrong, or that it could not
    be checked. A check that the answer calls back is the check."""
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    ours = check.function.__code__.co_filename
    last = max((i for i, file in enumerate(files) if file != ours and stacks.is_readers(file)), default=None)
    if last is None:
        return False
    assertions = Path(expect.__file__).parent
    if files[-1] != ours and assertions.parent not in Path(files[-1]).parents:
        return True
    return assertions in Path(files[last + 1]).parents


@contextlib.contextmanager
def _lost_in_threads() -> Iterator[list[BaseException]]:
    """What threads raise inside. Nobody catches it: Python would print it above the report."""
    lost: list[BaseException] = []
    before = threading.excepthook

    def keep(raised: threading.ExceptHookArgs) -> None:
        if raised.exc_value is not None and raised.exc_type is not SystemExit:
            lost.append(raised.exc_value)

    threading.excepthook = keep
    try:
        yield lost
    finally:
        threading.excepthook = before


def _put_back(disturbed: list[str]) -> str:
    # Names are those of functions; the rest is said in words.
    names = ", ".join(name if " " in name else f"`{name}`" for name in disturbed[:3])
    verb = "changed" if any(" " in name for name in disturbed) else "replaced"
    return f"while it ran your answer {verb} {names}; that has been undone"


@contextlib.contextmanager
def fixtures(check: Check, place: Place) -> Iterator[dict[str, Any]]:
    """What a check takes beside the answer, by name; a folder for it is gone afterwards."""
    device = torch.device(place.device or "cpu")
    found = {"rank": place.rank, "world_size": place.world_size, "device": device}
    with contextlib.ExitStack() as stack:
        if "tmp_path" in check.wants:
            found["tmp_path"] = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="course-")))
        yield {name: value for name, value in found.items() if name in check.wants}


@contextlib.contextmanager
def _alarm(seconds: float | None) -> Iterator[None]:
    """Raises `DeadlinePassed` inside after `seconds`, later on a busy machine, again and again in case it is
    swallowed. Only the main thread of a process can have an alarm, and native code that does not return
    cannot be interrupted: checks of answers that may do so are isolated."""
    main = threading.current_thread() is threading.main_thread()
    if seconds is None or not main or not hasattr(signal, "setitimer"):
        yield
        return
    over = rung = False
    begun = time.monotonic()

    def ring(number: int, frame: FrameType | None) -> None:
        nonlocal rung
        most = limits.stretched(seconds) + IMPORTING * _is_importing(frame)
        if not over and time.monotonic() - begun >= most:
            rung = True
            raise DeadlinePassed

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, 0.25)
    try:
        yield
    finally:
        over = True
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before if before is not None else signal.SIG_DFL)
    if rung:  # the answer swallowed it and went on
        raise DeadlinePassed


def _is_importing(frame: FrameType | None) -> bool:
    """Whether a module is being imported: cut off half-way, it would stay in this process as it is then."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib."):
            return True
        frame = frame.f_back
    return False


@contextlib.contextmanager
def _own_names(check: Check, room: Room) -> Iterator[None]:
    """What the check calls by name stays what it is: an answer can reach its caller's names."""
    names = check.function.__globals__
    before = {n: value for n, value in names.items() if callable(value) or isinstance(value, ModuleType)}
    code = check.function.__code__
    try:
        yield
    finally:
        changed = [name for name, value in before.items() if names.get(name) is not value]
        names.update(before)
        if check.function.__code__ is not code:
            check.function.__code__ = code
            changed.append(check.name)
        room.disturbed += changed


@contextlib.contextmanager
def _memory_ceiling(deadline: float | None) -> Iterator[None]:
    """An answer that fills memory gets torch's own error instead of taking the kernel down. Where `deadline`
    is None a worker runs this, and whoever started it watches its memory."""
    if deadline is None:
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (limits.bytes_beyond(MEMORY_CEILING), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def readers_frames(error: BaseException, check: Check) -> list[stacks.Frame]:
    """The lines of the reader's that the exception passed through, the outermost first."""
    foreign = (check.function.__code__.co_filename, "<given>")
    return [f for f in stacks.frames_of(error.__traceback__) if f.readers and f.file not in foreign]


def describe_error(error: BaseException, check: Check, example: Sequence[str] = ()) -> list[str]:
    """What was raised, in which example, and at which of the reader's lines; without addresses, so that it
    repeats."""
    described = stacks.raised(error)
    # What follows this are all overloads of one of torch's functions, over many lines.
    said, _, _ = steady(described.message).partition(", but expected one of:\n")
    text = " ".join([line for line in said.splitlines() if line.strip()][:4])
    lines = [*example, f"`{described.type}: {text}`" if text else f"`{described.type}`"]
    if mine := readers_frames(error, check):
        return [*lines, f"at {stacks.place(mine[-1])}"]
    outside_torch = [f for f in stacks.frames_of(error.__traceback__) if not stacks.in_torch(f.file)]
    of_check = [f for f in outside_torch if f.file == check.function.__code__.co_filename]
    # What a helper of the course did, and the call of the answer itself, stand in the example already.
    if of_check and (not example or of_check[-1] is outside_torch[-1]):
        lines.append(f"raised by the check when it used what your answer gave: `{of_check[-1].source}`")
    return lines


def still_running(
    deadline: float | None, position: stacks.Position | None, check: Check | None = None
) -> str:
    """The line for a check that did not end, with the loop or the line that it was found in. `deadline` is
    None where it would never have ended: all waited for each other. Who has returned from the answer may wait
    for the others in the check. The frames of `check`, and of what stands in a file with it, are not the
    reader's."""
    where = ""
    if deadline is None and position and position.in_kit:
        return "has returned"
    if position and position.frames:
        where = f"; it {position.describe(_foreign_to(position, check) if check else ())}"
    if deadline is None:
        return f"{NEVER}{where}"
    return f"still running after {deadline:g} seconds{where}"


def _foreign_to(position: stacks.Position, check: Check) -> set[tuple[str, str]]:
    code = check.function.__code__
    inside = {(f.file, f.function) for f in position.frames if f.file == code.co_filename}
    # A mistake stands in the same file as its checks: then it is the check alone that does not count.
    if position.frame is not None and position.frame.file == code.co_filename:
        return {(code.co_filename, code.co_name)}
    return inside


def steady(text: str) -> str:
    """The text without what changes from run to run."""
    return re.sub(r" at 0x[0-9a-fA-F]+|___torch_mangle_\d+\.", "", text)


def keep_for_debugger(error: BaseException, check: Check) -> None:
    """Leaves the exception where `%debug` looks for it, from the reader's first frame inwards."""
    foreign = (check.function.__code__.co_filename, "<given>")
    tb = error.__traceback__
    while tb and ((file := tb.tb_frame.f_code.co_filename) in foreign or not stacks.is_readers(file)):
        tb = tb.tb_next
    tb = tb or error.__traceback__  # no frame is the reader's: better too much than nothing to look at
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error.with_traceback(tb), tb
    if sys.version_info >= (3, 12):
        sys.last_exc = sys.last_value
