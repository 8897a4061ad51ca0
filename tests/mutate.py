"""Mechanical mutations of a reference, and what the checks of its exercise make of them.

A mutant is the source of a reference with one small change. Each is graded as an answer is; one that
passes shows that the checks do not look at what was changed, or that the change makes no difference.
Most changes are made in the syntax tree. The others are put around the finished answer, and write down
when they made a difference at all: a copy of what was a copy already is no mutant.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import inspect
import linecache
import re
import sys
import tempfile
import types
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from course_utils import catalog, evidence, grader, machine, workers
from course_utils.conduct import COULD_NOT_CHECK, FAILED, PASSED, RAISED, Outcome, Place, conduct
from course_utils.exercise import Check

# --- the syntax tree -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mutant:
    """`description` says what was changed, the same on every run; `line` counts from the first line of
    the reference as the reader is shown it. `around` names a change put around the finished answer.
    `marked`: it writes down whether it made a difference when it ran."""

    description: str
    source: str
    around: tuple[str, ...] = ()
    marked: bool = False


# What an operator is changed into. One neighbour is enough for most; the others would say the same.
_BINARY = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div, ast.Add),
    ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Mult, ast.Mod),
    ast.Mod: (ast.FloorDiv,),
    ast.Pow: (ast.Mult,),
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
    ast.BitXor: (ast.BitAnd,),
    ast.LShift: (ast.RShift,),
    ast.RShift: (ast.LShift,),
}
_COMPARISON = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_DTYPES = {
    "float32": "float64",
    "float64": "float32",
    "float16": "bfloat16",
    "bfloat16": "float16",
    "int64": "int32",
    "int32": "int64",
    "int8": "int64",
    "uint8": "int64",
    "bool": "uint8",
    "long": "int32",
    "float": "float64",
}

# Functions of two arguments whose order does not matter.
_SYMMETRIC = {"equal", "allclose", "isclose", "minimum", "maximum", "min", "max", "dot", "gcd"}


def mutants(source: str, answer_name: str) -> list[Mutant]:
    """Every mutant of the source of a reference, in the order of its lines. Those that compile to the same
    instructions as the reference, or as another mutant, are left out."""
    tree = ast.parse(source)
    seen = {_code(source)}
    found = []
    for place in _places(tree):
        line, before = place.node.lineno, _short(place.node)
        for replacement in _changes(place):
            what = f"`{before}` -> `{_short(replacement)}`" if replacement else f"`{before}` removed"
            marked = replacement is not None and any(n in _NOTES for n in ast.walk(replacement))
            with _put(place, replacement):
                after = ast.unparse(tree)
            code = _code(after)
            if code is not None and code not in seen:
                seen.add(code)
                found.append(Mutant(f"line {line}: {what}", after, marked=marked))
    return _numbered(found) + _around(source, tree, answer_name)


@dataclass(frozen=True)
class _Place:
    """A node, and where it hangs: `getattr(parent, field)`, or the entry `index` of that list. `modules`:
    the names that are imported; `uses`: how often its function reads each name."""

    node: ast.AST
    parent: ast.AST
    field: str
    index: int | None
    modules: frozenset[str]
    uses: Counter[str]

    def set(self, value: ast.AST | list[ast.AST] | None) -> None:
        if self.index is None:
            setattr(self.parent, self.field, value)
        else:
            getattr(self.parent, self.field)[self.index] = value


def _places(tree: ast.Module) -> list[_Place]:
    """All nodes that may be changed: not imports, annotations, docstrings, or the words of an error."""
    modules = frozenset(
        alias.asname or alias.name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    )
    found: list[_Place] = []

    def visit(node: ast.AST, uses: Counter[str]) -> None:
        if isinstance(node, (ast.FunctionDef, ast.Lambda)):
            names = [n for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
            uses = Counter(name.id for name in names)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "type_comment", "type_params") or isinstance(
                node, ast.Raise
            ):
                continue
            for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
                if not isinstance(child, ast.AST) or isinstance(child, (ast.Import, ast.ImportFrom)):
                    continue
                if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                    continue  # a docstring
                if hasattr(child, "lineno"):
                    found.append(_Place(child, node, name, index, modules, uses))
                visit(child, uses)

    visit(tree, Counter())
    return sorted(found, key=lambda p: (p.node.lineno, p.node.col_offset))


@contextlib.contextmanager
def _put(place: _Place, replacement: ast.AST | None) -> Iterator[None]:
    """The tree with this one change."""
    if replacement is not None:
        place.set(replacement)
    elif isinstance(place.node, ast.stmt):
        place.set(ast.Pass())
    else:
        del getattr(place.parent, place.field)[place.index]
    try:
        yield
    finally:
        if replacement is None and not isinstance(place.node, ast.stmt):
            getattr(place.parent, place.field).insert(place.index, place.node)
        else:
            place.set(place.node)


def _changes(place: _Place) -> Iterator[ast.AST | None]:
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


def _constant(place: _Place) -> Iterator[ast.AST]:
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


def _name(place: _Place) -> Iterator[ast.AST]:
    # A branch always taken, or never: only where a whole condition is one name.
    if place.field == "test":
        yield ast.UnaryOp(ast.Not(), place.node)


def _attribute(place: _Place) -> Iterator[ast.AST]:
    node = place.node
    if isinstance(node.value, ast.Name) and node.value.id == "torch" and node.attr in _DTYPES:
        yield ast.Attribute(node.value, _DTYPES[node.attr], ast.Load())
    elif place.field == "test":
        yield ast.UnaryOp(ast.Not(), node)
    elif node.attr in ("T", "mT", "real", "data", "values", "indices"):
        yield node.value


def _binary(place: _Place) -> Iterator[ast.AST]:
    node = place.node
    for operator in _BINARY.get(type(node.op), ()):
        yield ast.BinOp(node.left, operator(), node.right)
    if isinstance(node.op, (ast.Sub, ast.Div, ast.FloorDiv, ast.Pow, ast.MatMult, ast.Mod)):
        yield ast.BinOp(node.right, node.op, node.left)
    yield node.left
    yield node.right


def _augmented(place: _Place) -> Iterator[ast.AST | None]:
    node = place.node
    for operator in _BINARY.get(type(node.op), ()):
        yield ast.AugAssign(node.target, operator(), node.value)
    if not isinstance(node.target, ast.Subscript):  # there, both write into what is indexed
        note = _SEEN_BY_OTHERS if isinstance(node.target, ast.Name) else _CHANGEABLE
        old = ast.Call(note, [_loaded(node.target)], [])
        yield _assign(node.target, ast.BinOp(old, node.op, node.value))
    yield _assign(node.target, node.value)
    yield None


# A change in place and one out of place differ where somebody else sees the tensor. These are put around
# it, and write down whether that is so.
_SEEN_BY_OTHERS = ast.Name("_seen_by_others", ast.Load())
_CHANGEABLE = ast.Name("_changeable", ast.Load())
_NOTES = (_SEEN_BY_OTHERS, _CHANGEABLE)
_NOTE = re.compile(r"\b_(?:seen_by_others|changeable)\((.*?)\)")


def _comparison(place: _Place) -> Iterator[ast.AST]:
    node = place.node
    for i, operator in enumerate(node.ops):
        for other in _COMPARISON[type(operator)]:
            yield ast.Compare(node.left, [*node.ops[:i], other(), *node.ops[i + 1 :]], node.comparators)


def _boolean(place: _Place) -> Iterator[ast.AST]:
    node = place.node
    yield ast.BoolOp(ast.And() if isinstance(node.op, ast.Or) else ast.Or(), node.values)
    for i in range(len(node.values)):
        left = node.values[:i] + node.values[i + 1 :]
        yield left[0] if len(left) == 1 else ast.BoolOp(node.op, left)


def _unary(place: _Place) -> Iterator[ast.AST]:
    yield place.node.operand


def _call(place: _Place) -> Iterator[ast.AST]:
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
        if not of_module and not _is_super(node.func.value):
            yield node.func.value
            other = _in_place_or_not(node.func.attr)
            # Nobody sees a value change that has no name yet.
            named = isinstance(node.func.value, (ast.Name, ast.Attribute, ast.Subscript))
            if other and (named or not other.endswith("_")):
                value = node.func.value
                if isinstance(value, ast.Name) and place.uses[value.id] == 1:
                    value = ast.Call(_SEEN_BY_OTHERS, [value], [])
                yield ast.Call(ast.Attribute(value, other, ast.Load()), node.args, node.keywords)


def _is_super(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


def _in_place_or_not(method: str) -> str | None:
    other = method[:-1] if method.endswith("_") and not method.endswith("__") else f"{method}_"
    # `requires_grad_` has a counterpart that is no method.
    return other if callable(getattr(torch.Tensor, other, None)) else None


def _subscript(place: _Place) -> Iterator[ast.AST]:
    part = place.node.slice
    if not isinstance(part, ast.Slice):
        return
    for bound in ("lower", "upper", "step"):
        if getattr(part, bound) is not None:
            bounds = {name: getattr(part, name) for name in ("lower", "upper", "step")}
            yield ast.Subscript(place.node.value, ast.Slice(**{**bounds, bound: None}), ast.Load())


def _slice(place: _Place) -> Iterator[ast.AST]:
    node = place.node
    for bound in ("lower", "upper"):
        value = getattr(node, bound)
        if value is not None and not isinstance(value, ast.Constant):
            moved = ast.BinOp(value, ast.Add(), ast.Constant(1))
            yield ast.Slice(**{**{n: getattr(node, n) for n in ("lower", "upper", "step")}, bound: moved})


def _branch(place: _Place) -> Iterator[ast.AST]:
    node = place.node
    if isinstance(node, ast.IfExp):
        yield ast.IfExp(node.test, node.orelse, node.body)
        yield node.body
        yield node.orelse
    elif isinstance(node, ast.If):
        yield ast.If(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
        yield ast.If(ast.Constant(True), node.body, [])
        yield ast.If(ast.Constant(False), node.body, node.orelse)
    else:
        yield ast.While(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)


def _dropped(place: _Place) -> Iterator[None]:
    yield None


def _without_context(place: _Place) -> Iterator[ast.AST]:
    yield ast.If(ast.Constant(True), place.node.body, [])


def _without_value(place: _Place) -> Iterator[ast.AST]:
    if place.node.value is not None:
        yield ast.Return(None)


def _function(place: _Place) -> Iterator[ast.AST]:
    """The last default dropped: the parameter has to be given."""
    node = place.node
    if node.args.defaults:
        args = ast.arguments(**{**dict(ast.iter_fields(node.args)), "defaults": []})
        fields = {**dict(ast.iter_fields(node)), "args": args}
        yield ast.copy_location(type(node)(**fields), node)


_OF_NODE: dict[type, Callable[[_Place], Any]] = {
    ast.Constant: _constant,
    ast.Name: _name,
    ast.Attribute: _attribute,
    ast.BinOp: _binary,
    ast.AugAssign: _augmented,
    ast.Compare: _comparison,
    ast.BoolOp: _boolean,
    ast.UnaryOp: _unary,
    ast.Call: _call,
    ast.Subscript: _subscript,
    ast.Slice: _slice,
    ast.If: _branch,
    ast.IfExp: _branch,
    ast.While: _branch,
    ast.Assign: _dropped,
    ast.Expr: _dropped,
    ast.Delete: _dropped,
    ast.Break: _dropped,
    ast.Continue: _dropped,
    ast.With: _without_context,
    ast.Return: _without_value,
    ast.FunctionDef: _function,
}


def _assign(target: ast.expr, value: ast.expr) -> ast.Assign:
    return ast.Assign([target], value, lineno=target.lineno)


def _loaded(target: ast.expr) -> ast.expr:
    return ast.parse(ast.unparse(target), mode="eval").body


def _short(node: ast.AST) -> str:
    text = ast.unparse(ast.fix_missing_locations(node)) if node else ""
    if isinstance(node, (ast.FunctionDef, ast.If, ast.While, ast.With)):
        text = text.splitlines()[0 if not isinstance(node, ast.FunctionDef) else len(node.decorator_list)]
    return " ".join(_NOTE.sub(r"\1", text).split())


def _code(source: str) -> Any:
    """What a module does, without numbers of lines; None where it does not compile."""
    try:
        return _instructions(compile(source, "<mutant>", "exec", dont_inherit=True))
    except (SyntaxError, ValueError):
        return None


def _instructions(code: types.CodeType) -> Any:
    inner = tuple(_instructions(c) if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts)
    return code.co_code, inner, code.co_names, code.co_varnames, code.co_flags


def _numbered(found: list[Mutant]) -> list[Mutant]:
    """Descriptions that stand twice get a number."""
    times: dict[str, int] = {}
    result = []
    for mutant in found:
        times[mutant.description] = count = times.get(mutant.description, 0) + 1
        mark = f" ({count})" if count > 1 else ""
        result.append(replace(mutant, description=mutant.description + mark))
    return result


# --- around the finished answer ----------------------------------------------------------------------

# What is done to a result, and whether that makes a difference to this tensor (`given`: the tensors that
# the answer was given).
_RESULTS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Callable[..., bool]]] = {
    "detached": (lambda t: t.detach(), lambda t, given: t.requires_grad),
    "cloned": (lambda t: t.clone(), lambda t, given: _storage(t) in given),
    "made contiguous": (lambda t: t.contiguous(), lambda t, given: not t.is_contiguous() and t.numel() > 1),
    "of another dtype": (lambda t: _other_dtype(t), lambda t, given: t.dtype in _OTHER),
}
_OTHER = {
    torch.float32: torch.float64,
    torch.float64: torch.float32,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.int64: torch.int32,
    torch.int32: torch.int64,
}


def _around(source: str, tree: ast.Module, answer_name: str) -> list[Mutant]:
    defined = next(n for n in tree.body if getattr(n, "name", None) == answer_name)
    methods = [n for n in ast.walk(defined) if isinstance(n, ast.FunctionDef)]
    if isinstance(defined, ast.ClassDef):
        methods = [n for n in defined.body if isinstance(n, ast.FunctionDef) and _is_public(n.name)]
    else:
        methods = methods[:1]
    found = []
    for method in methods:
        if any(isinstance(n, ast.Return) and n.value is not None for n in ast.walk(method)):
            for change in _RESULTS:
                if change == "of another dtype" and method.name == "backward":
                    continue  # the engine casts gradients back
                what = f"the result of `{method.name}` {change}"
                found.append(Mutant(what, source, ("result", method.name, change), True))
        names = [arg.arg for arg in method.args.posonlyargs + method.args.args]
        for name in names:
            if name not in ("self", "ctx", "cls"):
                for change in ("cloned at entry", "changed"):
                    what = f"`{name}` {change} in `{method.name}`"
                    found.append(Mutant(what, source, (change, method.name, name), True))
    return found


def _is_public(name: str) -> bool:
    return not name.startswith("_") or name in ("__call__", "__getitem__")


def _other_dtype(t: torch.Tensor) -> torch.Tensor:
    return t.to(_OTHER[t.dtype])


def _storage(t: torch.Tensor) -> int | None:
    if t.device.type == "meta" or t.numel() == 0:
        return None
    return t.untyped_storage().data_ptr()


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(value, torch.nn.Module):
        yield from [*value.parameters(), *value.buffers()]


def _mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The value with every tensor in it changed. What is no plain list, tuple or dict stays as it is, so the
    parameters of a module do."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if type(value) in (list, tuple):
        return type(value)(_mapped(item, change) for item in value)
    if type(value) is dict:
        return {key: _mapped(item, change) for key, item in value.items()}
    return value


def _surround(function: Callable[..., Any], kind: str, detail: str, mark: Path) -> Callable[..., Any]:
    """The function with the change around it. `mark` is made when the change makes a difference."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def changed(*args: Any, **kwargs: Any) -> Any:
        given = {_storage(t) for t in _tensors([*args, *kwargs.values()])} - {None}
        if kind == "result":
            change, differs = _RESULTS[detail]

            def one(t: torch.Tensor) -> torch.Tensor:
                if not differs(t, given):
                    return t
                mark.touch()
                return change(t)

            return _mapped(function(*args, **kwargs), one)
        bound = signature.bind(*args, **kwargs)
        value = bound.arguments.get(detail)
        if not isinstance(value, torch.Tensor):
            return function(*args, **kwargs)
        if kind == "cloned at entry":
            copy = bound.arguments[detail] = value.clone()
            version = copy._version
            result = function(*bound.args, **bound.kwargs)
            if copy._version != version or _storage(copy) in {_storage(t) for t in _tensors(result)} - {None}:
                mark.touch()
            return result
        result = function(*args, **kwargs)
        if value.numel() and value.device.type != "meta" and value.dtype is not torch.bool:
            mark.touch()
            with torch.no_grad():
                value.add_(1)
        return result

    # `functools.wraps` would let the check for the starter see through; a mutant is never a starter.
    return changed


