"""What one rank sends, receives and waits for."""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from course_utils import torch_private
from course_utils.measure.modes import Watch, in_backward
from course_utils.measure.storage import tensors_in
from course_utils.wrong_use import WrongUse, public

# The operator below each call, whatever function made it: its name here, and which of its arguments are the
# tensors that this rank brings (or, where it only receives, the ones that it receives into).
_CALLS = {
    operator: (name, own)
    for name, own, *operators in (
        ("all_reduce", 0, "c10d.allreduce_", "c10d.allreduce_coalesced_"),
        ("all_reduce", 0, *(f"_c10d_functional.all_reduce{end}" for end in ("", "_", "_coalesced"))),
        ("broadcast", 0, "c10d.broadcast_", "_c10d_functional.broadcast"),
        ("all_gather", 1, "c10d.allgather_", "c10d._allgather_base_", "c10d.allgather_coalesced_"),
        ("all_gather", 1, "c10d.allgather_into_tensor_coalesced_"),
        ("all_gather", 0, *(f"_c10d_functional.all_gather_into_tensor{end}" for end in ("", "_coalesced"))),
        ("reduce", 0, "c10d.reduce_"),
        ("gather", 1, "c10d.gather_"),
        ("scatter", 1, "c10d.scatter_"),
        ("reduce_scatter", 1, "c10d.reduce_scatter_", "c10d._reduce_scatter_base_"),
        ("reduce_scatter", 1, "c10d.reduce_scatter_tensor_coalesced_"),
        ("reduce_scatter", 0, *(f"_c10d_functional.reduce_scatter_tensor{e}" for e in ("", "_coalesced"))),
        ("all_to_all", 1, "c10d.alltoall_", "c10d.alltoall_base_"),
        ("all_to_all", 0, "_c10d_functional.all_to_all_single"),
        ("send", 0, "c10d.send"),
        ("recv", 0, "c10d.recv_", "c10d.recv_any_source_"),
        ("barrier", None, "c10d.barrier", "c10d.monitored_barrier_"),
    )
    for operator in operators
}
NAMES = tuple(sorted({name for name, _ in _CALLS.values()}))


@dataclass(frozen=True)
class Call:
    """One message or collective that this rank took part in.

    `bytes`: of the tensors that it brought (for `recv`, and for `broadcast` on all ranks but one: that it
    received into; for `barrier`: 0). `peer`: the other rank of a `send` or `recv`, None where it was not
    said. `backward`: autograd's engine called it. `functional`: whoever reads what it gives waits for it.
    """

    name: str
    bytes: int
    peer: int | None
    backward: bool
    functional: bool = False


@dataclass
class Traffic:
    """The messages and collectives that this rank called, in order.

    `order`: `"all_reduce 0"` where call 0 was launched, `"wait 0"` where this rank began to wait for it
    (`"wait"`: for what is not known), and what was noted, in the order of this rank's program.
    """

    calls: list[Call] = field(default_factory=list)
    order: list[str] = field(default_factory=list)

    def count(self, *names: str, backward: bool | None = None) -> int:
        """Counts the calls of these names; of all where none is named. `backward`: only there, or only
        elsewhere."""
        return len(self._those(names, backward))

    def bytes(self, *names: str, backward: bool | None = None) -> int:
        """Bytes of this rank's tensors in these calls."""
        return sum(call.bytes for call in self._those(names, backward))

    def note(self, text: str) -> None:
        """Puts a mark into `order`."""
        self.order.append(text)

    def __str__(self) -> str:
        lines = []
        for i, call in enumerate(self.calls):
            to = "" if call.peer is None else f" {'to' if call.name == 'send' else 'from'} rank {call.peer}"
            where = "  (backward)" if call.backward else ""
            lines.append(f"{i:>4}  {call.name}{to}  {call.bytes:,} bytes{where}")
        return "\n".join(lines) or "no call"

    def _those(self, names: tuple[str, ...], backward: bool | None) -> list[Call]:
        if unknown := set(names) - set(NAMES):
            raise WrongUse(f"there is no call {sorted(unknown)[0]!r}; there are {', '.join(NAMES)}")
        of_these = [call for call in self.calls if not names or call.name in names]
        return [call for call in of_these if backward in (None, call.backward)]


