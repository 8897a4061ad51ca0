"""What a check says when something is not as expected, and whether it has looked at anything."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

from course_utils.exercise.given import example

# How often something was looked at, while a check runs.
_looks: ContextVar[list[int] | None] = ContextVar("looks", default=None)
# What it says although it passes.
_notes: ContextVar[list[str] | None] = ContextVar("notes", default=None)


class Mismatch(AssertionError):
    """Raised where something is not what was expected. `lines` is the message, the failing example first;
    `symptom` a true sentence about what came, or no text; `why` is told in the place of the check's, where
    that doesn't fit what came."""

    def __init__(self, *lines: str, symptom: str = "", why: str = "") -> None:
        looked()
        self.lines = [*example(), *lines]
        self.symptom, self.why = symptom, why
        super().__init__("\n".join(self.lines))


class CannotCheck(Exception):
    """Raised where this machine, or this run, cannot decide: the outcome is *could not check*, never
    *passed*."""


@contextlib.contextmanager
def looking() -> Iterator[list[int]]:
    """Yields a list that grows by an entry whenever something is looked at inside: a check that has
    looked at nothing has not passed."""
    found: list[int] = []
    token = _looks.set(found)
    try:
        yield found
    finally:
        _looks.reset(token)


@contextlib.contextmanager
def noting() -> Iterator[list[str]]:
    """Yields the list that `note` adds to inside."""
    found: list[str] = []
    token = _notes.set(found)
    try:
        yield found
    finally:
        _notes.reset(token)


def note(line: str) -> None:
    """A line that the report shows below the check that runs, also where it passes."""
    notes = _notes.get()
    if notes is not None and line:
        notes.append(line)


def looked() -> None:
    """Notes that something of the answer was looked at."""
    found = _looks.get()
    if found is not None:
        found.append(1)