def _changeable(mark: Path, value: Any) -> Any:
    if isinstance(value, (torch.Tensor, list)):
        mark.touch()
    return value


def _seen_by_others(mark: Path, value: Any) -> Any:
    """Marks a tensor or list that the function was given, and a tensor that shares the storage of another."""
    frame = sys._getframe(1)
    count = frame.f_code.co_argcount + frame.f_code.co_kwonlyargcount
    given = frame.f_code.co_varnames[:count]
    others = [v for name, v in frame.f_locals.items() if name in given or v is not value]
    if any(other is value for other in others):
        return _changeable(mark, value)
    if isinstance(value, torch.Tensor) and _storage(value) in {_storage(t) for t in _tensors(others)}:
        mark.touch()
    return value


def digest(mutant: Mutant) -> str:
    """The same for the same mutant on every run and every machine."""
    return hashlib.sha256(f"{mutant.description}\n{mutant.source}".encode()).hexdigest()[:16]


def build(mutant: Mutant, answer_name: str, mark: Path, *, importable: bool = False) -> Any:
    """The mutant as an answer. Its source can be found by `inspect`, as that of a cell can. `importable`: its
    module can be found by its name, as the compiler does; not where it is sent to another process."""
    file = f"<mutant {digest(mutant)}>"
    linecache.cache[file] = (len(mutant.source), None, mutant.source.splitlines(keepends=True), file)
    module = types.ModuleType("mutant")
    module.__file__ = file
    module._seen_by_others = functools.partial(_seen_by_others, mark)
    module._changeable = functools.partial(_changeable, mark)
    if importable:
        sys.modules[module.__name__] = module
    exec(compile(mutant.source, file, "exec", dont_inherit=True), module.__dict__)
    answer = module.__dict__[answer_name]
    if mutant.around:
        kind, method, detail = mutant.around
        if not isinstance(answer, type):
            return _surround(answer, kind, detail, mark)
        original = answer.__dict__[method]
        if isinstance(original, (staticmethod, classmethod)):
            wrapped = _surround(original.__func__, kind, detail, mark)
            setattr(answer, method, type(original)(wrapped))
        else:
            setattr(answer, method, _surround(original, kind, detail, mark))
    return answer


