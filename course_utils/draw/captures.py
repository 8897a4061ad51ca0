"""One model in four forms: its Python, what tracing kept of it, what scripting made of it, its FX graph."""

from __future__ import annotations

import ast
import contextlib
import copy
import inspect
import re
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor, fx, jit, nn

from course_utils.draw.labels import LETTER, Label
from course_utils.draw.picture import Picture
from course_utils.draw.shapes import WIDTH, Scene, to_picture
from course_utils.watching.compiled_source import dedented
from course_utils.wrong_use import public

# Sizes in pixels of the page.
EDGE, GAP, BETWEEN = 6.0, 12.0, 16.0
ROW, CODE, SMALL, HEAD = 16.0, 11.0, 11.0, 13.0
COLUMN = (WIDTH - 2 * EDGE - GAP) / 2
NUMBER = 24.0
LETTERS = int((COLUMN - NUMBER - 10) / (LETTER * CODE))
PROSE = int(COLUMN / (0.49 * SMALL))


@dataclass
class Form:
    """A model in one form. `lit`: lines, by number from 0, that differ; `told`: what differs, in words;
    `ran`: the lines of the Python that ran while it was made; `constants`: what it holds, by name."""

    name: str
    lines: list[str]
    lit: set[int] = field(default_factory=set)
    ran: set[int] = field(default_factory=set)
    told: list[str] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)


@public
def captures(module: nn.Module, *inputs: Tensor) -> Picture:
    """A picture of a module's `forward` as Python, traced with `inputs`, scripted, and as FX graph. Raises
    what torch raises where there is no such form.

    Lit in the Python: a condition that one of the other forms has dropped. Lit in another form: a number that
    it holds as a constant and the Python reads. Each difference stands in words below the form.
    """
    return to_picture(compose(take(module, *inputs)))


# --- what the forms are ------------------------------------------------------------------------------------


def take(module: nn.Module, *inputs: Tensor) -> list[Form]:
    """The four forms of a module; the module is left as it is."""
    lines, start = inspect.getsourcelines(type(module).forward)
    python = Form("Python", "".join(dedented(lines)).rstrip().splitlines())
    module, code = copy.deepcopy(module), type(module).forward.__code__
    made = [
        _made("traced", code, start, lambda: jit.trace(module, inputs, check_trace=False)),
        _made("scripted", code, start, lambda: jit.script(module)),
        _made("FX graph", code, start, lambda: fx.symbolic_trace(module)),
    ]
    tree = ast.parse("\n".join(python.lines))
    for form in made:
        _compare(python, form, tree)
    return [python, *made]


def _made(name: str, code: CodeType, start: int, make: Callable[[], Any]) -> Form:
    with warnings.catch_warnings(action="ignore"), torch.random.fork_rng(devices=[]), _watched(code) as ran:
        result = make()
    # An FX graph lets go of every name after its last use.
    lines = (re.sub(r";  \w+( = \w+)* = None$", "", line) for line in result.code.rstrip().splitlines())
    lines = [line for line in lines if line.strip()]
    constants = {} if name == "FX graph" else result.code_with_constants[1].const_mapping
    return Form(
        name, [line for line in lines if line.strip()], ran={n - start for n in ran}, constants=constants
    )


@contextlib.contextmanager
def _watched(code: CodeType) -> Iterator[set[int]]:
    """The lines of the file that run in this function meanwhile."""
    ran: set[int] = set()

    def at_line(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            ran.add(frame.f_lineno)
        return at_line

    before = sys.gettrace()
    sys.settrace(lambda frame, event, _: at_line if frame.f_code is code else None)
    try:
        yield ran
    finally:
        sys.settrace(before)


# --- what differs ------------------------------------------------------------------------------------------

# A number on its own: no part of a name, and no digit of a longer one.
_NUMBER = re.compile(r"(?<![\w.])\d+\.?\d*(?:e[-+]?\d+)?(?![\w.])")


def _compare(python: Form, form: Form, tree: ast.Module) -> None:
    """Notes what the form has lost of the Python, and what it holds as a constant."""
    kept = re.search(r"\bif\b", "\n".join(form.lines))
    for node in ast.walk(tree) if not kept else ():
        if isinstance(node, ast.If):
            dropped = _dropped(form, node)
            python.lit |= {node.lineno - 1, *dropped}
            lines = " and ".join(f"line {n + 1}" for n in dropped)
            gone = f", and {lines} with it" if dropped else "; what ran once is kept"
            form.told.append(f"Python's line {node.lineno}: the condition is gone{gone}")
    written = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    for number, line in enumerate(form.lines[1:], 1):
        held = {n: float(form.constants[n]) for n in re.findall(r"\bCONSTANTS\.(c\d+)", line)}
        held = {f"CONSTANTS.{name} = {value:g}": value for name, value in held.items()}
        if form.name == "FX graph":
            held |= {found: float(found) for found in _NUMBER.findall(line)}
        for what, value in held.items():
            if value not in written:
                form.lit.add(number)
                form.told.append(
                    f"line {number + 1}: {what} was baked in; Python reads or computes it on each call"
                )


def _dropped(form: Form, node: ast.If) -> range:
    """The lines of the branch that did not run."""
    for branch in (node.body, node.orelse):
        inside = range(branch[0].lineno - 1, branch[-1].end_lineno) if branch else range(0)
        if inside and not form.ran & set(inside):
            return inside
    return range(0)


# --- the picture -------------------------------------------------------------------------------------------


def compose(found: list[Form]) -> Scene:
    """The scene of `captures`: two columns, two rows, what differs in words under each form."""
    parts = [f"{form.name}: " + "; ".join([f"{len(form.lines)} lines", *form.told]) for form in found]
    scene = Scene("A model in four forms. " + ". ".join(parts))
    y = EDGE
    for pair in (found[:2], found[2:]):
        bottoms = [_form(scene, form, EDGE + place * (COLUMN + GAP), y) for place, form in enumerate(pair)]
        y = max(bottoms) + BETWEEN
    scene.height = y - BETWEEN + EDGE
    return scene


def _form(scene: Scene, form: Form, x: float, y: float) -> float:
    """Draws one form at a place; returns where it ends."""
    scene.write(x + 1, y + 8, form.name, HEAD, bold=True)
    y += 20
    at = y + 6 + ROW / 2
    for number, line in enumerate(form.lines):
        indent = " " * (len(line) - len(line.lstrip()) + 4)
        scene.write(x + NUMBER - 4, at, str(number + 1), SMALL - 1.5, "end", faint=True)
        for part in textwrap.wrap(line, LETTERS, subsequent_indent=indent):
            words = Label(x + NUMBER + 4, at, part, CODE, code=True)
            if number in form.lit:
                left, key = x + NUMBER, f"{form.name}.{number}"
                scene.box(left, at - ROW / 2, COLUMN - NUMBER - 3, ROW, "lit", (words,), line=0.6, key=key)
            else:
                scene.words.append(words)
            at += ROW
    scene.box(x, y, COLUMN, at - ROW / 2 + 6 - y, key=form.name)
    y = at - ROW / 2 + 10
    for told in form.told:
        for line in textwrap.wrap(told, PROSE):
            y += 15
            scene.write(x + 2, y - 6, line, SMALL)
    return y
