"""Mechanical mutations of a reference: its source with one small change in the syntax tree.

A mutant that passes shows that the checks do not look at what was changed, or that the change makes no
difference.
"""

import ast
import contextlib
import re
import types
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch


@dataclass(frozen=True)
class Place:
    """A node, and where it hangs: `getattr(parent, field)`, or the entry `index` of that list. `modules`:
    the names that are imported; `uses`: how often its function reads each name."""

    node: ast.AST
    parent: ast.AST
    field: str
    index: int | None
    modules: frozenset[str]
    uses: Counter[str]

    def set(self, value: ast.AST) -> None:
        if self.index is None:
            setattr(self.parent, self.field, value)
        else:
            getattr(self.parent, self.field)[self.index] = value


def places(tree: ast.Module) -> list[Place]:
    """All nodes that may be changed: not imports, annotations, docstrings, or the words of an error."""
    modules = frozenset(
        alias.asname or alias.name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    )
    found: list[Place] = []

    def visit(node: ast.AST, uses: Counter[str]) -> None:
        if isinstance(node, (ast.FunctionDef, ast.Lambda)):
            names = [n for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
            uses = Counter(name.id for name in names)
        for name, value in ast.iter_fields(node) if not isinstance(node, ast.Raise) else ():
            if name in ("annotation", "returns", "type_comment", "type_params"):
                continue
            for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
                if not isinstance(child, ast.AST) or isinstance(child, (ast.Import, ast.ImportFrom)):
                    continue
                if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                    continue  # a docstring
                if hasattr(child, "lineno"):
                    found.append(Place(child, node, name, index, modules, uses))
                visit(child, uses)

    visit(tree, Counter())
    return sorted(found, key=lambda p: (p.node.lineno, p.node.col_offset))


@contextlib.contextmanager
def put(place: Place, replacement: ast.AST | None) -> Iterator[None]:
    """The tree with this one change."""
    removed = replacement is None and not isinstance(place.node, ast.stmt)
    if removed:
        del getattr(place.parent, place.field)[place.index]
    else:
        place.set(replacement or ast.Pass())
    yield
    if removed:
        getattr(place.parent, place.field).insert(place.index, place.node)
    else:
        place.set(place.node)


@dataclass(frozen=True)
class Mutant:
    """`description` says what was changed, the same on every run; `line` counts from the first line of
    the reference as the reader is shown it. `wrapper` names a change wrapped around the finished answer.
    `marked`: it writes down whether it made a difference when it ran."""

    description: str
    source: str
    wrapper: tuple[str, ...] = ()
    marked: bool = False


# What an operator is changed into. One neighbour is enough for most; the others would say the same.
_OPERATORS = """Add:Sub Sub:Add Mult:Div,Add Div:Mult FloorDiv:Mult,Mod Mod:FloorDiv Pow:Mult BitAnd:BitOr
    BitOr:BitAnd BitXor:BitAnd LShift:RShift RShift:LShift Lt:LtE,GtE LtE:Lt,Gt Gt:GtE,LtE GtE:Gt,Lt
    Eq:NotEq NotEq:Eq Is:IsNot IsNot:Is In:NotIn NotIn:In"""
_OTHERS = {
    getattr(ast, name): [getattr(ast, other) for other in others.split(",")]
    for name, others in (pair.split(":") for pair in _OPERATORS.split())
}
_DTYPES = """float32:float64 float64:float32 float16:bfloat16 bfloat16:float16 int64:int32 int32:int64
    int8:int64 uint8:int64 bool:uint8 long:int32 float:float64"""
_OTHER_DTYPE = dict(pair.split(":") for pair in _DTYPES.split())

# Functions of two arguments whose order does not matter.
_SYMMETRIC = {"equal", "allclose", "isclose", "minimum", "maximum", "min", "max", "dot", "gcd"}


def mutants(source: str) -> list[Mutant]:
    """Every mutant of the source of a reference, in the order of its lines. Those that compile to the same
    instructions as the reference, or as another mutant, are left out."""
    tree = ast.parse(source)
    seen = {_code(source)}
    found = []
    for place in places(tree):
        line, before = place.node.lineno, _short(place.node)
        for replacement in _changes(place):
            what = f"`{before}` -> `{_short(replacement)}`" if replacement else f"`{before}` removed"
            marked = replacement is not None and any(n in _NOTES for n in ast.walk(replacement))
            with put(place, replacement):
                after = ast.unparse(tree)
            code = _code(after)
            if code is not None and code not in seen:
                seen.add(code)
                found.append(Mutant(f"line {line}: {what}", after, marked=marked))
    return _numbered(found)


def _changes(place: Place) -> Iterator[ast.AST | None]:
    """What may stand there instead; None: nothing."""
    node = place.node
    if isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del)):
        return
    argument = place.field == "args" and isinstance(place.parent, ast.Call) and place.index > 0
    # torch calls the methods of a Function on the class, static or not.
    static = isinstance(node, ast.Name) and node.id == "staticmethod"
    if (place.field == "decorator_list" and not static) or argument:
        yield None
    yield from _OF_NODE.get(type(node), lambda place: ())(place)


