"""What all instruments that watch operators have in common."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Self

import torch
from torch.overrides import TorchFunctionMode

from course_utils import torch_private
from course_utils.measure.storage import tensors_in
from course_utils.measure.uncompiled import skip_code, unseen_by_compiler

_composite: dict[tuple[Any, str], bool] = {}


class Watch(torch_private.TorchDispatchMode):
    """Sees every operator on plain tensors, forward and backward. Subclasses say what is noted in `saw`, and
    what else holds meanwhile in `held`. Entered again while it is entered, it still sees each once."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self._entered = 0
        self._holding = contextlib.ExitStack()

    @unseen_by_compiler
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if any(torch_private.is_wrapper_class(kind) for kind in types):
            return NotImplemented  # it unwraps itself first, and what it calls then comes by here
        # The reader's own function modes must not see what is done here.
        with torch_private.DisableTorchFunction():
            if isinstance(func, torch_private.HigherOrderOperator):
                args, kwargs = torch_private.tree_map(self._seen_inside, (args, kwargs))
                return func(*args, **kwargs)
            if self.divides(func, args):
                # In inference mode operators such as `linear` come undivided; everywhere else as their parts.
                with _under(self):
                    return func.decompose(*args, **kwargs)
            return self.saw(func, args, kwargs, lambda: func(*args, **kwargs))

    def saw(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[[], Any]) -> Any:
        """Called instead of the operator: calls `run()` once and returns what it returns."""
        raise NotImplementedError

    def divides(self, func: Any, args: tuple[Any, ...]) -> bool:
        """Whether the operators that this one is made of are seen in its place."""
        return _is_composite(func, args)

    def _seen_inside(self, given: Any) -> Any:
        """What a control-flow operator (`torch.cond`) is given to call runs where this watch sees it."""
        if not callable(given) or isinstance(given, type):
            return given

        def call(*args: Any, **kwargs: Any) -> Any:
            with _under(self):
                return given(*args, **kwargs)

        return call

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Entered and left with the watch: what a subclass replaces, and puts back."""
        yield

    def __enter__(self) -> Self:
        if not self._entered:
            super().__enter__()
            self._holding.enter_context(self.held())
        self._entered += 1
        return self

    def __exit__(self, *error: Any) -> None:
        self._entered -= 1
        if not self._entered:
            try:
                self._holding.close()
            finally:
                super().__exit__(*error)

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        # A compiled function that is first called under an ordinary dispatch mode is never compiled
        # again, not even later without the mode: measuring would change what is measured.
        return True

    @classmethod
    def is_infra_mode(cls) -> bool:
        # The same for versions of torch that do not ask the above.
        return not hasattr(torch_private.TorchDispatchMode, "ignore_compile_internals")

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # If true, the first operator that is seen imports the compiler, which takes more than a second.
        # `unseen_by_compiler` does what it is for.
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


@contextlib.contextmanager
def _under(watch: Watch) -> Iterator[None]:
    """Operators that are called inside come to this watch, which was taken away while it handles another.

    Not `with watch`: that is how its user enters it, and what is opened and closed then stays as it is.
    """
    torch_private.push_mode(watch)
    try:
        yield
    finally:
        torch_private.pop_mode()


class CallWatch(TorchFunctionMode):
    """Sees every function of torch's that is called from Python. Subclasses say what is noted in `called`.
    Entered again while it is entered, it still sees each once. What is compiled is not seen, and is compiled
    as without it."""

    def __init__(self) -> None:
        super().__init__()
        self._entered = 0

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[[], Any]) -> Any:
        """Called instead of the function: calls `run()` once and returns what it returns."""
        raise NotImplementedError

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if torch.compiler.is_compiling():
            return func(*args, **(kwargs or {}))
        return self._called(func, args, kwargs or {})

    @unseen_by_compiler
    def _called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.called(func, args, kwargs, lambda: func(*args, **kwargs))

    skip_code(__torch_function__.__code__)

    def __enter__(self) -> Self:
        self._entered += 1
        return super().__enter__() if self._entered == 1 else self

    def __exit__(self, *error: Any) -> None:
        self._entered -= 1
        if not self._entered:
            super().__exit__(*error)


def in_backward() -> bool:
    """Whether autograd's engine is running what runs now."""
    return torch_private.current_graph_task_id() != -1


def packet(func: Any) -> str:
    """`aten.add` for every overload of it (`aten.add.Tensor`, `aten.add.Scalar`)."""
    return str(getattr(func, "overloadpacket", func))


def name_of_operator(func: Any) -> str:
    """`library::name` for what `torch.ops` gives under this name; no text for all else."""
    if isinstance(func, torch_private.OpOverload):
        return torch_private.schema(func).name
    return torch_private.packet_name(func) if isinstance(func, torch_private.OpOverloadPacket) else ""


def is_registered(name: str) -> bool:
    """Whether torch knows an operator `library::name`."""
    return torch_private.is_operator(name)


def _is_composite(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether an operator has no kernel of its own on the device at hand, only a recipe of other operators.

    Some have both (`silu_backward`): a recipe for devices that are not known, a kernel for those that are.
    """
    device = next((t.device.type for t in tensors_in(args)), "cpu")
    known = _composite.get((func, device))
    if known is None:
        known = (
            isinstance(func, torch_private.OpOverload)
            and has_kernel(func, "CompositeImplicitAutograd")
            and not has_kernel(func, "Meta" if device == "meta" else device.upper())
        )
        _composite[func, device] = known
    return known


def has_kernel(func: Any, dispatch_key: str) -> bool:
    """Whether an operator has a kernel of its own for this key of the dispatcher."""
    try:
        return torch_private.has_kernel(func.name(), dispatch_key)
    except RuntimeError:  # a device that has no key of its own
        return False
