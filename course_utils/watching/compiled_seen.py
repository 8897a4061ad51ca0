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
    """One compiled version of a piece, versions counted from 1. `why` it was made, in words; `torch`: what
    torch says of that. `call`: the number of the call that made it."""

    piece: str
    version: int
    lines: tuple[int, ...]
    operators: tuple[str, ...]
    why: str
    torch: str = ""
    guards: tuple[str, ...] = ()
    call: int = 0

    @property
    def name(self) -> str:
        return f"{self.piece}{self.version}"


@dataclass(frozen=True)
class Break:
    """A line at which a graph ends before the function does. `inside`: the line of another function that is
    called there, where the reason lies. `skips`: there is no way to go on after it, so that what was being
    compiled is left to Python as a whole. `torch` is the first line of what torch says."""

    line: int
    reason: str
    torch: str
    inside: str = ""
    skips: bool = False


@dataclass(frozen=True)
class Skipped:
    """A part of the function that is never compiled: where it begins, and why."""

    begins: str
    reason: str
    torch: str = ""


@dataclass(frozen=True)
class Step:
    """What one piece did in a call. `what` is "compiled", "recompiled", "hit" or "python"; `piece` is "" for
    a part without a graph, which `begins` where this says; `times`: how often it ran."""

    piece: str
    version: int
    what: str
    why: str = ""
    times: int = 1
    begins: str = ""


@dataclass
class Call:
    """One call: the arguments in short words, what ran in it, and what it raised, "" for nothing."""

    number: int
    arguments: tuple[str, ...]
    steps: list[Step] = field(default_factory=list)
    raised: str = ""


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
        return f"{step.piece} Python".strip()
    times = f" ×{step.times}" if step.times > 1 and step.what == "hit" else ""
    return f"{step.piece}{step.version} {step.what}{times}"


def ending(one: Break) -> str:
    """The words beside a line at which a graph ends."""
    words = f"break{', and no graph goes on from here' if one.skips else ''}: {one.reason}"
    return f"{words} ({one.inside})" if one.inside else words


def told(seen: Watched) -> list[str]:
    """All of it, line by line."""
    lines = [summary(seen)]
    for line in seen.lines:
        lines.append(f"{line.number:5d} {'+'.join(line.pieces):>3} │ {line.text}".rstrip())
        lines += [f"{'':9} │   ↳ {ending(one)}" for one in line.breaks]
    lines += [f"Python {one.begins}: {one.reason}" for one in seen.skipped]
    for piece in seen.pieces:
        lines.append(f"{piece.name}  {piece.begins}" + ("; recompile limit reached" if piece.limit else ""))
        for graph in (graph for graph in seen.graphs if graph.piece == piece.name):
            why = f": {graph.why}" if graph.why else ""
            operators = ", ".join(graph.operators) or "no operators"
            lines.append(f"   {graph.name} by call {graph.call}{why} [{operators}]")
            lines += [f"      {words}" for words in graph.guards]
    for call in seen.calls:
        marks = " · ".join(map(mark, call.steps)) or NO_GRAPH
        lines.append(f"call {call.number} ({', '.join(call.arguments)}): {marks}")
        lines += [f"      {step.piece or 'Python'}: {step.why}" for step in call.steps if step.why]
        if call.raised:
            lines.append(f"      raised {call.raised}")
    return lines
