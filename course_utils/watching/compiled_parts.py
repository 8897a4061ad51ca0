"""What torch compiles of a function, code object by code object, and what it notes down of one call."""

from __future__ import annotations

import types
from dataclasses import dataclass, field
from typing import Any

from course_utils import torch_private
from course_utils.watching.compiled_seen import Call, Graph, Piece


@dataclass(eq=False)
class Part:
    """A code object: the function, what is left of it after a break, or a function that it calls in line
    `called`."""

    code: types.CodeType
    own: bool
    called: int | None
    name: str = ""
    piece: Piece | None = None
    versions: list[Graph] = field(default_factory=list)
    codes: dict[int, types.CodeType] = field(default_factory=dict)
    lines: set[int] = field(default_factory=set)


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
        self.call, self.given = call, given
        self.events: list[tuple[str, Part, Graph]] = []
        self.limits: dict[int, str] = {}
        self._reasons = list(torch_private.graph_break_reasons)
        self._failures = {code: len(found) for code, found in torch_private.guard_failures.items()}

    def reasons(self) -> list[Any]:
        """The breaks that were noted since this was last asked."""
        now = list(torch_private.graph_break_reasons)
        new = [one for one in now if all(one is not old for old in self._reasons)]
        self._reasons = now
        return new

    def failures(self, code: types.CodeType) -> list[str]:
        """The guards of this code that have failed since this was last asked."""
        found = list(torch_private.guard_failures.get(code, ()))
        start = self._failures.get(code, 0)
        self._failures[code] = len(found)
        return [str(one) for one in found[start:]]
