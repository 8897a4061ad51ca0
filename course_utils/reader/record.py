"""What the reader has done: attempts, hints, solutions. One small SQLite file, shared by all kernels.

The file is a log that only grows. A `Record` holds in memory all that it has read and all that it was told;
every question and every new entry first exchanges the two. So the answer is always what is stored together
with what this process knows, and what could not be stored is stored by the next exchange that can. Storage
trouble never raises: it becomes a sentence, `Record.notice`.

Each exchange opens the file, holds one short transaction and closes it: about a millisecond. The file has a
rollback journal, not a write-ahead log, because that works on network file systems too and leaves nothing
beside it. A process killed in the middle leaves its journal, which SQLite plays back at the next opening.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import sqlite3
import threading
import uuid
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from course_utils.lessons.catalog import default_root

VERSION = 1  # of the file's layout: its `user_version`
LAYOUT = "CREATE TABLE entries (number INTEGER PRIMARY KEY, entry TEXT NOT NULL)"
PATIENCE = 10.0  # seconds to wait for other kernels that are writing
MOST_TURNS = 5  # a file that is replaced or damaged again and again is given up

Entry = dict[str, Any]

# All exchanges of this process, of whichever Record: closing any descriptor of a file drops the locks
# that the process holds on it, so that nothing here may open the file during a transaction.
_lock = threading.RLock()


@dataclass(frozen=True)
class Row:
    """One exercise in `Record.summary`.

    `state` is "passed" when any attempt passed, else the last attempt's state, None before the first.
    `hints` is the number revealed; `last` is when something last happened (ISO format, UTC).
    """

    state: str | None
    attempts: int
    hints: int
    solution_seen: bool
    last: str


def _row_of(entries: list[Entry]) -> Row:
    states = [entry["state"] for entry in entries if entry["kind"] == "attempt"]
    return Row(
        state="passed" if "passed" in states else states[-1] if states else None,
        attempts=len(states),
        hints=_count("hint", entries),
        solution_seen=_count("seen", entries) > 0,
        last=entries[-1]["at"] if entries else "",
    )


def _count(kind: str, entries: list[Entry]) -> int:
    return sum(entry["kind"] == kind for entry in entries)


class _Damaged(Exception):
    """The file is not, or no longer, a whole record."""


class _NotOurs(Exception):
    """The file must be left alone; the message says what it is."""


def default_path() -> Path:
    """COURSE_RECORD, or `.record.sqlite` beside the reader's own notebooks."""
    return Path(os.environ.get("COURSE_RECORD") or default_root() / "workspace" / ".record.sqlite")


def open_record(path: Path | None = None) -> Record:
    """The record in this file. Nothing is created before there is something to write."""
    return Record(path or default_path())


