"""What the reader has done: attempts, hints, solutions. One file of JSON lines, shared by all kernels.

The file is a log that only grows. A `Record` holds in memory all that it has read and all that it was told;
every question and every new entry first exchanges the two, under a lock on the file. So the answer is always
what is stored together with what this process knows, and what could not be stored is stored by the next
exchange that can. A line that was cut off by a kill is dropped; where other lines are damaged, the file is
kept under another name, and what is whole in it goes into a new one that takes its place by a rename.
Storage trouble never raises: it becomes a sentence, `Record.notice`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import json
import os
import secrets
import threading
import time
import uuid
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from course_utils.exercise import Exercise
from course_utils.exercise.states import WRONG
from course_utils.places import default_root, workspace

PATIENCE = 10.0  # seconds to wait for other kernels that are writing
_WORDS = {errno.ENOSPC: "the disk is full", errno.EISDIR: "it is a folder", errno.EROFS: "it is read-only"}
_WORDS |= dict.fromkeys((errno.ENOTDIR, errno.EEXIST), "its folder is a file")
_WORDS[errno.EAGAIN] = "another program is using it"
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)

_START = b'{"id": "'  # how an entry begins
_OF_AN_EXERCISE = ("attempt", "hint", "asked", "seen")

Entry = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """One exercise in `Record.summary`. `state` is "passed" when any attempt passed, else the last attempt's
    state, None before the first. `hints` is the number revealed; `solution_seen`: before it was passed, for
    what is looked at afterwards was not needed; `last` is when something last happened (ISO format, UTC)."""

    state: str | None
    attempts: int
    hints: int
    solution_seen: bool
    last: str


def _row_of(entries: list[Entry]) -> Row:
    states = [entry["state"] for entry in entries if entry["kind"] == "attempt"]
    kinds = [entry["kind"] for entry in entries]
    passed = next((i for i, entry in enumerate(entries) if entry.get("state") == "passed"), len(entries))
    return Row(
        state="passed" if "passed" in states else states[-1] if states else None,
        attempts=len(states),
        hints=kinds.count("hint"),
        solution_seen="seen" in kinds[:passed],
        last=entries[-1]["at"] if entries else "",
    )


def open_record() -> Record:
    """The reader's record: in the file that COURSE_RECORD names, else in `.record.jsonl` beside their own
    notebooks."""
    return Record(Path(os.environ.get("COURSE_RECORD") or workspace(default_root()) / ".record.jsonl"))


class Record:
    """The record in a file, which is created when there is something to write. Several threads and, through
    the file, several kernels may use it at once."""

    def __init__(self, path: Path) -> None:
        with contextlib.suppress(OSError, RuntimeError):  # links in a circle, no home folder
            path = path.expanduser().resolve()
        self.path = path
        self._lock = threading.RLock()
        self._known: dict[str, Entry] = {}
        self._stored: set[str] = set()
        self._seen: tuple[int, ...] | None = None  # the file as it was when it was last read or written
        self._patience = PATIENCE
        self._trouble: str | None = None  # stands in the way now
        self._incident: str | None = None  # was found and dealt with
        self._told: set[str] = set()

    def add_attempt(
        self, exercise: str, lesson: str, state: str, passed: int, total: int, told_by: str | None = None
    ) -> None:
        """Adds an attempt: the state it ended in, and how many of the exercise's checks passed."""
        counts = {"passed": passed, "total": total}
        self._add("attempt", exercise, lesson=lesson, state=state, **counts, told_by=told_by)

    def reveal_hint(self, exercise: str) -> int:
        """Reveals one more hint; returns how many are revealed now."""
        self._add("hint", exercise)
        return self._row(exercise).hints

    def ask_solution(self, exercise: str) -> int:
        """Notes that the solution was asked for; returns how often it has been."""
        self._add("asked", exercise)
        return sum(entry["kind"] == "asked" for entry in self._by_exercise().get(exercise, []))

    def see_solution(self, exercise: str) -> None:
        """Notes that the solution was shown."""
        self._add("seen", exercise)

    def own_copy(self, exercise: Exercise) -> str:
        """What this reader starts from: a copy of their own where the exercise has copies. Its number is
        drawn when it is first asked for."""
        if exercise.copies is None:
            return exercise.starter_source
        self._exchange()
        if self._copy_number(exercise.name) is None:
            self._add("copy", exercise.name, number=1 + secrets.randbelow(9999))
        return exercise.copies(self._copy_number(exercise.name))

    def _copy_number(self, exercise: str) -> int | None:
        """Where two kernels drew one at the same time, the first in the file is it, for both."""
        with self._lock:
            entries = list(self._known.values())
        of = (one["number"] for one in entries if (one["kind"], one["exercise"]) == ("copy", exercise))
        return next(of, None)

    def add_answer(self, family: str, **details: Any) -> None:
        """Adds an answer to a question of a family. What is kept of it is the business of who asks."""
        self._add("question", family, **details)

    def answers(self) -> list[Entry]:
        """All answers to questions, in their order; what they call `exercise` is the family's name."""
        self._exchange()
        with self._lock:
            answers = [entry for entry in self._known.values() if entry["kind"] == "question"]
        return sorted(answers, key=lambda entry: entry["at"])

    def forget(self, exercise: str) -> Row:
        """From here on, what happened in this exercise counts no more; in the file it stays. Returns where
        it stood."""
        self._exchange()
        stood = self._row(exercise)
        self._add("forgotten", exercise)
        return stood

    def attempts(self, exercise: str) -> int:
        """The number of attempts, in all kernels."""
        self._exchange()
        return self._row(exercise).attempts

    def state(self, exercise: str) -> str | None:
        """Passed when any attempt passed, else the last attempt's state; None before the first."""
        self._exchange()
        return self._row(exercise).state

    def hints(self, exercise: str) -> int:
        """The number of hints revealed."""
        self._exchange()
        return self._row(exercise).hints

    def failed_check(self, exercise: str) -> str | None:
        """The check whose why the last attempt was told; None where it failed in another way, or none did."""
        self._exchange()
        tried = [one for one in self._by_exercise().get(exercise, []) if one["kind"] == "attempt"]
        return tried[-1].get("told_by") if tried and tried[-1]["state"] == WRONG else None

    def summary(self) -> dict[str, Row]:
        """Every exercise in which something happened that is not forgotten."""
        self._exchange()
        return {exercise: _row_of(entries) for exercise, entries in self._by_exercise().items()}

    @property
    def notice(self) -> str | None:
        """What is wrong with the storage, in a sentence; None when nothing is."""
        return self._trouble or self._incident

    def news(self) -> str | None:
        """The notice when it has not been told yet: each sentence comes once."""
        notice = self.notice
        if notice is None or notice in self._told:
            return None
        self._told.add(notice)
        return notice

    def _row(self, exercise: str) -> Row:
        return _row_of(self._by_exercise().get(exercise, []))

    def _by_exercise(self) -> dict[str, list[Entry]]:
        """What is known of each exercise and not forgotten, in the order in which it happened."""
        with self._lock:
            entries = sorted(self._known.values(), key=lambda entry: entry["at"])
        found: dict[str, list[Entry]] = {}
        for entry in entries:
            if entry["kind"] == "forgotten":
                found.pop(entry["exercise"], None)
            elif entry["kind"] in _OF_AN_EXERCISE:
                found.setdefault(entry["exercise"], []).append(entry)
        return found

    def _add(self, kind: str, exercise: str, **details: Any) -> None:
        at = datetime.now(UTC).isoformat(timespec="microseconds")
        entry = {"id": uuid.uuid4().hex, "at": at, "kind": kind, "exercise": exercise, **details}
        with self._lock:
            self._known[entry["id"]] = entry
        self._exchange()

    def _exchange(self) -> None:
        """Reads what is new in the file and writes what is missing there. Never raises."""
        with self._lock:
            try:
                self._meet()
            except OSError as error:
                why = _WORDS.get(error.errno, (error.strerror or str(error)).lower())
                self._trouble = f"Your progress is kept in memory until {self.path} can be written: {why}."
                self._patience = 0.1  # having waited once, do not make the reader wait at every turn
            else:
                self._trouble, self._patience = None, PATIENCE

    def _meet(self) -> None:
        """One exchange, and again where the file is deleted or replaced meanwhile."""
        for _ in range(5):
            with contextlib.suppress(_Replaced):
                return self._meet_once()
        raise OSError(errno.EBUSY, "it keeps being replaced or damaged")

    def _meet_once(self) -> None:
        if not self._known and not self.path.exists():
            return
        if self._known:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(self.path, bool(self._known), self._patience) as (file, refused):
            try:
                if not os.path.samestat(os.fstat(file), self.path.stat()):
                    raise _Replaced
            except FileNotFoundError:
                raise _Replaced from None
            if self._seen != _identity(file):
                self._read(file)
            missing = [entry for key, entry in self._known.items() if key not in self._stored]
            if missing and refused:
                raise refused
            if missing:
                _append(file, missing)
                self._stored |= {entry["id"] for entry in missing}
            self._seen = _identity(file)

    def _read(self, file: int) -> None:
        """Takes in what the file holds; where some of it is damaged, puts a new one in its place."""
        data = os.pread(file, os.fstat(file).st_size, 0)
        *lines, rest = data.split(b"\n")  # what no newline ends was cut off
        whole = [entry for line in lines if (entry := _decode(line))]
        self._stored = {entry["id"] for entry in whole}
        # Of what was cut off or damaged, what is whole all the same is written anew.
        damaged = [line for line in lines if not _decode(line)]
        entries = [*whole, *(entry for part in (*damaged, rest) for entry in _within(part))]
        self._known = {**{entry["id"]: entry for entry in entries}, **self._known}
        if damaged or not _START.startswith(rest[: len(_START)]):
            new = self.path.with_name(f"{self.path.name}.new")
            new.write_bytes(b"".join(map(_encode, self._known.values())))
            aside = _keep_aside(self.path)
            new.replace(self.path)
            saved = f"{len(entries)} entries could be read" if entries else "nothing in it could be read"
            self._incident = f"The record of your progress was damaged: {saved}, and it is kept as {aside}."
            raise _Replaced


