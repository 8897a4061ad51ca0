"""What torch compiles of a function, code object by code object, and what it notes down of one call."""

from __future__ import annotations

import types
from dataclasses import dataclass, field
from typing import Any

from course_utils.watching.compiled_seen import Call, Graph, Piece, Skipped


@dataclass(eq=False)
class Part:
    """A code object: the function, what is left of it after a break, or a function that it calls."""

    code: types.CodeType
    own: bool
    name: str = ""
    piece: Piece | None = None
    called: int | None = None
    # The function is entered through it: a decorator, or torch's own code of a module. What is called outside
    # of the function later on, such as a hook of a module, is none.
    wraps: bool = False
    versions: list[Graph] = field(default_factory=list)
    codes: dict[int, types.CodeType] = field(default_factory=dict)
    after: dict[int, list[Part]] = field(default_factory=dict)  # what each version goes on with
    lines: set[int] = field(default_factory=set)
    frames: set[str] = field(default_factory=set)
    python: str = ""  # why it is never compiled
    torch: str = ""
    limited: bool = False
    rest: Skipped | None = None  # what compiled code goes on with in Python, in the same code

    @property
    def outermost(self) -> bool:
        return not self.own and self.called is None

    def is_of(self, metric: Any) -> bool:
        """Whether one of torch's records is about this code."""
        number = str(getattr(metric, "compile_id", "")).rpartition("/")[0]
        if number and number in self.frames:
            return True
        named = (metric.co_filename, metric.co_name, metric.co_firstlineno)
        return named == (self.code.co_filename, self.code.co_name, self.code.co_firstlineno)

    @property
    def nexts(self) -> list[Part]:
        return list(dict.fromkeys(one for after in self.after.values() for one in after))

    def reaches(self, touched: set[int], passed: frozenset[int] = frozenset()) -> bool:
        """Whether it, or what comes after it, is among these."""
        if id(self) in touched:
            return True
        passed |= {id(self)}
        return any(one.reaches(touched, passed) for one in self.nexts if id(one) not in passed)


@dataclass(eq=False)
class Made:
    """A graph that the backend has seen, and what became of it."""

    lines: tuple[int, ...]
    operators: tuple[str, ...]
    part: Any = None
    graph: Graph | None = None


class Now:
    """One call while it is under way: what torch had noted before it, and what has happened since."""

    def __init__(self, call: Call, given: dict[str, Any]) -> None:
        from torch._dynamo import utils
        from torch._dynamo.convert_frame import input_codes

        self.call, self.given = call, given
        self.events: list[tuple[str, Part, Graph]] = []
        self.limits: dict[int, str] = {}
        self._utils, self._codes = utils, input_codes
        self._reasons = list(utils.graph_break_reasons)
        self._metrics = list(utils.get_compilation_metrics())
        self._failures = {code: len(found) for code, found in utils.guard_failures.items()}
        self._seen = self._alive()

    def reasons(self) -> list[Any]:
        """The breaks that were noted since this was last asked."""
        now = list(self._utils.graph_break_reasons)
        new = [one for one in now if all(one is not old for old in self._reasons)]
        self._reasons = now
        return new

    def metrics(self) -> list[Any]:
        """Torch's records of what it has compiled, or has not, in this call."""
        now = list(self._utils.get_compilation_metrics())
        return [one for one in now if all(one is not old for old in self._metrics)]

    def failures(self, code: types.CodeType) -> list[str]:
        """The guards of this code that have failed since this was last asked."""
        all_of_them = list(self._utils.guard_failures.get(code, ()))
        start = self._failures.get(code, 0)
        self._failures[code] = len(all_of_them)
        return [str(one) for one in all_of_them[start if start <= len(all_of_them) else 0 :]]

    def looked_at(self) -> set[int]:
        """The code that the compiler was asked about for the first time in this call."""
        return self._alive() - self._seen

    def _alive(self) -> set[int]:
        return {id(code) for code in (one() for one in self._codes.seen) if code is not None}


def in_python(
    parts: list[Part], entry: types.CodeType, ran: dict[int, Part]
) -> tuple[list[Part], list[tuple[Part, Graph]]]:
    """The parts that a call has run as plain Python, and the versions of named parts that it has run and
    that have no operators; `ran`: the graphs that it did run."""
    touched = {id(part) for part in ran.values()}
    # A module may be entered through code of torch's.
    first = [part for part in parts if part.code is entry or part.outermost]
    left: list[Part] = []
    silent: list[tuple[Part, Graph]] = []
    passed: set[int] = set()

    def follow(part: Part, below: bool) -> None:
        if id(part) in passed:
            return
        passed.add(id(part))
        if not part.reaches(touched) and (part.python or part.limited):
            left.append(part)
            return
        mine = [one for graph, after in part.after.items() if graph in ran for one in after]
        nexts = list(dict.fromkeys(mine)) or ([] if id(part) in touched else part.nexts)
        live = [one for one in nexts if one.reaches(touched)]
        if part.name and id(part) not in touched:
            empty = [graph for graph in part.versions if not graph.operators]
            fits = [graph for graph in empty if set(live) & set(part.after.get(id(graph), ()))]
            silent.extend((part, graph) for graph in (fits or empty)[-1:])
        others = [one for one in nexts if one.python or one.limited]
        fresh = [one for one in nexts if not one.versions]
        below |= part.limited
        if live:
            for one in live:
                follow(one, below)
        elif others:
            follow(others[0], below)
        elif below and nexts:
            left.append((fresh or nexts)[0])
        elif nexts:
            follow(nexts[0], below)

    for part in first:
        follow(part, False)
    return left, silent
