"""The functions that decide a check, as they were when the course was imported.

An answer that replaces `torch.equal`, puts an `__eq__` on `Tensor` or gives `expect.equal` other defaults
must not pass by it, and must not leave it so. Everything is compared by identity, in loops that run in C:
the thousands of names take a tenth of a millisecond, so this can be done around every check.
"""

from __future__ import annotations

import builtins
import importlib.util
import itertools
import math
import operator
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch

_TORCH = str(Path(torch.__file__).parent)
_ABSENT = object()
_PARTS = ("__code__", "__defaults__")
_parts_of = operator.attrgetter(*_PARTS)
_keywords_of = operator.attrgetter("__kwdefaults__")

# What the checks of exercises are made of. (`TensorBase`, below `Tensor`, cannot be changed.) Modules of the
# course are watched from the first check after their import on; what is not imported decides nothing.
_LIBRARIES: list[Any] = [
    torch,
    torch.Tensor,
    torch.nn.functional,
    torch.testing,
    torch.testing._comparison,
    torch.autograd,
    torch.autograd.Function,
    torch.nn.Module,
    torch.linalg,
    torch.UntypedStorage,
    math,
    builtins,
]
_COURSE = (
    "conduct",
    "clean_room",
    "check_process",
    "exercise",
    "measure",
)
_COURSE_MODULES = tuple(f"course_utils.{name}" for name in _COURSE)
# `torch.Storage` is another class for every default dtype; a kernel replaces `input` for every cell.
_CHANGING = {(torch, "Storage"), (builtins, "input")}


@dataclass(frozen=True)
class Change:
    """Something that is not as it was: what stands there now, and what belongs there."""

    owner: Any
    name: str
    now: Any
    original: Any

    def undo(self) -> None:
        """Puts the original there."""
        _put(self.owner, self.name, self.original)

    def redo(self) -> None:
        """Puts the replacement back."""
        _put(self.owner, self.name, self.now)

    def __str__(self) -> str:
        owner, outer = self.owner, getattr(self.owner, "__module__", None)
        if isinstance(owner, ModuleType):
            return f"{owner.__name__}.{self.name}"
        return f"{'torch' if str(outer).startswith('torch') else outer}.{owner.__qualname__}.{self.name}"


def changes() -> list[Change]:
    """Everything that is not as it was."""
    _watch_course()
    return [*(change for watch in _watches.values() for change in watch.changes()), *_functions.changes()]


def names_used(codes: Iterable[CodeType]) -> set[str]:
    """What of torch and of Python is looked up by name in this code, and in the course's part of a check."""
    _watch_course()
    modules = [name for name in list(sys.modules) if name.startswith(_COURSE_MODULES)]
    modules.append(torch.testing._comparison.__name__)
    waiting = [*codes, *(importlib.util.find_spec(name).loader.get_code(name) for name in modules)]
    found: set[str] = set()
    while waiting:
        code = waiting.pop()
        found.update(code.co_names)
        waiting += [part for part in code.co_consts if isinstance(part, CodeType)]
    return found & {name for owner in _LIBRARIES for name in vars(owner)}


def limit(names: set[str]) -> None:
    """From here on only these names of torch and of Python are watched, in this process.

    For a process that was forked for a few checks: what it only looks at has to be copied for it, and the
    functions of torch lie on more than a thousand pages.
    """
    for watch in _watches.values():
        _looked_at_no_more.append((watch.names, watch.values))
        if watch.owner in _LIBRARIES:
            there = vars(watch.owner)
            chosen = [name for name in names if name in there and _is_watched(watch.owner, name, there[name])]
            watch.set({name: there[name] for name in chosen})


