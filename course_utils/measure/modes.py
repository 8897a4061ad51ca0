"""What all instruments that watch operators have in common."""

import linecache
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type

from course_utils.measure.storage import tensors_in
from course_utils.processes.stacks import is_readers

# The compiler's files are there because `disable` wraps the instruments.
_OWN = ("course_utils.measure", "torch._dynamo.", "torch._compile")
_composite: dict[tuple[Any, str], bool] = {}


class Watch(TorchDispatchMode):
    """Sees every operator on plain tensors, forward and backward. Subclasses say what is noted in `saw`."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        _hide_from_compiler()
        kwargs = kwargs or {}
        if any(is_traceable_wrapper_subclass_type(kind) for kind in types):
            return NotImplemented  # it unwraps itself first, and what it calls then comes by here
        # The reader's own function modes must not see what is done here.
        with torch._C.DisableTorchFunction():
            if _is_composite(func, args):
                # In inference mode operators such as `linear` come undivided; everywhere else as their parts.
                with self:
                    return func.decompose(*args, **kwargs)
            return self.saw(func, args, kwargs, lambda: func(*args, **kwargs))

    def saw(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[[], Any]) -> Any:
        """Called instead of the operator: calls `run()` once and returns what it returns."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        _hide_from_compiler()
        return super().__enter__()

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        # A compiled function that is first called under an ordinary dispatch mode is never compiled
        # again, not even later without the mode: measuring would change what is measured.
        return True

    @classmethod
    def is_infra_mode(cls) -> bool:
        # The same for versions of torch that do not ask the above.
        return not hasattr(TorchDispatchMode, "ignore_compile_internals")

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # If true, the first operator that is seen imports the compiler, which takes more than a second.
        # `_hide_from_compiler` does what it is for, where the compiler has been imported.
        return False


class Noting(Watch):
    """Calls `note(func, args, kwargs, out)` after every operator."""

    def __init__(self, note: Callable[[Any, tuple[Any, ...], dict[str, Any], Any], None]) -> None:
        super().__init__()
        self.note = note

    def saw(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[[], Any]) -> Any:
        out = run()
        self.note(func, args, kwargs, out)
        return out


def _hide_from_compiler() -> None:
    """Keeps the compiler from compiling the instruments, once there is a compiler."""
    if (compiler := sys.modules.get("torch._dynamo")) is None or "disable" not in vars(compiler):
        return
    if Watch.__torch_dispatch__ is _seen_dispatch:
        Watch.__torch_dispatch__ = compiler.disable(_seen_dispatch)


_seen_dispatch = Watch.__torch_dispatch__


def in_backward() -> bool:
    """Whether autograd's engine is running what runs now."""
    return torch._C._current_graph_task_id() != -1


def caller() -> FrameType | None:
    """The innermost frame outside the instruments; None in a thread of autograd's own."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_OWN):
        frame = frame.f_back
    return frame


def readers_line() -> str:
    """The text of the reader's innermost line; "" where there is none."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and not is_readers(frame.f_code.co_filename):
        frame = frame.f_back
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip() if frame else ""


def packet(func: Any) -> str:
    """`aten.add` for every overload of it (`aten.add.Tensor`, `aten.add.Scalar`)."""
    return str(getattr(func, "overloadpacket", func))


def _is_composite(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether an operator has no kernel of its own on the device at hand, only a recipe of other operators.

    Some have both (`silu_backward`): a recipe for devices that are not known, a kernel for those that are.
    """
    device = next((t.device.type for t in tensors_in(args)), "cpu")
    known = _composite.get((func, device))
    if known is None:
        known = (
            isinstance(func, torch._ops.OpOverload)
            and func.namespace == "aten"
            and _has_kernel(func, "CompositeImplicitAutograd")
            and not _has_kernel(func, "Meta" if device == "meta" else device.upper())
        )
        _composite[func, device] = known
    return known


def _has_kernel(func: torch._ops.OpOverload, dispatch_key: str) -> bool:
    try:
        return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), dispatch_key)
    except RuntimeError:  # a device that has no key of its own
        return False
