"""What torch.compile did."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import CodeType
from typing import Any
from weakref import ref

from course_utils import torch_private
from course_utils.stacks import is_readers
from course_utils.wrong_use import public


@dataclass
class GraphsCompiled:
    """What was compiled.

    `graphs`: handed to a backend, one for each piece between breaks, and again when it is recompiled.
    `recompilations`: how often a piece of code was compiled that had been compiled before: its guards had
    failed. `reasons`: why graphs broke, the first line of each, and the code that it is about.
    """

    graphs: int = 0
    recompilations: int = 0
    reasons: list[str] = field(default_factory=list)
    # By identity: a cell that was run again gives code that is equal to the old.
    _tried: dict[int, CodeType] = field(default_factory=dict)
    _done: dict[int, CodeType] = field(default_factory=dict)

    @property
    def breaks(self) -> int:
        """How often a graph ended before its function did."""
        return len(self.reasons)

    @property
    def skipped(self) -> int:
        """Functions of the reader's that the compiler looked at and left to Python.

        After a break inside a loop all of a function is left, which is no break and no graph; and so is one
        in which there is nothing to compile.
        """
        return len(self._left())

    def _left(self) -> list[str]:
        left = [code for number, code in self._tried.items() if number not in self._done]
        return [code.co_name for code in left if is_readers(code.co_filename)]

    def __str__(self) -> str:
        lines = [f"{self.graphs} graphs, {self.recompilations} recompilations"]
        lines += [f"break: {reason}" for reason in self.reasons]
        return "\n".join([*lines, *(f"skipped: {name}" for name in self._left())])


@public
@contextlib.contextmanager
def graphs_compiled() -> Iterator[GraphsCompiled]:
    """Notes what is compiled inside, by any backend; nothing of it is changed, and nothing is reset.

        with measure.graphs_compiled() as compiled:
            step = torch.compile(f)
            step(x), step(y)
        compiled.graphs, compiled.breaks, compiled.recompilations

    What was compiled before is not counted again, and a function that is compiled already compiles nothing.
    """
    found = GraphsCompiled()
    # Here, not above: importing the compiler takes seconds.
    counters, reasons = torch_private.compiler_counters, torch_private.graph_break_reasons
    looked_at = torch_private.input_codes.seen
    counter = counters["stats"]
    counted = counter["unique_graphs"]
    before = _alive(looked_at)
    # The counters miss breaks at an `if` on a tensor; this list has them all.
    known = list(reasons)

    def look() -> None:
        nonlocal counter, counted
        if counters["stats"] is not counter:  # cleared
            counter, counted = counters["stats"], 0
        found.graphs += counter["unique_graphs"] - counted
        counted = counter["unique_graphs"]
        now_seen = _alive(looked_at)
        found._tried |= {number: code for number, code in now_seen.items() if number not in before}
        now = list(reasons)
        found.reasons += [_in_a_line(new) for new in now if all(new is not old for old in known)]
        known[:] = now

    def code_compiled(*codes: CodeType) -> None:
        look()
        found._done |= {id(code): code for code in codes}  # the old and the new
        current = torch_private.CompileContext.current_compile_id()
        if current is not None and current.frame_compile_id:
            found.recompilations += 1

    handle = torch_private.register_bytecode_hook(code_compiled)
    try:
        yield found
    finally:
        handle.remove()
        look()


def _alive(seen: list[ref[CodeType]]) -> dict[int, CodeType]:
    return {id(code): code for code in (reference() for reference in seen) if code is not None}


def _in_a_line(reason: Any) -> str:
    why = str(reason.reason).strip().splitlines()[0]
    code = reason.user_stack[-1].line if reason.user_stack else ""
    return f"{why} at `{code}`" if code else why
