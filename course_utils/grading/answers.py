"""A reader's notebook -> the answers in it.

An answer is the last definition of its name at top level, with the imports, definitions and assignments at
top level that it needs, transitively. What needs what follows from the names that the code reads. The
statements that were chosen run in the order of the notebook, so that the answer is what *Restart and run
all* makes of it, without the demonstrations.

- A definition is every statement at top level that binds the name: `def`, `class`, an assignment of any
  form, an import, and `if`, `try`, `with`, `for`, ... with one of these inside.
- Code that runs where it stands (a default, a decorator, a base class, the right side of an assignment)
  sees the last definition above it; the body of a function sees the last one in the notebook. Where
  nothing stands above, because cells were moved, a definition from below is used, and runs before.
- `Answer.method = f`, `table["x"] = 1`, `operator.register_fake(f)` and `@operator.register_fake` belong to
  a name that the notebook defines; settings of a module (`torch.backends...`) do not belong to an answer.
- `from x import *` is always taken.
- A cell that is not Python makes unreadable what it defines, and nothing else.
"""

from __future__ import annotations
import __future__ as future_features

import ast
import functools
import json
import linecache
import re
import symtable
import sys
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from course_utils.exercise import snake_case
from course_utils.lessons.catalog import Course, Lesson, nearest
from course_utils.processes.stacks import Frame

# Cell magics whose body is Python of this notebook.
CODE_MAGICS = ("time", "timeit", "capture", "prun", "debug")
_IPYTHON = re.compile(r"^[ \t]*(?:[%!?]|>>> |In \[\d*\]:)|\?[ \t]*$|=[ \t]*[%!]", re.MULTILINE)
_LINE_TIME = re.compile(r"^([ \t]*)%time[ \t]+(?=\S)", re.MULTILINE)
_DEFINITION = re.compile(
    r"^(?:(?:async[ \t]+)?def|class)[ \t]+(\w+)|^(\w+)[ \t]*(?::[^=\n]*)?=(?!=)", re.MULTILINE
)
_FOREVER = sys.maxsize


class UnreadableError(Exception):
    """This is not a notebook that can be graded; the message says why, as a sentence about the file."""


class Piece(NamedTuple):
    """Some lines of a cell, and where they stand in it."""

    source: str
    filename: str
    first_line: int


@dataclass(frozen=True)
class Recipe:
    """How to make an answer: the pieces of the notebook that it consists of, in the order to run them.

    `flags`: the `__future__` features of the notebook, as `compile` takes them.
    """

    name: str
    pieces: tuple[Piece, ...]
    flags: int = 0

    def make(self) -> Any:
        """Runs the pieces in a module of their own and returns the answer.

        Made once in a process: later calls return the same object. Raises what the pieces raise,
        `SyntaxError` where one is not Python, and `NameError` where they do not define the answer.
        """
        if self.made:
            return _made[self.name][1]
        _show_sources(self.pieces)
        codes = [self._compiled(piece) for piece in self.pieces]
        module = types.ModuleType(f"answer_{snake_case(self.name)}")
        # Where `inspect.getsource` looks for a class: the cell that defines the answer comes last as a rule.
        module.__file__ = next((p.filename for p in reversed(self.pieces) if self._defines(p)), None)
        module.__dict__.update(display=print, get_ipython=_NoShell)
        sys.modules[module.__name__] = module  # before it runs: dataclasses and pickling look it up
        for code in codes:
            exec(code, module.__dict__)
        if self.name not in module.__dict__:
            raise NameError(f"name {self.name!r} is not defined")
        answer = module.__dict__[self.name]
        _made[self.name] = self, answer
        return answer

    @property
    def made(self) -> bool:
        """Whether this process has made it already."""
        return self.name in _made and _made[self.name][0] == self

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

    def _compiled(self, piece: Piece) -> types.CodeType:
        text = "\n" * (piece.first_line - 1) + piece.source
        return compile(text, piece.filename, "exec", flags=self.flags, dont_inherit=True)

    def _defines(self, piece: Piece) -> bool:
        return any(self.name in found for found in _DEFINITION.findall(piece.source))


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


# --- a notebook ------------------------------------------------------------------------------------


@dataclass
class Submission:
    """A notebook that was read. `marks` are the exercises that its cells name, `lesson` the lesson that
    it names itself; either may be missing, or made up."""

    path: Path
    units: list[Unit]
    marks: list[str] = field(default_factory=list)
    lesson: str | None = None
    flags: int = 0

    def __post_init__(self) -> None:
        self._binders: dict[str, list[Unit]] = {}
        self._changers: dict[str, list[Unit]] = {}
        for unit in self.units:
            for name in unit.binds:
                self._binders.setdefault(name, []).append(unit)
            for name in unit.changes:
                self._changers.setdefault(name, []).append(unit)

    @property
    def names(self) -> set[str]:
        """Every name that is defined at top level."""
        return set(self._binders)

    def recipe(self, name: str, exercise: str = "") -> Recipe | None:
        """How to make the answer called `name`; None where the notebook does not define it.

        A cell that is marked as the answer's to `exercise` and is not Python counts as its definition
        when there is no other.
        """
        if name in self._binders:
            chosen = _Selection(self).units_for(name)
        else:
            chosen = [unit for unit in self.units if unit.broken and unit.answers == exercise][-1:]
        if not chosen:
            return None
        return Recipe(name, tuple(unit.piece for unit in chosen), self.flags)