def _constant(place: Place) -> Iterator[ast.AST]:
    value = place.node.value
    if isinstance(place.parent, (ast.FormattedValue, ast.JoinedStr)):
        return
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, int):
        yield ast.Constant(value + 1)
        yield ast.Constant(value - 1) if value else ast.UnaryOp(ast.USub(), ast.Constant(1))
    elif isinstance(value, float):
        yield ast.Constant(value * 2 if value else 1.0)
    elif isinstance(value, str):
        yield ast.Constant(f"not {value}")
    elif value is None and isinstance(place.parent, (ast.Dict, ast.List, ast.Tuple)):
        yield ast.Constant(0)


def _negated(node: ast.expr) -> ast.expr:
    return ast.UnaryOp(ast.Not(), node)


def _attribute(place: Place) -> Iterator[ast.AST]:
    node = place.node
    if isinstance(node.value, ast.Name) and node.value.id == "torch" and node.attr in _OTHER_DTYPE:
        yield ast.Attribute(node.value, _OTHER_DTYPE[node.attr], ast.Load())
    elif place.field == "test":
        yield _negated(node)
    elif node.attr in ("T", "mT", "real", "data", "values", "indices"):
        yield node.value


def _binary(place: Place) -> Iterator[ast.AST]:
    node = place.node
    for operator in _OTHERS.get(type(node.op), ()):
        yield ast.BinOp(node.left, operator(), node.right)
    if isinstance(node.op, (ast.Sub, ast.Div, ast.FloorDiv, ast.Pow, ast.MatMult, ast.Mod)):
        yield ast.BinOp(node.right, node.op, node.left)
    yield node.left
    yield node.right


def _augmented(place: Place) -> Iterator[ast.AST | None]:
    node = place.node
    for operator in _OTHERS.get(type(node.op), ()):
        yield ast.AugAssign(node.target, operator(), node.value)
    if not isinstance(node.target, ast.Subscript):  # there, both write into what is indexed
        note = _SEEN_BY_OTHERS if isinstance(node.target, ast.Name) else _CHANGEABLE
        old = ast.Call(note, [ast.parse(ast.unparse(node.target), mode="eval").body], [])
        yield ast.Assign([node.target], ast.BinOp(old, node.op, node.value), lineno=node.lineno)
    yield ast.Assign([node.target], node.value, lineno=node.lineno)
    yield None


# A change in place and one out of place differ where somebody else sees the tensor. These are put around
# it, and write down whether that is so.
_SEEN_BY_OTHERS = ast.Name("_seen_by_others", ast.Load())
_CHANGEABLE = ast.Name("_changeable", ast.Load())
_NOTES = (_SEEN_BY_OTHERS, _CHANGEABLE)
_NOTE = re.compile(r"\b_(?:seen_by_others|changeable)\((.*?)\)")


def _comparison(place: Place) -> Iterator[ast.AST]:
    node = place.node
    for i, operator in enumerate(node.ops):
        for other in _OTHERS[type(operator)]:
            yield ast.Compare(node.left, [*node.ops[:i], other(), *node.ops[i + 1 :]], node.comparators)


def _boolean(place: Place) -> Iterator[ast.AST]:
    node = place.node
    yield ast.BoolOp(ast.And() if isinstance(node.op, ast.Or) else ast.Or(), node.values)
    for i in range(len(node.values)):
        left = node.values[:i] + node.values[i + 1 :]
        yield left[0] if len(left) == 1 else ast.BoolOp(node.op, left)


def _call(place: Place) -> Iterator[ast.AST]:
    node = place.node
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    for i in range(len(node.args) - 1) if called not in _SYMMETRIC else ():
        a, b = node.args[i : i + 2]
        if ast.dump(a) != ast.dump(b) and not isinstance(a, ast.Starred) and not isinstance(b, ast.Starred):
            yield ast.Call(node.func, [*node.args[:i], b, a, *node.args[i + 2 :]], node.keywords)
    for i in range(len(node.keywords)):
        yield ast.Call(node.func, node.args, node.keywords[:i] + node.keywords[i + 1 :])
    if isinstance(place.parent, ast.Expr):
        return  # a statement: dropping it is a change of its own
    if isinstance(node.func, ast.Attribute):
        of_module = isinstance(node.func.value, ast.Name) and node.func.value.id in place.modules
        if of_module and node.args and not isinstance(node.args[0], ast.Starred):
            yield node.args[0]
        value = node.func.value
        if not of_module and not ast.unparse(value).startswith("super("):
            yield value
            other = _in_place_or_not(node.func.attr)
            # Nobody sees a value change that has no name yet.
            named = isinstance(value, (ast.Name, ast.Attribute, ast.Subscript))
            if other and (named or not other.endswith("_")):
                if isinstance(value, ast.Name) and place.uses[value.id] == 1:
                    value = ast.Call(_SEEN_BY_OTHERS, [value], [])
                yield ast.Call(ast.Attribute(value, other, ast.Load()), node.args, node.keywords)