class _Replaced(OSError):
    """Another file has the name now."""


@contextlib.contextmanager
def _locked(path: Path, create: bool, patience: float) -> Iterator[tuple[int, OSError | None]]:
    """The file, which no other kernel changes meanwhile; and why it can only be read, where it can."""
    file, refused = _opened(path, create)
    try:
        until = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if error.errno in _NO_LOCKS:
                    break
                if time.monotonic() > until:
                    raise OSError(errno.EAGAIN, "it is locked") from None
                time.sleep(0.002)
        yield file, refused
    finally:
        os.close(file)


def _opened(path: Path, create: bool) -> tuple[int, OSError | None]:
    try:
        return os.open(path, os.O_RDWR | os.O_APPEND | (os.O_CREAT if create else 0), 0o644), None
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        file = os.open(path, os.O_RDONLY)
        return file, OSError(errno.EROFS, "it is read-only")


def _identity(file: int) -> tuple[int, ...]:
    status = os.fstat(file)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _append(file: int, entries: Iterable[Entry]) -> None:
    """Writes all of them or none; what a kill has cut off before goes."""
    size = os.fstat(file).st_size
    end = os.pread(file, size, 0).rfind(b"\n") + 1
    data = b"".join(map(_encode, entries))
    os.ftruncate(file, end)
    try:
        if os.write(file, data) < len(data):
            raise OSError(errno.ENOSPC, "the disk is full")
        os.fsync(file)
    except OSError:
        os.ftruncate(file, end)
        raise