@dataclass
class _Watch:
    """One module or class, and the functions and classes that belong in it."""

    owner: Any
    known: set[str]

    def set(self, chosen: dict[str, Any]) -> None:
        """What is watched: names, and what belongs there."""
        self.names, self.values = tuple(chosen), tuple(chosen.values())
        # With one name an `itemgetter` gives the value itself.
        self.look = operator.itemgetter(*self.names) if len(chosen) > 1 else self._look

    def _look(self, now: Any) -> tuple[Any, ...]:
        return tuple(now[name] for name in self.names)

    def changes(self) -> list[Change]:
        now = vars(self.owner)
        found = []
        if len(now) != len(self.known):
            found += self._added(now)
        if not self._intact(now):
            found += self._replaced(now)
        return found

    def _intact(self, now: Any) -> bool:
        try:
            return all(map(operator.is_, self.look(now), self.values))
        except KeyError:
            return False

    def _replaced(self, now: Any) -> list[Change]:
        found = []
        for name, original in zip(self.names, self.values, strict=True):
            value = now.get(name, _ABSENT)
            if value is original:
                continue
            if _by_torch(self.owner, value, original):
                self.values = tuple(value if known is original else known for known in self.values)
            else:
                found.append(Change(self.owner, name, value, original))
        return found

    def _added(self, now: Any) -> list[Change]:
        """New names that hide something: a method of a base class, or a function of Python's."""
        hidden = self.owner.__mro__[1:] if isinstance(self.owner, type) else (builtins,)
        found = []
        for name in now.keys() - self.known:
            behind = next((vars(place)[name] for place in hidden if name in vars(place)), _ABSENT)
            # Whoever replaced it and put it back may have left the same thing there: that hides nothing.
            if behind is not _ABSENT and behind is not now[name] and callable(now[name]):
                found.append(Change(self.owner, name, now[name], _ABSENT))
        if not found:
            self.known = set(now)
        return found


@dataclass
class _Functions:
    """The course's own functions: they may be the same objects and yet do something else."""

    functions: list[FunctionType] = field(default_factory=list)
    parts: list[Any] = field(default_factory=list)
    keywords: list[dict[str, Any] | None] = field(default_factory=list)

    def add(self, functions: list[FunctionType]) -> None:
        """More functions to watch."""
        self.functions += functions
        self.parts += _parts_of_all(functions)
        self.keywords += [f.__kwdefaults__ and dict(f.__kwdefaults__) for f in functions]

    def changes(self) -> list[Change]:
        """Those with other code or other defaults."""
        found = []
        if not all(map(operator.is_, _parts_of_all(self.functions), self.parts)):
            for i, (now, original) in enumerate(zip(_parts_of_all(self.functions), self.parts, strict=True)):
                if now is not original:
                    found.append(Change(self.functions[i // 2], _PARTS[i % 2], now, original))
        # These are dictionaries, which can be changed in place: they are compared by what they hold.
        keywords = list(map(_keywords_of, self.functions))
        if keywords != self.keywords:
            for function, now, original in zip(self.functions, keywords, self.keywords, strict=True):
                if now != original:
                    found.append(Change(function, "__kwdefaults__", now, original and dict(original)))
        return found


def _parts_of_all(functions: list[FunctionType]) -> itertools.chain[Any]:
    return itertools.chain.from_iterable(map(_parts_of, functions))


def _put(owner: Any, name: str, value: Any) -> None:
    if value is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, value)


_watches: dict[int, _Watch] = {}
_functions = _Functions()
_modules_seen = 0
_looked_at_no_more: list[Any] = []  # letting go of all these objects would touch each of them


def _watch(owner: Any, ours: bool = False) -> None:
    if id(owner) in _watches:
        return
    there = vars(owner)
    watch = _Watch(owner, set(there))
    watch.set({name: value for name, value in there.items() if _is_watched(owner, name, value, ours)})
    _watches[id(owner)] = watch
    if ours:
        _functions.add([value for value in watch.values if isinstance(value, FunctionType)])


def _is_watched(owner: Any, name: str, value: Any, ours: bool = False) -> bool:
    if (owner, name) in _CHANGING:
        return False
    kinds = (property, staticmethod, classmethod, *((ModuleType,) if ours else ()))
    return isinstance(value, kinds) or (callable(value) and not isinstance(value, ModuleType))


def _watch_course() -> None:
    global _modules_seen
    new = len(sys.modules) - _modules_seen
    if new == 0:
        return
    _modules_seen = len(sys.modules)
    names = list(itertools.islice(reversed(sys.modules), new)) if new > 0 else list(sys.modules)
    for name in names:
        if name.startswith(_COURSE_MODULES):
            _watch(sys.modules[name], ours=True)
        if name == "course_utils.exercise.expect":
            _watch(sys.modules[name].Mismatch, ours=True)


def _by_torch(owner: Any, now: Any, original: Any) -> bool:
    """The compiler puts wrappers of its own around a few functions when it is imported or first used."""
    code = getattr(now, "__code__", None)
    if code is None or not code.co_filename.startswith((f"{_TORCH}/_dynamo/", f"{_TORCH}/_compile.py")):
        return False
    return owner is torch.nn.Module or getattr(now, "__wrapped__", None) is original


for _owner in _LIBRARIES:
    _watch(_owner)
