"""How to make one answer from pieces of a notebook."""

import linecache
import re
import sys
import types
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import cloudpickle

from course_utils.exercise import snake_case
from course_utils.stacks import Frame

DEFINITION = re.compile(
    r"^(?:(?:async[ \t]+)?def|class)[ \t]+(\w+)|^(\w+)[ \t]*(?::[^=\n]*)?=(?!=)", re.MULTILINE
)


class Piece(NamedTuple):
    """Some lines of a cell, and where they stand in it."""

    source: str
    filename: str
    first_line: int


class ToMake:
    """An answer that is made where its checks run, by its method `make`."""

    def make(self) -> Any:
        raise NotImplementedError


@dataclass(frozen=True)
class Recipe(ToMake):
    """How to make an answer: the pieces of the notebook that it consists of, in the order to run them.
    `flags`: the `__future__` features of the notebook, as `compile` takes them."""

    name: str
    pieces: tuple[Piece, ...]
    flags: int = 0

    def make(self) -> Any:
        """Runs the pieces in a module of their own and returns the answer. Made once in a process: later
        calls return the same object. Raises what the pieces raise, `SyntaxError` where one is not Python, and
        `NameError` where they do not define the answer."""
        if self.name in _made and _made[self.name][0] == self:
            return _made[self.name][1]
        _show_sources(self.pieces)
        how = {"flags": self.flags, "dont_inherit": True}
        lines_above = [(piece, "\n" * (piece.first_line - 1)) for piece in self.pieces]
        codes = [compile(above + piece.source, piece.filename, "exec", **how) for piece, above in lines_above]
        module = types.ModuleType(f"answer_{snake_case(self.name)}")
        # Where `inspect.getsource` looks for a class: the cell that defines the answer comes last as a rule.
        module.__file__ = next((p.filename for p in reversed(self.pieces) if self._defines(p)), None)
        module.__dict__.update(display=print, get_ipython=_NoShell)
        sys.modules[module.__name__] = module  # before it runs: dataclasses and pickling look it up
        cloudpickle.register_pickle_by_value(module)  # as what a kernel's cells define: nobody can import it
        for code in codes:
            exec(code, module.__dict__)
        if self.name not in module.__dict__:
            raise NameError(f"name {self.name!r} is not defined")
        answer = module.__dict__[self.name]
        _made[self.name] = self, answer
        return answer

    @property
    def source(self) -> str:
        """The piece that defines the answer; no text where it is not a definition."""
        found = [piece.source for piece in self.pieces if self._defines(piece)]
        return found[-1] if found and found[-1].lstrip().startswith(("def ", "class ", "@")) else ""

    def shown(self, frame: Frame) -> Frame:
        """The frame with its line of the notebook; nothing else is the reader's."""
        for piece in self.pieces:
            lines = piece.source.split("\n")
            if piece.filename == frame.file and 0 <= frame.line - piece.first_line < len(lines):
                return replace(frame, source=lines[frame.line - piece.first_line].strip(), readers=True)
        return replace(frame, readers=False)

    def _defines(self, piece: Piece) -> bool:
        return any(self.name in found for found in DEFINITION.findall(piece.source))


class _NoShell:
    """What magics inside an answer find instead of IPython: they do nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


_made: dict[str, tuple[Recipe, Any]] = {}


def _show_sources(pieces: Iterable[Piece]) -> None:
    """Tracebacks, `inspect.getsource` and TorchScript find the code under the names of its cells."""
    lines_of: dict[str, list[str]] = {}
    for piece in pieces:
        lines = lines_of.setdefault(piece.filename, [])
        wanted = [line + "\n" for line in piece.source.split("\n")]
        lines += ["\n"] * (piece.first_line - 1 + len(wanted) - len(lines))
        lines[piece.first_line - 1 : piece.first_line - 1 + len(wanted)] = wanted
    for filename, lines in lines_of.items():
        # No modification time: `linecache.checkcache` then leaves the entry alone.
        linecache.cache[filename] = (sum(map(len, lines)), None, lines, filename)