# An entry is one line of ASCII with a checksum: it is not believed where it was altered.


def _checksum(entry: Entry) -> int:
    return zlib.crc32(json.dumps(entry).encode())


def _encode(entry: Entry) -> bytes:
    return json.dumps({**entry, "checksum": _checksum(entry)}).encode() + b"\n"


def _decode(line: bytes) -> Entry | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    whole = isinstance(value, dict) and value.pop("checksum", None) == _checksum(value)
    return value if whole else None


def _within(line: bytes) -> Iterator[Entry]:
    """The entries that stand whole in a damaged line, as in two that have lost what parted them."""
    for part in line.split(_START)[1:]:
        text = (_START + part).decode("latin-1")  # what follows an entry may be anything
        with contextlib.suppress(ValueError, RecursionError):
            _, end = json.JSONDecoder().raw_decode(text)
            if entry := _decode(text[:end].encode("latin-1")):
                yield entry


def _keep_aside(path: Path) -> Path:
    """Gives the file a second name, so that there is one under the first at every moment; returns it."""
    names = (path.with_name(f"{path.stem}.damaged-{number}{path.suffix}") for number in itertools.count(1))
    aside = next(name for name in names if not name.exists())
    try:
        aside.hardlink_to(path)
    except OSError:  # not every file system has links
        aside.write_bytes(path.read_bytes())
    return aside
