"""Instruments are not compiled, and leave what is compiled as it is.

Code that torch.compile has made calls Python again: a mode, a hook. The compiler would compile that too.
What is used here is what its own `disable` uses, and needs no compiler: importing it takes a second.
"""

import contextlib
import functools
import sys
import warnings
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

import torch
from torch import nn

from course_utils import torch_private


def skip_code(code: CodeType) -> None:
    """The compiler does not begin with this code; where it meets it on its way, it goes through it."""
    action = torch_private.FrameAction
    torch_private.set_code_strategy(code, torch_private.FrameStrategy(action.SKIP, action.DEFAULT))


def unseen_by_compiler(function: Callable[..., Any]) -> Callable[..., Any]:
    """This function, of which nothing is compiled, nor of what it calls."""

    # Not asked for inside: there the compiler would look at what fetches it.
    set_callback = torch_private.set_frame_callback

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        before = set_callback(None)
        try:
            return function(*args, **kwargs)
        finally:
            set_callback(before)

    skip_code(call.__code__)
    setattr(call, torch_private.NOT_COMPILED, True)  # nor does it go through it
    return call


def silence_about_hooks() -> None:
    """A module that torch.compile has made does not warn of the hooks that an instrument has put on all."""
    warnings.filterwarnings("ignore", message="Using `torch.compile.module.` when there are global hooks")


@contextlib.contextmanager
def uncompiled() -> Iterator[None]:
    """What torch.compile has compiled, or compiles inside, runs inside as it was written."""
    plain = torch.compile
    with contextlib.ExitStack() as stack:

        def stand_aside() -> None:
            torch.compile = plain
            stack.enter_context(torch.compiler.set_stance("force_eager"))

        @functools.wraps(plain)
        def first_compile(*args: Any, **kwargs: Any) -> Any:
            if torch.compile is first_compile:
                stand_aside()
            return plain(*args, **kwargs)

        stack.enter_context(warnings.catch_warnings())
        silence_about_hooks()
        if torch_private.DYNAMO in sys.modules:
            stand_aside()
        else:
            torch.compile = first_compile
            stack.callback(setattr, torch, "compile", plain)
        yield


def as_said(path: str) -> str:
    """The path of a module without what torch.compile puts around a model or a part of it."""
    return ".".join(name for name in path.split(".") if name != torch_private.COMPILED_FROM)


def as_written(module: nn.Module) -> nn.Module:
    """The module that `torch.compile(module)` was given; every other one itself."""
    compiled = torch_private.DYNAMO in sys.modules and isinstance(module, torch_private.OptimizedModule)
    return torch_private.compiled_from(module) if compiled else module
