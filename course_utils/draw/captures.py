"""One model in four forms: its Python, what tracing kept of it, what scripting made of it, its FX graph."""

from __future__ import annotations

import ast
import contextlib
import copy
import inspect
import io
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

from course_utils.draw.picture import Picture
from course_utils.draw.shapes import WIDTH, Scene, to_picture
from course_utils.draw.words import LETTER, Words
from course_utils.watching.compiled_source import dedented

# Sizes in pixels of the page.
EDGE, GAP, BETWEEN = 6.0, 12.0, 16.0
ROW, CODE, SMALL, HEAD = 16.0, 11.0, 11.0, 13.0
COLUMN = (WIDTH - 2 * EDGE - GAP) / 2
NUMBER = 24.0
LETTERS = int((COLUMN - NUMBER - 10) / (LETTER * CODE))
PROSE = int(COLUMN / (0.49 * SMALL))
MOST_LINES = 40


@dataclass
class Form:
    """A model in one form. `lit`: lines, by number from 0, that differ; `told`: what differs, in words;
    `refused`: why there is no such form. `ran`: the lines of the Python that ran while it was made;
    `constants`: what it holds, by name."""

    name: str
    lines: list[str] = field(default_factory=list)
    lit: set[int] = field(default_factory=set)
    ran: set[int] = field(default_factory=set)
    told: list[str] = field(default_factory=list)
    refused: str = ""
    constants: dict[str, Any] = field(default_factory=dict)


def captures(module: nn.Module, *inputs: Tensor) -> Picture:
    """A picture of a module's `forward` as Python, traced with `inputs`, scripted, and as FX graph.

    Lit in the Python: what one of the other forms has dropped. Lit in another form: what it holds as a
    constant and the Python reads or computes. Each difference stands in words below the form.
    """
    return to_picture(compose(take(module, *inputs)))


# --- what the forms are ------------------------------------------------------------------------------------


def take(module: nn.Module, *inputs: Tensor) -> list[Form]:
    """The four forms of a module; the module and the inputs are left as they are."""
    python, places = _python(module)
    module, inputs = copy.deepcopy(module), tuple(map(_copy, inputs))
    made = [
        _made("traced", module, places, lambda: jit.trace(module, inputs, check_trace=False)),
        _made("scripted", module, places, lambda: jit.script(module)),
        _made("FX graph", module, places, lambda: fx.symbolic_trace(module)),
    ]
    if python.lines:
        tree = ast.parse("\n".join(python.lines)).body[0]
        for form in made:
            if not form.refused:
                _compare(python, form, tree, module)
    return [python, *made]


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _python(module: nn.Module) -> tuple[Form, list[int]]:
    """The source of `forward` without docstring and empty lines, and the place of each line in the file."""
    try:
        found, start = inspect.getsourcelines(inspect.unwrap(type(module).forward))
    except (OSError, TypeError):
        return Form("Python", refused="its source cannot be found"), []
    text = "".join(dedented(found))
    function = ast.parse(text).body[0]
    first, left_out = function.body[0], set()
    if ast.get_docstring(function) is not None and len(function.body) > 1:
        left_out = set(range(first.lineno - 1, first.end_lineno))
        left_out -= {function.lineno - 1, function.body[1].lineno - 1}  # code may share a line with it
    lines = text.rstrip().splitlines()
    kept = [i for i, line in enumerate(lines) if line.strip() and i not in left_out]
    return Form("Python", [lines[i] for i in kept]), [start + i for i in kept]


def _made(name: str, module: nn.Module, places: list[int], make: Callable[[], Any]) -> Form:
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    with _quietly(), torch.random.fork_rng(devices=[]), _watched(code) as ran:
        try:
            result = make()
            text, constants = result.code, {}
            if name != "FX graph":
                text, held = result.code_with_constants
                constants = held.const_mapping
        except Exception as error:  # what a tracer cannot do it says in an exception of any kind
            return Form(name, refused=_reason(error))
    # An FX graph lets go of every name after its last use.
    lines = [re.sub(r";  \w+( = \w+)* = None$", "", line) for line in text.rstrip().splitlines()]
    form = Form(name, [line for line in lines if line.strip()])
    form.ran = {number for number, place in enumerate(places) if place in ran}
    form.constants = constants
    return form


@contextlib.contextmanager
def _watched(code: CodeType | None) -> Iterator[set[int]]:
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