class Record:
    """The reader's record. Several threads and, through the file, several kernels may use it at once."""

    def __init__(self, path: Path) -> None:
        with contextlib.suppress(OSError, RuntimeError):  # links in a circle, no home folder
            path = path.expanduser().resolve()
        self.path = path
        self._known: dict[str, Entry] = {}
        self._start_with(None)
        self._patience = PATIENCE
        self._trouble: str | None = None  # stands in the way now
        self._incident: str | None = None  # was found and dealt with
        self._told: set[str] = set()

    def add_attempt(
        self,
        exercise: str,
        lesson: str,
        state: str,
        passed: int,
        total: int,
        told_by: str | None = None,
        source_digest: str | None = None,
    ) -> None:
        """Adds an attempt: the state it ended in, and how many of the exercise's checks passed."""
        self._add(
            "attempt",
            exercise,
            lesson=lesson,
            state=state,
            passed=passed,
            total=total,
            told_by=told_by,
            source_digest=source_digest,
        )

    def reveal_hint(self, exercise: str) -> int:
        """Reveals one more hint; returns how many are revealed now."""
        self._add("hint", exercise)
        return self._row(exercise).hints

    def ask_solution(self, exercise: str) -> int:
        """Notes that the solution was asked for; returns how often it has been."""
        self._add("asked", exercise)
        return _count("asked", self._by_exercise().get(exercise, []))

    def see_solution(self, exercise: str) -> None:
        """Notes that the solution was shown."""
        self._add("seen", exercise)

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

    def solution_seen(self, exercise: str) -> bool:
        """Whether the solution was shown."""
        self._exchange()
        return self._row(exercise).solution_seen

    def summary(self) -> dict[str, Row]:
        """Every exercise in which something happened."""
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
        """What is known of each exercise, in the order in which it happened."""
        with _lock:
            entries = sorted(self._known.values(), key=lambda entry: entry["at"])
        found: dict[str, list[Entry]] = {}
        for entry in entries:
            found.setdefault(entry["exercise"], []).append(entry)
        return found

    def _add(self, kind: str, exercise: str, **details: Any) -> None:
        at = datetime.now(UTC).isoformat(timespec="microseconds")
        entry = {"id": uuid.uuid4().hex, "at": at, "kind": kind, "exercise": exercise, **details}
        with _lock:
            self._known[entry["id"]] = entry
        self._exchange()

    def _start_with(self, file: tuple[int, int] | None) -> None:
        """Nothing is known yet of the file with this identity."""
        self._file = file
        self._examined = False
        self._stored: set[str] = set()
        self._last_row = (0, "")

    def _exchange(self) -> None:
        """Reads what is new in the file and writes what is missing there. Never raises."""
        with _lock:
            try:
                self._exchange_or_raise()
            except (sqlite3.Error, OSError) as error:
                why = _why(error, self.path)
                self._trouble = f"Your progress is kept in memory until {self.path} can be written: {why}."
                self._patience = 0.1  # having waited once, do not make the reader wait at every turn
            else:
                self._trouble = None
                self._patience = PATIENCE

    def _exchange_or_raise(self) -> None:
        for _ in range(MOST_TURNS):
            try:
                if self._meet():
                    return
            except _NotOurs as error:
                beside = self.path.with_name(f"{self.path.stem}.version-{VERSION}{self.path.suffix}")
                self._incident = f"{self.path} {error}: it is left alone, and progress goes to {beside.name}."
                self.path = beside
            except _Damaged:
                self._repair()
        raise OSError(errno.EBUSY, "it keeps being replaced or damaged")

    def _meet(self) -> bool:
        """One exchange with the file; False when the file was deleted or replaced meanwhile.

        Raises `_NotOurs`, `_Damaged`, `sqlite3.Error` and `OSError`.
        """
        if not self.path.exists():
            if not self._known:
                return True
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.touch()
        file = _identity(self.path)
        if file != self._file:
            self._start_with(file)
        with _opened(self.path, self._patience) as database:
            try:
                self._transaction(database)
            except sqlite3.Error as error:
                if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_READONLY_DBMOVED:
                    return False
                raise
        return file == _identity(self.path)

    def _transaction(self, database: sqlite3.Connection) -> None:
        refused = _begin(database)
        if not self._examined and database.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
            raise _Damaged
        self._examined = True
        if _is_new(database):
            self._start_with(self._file)
        else:
            self._read(database)
        missing = self._known.keys() - self._stored
        if missing and refused:
            raise refused
        last_row = self._last_row
        if missing:
            last_row = _write(database, [entry for key, entry in self._known.items() if key in missing])
        database.execute("COMMIT")
        self._stored |= missing
        self._last_row = last_row

    def _read(self, database: sqlite3.Connection) -> None:
        row = database.execute("SELECT number, entry FROM entries WHERE number = ?", self._last_row[:1])
        if row.fetchone() != self._last_row:  # another file has taken its place
            self._start_with(self._file)
        rows = "SELECT number, entry FROM entries WHERE number > ? ORDER BY number"
        for number, text in database.execute(rows, self._last_row[:1]):
            entry = _decode(text)
            if entry is None:
                raise _Damaged
            self._known.setdefault(entry["id"], entry)
            self._stored.add(entry["id"])
            self._last_row = (number, text)

    def _repair(self) -> None:
        """Keeps the damaged file under another name; what can be read of it goes into a new one."""
        self._start_with(None)
        with _only_one_in(self.path.parent):
            try:
                self._meet()
                return  # another kernel was here first
            except _NotOurs:
                return
            except _Damaged:
                found = _salvage(self.path)
            self._known = {**found, **self._known}
            new = self.path.with_name(f"{self.path.name}.new")
            new.unlink(missing_ok=True)
            with _opened(new, self._patience) as database:
                _begin(database)
                _write(database, self._known.values())
                database.execute("COMMIT")
            aside = _keep_aside(self.path)
            new.replace(self.path)
        saved = f"{len(found)} entries could be read" if found else "nothing in it could be read"
        self._incident = f"The record of your progress was damaged: {saved}, and it is kept as {aside}."


def _begin(database: sqlite3.Connection) -> sqlite3.Error | None:
    """Begins a transaction; returns why it can only read, where it can."""
    try:
        database.execute("BEGIN IMMEDIATE")
    except sqlite3.Error as error:
        if _primary(error) != sqlite3.SQLITE_READONLY:
            raise
        database.execute("BEGIN")
        return error
    return None