# --- what the checks make of it ----------------------------------------------------------------------

# A mutant gets this many times the seconds that the reference took, and no less than the second number.
TIMES, AT_LEAST = 5.0, 1.0

REJECTED, SURVIVED, NO_CHANGE = "rejected", "survived", "no change"


def may_survive(count: int) -> int:
    """How many of so many mutants may be listed as equivalent: one in twenty, and one in any case."""
    return max(1, count // 20)


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant. *rejected*: `check` failed, and `how` is its state. *no change*: what was
    put around the answer never made a difference, so there was no mutant."""

    mutant: Mutant
    state: str
    check: str = ""
    how: str = ""


class Bench:
    """Tries the mutants of one exercise, one after another, in a warm process that is replaced when one of
    them does not end or ends it. Checks on ranks have processes of their own anyway."""

    def __init__(self, root: Path, name: str) -> None:
        self.root, self.name = root, name
        course = catalog.load(root)
        self.exercise, self.solution = course.exercise(name), course.solution(name)
        self._folder = tempfile.TemporaryDirectory(prefix="mutants-")
        self._worker: workers.Worker | None = None
        self._times: dict[str, float] = {}
        self.mutants = mutants(self.solution.source, self.exercise.answer_name)
        self.unusable: list[str] = []

    def __enter__(self) -> Bench:
        here = [check for check in self._checks() if not check.ranks]
        result = self._call(_time_reference, [check.name for check in here], deadline=300)
        if result.state != "returned":
            raise RuntimeError(f"the reference of {self.name}: {result.describe()}")
        for check in self._checks():
            if check.ranks:
                outcome = grader.run_on_ranks(check, self.solution.reference, Place(), check.deadline)
                result.value[check.name] = outcome.state, outcome.seconds
        for name, (state, seconds) in result.value.items():
            if state == PASSED:
                self._times[name] = max(AT_LEAST, TIMES * seconds)
            else:
                self.unusable.append(name)
        whole = self.try_mutant(Mutant("nothing changed", ast.unparse(ast.parse(self.solution.source))))
        if whole.state != SURVIVED:
            raise RuntimeError(f"{self.name}: what is rejected is no mutant, but the reference: {whole}")
        return self

    def __exit__(self, *_: object) -> None:
        if self._worker is not None:
            self._worker.close()
        self._folder.cleanup()

    def sample(self, count: int) -> list[Mutant]:
        """The same `count` mutants on every run, chosen by their digest."""
        return sorted(self.mutants, key=digest)[:count]

    def try_mutant(self, mutant: Mutant, only: str | None = None) -> Verdict:
        """Grades the mutant up to the first check that fails; `only`: by that check alone."""
        mark = Path(self._folder.name) / digest(mutant)
        wanted = {name: t for name, t in self._times.items() if only is None or name == only}
        checks = [check for check in self._checks() if check.name in wanted]
        here = [(check.name, wanted[check.name]) for check in checks if not check.ranks]
        passed = False
        if here:
            result = self._call(_try, mutant, mark, here, deadline=sum(t for _, t in here) + 5)
            if result.state != "returned":
                self._worker = None  # it took the process with it
                return Verdict(mutant, REJECTED, "", result.state)
            name, state = result.value
            if state in FAILED:
                return Verdict(mutant, REJECTED, name, state)
            passed = state == PASSED
        for check in checks:
            if check.ranks:
                answer = build(mutant, self.exercise.answer_name, mark)
                outcome = grader.run_on_ranks(check, answer, Place(), wanted[check.name])
                if outcome.state in FAILED:
                    return Verdict(mutant, REJECTED, check.name, outcome.state)
                passed = passed or outcome.state == PASSED
        if not passed:
            return Verdict(mutant, REJECTED, "", COULD_NOT_CHECK)
        if mutant.marked and not mark.exists():
            return Verdict(mutant, NO_CHANGE)
        return Verdict(mutant, SURVIVED)

    @property
    def listed(self) -> dict[str, str]:
        """The mutants that the solution lists as equivalent, with the reason."""
        return getattr(self._solution_module, "equivalent", {})

    def agrees(self, mutant: Mutant) -> bool:
        """Whether the mutant and the reference give the same for the inputs that the solution generates."""
        mark = Path(self._folder.name) / "agrees"
        result = self._call(_agrees, mutant, mark, deadline=60)
        if result.state == "raised":
            raise RuntimeError(f"{mutant.description}: {result.describe()}")
        return result.state == "returned" and result.value

    @property
    def _solution_module(self) -> types.ModuleType:
        return _solution_module(self.exercise.topic, self.name)

    def _checks(self) -> list[Check]:
        return [c for c in self.exercise.checks if all(map(machine.has, c.needs))]

    def _call(self, function: Callable[..., Any], *args: Any, deadline: float) -> workers.Result:
        if self._worker is None:
            self._worker = workers.Worker()
        return self._worker.call(function, self.root, self.name, *args, deadline=deadline)


# --- inside the warm process ---------------------------------------------------------------------------


def _solution_module(topic: str, name: str) -> types.ModuleType:
    return sys.modules[f"solutions.{topic}.{name}"]


def _compile_eagerly() -> None:
    """What the compiler would generate code for runs as it is: a mutant is no test of the generator."""
    torch._TorchCompileInductorWrapper.__call__ = lambda self, module, inputs: module.forward


def _run(check: Check, answer: Any, deadline: float) -> Outcome:
    if dynamo := sys.modules.get("torch._dynamo"):
        dynamo.reset()
    device = next((need for need in check.needs if need in ("cuda", "mps")), "cpu")
    return conduct(check, answer, Place(device if "device" in check.wants else None), deadline)


def _time_reference(root: Path, name: str, checks: list[str]) -> dict[str, tuple[str, float]]:
    _compile_eagerly()
    course = catalog.load(root)
    answer, found = course.solution(name).reference, {}
    for check in course.exercise(name).checks:
        if check.name in checks:
            _run(check, answer, check.deadline)  # the first run imports and allocates
            outcome = _run(check, answer, check.deadline)
            found[check.name] = outcome.state, outcome.seconds
    return found


def _try(
    root: Path, name: str, mutant: Mutant, mark: Path, checks: list[tuple[str, float]]
) -> tuple[str, str]:
    """(check, state) of the first check that fails; *passed* where one passed and none failed."""
    _compile_eagerly()
    exercise = catalog.load(root).exercise(name)
    by_name = {check.name: check for check in exercise.checks}
    passed = False
    try:
        answer = build(mutant, exercise.answer_name, mark, importable=True)
    except Exception:  # a class body that raises, say
        return "", RAISED
    for check, deadline in checks:
        outcome = _run(by_name[check], answer, deadline)
        if outcome.state in FAILED:
            return check, outcome.state
        passed = passed or outcome.state == PASSED
    return "", PASSED if passed else COULD_NOT_CHECK


def _agrees(root: Path, name: str, mutant: Mutant, mark: Path) -> bool:
    course = catalog.load(root)
    exercise, solution = course.exercise(name), course.solution(name)
    generated = _solution_module(exercise.topic, name).generated
    seen = []
    for answer in (solution.reference, build(mutant, exercise.answer_name, mark, importable=True)):
        torch.manual_seed(0)
        seen.append([evidence.snapshot(value) for value in generated(answer)])
    return bool(seen[0]) and evidence.same(*seen)
