"""The function that is compiled: its code, its text, and which of its lines something is about."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESUME = re.compile(r"torch_dynamo_resume_in_(.+)_at_(\d+)$")
_FRAME = re.compile(r'File "(.+?)", line (\d+), in (.+)')


@dataclass(frozen=True)
class Source:
    """The text of a function. `statements`: for each line the lines of the statement that it is in; `stored`:
    the names that are assigned to."""

    file: str
    first: int
    text: list[str]
    statements: dict[int, range]
    stored: set[str]

    @classmethod
    def of(cls, f: Any) -> Source:
        file = f.__code__.co_filename
        lines, first = inspect.getsourcelines(f)
        text = dedented(lines)
        try:
            nodes = list(ast.walk(ast.parse("".join(text))))
        except SyntaxError:  # a lambda in the middle of a call
            nodes = []
        return cls(file, first, text, _statements(nodes, first), _stored(nodes))

    def has(self, file: str, line: int) -> bool:
        """Whether this line is one of the function's."""
        return file == self.file and self.first <= line < self.first + max(len(self.text), 1)

    def line_now(self) -> int | None:
        """The line of the reader's function that is being run."""
        frame = sys._getframe(1)
        while frame is not None:
            if self.has(frame.f_code.co_filename, frame.f_lineno):
                return frame.f_lineno
            frame = frame.f_back
        return None

    def in_graph(self, module: Any) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """The lines of the reader's function that are in a graph, and its operators."""
        lines, operators = [], []
        for node in module.graph.nodes:
            if node.op in ("placeholder", "output", "get_attr"):
                continue
            operators.append(_operator(node.target))
            frames = _FRAME.findall(node.stack_trace or "")
            lines += [int(line) for file, line, _ in frames if self.has(file, int(line))][:1]
        return tuple(lines), tuple(operators)

    def place(self, stack: list[Any]) -> tuple[int | None, str]:
        """Where torch noted something: the line of the function and, in words, that of another function that
        is called there, else ""."""
        own = [frame for frame in stack if self.has(frame.filename, frame.lineno)]
        line = own[0].lineno if own else self.line_now()
        last = stack[-1] if stack else None
        inside = ""
        if last is not None and not self.has(last.filename, last.lineno):
            name = resumed[1] if (resumed := RESUME.match(last.name)) else last.name
            where = "" if last.filename == self.file else f" of {Path(last.filename).name}"
            code = (last.line or "").strip()
            inside = f"line {last.lineno}{where}, in `{name}`" + (f": `{code}`" if code else "")
        return line, inside


def function_of(f: Any) -> Any:
    """The Python function behind a method or a wrapper."""
    f = inspect.unwrap(f)
    return getattr(f, "__func__", f)


def copy(f: types.FunctionType) -> types.FunctionType:
    """The function with code of its own: what torch has compiled it keeps by its code."""
    copied = types.FunctionType(
        f.__code__.replace(), f.__globals__, f.__name__, f.__defaults__, f.__closure__
    )
    copied.__kwdefaults__ = f.__kwdefaults__
    return copied


def dedented(lines: list[str]) -> list[str]:
    """The lines of a definition, moved to the margin by as much as the first: a comment or a text may stand
    further left than the code."""
    indent = re.match(r"[ \t]*", lines[0])[0] if lines else ""
    return [line.removeprefix(indent) for line in lines]


def _statements(nodes: list[ast.AST], first: int) -> dict[int, range]:
    """For each line the lines of the statement that it is in; of a compound one only its head."""
    found: dict[int, range] = {}
    for node in nodes:
        if not isinstance(node, ast.stmt):
            continue
        body = getattr(node, "body", None)
        end = node.end_lineno or node.lineno
        if isinstance(body, list) and body:
            end = max(min(end, body[0].lineno - 1), node.lineno)
        lines = range(node.lineno + first - 1, end + first)
        for line in lines:
            if line not in found or len(found[line]) > len(lines):
                found[line] = lines
    return found


def _stored(nodes: list[ast.AST]) -> set[str]:
    """The names that are assigned to."""
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def _operator(target: Any) -> str:
    return target if isinstance(target, str) else getattr(target, "__name__", str(target))