class CollectiveWatch(Watch):
    """Sees every message and collective of this thread, those that torch makes by itself too.

    Subclasses say what is noted. While it is entered, waiting for a `Work` or a `Future` goes through it.
    """

    def begins(self, number: int, call: Call) -> None:
        """Called before call `number`, from 0, of one thread at a time."""

    def launched(self, number: int, call: Call, run: Callable[[], Any]) -> Any:
        """Called instead of call `number`, from 0: calls `run()` once and returns what it returns."""
        return run()

    def launched_as(self, number: int, work: Any) -> None:
        """Called after each call with its number and its `Work`, None where it has none."""

    def waits(self, number: int | None, wait: Callable[[], Any]) -> Any:
        """Called where this rank waits for call `number` (None: not known). The same for `wait()`."""
        return wait()

    def __init__(self) -> None:
        super().__init__()
        self._works: list[Any] = []  # by number; what is kept here is not made anew under the same address
        self._one_at_a_time = threading.Lock()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        # The second is the base of `torch.futures.Future`.
        with self._watch_waits(torch_private.Work), self._watch_waits(torch_private.Future):
            yield

    def saw(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[[], Any]) -> Any:
        call = _call_of(func, args)
        if call is None:
            return self.ran(func, run)
        with self._one_at_a_time:
            number = len(self._works)
            self._works.append(None)  # a call that raises has a number too
            self.begins(number, call)
        out = self.launched(number, call, run)
        self._works[number] = _work_of(out)
        self.launched_as(number, self._works[number])
        return out

    def ran(self, func: Any, run: Callable[[], Any]) -> Any:
        """Called instead of every other operator."""
        return run()

    @contextlib.contextmanager
    def _watch_waits(self, kind: type) -> Iterator[None]:
        # Entered and left in order, so that watches inside one another put back what they found.
        plain, watch = kind.wait, self

        def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
            return watch.waits(watch._number(self), lambda: plain(self, *args, **kwargs))

        kind.wait = wait
        try:
            yield
        finally:
            kind.wait = plain

    def _number(self, waited_for: Any) -> int | None:
        return next((i for i, work in enumerate(self._works) if work is waited_for), None)


def _call_of(func: Any, args: tuple[Any, ...]) -> Call | None:
    """The message or collective that this operator is; None for all others."""
    if getattr(func, "namespace", None) not in ("c10d", "_c10d_functional"):
        return None
    found = _CALLS.get(str(func.overloadpacket))
    if found is None:
        return None
    name, own = found
    size = 0 if own is None else sum(t.numel() * t.element_size() for t in tensors_in(args[own]))
    has_peer = name in ("send", "recv") and "any_source" not in str(func)
    functional = func.namespace == "_c10d_functional"
    return Call(name, size, args[2] if has_peer else None, in_backward(), functional)


def _work_of(out: Any) -> Any:
    """The `Work` that a call gave, the same object that Python code gets; None where there is none."""
    last = out[-1] if isinstance(out, (tuple, list)) and out else out
    kind = torch_private.Work
    return kind.unbox(last) if isinstance(last, torch.ScriptObject) and hasattr(kind, "unbox") else None


class _Recorder(CollectiveWatch):
    def __init__(self, found: Traffic) -> None:
        super().__init__()
        self.found = found

    def begins(self, number: int, call: Call) -> None:
        self.found.note(f"{call.name} {number}")
        self.found.calls.append(call)

    def waits(self, number: int | None, wait: Callable[[], Any]) -> Any:
        self.found.note("wait" if number is None else f"wait {number}")
        return wait()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        plain, recorder = threading.Thread.start, self

        def start(thread: threading.Thread) -> None:
            run, inside = thread.run, in_backward()

            @functools.wraps(run)
            def watched() -> None:
                with _InThread(recorder, inside):
                    run()

            thread.run = watched
            plain(thread)

        with super().held():
            threading.Thread.start = start
            try:
                yield
            finally:
                threading.Thread.start = plain


class _InThread(_Recorder):
    """Notes what a thread calls that was started inside, with the numbers of the one that it notes for."""

    def __init__(self, recorder: _Recorder, backward: bool) -> None:
        super().__init__(recorder.found)
        self._works, self._one_at_a_time = recorder._works, recorder._one_at_a_time
        self._backward = backward

    def begins(self, number: int, call: Call) -> None:
        super().begins(number, replace(call, backward=call.backward or self._backward))

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        yield  # waiting is watched for all threads already


@public
@contextlib.contextmanager
def traffic() -> Iterator[Traffic]:
    """Notes every message and collective of this rank that is called inside, whoever calls it.

        with measure.traffic() as t:
            ddp(x).sum().backward()
        t.count("all_reduce"), t.bytes("all_reduce", backward=True), t.order

    Bytes are those of the tensors that this rank brings to a call, not of what a backend makes of it on the
    wire. Calls of threads that were there before are not seen, those of threads that are started inside are.
    """
    found = Traffic()
    with _Recorder(found):
        yield found
