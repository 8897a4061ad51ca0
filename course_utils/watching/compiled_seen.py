"""What was seen of a compiled function, and how it is told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from course_utils.watching.compiled import Watched

NO_GRAPH = "no graph ran"


@dataclass
class Piece:
    """A part of the function that is compiled by itself, from its beginning or a break to the next break.

    `name` is a letter. `begins` says where it does, in words; `lines` are those of the reader's function of
    which it has operators. `limit`: it will not be compiled again, since torch's limit was reached.
    """

    name: str
    begins: str
    lines: set[int] = field(default_factory=set)
    limit: bool = False


@dataclass
class Graph:
    """One compiled version of a piece, versions counted from 1. `why` it was made, in words; `call`: the
    number of the call that made it."""

    piece: str
    version: int
    lines: tuple[int, ...]
    operators: tuple[str, ...]
    why: str
    guards: tuple[str, ...] = ()
    call: int = 0

    @property
    def name(self) -> str:
        return f"{self.piece}{self.version}"


@dataclass(frozen=True)
class Break:
    """A line at which a graph ends before the function does. `inside`: the line of another function that is
    called there, where the reason lies."""

    line: int
    reason: str
    inside: str = ""


@dataclass(frozen=True)
class Step:
    """What one piece did in a call. `what` is "compiled", "recompiled", "hit" or "python"; `times`: how often
    it ran."""

    piece: str
    version: int
    what: str
    why: str = ""
    times: int = 1


@dataclass
class Call:
    """One call: the arguments in short words, and what ran in it."""

    number: int
    arguments: tuple[str, ...]
    steps: list[Step] = field(default_factory=list)


@dataclass(frozen=True)
class Line:
    """A line of the function, with the letters of the pieces that have operators of it."""

    number: int
    text: str
    pieces: tuple[str, ...] = ()
    breaks: tuple[Break, ...] = ()


# --- in words ---------------------------------------------------------------------------------------------


def count(number: int, thing: str) -> str:
    """`1 piece`, `2 pieces`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def summary(seen: Watched) -> str:
    """What became of a function, in a sentence."""
    again = sum(step.what == "recompiled" for call in seen.calls for step in call.steps)
    parts = [
        count(len(seen.pieces), "piece"),
        count(len(seen.breaks), "break"),
        count(len(seen.graphs), "graph") + " compiled",
        count(again, "recompilation"),
        count(len(seen.calls), "call"),
    ]
    return f"{seen.name}: {', '.join(parts)}"


def mark(step: Step) -> str:
    """`A2 hit`: what a piece did in a call."""
    if step.what == "python":
        return f"{step.piece} Python"
    times = f" ×{step.times}" if step.times > 1 and step.what == "hit" else ""
    return f"{step.piece}{step.version} {step.what}{times}"


def ending(one: Break) -> str:
    """The words beside a line at which a graph ends."""
    return f"break: {one.reason} ({one.inside})" if one.inside else f"break: {one.reason}"