def read(path: Path) -> Submission:
    """The notebook at `path`. Raises `UnreadableError` where it is none."""
    cells, metadata = _cells(path)
    marks: list[str] = []
    units: list[Unit] = []
    flags = 0
    for number, (source, mark, role) in cells:
        if isinstance(mark, str):
            marks.append(mark)
        found, cell_flags = _units(source, f"cell {number}", len(units))
        if isinstance(mark, str) and role in (None, "starter"):
            for unit in found:
                unit.answers = mark
        units += found
        flags |= cell_flags
    lesson = _course(metadata).get("lesson")
    return Submission(path, units, marks, lesson if isinstance(lesson, str) else None, flags)


def lessons_of(submission: Submission, course: Course) -> list[Lesson]:
    """The lessons that the notebook belongs to: the one that it names, and those that its cells name;
    where nothing is named, those with an exercise whose answer is defined in it. Possibly none."""
    named = [lesson for lesson in course.lessons if submission.lesson in (lesson.slug, lesson.topic)]
    marked = [lesson for lesson in course.lessons if set(submission.marks) & set(lesson.exercise_names)]
    if named or marked:
        return [lesson for lesson in course.lessons if lesson in named or lesson in marked]
    defined = {snake_case(name) for name in submission.names}
    return [lesson for lesson in course.lessons if defined & set(lesson.exercise_names)]


MOST_NAMED = 20


def _beside(path: Path) -> str:
    """The notebook in the same folder that may be meant, or all where they are few, by their stems."""
    folder = path.parent
    if not folder.is_dir():
        return f"; there is no folder {folder}"
    names = sorted(one.stem for one in folder.glob("*.ipynb"))
    if not names:
        return "; this folder holds no notebook"
    return nearest(path.stem, names, all_of_them=len(names) <= MOST_NAMED)