def _is_new(database: sqlite3.Connection) -> bool:
    """Whether the file is still empty. Raises `_NotOurs` and `_Damaged`."""
    version = database.execute("PRAGMA user_version").fetchone()[0]
    layout = database.execute("SELECT sql FROM sqlite_master").fetchall()
    if version > VERSION:
        raise _NotOurs("was written by a newer version of this course")
    if version == 0 and layout:
        raise _NotOurs("belongs to another program")
    if version != 0 and (version, layout) != (VERSION, [(LAYOUT,)]):
        raise _Damaged
    return version == 0


def _write(database: sqlite3.Connection, entries: Iterable[Entry]) -> tuple[int, str]:
    """Appends the entries; returns the last row."""
    if not database.execute("SELECT 1 FROM sqlite_master").fetchone():
        database.execute(LAYOUT)
        database.execute(f"PRAGMA user_version = {VERSION}")
    row = (0, "")
    for text in map(_encode, entries):
        row = (database.execute("INSERT INTO entries (entry) VALUES (?)", (text,)).lastrowid, text)
    return row


@contextlib.contextmanager
def _opened(path: Path, patience: float) -> Iterator[sqlite3.Connection]:
    """A connection. Turns SQLite's ways of calling a file damaged into `_Damaged`."""
    database = sqlite3.connect(path, timeout=patience, isolation_level=None)
    try:
        database.text_factory = lambda raw: raw.decode(errors="replace")
        yield database
    except sqlite3.DatabaseError as error:
        # A plain error is one of SQL: the layout is not what its version says.
        damaged = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
        if _primary(error) in damaged or _marked_read_only(path):
            raise _Damaged from error
        raise
    except UnicodeDecodeError as error:  # in SQLite's own complaint, which quotes the file
        raise _Damaged from error
    finally:
        database.close()


def _marked_read_only(path: Path) -> bool:
    """Whether the file itself, in one byte of its header, tells SQLite never to write to it."""
    with path.open("rb") as file:
        return file.read(100)[18:19] > b"\2"


def _primary(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _why(error: Exception, path: Path) -> str:
    """The reason for storage trouble, as the end of a sentence."""
    with contextlib.suppress(OSError):
        if path.is_dir():
            return "it is a folder"
    if isinstance(error, FileExistsError | NotADirectoryError):
        return "its folder is a file"
    if isinstance(error, OSError):
        return (error.strerror or str(error)).lower()
    return {
        sqlite3.SQLITE_FULL: "the disk is full",
        sqlite3.SQLITE_BUSY: "another program is using it",
        sqlite3.SQLITE_READONLY: "it is read-only",
        sqlite3.SQLITE_CANTOPEN: "it cannot be opened",
        sqlite3.SQLITE_IOERR: "the disk reports an error",
    }.get(_primary(error), str(error))


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


# An entry is stored as one line of ASCII with a checksum, so that it can be found in the bytes of a file
# that SQLite no longer reads, and is not believed where it was altered.
ENTRY_START = re.compile(r'\{"id": "')


def _checksum(entry: Entry) -> int:
    return zlib.crc32(json.dumps(entry).encode())


def _encode(entry: Entry) -> str:
    return json.dumps({**entry, "checksum": _checksum(entry)})


def _decode(text: Any) -> Entry | None:
    try:
        return _believed(json.loads(text))
    except (ValueError, TypeError, RecursionError):
        return None


def _believed(value: Any) -> Entry | None:
    if not isinstance(value, dict):
        return None
    entry = {key: part for key, part in value.items() if key != "checksum"}
    return entry if value.get("checksum") == _checksum(entry) else None


def _salvage(path: Path) -> dict[str, Entry]:
    """The whole entries among the bytes of a file, by id."""
    text = path.read_bytes().decode("latin-1")
    found = {}
    for match in ENTRY_START.finditer(text):
        with contextlib.suppress(ValueError, RecursionError):
            if entry := _believed(json.JSONDecoder().raw_decode(text, match.start())[0]):
                found[entry["id"]] = entry
    return found


def _keep_aside(path: Path) -> Path:
    """Gives the file, and what SQLite keeps beside it, a second name; returns that."""
    number = 1
    while (aside := path.with_name(f"{path.stem}.damaged-{number}{path.suffix}")).exists():
        number += 1
    try:
        aside.hardlink_to(path)  # so that there is a file under the first name at every moment
    except OSError:  # not every file system has links
        path.rename(aside)
    for ending in ("-journal", "-wal", "-shm"):
        companion = path.with_name(path.name + ending)
        if companion.exists():
            companion.rename(aside.with_name(aside.name + ending))
    return aside


@contextlib.contextmanager
def _only_one_in(folder: Path) -> Iterator[None]:
    """Holds back other kernels that would do the same in this folder, where the file system can."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
