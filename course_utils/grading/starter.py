"""Whether an answer is still what the exercise started with: the same code, whatever its comments say."""

import ast
import contextlib
import inspect
import linecache
import textwrap
import types
from typing import Any

from course_utils.exercise import Exercise

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def is_starter(exercise: Exercise, answer: Any) -> bool:
    """Whether the answer, a function or a class, is the starter. False where it has no source."""
    return any(same_code(source, exercise.started_from(source)) for source in _sources(answer))


def same_code(source: str, starter: str) -> bool:
    """Whether two definitions have one syntax tree; docstrings, decorators and annotations aside."""
    try:
        return _tree(source) == _tree(starter)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _tree(source: str) -> str:
    tree = ast.parse(textwrap.dedent(source))
    for node in ast.walk(tree):
        if isinstance(node, _SCOPES) and ast.get_docstring(node) is not None:
            del node.body[0]
        if isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            node.returns = None
    for node in tree.body:
        if isinstance(node, _SCOPES):
            node.decorator_list = []
    return ast.dump(tree)


def _sources(answer: Any) -> list[str]:
    """The source of the answer; of a class that Python cannot find, the last class of its name in each of the
    cells that its methods stand in."""
    with contextlib.suppress(OSError, TypeError):
        return [inspect.getsource(answer)]
    if not isinstance(answer, type):
        return []
    functions = [getattr(value, "__func__", value) for value in vars(answer).values()]
    files = {f.__code__.co_filename for f in functions if isinstance(f, types.FunctionType)}
    found = []
    for text in ("".join(linecache.getlines(file)) for file in files):
        with contextlib.suppress(SyntaxError):  # a cell with magics in it
            classes = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
            named = [node for node in classes if node.name == answer.__name__]
            found += [ast.get_source_segment(text, node) or "" for node in named[-1:]]
    return found