def _cells(path: Path) -> tuple[list[tuple[int, tuple[str, Any, Any]]], Any]:
    """The code cells as (number among all cells, (source, exercise, role)), and the notebook's metadata."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise UnreadableError("this is a pipe or a device, not a notebook")  # it may never end
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UnreadableError(f"there is no such file{_beside(path)}") from None
    except IsADirectoryError:
        raise UnreadableError("this is a folder, not a notebook") from None
    except OSError as error:
        raise UnreadableError(f"it cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UnreadableError("this is not a notebook: it is not text") from None
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise UnreadableError("this is not a notebook: it is not JSON") from None
    if not isinstance(content, dict) or not isinstance(content.get("nbformat"), int):
        raise UnreadableError("this is not a notebook: it has no `nbformat`")
    if content["nbformat"] != 4:
        content = _as_version_4(text)
    # Not through `nbformat.read`: validating a notebook against its schema takes longer than grading it.
    if not isinstance(content.get("cells"), list):
        raise UnreadableError("this is not a notebook: it has no list of cells")
    found = []
    for number, cell in enumerate(content["cells"], 1):
        if not isinstance(cell, dict) or not isinstance(cell.get("cell_type"), str):
            raise UnreadableError(f"this is not a notebook: cell {number} has no type")
        if cell["cell_type"] != "code":
            continue
        source = cell.get("source")
        if isinstance(source, list) and all(isinstance(line, str) for line in source):
            source = "".join(source)
        if not isinstance(source, str):
            raise UnreadableError(f"this is not a notebook: cell {number} has no source")
        ours = _course(cell.get("metadata"))
        found.append((number, (source, ours.get("exercise"), ours.get("role"))))
    return found, content.get("metadata")


def _as_version_4(text: str) -> dict[str, Any]:
    import nbformat

    try:
        return nbformat.reads(text, as_version=4)
    except Exception as error:  # whatever an old or a future format makes it raise
        raise UnreadableError(f"this notebook's format cannot be read: {error}") from None


def _course(metadata: Any) -> dict[str, Any]:
    ours = metadata.get("course") if isinstance(metadata, dict) else None
    return ours if isinstance(ours, dict) else {}


# --- a cell ----------------------------------------------------------------------------------------


@dataclass(eq=False)
class Unit:
    """A statement at top level (several that share a line count as one).

    `binds`: the names it defines. `partial`: perhaps not, or only together with what stood before (an
    `if`, `x += 1`, `import a.b`), so that an earlier definition counts too. `changes`: the names whose
    object it alters. `broken`: the cell is not Python; this is all of it.
    """

    position: int
    piece: Piece
    nodes: list[ast.stmt] = field(default_factory=list)
    binds: set[str] = field(default_factory=set)
    partial: bool = False
    imports: bool = False
    changes: set[str] = field(default_factory=set)
    broken: bool = False
    answers: str | None = None

    @functools.cached_property
    def reads(self) -> tuple[set[str], set[str]]:
        """The global names that it reads where it stands, and those that it reads when it is called."""
        now: set[str] = set()
        later: set[str] = set()
        if self.broken:
            return now, later
        try:
            table = symtable.symtable(self.piece.source, self.piece.filename, "exec")
        except (SyntaxError, ValueError, RecursionError):
            return now, later  # compiling it will say so
        _collect(table, False, now, later)
        later |= _in_quoted_annotations(self.nodes)
        return now, later


def _units(source: str, filename: str, position: int) -> tuple[list[Unit], int]:
    """The units of a cell, numbered from `position`, and the `__future__` features that it asks for."""
    source = source.replace("\r\n", "\n").replace("\r", "\n")
    text, tree = _parse(source)
    if text is None:
        return [], 0
    if tree is None:
        names = {a or b for a, b in _DEFINITION.findall(text)}
        return [Unit(position, Piece(text, filename, 1), binds=names, broken=True)], 0
    lines = text.split("\n")
    groups: list[tuple[int, int, list[ast.stmt]]] = []
    flags = 0
    for node in tree.body:
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
        if groups and first <= groups[-1][1]:
            groups[-1] = groups[-1][0], max(groups[-1][1], node.end_lineno), [*groups[-1][2], node]
        else:
            groups.append((first, node.end_lineno, [node]))
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            for alias in node.names:
                flags |= getattr(getattr(future_features, alias.name, None), "compiler_flag", 0)
    units = []
    for first, last, nodes in groups:
        unit = Unit(position + len(units), Piece("\n".join(lines[first - 1 : last]), filename, first), nodes)
        for node in nodes:
            _describe(node, unit)
        units.append(unit)
    return units, flags


def _parse(source: str) -> tuple[str | None, ast.Module | None]:
    """The cell as Python, line for line, and its tree.

    (None, None): it is in another language; (text, None): it is not Python.
    """
    lines = source.split("\n")
    for i, line in enumerate(lines):
        if line.startswith("%%"):
            magic = line[2:].split(maxsplit=1)
            if not magic or magic[0] not in CODE_MAGICS:
                return None, None
            lines[i] = ""
        elif line.strip():
            break
    text = "\n".join(lines)
    if tree := _tree(text):
        return text, tree
    if _IPYTHON.search(text):
        text = _without_magics(text)
    return text, _tree(text)


def _tree(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _without_magics(text: str) -> str:
    from IPython.core.inputtransformer2 import TransformerManager

    text = _LINE_TIME.sub(r"\1", text)  # `%time x = f()` leaves `x` in the notebook
    code = text.lstrip("\n")
    above = "\n" * (len(text) - len(code))  # IPython drops empty lines at the top
    try:
        return above + TransformerManager().transform_cell(code).rstrip("\n")
    except Exception:  # it is not made for cells that are broken in other ways
        return text


_CONDITIONAL = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.TryStar, ast.Match)
_NESTED = (ast.With, ast.AsyncWith, *_CONDITIONAL)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def _describe(node: ast.stmt, unit: Unit) -> None:
    """Notes what a statement binds and changes."""
    unit.imports |= isinstance(node, (ast.Import, ast.ImportFrom))
    unit.partial |= isinstance(node, (ast.AugAssign, *_CONDITIONAL))
    loop = isinstance(node, (ast.For, ast.AsyncFor, ast.While))
    for part in _in_this_scope(node):
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            unit.binds.add(part.id)
        elif isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            unit.binds.add(part.name)
            unit.changes |= {root for d in part.decorator_list if (root := _registers(d))}
        elif isinstance(part, (ast.Import, ast.ImportFrom)):
            for alias in part.names:
                unit.binds.add(alias.asname or alias.name.partition(".")[0])
                unit.partial |= isinstance(part, ast.Import) and "." in alias.name and not alias.asname
        elif isinstance(part, (ast.MatchAs, ast.MatchStar)) and part.name:
            unit.binds.add(part.name)
        elif isinstance(part, ast.MatchMapping) and part.rest:
            unit.binds.add(part.rest)
        elif isinstance(part, (ast.Attribute, ast.Subscript)):
            if not isinstance(part.ctx, ast.Load) and not loop and (root := _root(part)):
                unit.changes.add(root)
        elif isinstance(part, ast.Expr) and (root := _registers(part.value)):
            unit.changes.add(root)


def _in_this_scope(node: ast.AST) -> Iterator[ast.AST]:
    """The node and all below it that runs in the notebook's own scope."""
    if isinstance(node, ast.AnnAssign) and node.value is None:
        return  # an annotation alone defines nothing
    waiting = [node]
    while waiting:
        part = waiting.pop()
        yield part
        if isinstance(part, _SCOPES):
            continue
        if isinstance(part, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            # Their own variables are theirs, but `:=` inside binds outside.
            waiting += [walrus.target for walrus in ast.walk(part) if isinstance(walrus, ast.NamedExpr)]
            continue
        waiting += ast.iter_child_nodes(part)


def _root(node: ast.AST) -> str | None:
    """`a` of `a.b[0].c`."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _registers(node: ast.expr) -> str | None:
    """`a` of `a.register...(x)` and of the decorator `a.register...`: what it adds belongs to `a`."""
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Attribute) and node.attr.startswith("register"):
        return _root(node)
    return None


def _collect(table: symtable.SymbolTable, deferred: bool, now: set[str], later: set[str]) -> None:
    """Sorts the global names that are read in this block, and in the blocks inside it."""
    top = table.get_type() == "module"
    for symbol in table.get_symbols():
        if symbol.is_referenced() and (top or symbol.is_global()):
            (later if deferred else now).add(symbol.get_name())
    for child in table.get_children():
        runs_at_once = child.get_type() != "function" or child.get_name().strip("<>") in _COMPREHENSIONS
        _collect(child, deferred or not runs_at_once, now, later)


_COMPREHENSIONS = ("listcomp", "setcomp", "dictcomp", "genexpr")


def _in_quoted_annotations(nodes: list[ast.stmt]) -> set[str]:
    """Names in annotations that are written as strings: TorchScript and dataclasses look them up."""
    found: set[str] = set()
    for node in (part for statement in nodes for part in ast.walk(statement)):
        for annotation in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if not isinstance(annotation, ast.expr):
                continue
            for part in ast.walk(annotation):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    tree = _tree(part.value) or ast.Module([], [])
                    found |= {name.id for name in ast.walk(tree) if isinstance(name, ast.Name)}
    return found


# --- what an answer needs --------------------------------------------------------------------------


class _Selection:
    """The units that one answer needs."""

    def __init__(self, submission: Submission) -> None:
        self.submission = submission
        self.taken: set[Unit] = set()
        self.moved_up: dict[int, set[Unit]] = {}  # by the position of the unit that has to come after them
        self._seen: set[tuple[Unit, int]] = set()

    def units_for(self, name: str) -> list[Unit]:
        """The units that make `name`, in the order to run them."""
        waiting = [(unit, _FOREVER) for unit in self._definition(name, _FOREVER)]
        waiting += [(unit, _FOREVER) for unit in self.submission._binders.get("*", ())]
        while waiting:
            unit, moment = waiting.pop()
            if (unit, moment) in self._seen:
                continue
            self._seen.add((unit, moment))
            self.taken.add(unit)
            now, later = unit.reads
            for names, when in ((now, unit.position), (later, moment)):
                waiting += [(needed, when) for read in names for needed in self._definition(read, when)]
        return self._in_order()

    def _definition(self, name: str, moment: int) -> list[Unit]:
        """What a read of `name` at `moment` (a position, or `_FOREVER`) finds."""
        binders = self.submission._binders.get(name, [])
        above = [unit for unit in binders if unit.position < moment]
        found: list[Unit] = []
        for unit in reversed(above or binders):
            found.append(unit)
            if not unit.partial:
                break
        if not found:
            return []
        if not above:
            self.moved_up.setdefault(moment, set()).update(found)
        if not all(unit.imports for unit in found):
            for unit in self.submission._changers.get(name, ()):
                if found[-1].position < unit.position < moment and unit not in found:
                    found.append(unit)
        return found

    def _in_order(self) -> list[Unit]:
        order: list[Unit] = []
        placed: set[Unit] = set()

        def before(unit: Unit) -> Iterator[Unit]:
            return iter(sorted(self.moved_up.get(unit.position, ()), key=_position))

        # Without recursion: a notebook may be written from its end to its beginning.
        waiting: list[tuple[Unit, Iterator[Unit]]] = []
        for first in sorted(self.taken, key=_position):
            if first not in placed:
                placed.add(first)
                waiting.append((first, before(first)))
            while waiting:
                unit, earlier = waiting[-1]
                needed = next((one for one in earlier if one not in placed), None)
                if needed is None:
                    order.append(waiting.pop()[0])
                else:
                    placed.add(needed)
                    waiting.append((needed, before(needed)))
        return order


def _position(unit: Unit) -> int:
    return unit.position
