"""Mutations that wrap a finished answer, and mutants made into answers.

A wrapper writes down when it made a difference at all: a copy of what was a copy already is
no mutant.
"""

import ast
import functools
import hashlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from course_utils import torch_private
from course_utils.lessons.solutions import module_of
from course_utils.proving.mutants import Mutant

# What is done to a result, and whether that makes a difference to this tensor (`given`: the tensors that
# the answer was given).
_RESULTS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Callable[..., bool]]] = {
    "detached": (lambda t: t.detach(), lambda t, given: t.requires_grad),
    "cloned": (lambda t: t.clone(), lambda t, given: _storage(t) in given),
    "made contiguous": (lambda t: t.contiguous(), lambda t, given: not t.is_contiguous() and t.numel() > 1),
    "of another dtype": (lambda t: t.to(_OTHER[t.dtype]), lambda t, given: t.dtype in _OTHER),
}
# What is done to an argument, in words.
_ARGUMENTS = {
    "cloned at entry": "works on a copy of `{0}` (`{0} = {0}.clone()` before all else)",
    "changed": "also writes to `{0}` (`{0}.add_(1)` before it returns)",
}
# What an annotation says of something that may be, or may hold, a tensor.
_TENSOR = {"Tensor", "Parameter", "Any", "object"}
_BARE = ("", "list", "tuple", "dict")
_OTHER = {torch.float32: torch.float64, torch.int64: torch.int32, torch.int32: torch.int64}
_OTHER |= dict.fromkeys((torch.float64, torch.float16, torch.bfloat16), torch.float32)


def wrapper_mutants(source: str, answer_name: str) -> list[Mutant]:
    """The changes that can be wrapped around the answer, or around the methods of a class."""
    tree = ast.parse(source)
    defined = next(n for n in tree.body if getattr(n, "name", None) == answer_name)
    methods = [defined] if isinstance(defined, ast.FunctionDef) else []
    if isinstance(defined, ast.ClassDef):
        methods = [n for n in defined.body if isinstance(n, ast.FunctionDef) and _is_public(n.name)]
    found = []
    for method in methods:
        returns = any(isinstance(n, ast.Return) and n.value is not None for n in ast.walk(method))
        if returns and _may_hold_tensors(_kind(method.returns)):
            for change in _RESULTS:
                if change == "of another dtype" and method.name == "backward":
                    continue  # the engine casts gradients back
                what = f"the result of `{method.name}` {change}"
                found.append(Mutant(what, source, ("result", method.name, change), True))
        for arg in method.args.posonlyargs + method.args.args:
            if arg.arg not in ("self", "ctx", "cls") and _may_be_tensor(_kind(arg.annotation)):
                for change, says in _ARGUMENTS.items():
                    what = f"`{method.name}` {says.format(arg.arg)}"
                    found.append(Mutant(what, source, (change, method.name, arg.arg), True))
    return found


def _kind(annotation: ast.expr | None) -> str:
    return ast.unparse(annotation) if annotation else ""


def _may_be_tensor(kind: str) -> bool:
    """Of an argument: only a tensor is changed at entry, not what a list or a module holds."""
    return not kind or any(part.rpartition(".")[2] in _TENSOR for part in kind.split(" | "))


def _may_hold_tensors(kind: str) -> bool:
    return kind in _BARE or any(word in _TENSOR for word in re.findall(r"\w+", kind))


def _is_public(name: str) -> bool:
    return not name.startswith("_") or name in ("__call__", "__getitem__")


def _storage(t: torch.Tensor) -> int | None:
    return t.untyped_storage().data_ptr() if t.device.type != "meta" and t.numel() else None


def _storages(value: Any) -> set[int]:
    return {_storage(t) for t in _tensors(value)} - {None}


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


def _wrapped(function: Callable[..., Any], kind: str, detail: str, mark: Path) -> Callable[..., Any]:
    """The function with the change around it. `mark` is made when the change makes a difference."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def changed(*args: Any, **kwargs: Any) -> Any:
        given = _storages([*args, *kwargs.values()])
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
            version = torch_private.version(copy)
            result = function(*bound.args, **bound.kwargs)
            if torch_private.version(copy) != version or _storage(copy) in _storages(result):
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
    marks = {
        "_seen_by_others": functools.partial(_seen_by_others, mark),
        "_changeable": functools.partial(_changeable, mark),
    }
    module = module_of(mutant.source, f"mutant_{digest(mutant)}", importable=importable, **marks)
    answer = getattr(module, answer_name)
    if mutant.wrapper:
        kind, method, detail = mutant.wrapper
        if not isinstance(answer, type):
            return _wrapped(answer, kind, detail, mark)
        original = answer.__dict__[method]
        changed = _wrapped(getattr(original, "__func__", original), kind, detail, mark)
        bound = isinstance(original, (staticmethod, classmethod))
        setattr(answer, method, type(original)(changed) if bound else changed)
    return answer