def _reason(error: Exception) -> str:
    """The first sentence, and the line of the model at which it stopped."""
    said = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    said = re.sub(r" at 0x[0-9a-f]+", "", re.split(r"(?<=\w\.)\s", said)[0])
    line = _line_of(error)
    return f"{type(error).__name__}: {said.rstrip(':.')}" + (f", at `{line}`" if line else "")


def _line_of(error: Exception) -> str:
    pointed = re.search(r"^(.*)\n[ ~]*~+ <--- HERE", str(error), re.MULTILINE)
    if pointed:
        return pointed[1].strip()
    found, tb = "", error.__traceback__
    while tb is not None:
        code = tb.tb_frame.f_code
        if code.co_name == "forward" and "torch" not in tb.tb_frame.f_globals.get("__name__", "").split("."):
            with contextlib.suppress(OSError):
                found = inspect.getsourcelines(code)[0][tb.tb_lineno - code.co_firstlineno].strip()
        tb = tb.tb_next
    return found


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """What the model prints while it is traced, and what torch warns of, is not for the reader."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


# --- what differs ------------------------------------------------------------------------------------------


# What a form needs to keep such a statement, and what is said where it has not kept it.
_KEPT = {
    ast.If: (r"\bif\b", "the condition is gone"),
    ast.IfExp: (r"\bif\b", "the condition is gone; what ran once is kept"),
    ast.For: (r"\b(for|while)\b", "the loop is gone; its steps are written out as often as they ran"),
    ast.While: (r"\b(for|while)\b", "the loop is gone; its steps are written out as often as they ran"),
    ast.Assert: (
        r"\b(assert|raise|RaiseException|_assert)\b",
        "the assertion is gone; nothing is asked any more",
    ),
}


def _compare(python: Form, form: Form, tree: ast.FunctionDef, module: nn.Module) -> None:
    """Notes what the form has lost of the Python, and what it holds as a constant."""
    text = "\n".join(form.lines)
    nodes = [node for node in ast.walk(tree) if isinstance(node, (ast.stmt, ast.Call, ast.IfExp))]
    told: set[int] = set()
    for node in sorted(nodes, key=lambda node: (node.lineno, node.col_offset)):
        if node.lineno - 1 in told:
            continue
        pattern, why = _KEPT.get(type(node), ("", ""))
        if _calls(node, "print"):
            pattern, why = r"\bprint\(", "the print is gone; it ran once, while this form was made"
        if not pattern or re.search(pattern, text):
            continue
        python.lit.add(node.lineno - 1)
        if isinstance(node, ast.If):
            dropped = _dropped(form, node)
            python.lit |= set(dropped)
            told |= set(dropped)
            first, last = (dropped[0] + 1, dropped[-1] + 1) if dropped else (0, 0)
            lines = f"line {first}" if first == last else f"lines {first} to {last}"
            why += f", and with it {lines}, whatever comes" if dropped else "; what ran once is kept"
        form.told.append(f"Python's line {node.lineno}: {why}")
    _constants(form, tree, module)


def _calls(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


def _dropped(form: Form, node: ast.If) -> range:
    """The lines of the branch that did not run."""
    for branch in (node.body, node.orelse):
        inside = range(branch[0].lineno - 1, branch[-1].end_lineno) if branch else range(0)
        if inside and form.ran and not form.ran & set(inside):
            return inside
    return range(0)


# A number on its own: no part of a name, and no digit of a longer one.
_NUMBER = re.compile(r"(?<![\w.])\d+\.?\d*(?:e[-+]?\d+)?(?![\w.])")
_TEXT = re.compile(r"\"[^\"]*\"|'[^']*'")


def _constants(form: Form, tree: ast.FunctionDef, module: nn.Module) -> None:
    """Lines that hold a number or a tensor that does not stand in the Python, or that stands there and is
    read from an attribute as well."""
    written = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and _is_number(n.value)}
    read = _read(tree, module)
    lines: dict[str, list[int]] = {}
    both: dict[str, str] = {}
    for number, line in enumerate(form.lines):
        for name in re.findall(r"\bCONSTANTS\.(c\d+)", line):
            value = form.constants.get(name)
            value = value.item() if isinstance(value, Tensor) and value.dim() == 0 else value
            if not _is_number(value) or value not in written or value in read:
                what = f"CONSTANTS.{name} = {_short(value)}"
                lines.setdefault(what, []).append(number)
                if _is_number(value) and value in written:
                    both[what] = read[value]
        if form.name != "FX graph" or line.lstrip().startswith("def "):
            continue
        for name in re.findall(r"\bself\.(_tensor_constant\d+)", line):
            lines.setdefault(f"{name}, a tensor", []).append(number)
        for found in _NUMBER.findall(_TEXT.sub("", line)):
            if (value := float(found)) not in written or value in read:
                lines.setdefault(found, []).append(number)
                if value in written:
                    both[found] = read[value]
    for what, numbers in lines.items():
        form.lit |= set(numbers)
        where = ", ".join(str(number + 1) for number in dict.fromkeys(numbers))
        why = "Python reads or computes it on each call"
        if what in both:
            why = f"Python reads it from `{both[what]}` in one place and writes it in another"
        form.told.append(f"line {where}: {what} was baked in; {why}")


def _read(tree: ast.FunctionDef, module: nn.Module) -> dict[float, str]:
    """The numbers that an operator or a function is given from an attribute, with the attribute."""
    found: dict[float, str] = {}
    for node in ast.walk(tree):
        # What `range` is given is no number in a graph.
        if not isinstance(node, (ast.BinOp, ast.AugAssign, ast.Call)) or _calls(node, "range"):
            continue
        for one in ast.iter_child_nodes(node):
            one = one.value if isinstance(one, ast.keyword) else one
            if isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name) and one.value.id == "self":
                value = getattr(module, one.attr, None)
                if _is_number(value):
                    found[value] = ast.unparse(one)
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _short(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"{value:g}" if isinstance(value, float) else str(value)


# --- the picture -------------------------------------------------------------------------------------------


def compose(found: list[Form]) -> Scene:
    """The scene of `captures`: two columns, two rows, what differs in words under each form."""
    scene = Scene(_described(found))
    y = EDGE
    for pair in (found[:2], found[2:]):
        bottoms = [_form(scene, form, EDGE + place * (COLUMN + GAP), y) for place, form in enumerate(pair)]
        y = max(bottoms) + BETWEEN
    scene.height = y - BETWEEN + EDGE
    return scene


def _shown(form: Form) -> list[tuple[int, str]]:
    """The lines as they fit into a column, each with the number of the line that it belongs to."""
    if form.refused:
        return [(-1, line) for line in textwrap.wrap(f"There is none. {form.refused}", PROSE - 4)]
    rows = []
    for number, line in enumerate(form.lines[:MOST_LINES]):
        indent = " " * (len(line) - len(line.lstrip()) + 4)
        parts = textwrap.wrap(line, LETTERS, subsequent_indent=indent, drop_whitespace=True) or [""]
        rows += [(number, part) for part in parts]
    if len(form.lines) > MOST_LINES:
        rows.append((-1, f"… and {len(form.lines) - MOST_LINES} lines more"))
    return rows


def _form(scene: Scene, form: Form, x: float, y: float) -> float:
    """Draws one form at a place; returns where it ends."""
    height = len(_shown(form)) * ROW + 12
    scene.write(x + 1, y + 8, form.name, HEAD, bold=True)
    y += 20
    scene.box(x, y, COLUMN, height, dashed=bool(form.refused), key=form.name)
    at, before = y + 6 + ROW / 2, -1
    for number, text in _shown(form):
        words = Words(x + (8 if form.refused else NUMBER + 4), at, text, CODE, code=not form.refused)
        if number > before:
            scene.write(x + NUMBER - 4, at, str(number + 1), SMALL - 1.5, "end", faint=True)
        before = number
        if number in form.lit:
            left, key = x + NUMBER, f"{form.name}.{number}"
            width = COLUMN - NUMBER - 3
            scene.box(left, at - ROW / 2, width, ROW, "lit", (words,), line=0.6, key=key)
        else:
            scene.words.append(words)
        at += ROW
    y += height + 4
    for told in form.told:
        for line in textwrap.wrap(told, PROSE):
            y += 15
            scene.write(x + 2, y - 6, line, SMALL)
    return y


def _described(found: list[Form]) -> str:
    parts = []
    for form in found:
        if form.refused:
            parts.append(f"{form.name}: cannot be made, {form.refused}")
        else:
            more = "".join(f"; {told}" for told in form.told)
            parts.append(f"{form.name}: {len(form.lines)} lines{more}")
    return "A model in four forms. " + ". ".join(parts)
