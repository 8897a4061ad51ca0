"""What decides a check, as it was when the course was imported.

An answer that replaces `torch.equal`, puts an `__eq__` on `Tensor`, overrides the operator behind it or gives
`expect.equal` other defaults must not pass by it, and must not leave it so. What else an answer replaces is
its own affair: it decides nothing.
"""

import builtins
import math
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from course_utils import torch_private
from course_utils.exercise import compare, expect, given
from course_utils.exercise.cases import Rows
from course_utils.exercise.mismatch import Mismatch

_ABSENT, _NOTHING = object(), object()
# What comparisons are made of, by the owner that they are looked up on. What else of torch, of a tensor or
# of a storage the course's modules below name is added with them.
_PRIVATE = ("default_tolerances", "storage_key", "version")
_DECIDING: dict[Any, str] = {
    torch: "equal allclose isclose isnan eq ne all any where is_tensor ones_like zeros_like Tensor",
    torch.Tensor: """__eq__ __ne__ __bool__ __invert__ __sub__ __and__ __or__ __getitem__ __getattribute__
        __torch_function__ equal allclose isclose eq ne all any abs isnan item tolist numel dim size stride
        data_ptr detach clone shape dtype device grad _version untyped_storage storage_offset is_contiguous
        cpu double to""",
    torch.UntypedStorage: "data_ptr nbytes _cdata",
    Mismatch: "__init__",
    Rows: "of __exit__",
    math: "isclose isfinite isnan",
    torch.testing: "assert_close",
    sys.modules[torch_private.default_tolerances.__module__]: "default_tolerances",
    torch_private: " ".join(name for name in _PRIVATE if getattr(torch_private, name)),  # fetched by that
    builtins: """abs all any bool dict enumerate float getattr int isinstance len list map max min range repr
        round set sorted str sum tuple type zip""",
}
# Modules of the course: what they call by name, and what their functions do, with their defaults. From the
# first check after their import on. Few, since a forked process copies what it looks at.
_CHECKING = """exercise.expect exercise.compare exercise.mismatch exercise.given measure
    exercise.cases grading.check_run grading.attempt grading.in_child"""
_COURSE = [f"course_utils.{name}" for name in _CHECKING.split()]


class Change(NamedTuple):
    """Something that is not as it was: what stands there now, and what belongs there."""

    owner: Any
    name: str
    now: Any
    original: Any

    def put(self, value: Any) -> None:
        """Puts the original there, or the replacement back."""
        if value is _ABSENT:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, value)

    def __str__(self) -> str:
        owner = self.owner
        if isinstance(owner, types.ModuleType):
            return f"{owner.__name__}.{self.name}"
        where = "torch" if str(owner.__module__).startswith("torch") else owner.__module__
        return f"{where}.{owner.__qualname__}.{self.name}"


def changes() -> list[Change]:
    """Everything that is not as it was; `operators_lie` finds what no name shows."""
    _watch_course()
    found = [
        Change(owner, name, now, original)
        for owner, names in _names.items()
        for name, original in names.items()
        if (now := vars(owner).get(name, _ABSENT)) is not original and now is not _behind(owner, name)
    ]
    for module, size in _sizes.items():
        if len(vars(module)) != size:  # a new name may hide one of Python's
            new = vars(module).keys() & vars(builtins).keys() - _names[module].keys() - _DUNDERS
            found += [Change(module, name, vars(module)[name], _ABSENT) for name in new]
    for function, (code, defaults, keywords) in _functions.items():
        if function.__code__ is not code:
            found.append(Change(function, "__code__", function.__code__, code))
        if function.__defaults__ is not defaults:
            found.append(Change(function, "__defaults__", function.__defaults__, defaults))
        if (now := function.__kwdefaults__) != keywords:
            found.append(Change(function, "__kwdefaults__", now, keywords and dict(keywords)))
    return found


def _behind(owner: Any, name: str) -> Any:
    """What a class inherits under this name: where somebody has put just that there, it hides nothing."""
    return getattr(super(owner, owner), name, _NOTHING) if isinstance(owner, type) else _NOTHING


def operators_lie() -> bool:
    """Whether a comparison gives a wrong answer: a library override of its operator replaces no name."""
    return _equal(_ONES, _TWOS) or not _equal(_ONES, _ONES) or bool(_isclose(_ONES, _TWOS).any())


def _watch_course() -> None:
    for name in _COURSE:
        module = sys.modules.get(name)
        if module is not None and module not in _names:
            _watch(module)


def _watch(module: types.ModuleType) -> None:
    there = {n: v for n, v in vars(module).items() if callable(v) or isinstance(v, types.ModuleType)}
    _names[module], _sizes[module] = there, len(vars(module))
    for function in _functions_in(module):
        keywords = function.__kwdefaults__
        _functions[function] = function.__code__, function.__defaults__, keywords and dict(keywords)
        for name in _named_in(function.__code__):
            for owner in (torch, torch.Tensor, torch.UntypedStorage):
                if any(name in vars(one) for one in getattr(owner, "__mro__", [owner])):
                    _names[owner].setdefault(name, vars(owner).get(name, _ABSENT))


def _named_in(code: types.CodeType) -> set[str]:
    return set(code.co_names).union(*(_named_in(c) for c in code.co_consts if isinstance(c, types.CodeType)))


def _functions_in(module: types.ModuleType) -> Iterator[types.FunctionType]:
    for value in vars(module).values():
        if getattr(value, "__module__", None) != module.__name__:
            continue
        for one in (value, *vars(value).values()) if isinstance(value, type) else (value,):
            if isinstance(one, types.FunctionType):
                yield one


_names: dict[Any, dict[str, Any]] = {
    owner: {name: vars(owner).get(name, _ABSENT) for name in names.split()}
    for owner, names in _DECIDING.items()
}
_functions: dict[types.FunctionType, tuple[Any, Any, Any]] = {}
_sizes: dict[types.ModuleType, int] = {}
_DUNDERS = {"__name__", "__doc__", "__package__", "__loader__", "__spec__"}
_ONES, _TWOS = torch.ones(2), torch.full((2,), 2.0)
_equal: Callable[..., bool] = torch.equal
_isclose: Callable[..., torch.Tensor] = torch.isclose
# What compares is known from here on; the rest of the course from its first check.
for _module in (expect, compare, given):
    _watch(_module)
