"""The statements of a cell: which names each binds, changes and reads."""

import __future__ as future_features

import ast
import functools
import re
import symtable
from collections.abc import Iterator
from dataclasses import dataclass, field

from course_utils.grading.recipe import DEFINITION, Piece

# Cell magics whose body is Python of this notebook.
CODE_MAGICS = ("time", "timeit", "capture", "prun", "debug")
_IPYTHON = re.compile(r"^[ \t]*(?:[%!?]|>>> |In \[\d*\]:)|\?[ \t]*$|=[ \t]*[%!]", re.MULTILINE)
_LINE_TIME = re.compile(r"^([ \t]*)%time[ \t]+(?=\S)", re.MULTILINE)


@dataclass(eq=False)
class Unit:
    """A statement at top level (several that share a line count as one). `binds`: the names it defines.
    `partial`: perhaps not, or only together with what stood before (an `if`, `x += 1`, `import a.b`), so that
    an earlier definition counts too. `changes`: the names whose object it alters. `checks`: the names that it
    calls `check` with. `broken`: the cell is not Python; this is all of it."""

    position: int
    piece: Piece
    nodes: list[ast.stmt] = field(default_factory=list)
    binds: set[str] = field(default_factory=set)
    partial: bool = False
    imports: bool = False
    changes: set[str] = field(default_factory=set)
    checks: set[str] = field(default_factory=set)
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


def units(source: str, filename: str, position: int) -> tuple[list[Unit], int]:
    """The units of a cell, numbered from `position`, and the `__future__` features that it asks for."""
    source = source.replace("\r\n", "\n").replace("\r", "\n")
    text, tree = _parse(source)
    if text is None:
        return [], 0
    if tree is None:
        names = {a or b for a, b in DEFINITION.findall(text)}
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
    """The cell as Python, line for line, and its tree. (None, None): it is in another language; (text, None):
    it is not Python."""
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
        elif isinstance(part, ast.Call) and (name := _checked(part)):
            unit.checks.add(name)
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


def _checked(call: ast.Call) -> str | None:
    """`a` of `check(a)` and of `check("a")`."""
    function = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", None)
    if function != "check" or not call.args:
        return None
    first = call.args[0]
    name = first.value if isinstance(first, ast.Constant) else getattr(first, "id", None)
    return name if isinstance(name, str) else None


def _collect(table: symtable.SymbolTable, deferred: bool, now: set[str], later: set[str]) -> None:
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
