"""Which kinds of input an exercise tries that people forget. What it does not try, its solution file says in
`not_tried`, with the reason in a word."""

import ast
import functools
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from types import ModuleType

from course_utils.exercise import Exercise
from course_utils.lessons.solutions import Solution

# By kind, what stands in the code of a check that tries it.
KINDS = {
    "hard numbers": r"numbers\.hard\(",
    "dtypes": r"\b(float64|bfloat16|float16|double\(\)|half\(\))",
    "left alone": r"\b(left_alone|untouched|unchanged)\b",
    "seeds": r"\b(SEEDS|seed)\b",
}

_KITS = "course_utils.exercise.kits"


def used(exercise: Exercise) -> set[str]:
    """The kinds that the checks of an exercise try, themselves or by what they name of kits."""
    text = "\n".join(_code(exercise.path.read_text(encoding="utf-8")))
    found = {kind for kind, pattern in KINDS.items() if re.search(pattern, text)}
    if not re.search(r"(?<![a-z])rand|shuffle|dropout|Dropout", text):
        found.add("seeds")  # nothing is drawn
    return found


def faults(exercise: Exercise, solution: Solution) -> Iterator[str]:
    """What is neither tried nor explained; what is explained and tried all the same."""
    tries = used(exercise)
    for kind in KINDS:
        why = solution.not_tried.get(kind, "")
        if kind not in tries and not why:
            yield f"no check tries {kind}, and `not_tried` in its solution file does not say why"
        if why and kind in tries:
            yield f"`not_tried` names {kind}, and a check tries it"
    if unknown := set(solution.not_tried) - set(KINDS):
        yield f"`not_tried` names {sorted(unknown)[0]!r}; there are {', '.join(KINDS)}"


def _code(source: str) -> Iterator[str]:
    """The source of an exercise, without its task and starter, and what it names of kits: the source of
    functions, and dicts of cases."""
    tree = ast.parse(source)
    kits: dict[str, ModuleType | object] = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_KITS):
            for alias in node.names:
                kits[alias.asname or alias.name] = _imported(node.module, alias.name)
    body = [node for node in tree.body if not _is_starter(node) and not isinstance(node, ast.Expr)]
    yield from (ast.unparse(node) for node in body)
    named = {part for node in body for part in ast.walk(node) if isinstance(part, (ast.Attribute, ast.Name))}
    for part in named:
        if isinstance(part, ast.Name) and inspect.isfunction(kit := kits.get(part.id)):
            yield from _with_helpers(kit)
        if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name):
            owner = kits.get(part.value.id)
            # A kit may hand on what is no kit, such as a library that may be missing.
            ours = isinstance(owner, ModuleType) and owner.__name__.startswith(_KITS)
            kit = getattr(owner, part.attr, None) if ours else None
            if callable(kit):
                yield from _with_helpers(kit)
            elif isinstance(kit, dict):
                yield repr(kit)


def _is_starter(node: ast.stmt) -> bool:
    return any("exercise.starter" in ast.unparse(d) for d in getattr(node, "decorator_list", ()))


def _imported(module: str, name: str) -> object:
    found = importlib.import_module(module)
    return getattr(found, name, None) or importlib.import_module(f"{module}.{name}")


@functools.cache
def _with_helpers(thing: object) -> tuple[str, ...]:
    """The source of a kit's function or class, and of what it names of its own module."""
    found, waiting = {}, [thing]
    module = sys.modules[thing.__module__]
    while waiting:
        one = waiting.pop()
        if one in found or getattr(one, "__module__", None) != module.__name__:
            continue
        found[one] = inspect.getsource(one)
        words = set(re.findall(r"\w+", found[one]))
        waiting += [value for name in words if inspect.isroutine(value := vars(module).get(name))]
        waiting += [value for name in words if inspect.isclass(value := vars(module).get(name))]
    return tuple(found.values())