def _in_place_or_not(method: str) -> str | None:
    other = method[:-1] if method.endswith("_") and not method.endswith("__") else f"{method}_"
    # `requires_grad_` has a counterpart that is no method.
    return other if callable(getattr(torch.Tensor, other, None)) else None


def _subscript(place: Place) -> Iterator[ast.AST]:
    part = place.node.slice
    if not isinstance(part, ast.Slice):
        return
    for bound in ("lower", "upper", "step"):
        if getattr(part, bound) is not None:
            yield ast.Subscript(place.node.value, _bounded(part, bound, None), ast.Load())


def _slice(place: Place) -> Iterator[ast.AST]:
    node = place.node
    for bound in ("lower", "upper"):
        value = getattr(node, bound)
        if value is not None and not isinstance(value, ast.Constant):
            yield _bounded(node, bound, ast.BinOp(value, ast.Add(), ast.Constant(1)))


def _bounded(part: ast.Slice, bound: str, value: ast.expr | None) -> ast.Slice:
    return ast.Slice(**{**dict(ast.iter_fields(part)), bound: value})


def _branch(place: Place) -> Iterator[ast.AST]:
    node = place.node
    if isinstance(node, ast.IfExp):
        yield ast.IfExp(node.test, node.orelse, node.body)
        yield node.body
        yield node.orelse
    elif isinstance(node, ast.If):
        yield ast.If(_negated(node.test), node.body, node.orelse)
        yield ast.If(ast.Constant(True), node.body, [])
        yield ast.If(ast.Constant(False), node.body, node.orelse)
    else:
        yield ast.While(_negated(node.test), node.body, node.orelse)


def _function(place: Place) -> Iterator[ast.AST]:
    node = place.node
    if node.args.defaults:
        args = ast.arguments(**{**dict(ast.iter_fields(node.args)), "defaults": []})
        yield ast.copy_location(type(node)(**{**dict(ast.iter_fields(node)), "args": args}), node)


_OF_NODE: dict[type, Callable[[Place], Any]] = {
    ast.Constant: _constant,
    ast.Name: lambda place: [_negated(place.node)] if place.field == "test" else [],
    ast.Attribute: _attribute,
    ast.BinOp: _binary,
    ast.AugAssign: _augmented,
    ast.Compare: _comparison,
    ast.BoolOp: _boolean,
    ast.UnaryOp: lambda place: [place.node.operand],
    ast.Call: _call,
    ast.Subscript: _subscript,
    ast.Slice: _slice,
    **dict.fromkeys((ast.If, ast.IfExp, ast.While), _branch),
    **dict.fromkeys((ast.Assign, ast.Expr, ast.Delete, ast.Break), lambda place: [None]),
    ast.Continue: lambda place: [None, ast.Break()],
    ast.With: lambda place: [ast.If(ast.Constant(True), place.node.body, [])],
    ast.Return: lambda place: [ast.Return(None)] if place.node.value is not None else [],
    ast.FunctionDef: _function,
}


def _short(node: ast.AST) -> str:
    text = ast.unparse(ast.fix_missing_locations(node))
    if isinstance(node, (ast.FunctionDef, ast.If, ast.While, ast.With)):
        text = text.splitlines()[len(getattr(node, "decorator_list", ()))]
    return " ".join(_NOTE.sub(r"\1", text).split())


def _code(source: str) -> Any:
    """What a module does, without numbers of lines; None where it does not compile."""
    try:
        with warnings.catch_warnings(action="ignore", category=SyntaxWarning):
            return _instructions(compile(source, "<mutant>", "exec", dont_inherit=True))
    except (SyntaxError, ValueError):
        return None


def _instructions(code: types.CodeType) -> Any:
    inner = tuple(_instructions(c) if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts)
    return code.co_code, inner, code.co_names, code.co_varnames, code.co_flags


def _numbered(found: list[Mutant]) -> list[Mutant]:
    times: dict[str, int] = {}
    result = []
    for mutant in found:
        times[mutant.description] = count = times.get(mutant.description, 0) + 1
        mark = f" ({count})" if count > 1 else ""
        result.append(replace(mutant, description=mutant.description + mark))
    return result
