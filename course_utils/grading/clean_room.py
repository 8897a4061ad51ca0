"""The state that every check starts from, and that is put back afterwards.

A check must not depend on what the reader ran before it, nor change what the reader runs after it:
random state, default dtype and device, grad mode, autocast, threads, print options, warnings, the
working folder, signal handlers, and the functions that decide a check (see `tampering`). What an answer
changed and by which it could pass is reported by name (`Room.disturbed`): those functions, the modes that
see every operator, the default device.
"""

import contextlib
import gc
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import torch

from course_utils import machine, torch_private
from course_utils.exercise import expect
from course_utils.grading import tampering
from course_utils.processes.streams import KEPT_OUTPUT, NOT_SHOWN

SEED = 20_240_229


@dataclass
class Room:
    """One visit. `disturbed` names what was changed inside and had to be put back."""

    disturbed: list[str] = field(default_factory=list)


@contextlib.contextmanager
def clean_room(shared: bool = True) -> Iterator[Room]:
    """Known state inside; outside, everything is as it was, also after an exception. Where the process is not
    `shared` with a reader, nobody's random state is kept, and nothing can have been replaced before."""
    room = Room()
    with contextlib.ExitStack() as stack:
        # Torch's own functions first: what follows needs the real ones.
        stack.enter_context(_real_functions(room, shared))
        stack.enter_context(_process_state())
        if shared:
            # Put back with the state of the process. Nobody reads more, and a browser may not survive it.
            sys.stdout, sys.stderr = _Beginning(sys.stdout), _Beginning(sys.stderr)
            stack.enter_context(_random_state())
        stack.enter_context(_torch_state(room))
        stack.enter_context(_no_global_hooks())
        stack.enter_context(_graphs_print_nothing())
        stack.enter_context(_no_modes_left(room))
        stack.enter_context(expect.situation())
        # `torch.manual_seed` notes down the whole stack for every kind of GPU, also those that are not there.
        (torch.manual_seed if len(machine.devices()) > 1 else torch.default_generator.manual_seed)(SEED)
        random.seed(SEED)
        if numpy := sys.modules.get("numpy"):
            numpy.random.seed(SEED % 2**32)
        yield room


class _Beginning:
    """A stream that passes on the beginning of what is written to it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._room = stream, KEPT_OUTPUT

    def write(self, text: str) -> int:
        if self._room >= 0:
            self._stream.write(text[: self._room])
            self._room -= len(text)
            if self._room < 0:
                self._stream.write(NOT_SHOWN)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def _real_functions(room: Room, shared: bool) -> Iterator[None]:
    before = tampering.changes() if shared else []
    for change in before:
        change.put(change.original)
    try:
        yield
    finally:
        for change in tampering.changes():
            room.disturbed.append(str(change))
            change.put(change.original)
        if tampering.operators_lie():
            room.disturbed.append("an operator that compares")
        for change in before:
            change.put(change.now)


@contextlib.contextmanager
def _process_state() -> Iterator[None]:
    variables = _environment()
    try:
        folder = Path.cwd()
    except FileNotFoundError:  # an earlier answer of this process has removed it
        folder = Path("/")
    collecting, recursion = gc.isenabled(), sys.getrecursionlimit()
    streams = sys.stdout, sys.stderr
    handlers = _signal_handlers()
    tracing, profiling = sys.gettrace(), sys.getprofile()
    try:
        with warnings.catch_warnings():
            # A warning is shown once per place by default: a second run would print less.
            warnings.simplefilter("ignore")
            gc.enable()
            yield
    finally:
        sys.stdout, sys.stderr = streams
        sys.setrecursionlimit(recursion)
        (gc.enable if collecting else gc.disable)()
        for number, handler in handlers.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)
        if sys.gettrace() is not tracing:
            sys.settrace(tracing)
        if sys.getprofile() is not profiling:
            sys.setprofile(profiling)
        if _environment() != variables:
            os.environ.clear()
            os.environb.update(variables)
        with contextlib.suppress(OSError):
            if Path.cwd() != folder:
                os.chdir(folder)


def _environment() -> dict[bytes, bytes]:
    """The variables, undecoded: decoding all of them takes longer than the rest of this room."""
    return dict(os.environb._data)


def _signal_handlers() -> dict[int, Any]:
    if threading.current_thread() is not threading.main_thread():
        return {}  # handlers can only be put back in the main thread
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
    return {number: signal.getsignal(number) for number in numbers if signal.getsignal(number) is not None}


@contextlib.contextmanager
def _random_state() -> Iterator[None]:
    numpy = sys.modules.get("numpy")
    state = random.getstate(), torch.get_rng_state(), numpy.random.get_state() if numpy else None
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    try:
        yield
    finally:
        random.setstate(state[0])
        torch.set_rng_state(state[1])
        if state[2] is not None:
            numpy.random.set_state(state[2])
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)


@contextlib.contextmanager
def _torch_state(room: Room) -> Iterator[None]:
    settings = [  # what sets it, as it was, as it is inside
        (torch.set_default_dtype, torch.get_default_dtype(), torch.float32),
        # One thread: sums then have one order, so every run prints the same.
        (torch.set_num_threads, torch.get_num_threads(), 1),
        (torch.set_float32_matmul_precision, torch.get_float32_matmul_precision(), "highest"),
    ]
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    anomaly = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    cudnn_names = ("enabled", "benchmark", "deterministic", "allow_tf32")
    cudnn = {name: getattr(torch.backends.cudnn, name) for name in cudnn_names}
    printing = vars(torch_private.print_options).copy()
    grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    try:
        for set_to, _, inside in settings:
            set_to(inside)
        # Only where it is needed: switching it imports the compiler, which takes seconds.
        if deterministic:
            torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.allow_tf32 = False  # of 23 bits it would keep ten
        torch.autograd.set_detect_anomaly(False)
        torch.set_printoptions(profile="default", sci_mode=None)
        with (
            torch.inference_mode(False),
            torch.enable_grad(),
            _no_autocast(),
            _no_default_device(room),
        ):
            yield
    finally:
        for set_to, before, _ in settings:
            set_to(before)
        if torch.are_deterministic_algorithms_enabled() != deterministic:
            torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.autograd.set_detect_anomaly(*anomaly)
        for name, value in cudnn.items():
            setattr(torch.backends.cudnn, name, value)
        for name, value in printing.items():
            setattr(torch_private.print_options, name, value)
        if not inference:
            torch.set_grad_enabled(grad)


@contextlib.contextmanager
def _no_autocast() -> Iterator[None]:
    # Not by a region: the copies of weights that regions make are kept until the outermost one ends, and an
    # answer that trains would go on with its first ones. Inside a region of the reader's none are kept.
    cached = torch.is_autocast_cache_enabled()
    before = {kind: torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")}
    for kind in before:
        torch.set_autocast_enabled(kind, False)
    torch.set_autocast_cache_enabled(cached and not any(before.values()))
    try:
        yield
    finally:
        for kind, enabled in before.items():
            torch.set_autocast_enabled(kind, enabled)
        torch.set_autocast_cache_enabled(cached)


@contextlib.contextmanager
def _no_default_device(room: Room) -> Iterator[None]:
    # The getter answers "cpu" both for "nothing set" and for "cpu set"; setting None where nothing is
    # set is harmless, and a reader who set "cpu" gets the same tensors.
    before = torch.get_default_device()
    if before.type != "cpu":
        torch.set_default_device(None)
    try:
        yield
    finally:
        if torch.get_default_device().type != "cpu":
            # Tensors that the check made afterwards were made there: on `meta` all of them are equal.
            room.disturbed.append("the default device")
        if torch.get_default_device() != before:
            torch.set_default_device(None if before.type == "cpu" else before)


@contextlib.contextmanager
def _no_global_hooks() -> Iterator[None]:
    """Hooks that the reader has put on every module stay out of the check, and come back."""
    tables = [
        *(torch_private.global_forward_hooks, torch_private.global_forward_pre_hooks),
        *(torch_private.global_backward_hooks, torch_private.global_backward_pre_hooks),
    ]
    before = [dict(table) for table in tables]
    for table in tables:
        table.clear()
    try:
        yield
    finally:
        for table, entries in zip(tables, before, strict=True):
            table.clear()
            table.update(entries)


@contextlib.contextmanager
def _graphs_print_nothing() -> Iterator[None]:
    """Where the code of a graph raises, `torch.fx` prints a traceback of its own files to the standard error:
    it would stand above a report that tells the same."""
    module = sys.modules.get("torch.fx.graph_module")

    def print_elsewhere(*values: Any, file: TextIO | None = None, **how: Any) -> None:
        if file is None or file is not sys.stderr:
            print(*values, file=file, **how)

    if module is None:
        yield
        return
    before = vars(module).get("print")
    module.print = print_elsewhere
    try:
        yield
    finally:
        if before is None:
            del module.print  # it is the built-in one again
        else:
            module.print = before


@contextlib.contextmanager
def _no_modes_left(room: Room) -> Iterator[None]:
    """What was entered inside and never left is left here: modes that see every operator, and the hooks
    through which tensors are saved for backward. A check that ran under them saw what they let it see."""
    functions, operators = torch_private.count_function_modes(), torch_private.count_operator_modes()
    hooks = _saved_tensors_hooks()
    try:
        yield
    finally:
        while (count := torch_private.count_function_modes()) > functions:
            mode = torch_private.function_mode(count - 1)
            if isinstance(mode, torch_private.DeviceContext):
                break  # the default device, which is put back elsewhere
            mode.__exit__(None, None, None)
            room.disturbed.append("the modes of torch")
        while (count := torch_private.count_operator_modes()) > operators:
            torch_private.operator_mode(count - 1).__exit__(None, None, None)
            room.disturbed.append("the modes of torch")
        while (now := _saved_tensors_hooks()) is not None and now != hooks:
            torch_private.pop_saved_tensors_hooks()
            room.disturbed.append("the hooks for saved tensors")


def _saved_tensors_hooks() -> Any:
    return torch_private.top_saved_tensors_hooks(True)
