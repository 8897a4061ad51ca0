"""Warm processes: code that may hang, crash or fill memory runs in one, and never here.

The first use (or `warm_up`) starts a server process, which imports torch once and forks a worker for each
request. This process itself is never forked. Workers end when this process does, however it ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import secrets
import shutil
import signal
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from course_utils.processes import crowd, transport
from course_utils.processes.client import (
    Connection,
    NeverStartedError,
    WorkersError,
    default_memory,
    found_here,
)
from course_utils.processes.result import Result, gigabytes
from course_utils.processes.stacks import Position, Raised, parse_dump
from course_utils.processes.streams import Output, read_available, read_burst, wait
from course_utils.words import how_it_ended

MOST_PROCESSES = 64
MOST_TOLD = 4 << 20  # bytes that a call may tell before it ends
START_SECONDS = 120.0  # how long a worker may take to begin a call; importing torch is part of the first


class CannotSendError(TypeError):
    """A function or an argument cannot be sent to another process."""


class Worker:
    """One warm process. Several calls in a row run in the same process and find what earlier ones left.
    `memory` is in bytes, for the process and all that it starts together; `processes` is how many those may
    be. `preload` names modules to import before forking, for this worker and all later ones. `hand_over` are
    descriptors that the process gets copies of (`worker_process.handed_over`)."""

    def __init__(
        self,
        memory: int | None = None,
        processes: int = MOST_PROCESSES,
        preload: Sequence[str] = (),
        hand_over: Sequence[int] = (),
    ) -> None:
        self.memory = default_memory() if memory is None else memory
        self.processes = processes
        self.how = ""
        self._pid: int | None = None
        self._folder: str | None = None
        self._failure: WorkersError | None = None
        self._fresh = True
        self._gone = self._closed = self._busy = False
        self._token = secrets.token_bytes(transport.TOKEN_BYTES)
        self._status_in = bytearray()
        self._in = bytearray()  # what has come of a reply that is not whole yet
        # When the call began in the process, or last told something, on the monotonic clock; what it has
        # told; how it ended, and the bytes of what it returned.
        self.begun: float | None = None
        self._told: list[Any] = []
        self._told_bytes = 0
        self._outcome: tuple[dict[str, Any], bytes] | None = None
        self._lost: float | None = None
        self._output = Output(None)
        self._to = Connection(self._token, self.memory, processes, tuple(preload), tuple(hand_over))
        _all_workers.add(self)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # Without our end of the status connection the server kills the worker.
        with contextlib.suppress(Exception):
            self._drop()

    @property
    def pid(self) -> int:
        """Its process id. Waits until the process has been started; raises `WorkersError` if it never is."""
        patience = time.monotonic() + START_SECONDS
        while self._pid is None and not self._gone:
            if time.monotonic() > patience:
                raise WorkersError("the warm server did not answer")
            wait([self._to.status], 0.5)
            self._read_status()
        if self._pid is None:
            raise NeverStartedError(self.how)
        return self._pid

    def call(self, function: Callable[..., Any], *args: Any, deadline: float, **how: Any) -> Result:
        """Calls a function in the process and waits for it. `deadline`: seconds from its beginning, and again
        from each time that it tells something; `how`: the options of `begin`. After "timed out" or "died" the
        process and everything it had started are gone. Raises `CannotSendError` when the function or an
        argument cannot be sent there, `WorkersError` after `close`."""
        self.begin(function, *args, **how)
        try:
            while not attend([self], self.left(deadline)):
                if self.left(deadline) <= 0:
                    return self.give_up(self.position(), f"deadline of {deadline:g} s")
            return self.finish()
        except BaseException:  # an interrupt, or `on_output` raised
            self.close()
            raise

    # What follows is for waiting on several workers at once.

    def begin(
        self,
        function: Callable[..., Any],
        *args: Any,
        on_output: Callable[[str], None] | None = None,
        plain: bool = False,
    ) -> None:
        """Sends a call without waiting for it. `on_output` is called with what it prints; `plain`: only what
        it tells is wanted, and nothing that it returns is unpickled here."""
        if self._closed:
            raise WorkersError("this worker has been closed")
        try:
            data, sources = transport.dumps((function, args))
        except Exception as error:
            raise CannotSendError(f"this cannot be sent to another process: {error}") from error
        setup = found_here() if self._fresh else None
        self._fresh = False
        payload = pickle.dumps((setup, sources, data, plain), protocol=pickle.HIGHEST_PROTOCOL)
        self._output = Output(on_output)
        self.begun, self._told, self._told_bytes, self._outcome = None, [], 0, None
        self._busy, self._plain = True, plain
        self._sent = time.monotonic()
        try:
            self._to.calls.settimeout(START_SECONDS)
            self._to.calls.sendall(transport.frame(self._token, transport.CALL, payload))
        except OSError:
            self._lost = time.monotonic()
        finally:
            self._to.calls.setblocking(False)

    @property
    def done(self) -> bool:
        """Whether the call has ended."""
        return not self._busy

    @property
    def alive(self) -> bool:
        """Whether the process has not ended yet, as far as is known here."""
        return not self._closed and not self._gone

    def left(self, deadline: float) -> float:
        """Seconds until the call is past its deadline, of a machine as busy as it is now. Raises
        `WorkersError` when it could not even begin."""
        now = time.monotonic()
        if self.begun is None:
            if now - self._sent > START_SECONDS:
                self.close()
                raise WorkersError("the warm server did not answer")
            return min(deadline, 0.5)
        return self.begun + crowd.stretched(deadline) - now

    def finish(self) -> Result:
        """The result of a call that has ended."""
        result = self._result()
        if self._outcome is None:
            self.close()
            if self._pid is None:
                raise self._failure or NeverStartedError(self.how)
            result.state, result.how = "died", self.how or "it ended without a result"
            return result
        ended, content = self._outcome
        result.state = ended["state"]
        if result.state == "raised":
            result.error = ended["error"]
            result.how = f"memory limit of {gigabytes(self.memory)}" if ended["of_memory"] is True else ""
        elif not self._plain:
            try:
                transport.install_sources(ended["sources"])
                result.value = pickle.loads(content)
            except Exception as error:
                name = type(error).__name__
                what = f"its result could not be read: {name}: {error}"
                result.state, result.error = "raised", Raised(name, what, text=what)
        return result

    def give_up(self, position: Position | None, how: str) -> Result:
        """Ends a call that takes too long, and the process with it. `position`: where it was; `how`: why."""
        result = self._result()
        self.close()
        result.state, result.position, result.how = "timed out", position, how
        return result

    def position(self, attempts: int = 3) -> Position | None:
        """Where the process is now; None where it does not say."""
        for _ in range(attempts):
            read_available(self._to.dump_fd)
            self._read_status()
            # Until the server says that it has ended, the process id is that of no other process.
            if not self.alive or self._pid is None:
                return None
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGUSR1)
            # The dump comes in many small writes, and nothing marks its end.
            text, ended = read_burst(self._to.dump_fd)
            found = parse_dump(text)
            if found or ended:
                return found
        return None

    def close(self) -> None:
        """Kills the process and everything it has started; returns when they are gone. May be repeated."""
        close_all([self])

    def _descriptors(self) -> list[Any]:
        streams: list[Any] = [self._to.status]
        if self._lost is None:
            streams.append(self._to.calls)
        if not self._output.ended:
            streams.append(self._to.output_fd)
        return streams

    def _attend(self, ready: Any) -> None:
        if ready is self._to.status:
            self._read_status()
        elif ready is self._to.calls:
            self._read_calls()
        else:
            self._output.read(self._to.output_fd)

    def _read_calls(self) -> bool:
        """Takes in what is there. False: nothing is."""
        try:
            part = self._to.calls.recv(1 << 20)
        except BlockingIOError:
            return False
        except OSError:
            part = b""
        if not part:
            self._lost = self._lost or time.monotonic()
            return False
        try:
            self._take(part)
        except Exception:
            self.how = "what it sent back could not be read"
            self._lost = 0.0
        if self._outcome is not None:
            self._busy = False
        return True

    def _take(self, part: bytes) -> None:
        """Takes in some bytes of replies. Raises whatever it may where they cannot be read."""
        self._in += part
        while len(self._in) >= transport.HEADER_BYTES:
            header = bytes(self._in[: transport.HEADER_BYTES])
            kind, length = transport.read_header(self._token, header)
            if len(self._in) < transport.HEADER_BYTES + length:
                return
            payload = bytes(self._in[transport.HEADER_BYTES : transport.HEADER_BYTES + length])
            del self._in[: transport.HEADER_BYTES + length]
            if kind == transport.RESULT:
                line, _, content = payload.partition(b"\n")
                ended = json.loads(line)
                if ended["state"] == "raised":
                    ended["error"] = Raised.of_plain(ended["error"])
                self._outcome = ended, content
                continue
            self.begun = time.monotonic()
            if kind == transport.PART:
                self._told_bytes += length
                if self._told_bytes > MOST_TOLD:
                    raise transport.GarbledError
                self._told.append(json.loads(payload))

    def _read_status(self) -> None:
        try:
            part = self._to.status.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        self._status_in += part
        *lines, rest = bytes(self._status_in).split(b"\n")
        self._status_in = bytearray(rest)
        for line in lines:
            self._note(*line.decode().split(maxsplit=1))
        if not part and not self._gone:
            self._gone = True
            self.how = self._to.server.epitaph()
            self._to.server.clear_up(self._pid)
            if self._folder:
                shutil.rmtree(self._folder, ignore_errors=True)

    def _note(self, what: str, detail: str = "") -> None:
        if what == "pid":
            pid, self._folder = detail.split(maxsplit=1)
            self._pid = int(pid)
        elif what == "exit":
            self.how = self.how or how_it_ended(int(detail))
        elif what == "limit":
            of_memory = f"memory limit of {gigabytes(self.memory)}"
            self.how = of_memory if detail == "memory" else f"process limit of {self.processes}"
        elif what in ("gone", "failed"):
            if what == "failed":
                self._failure = WorkersError(f"no process could be started: {detail}")
            self._gone = True
            self._to.server.outstanding -= 1

    def _settle(self) -> None:
        """Decides whether a process that no longer answers has died."""
        if not self._busy or (self._lost is None and not self._gone):
            return
        if not self._gone:
            # It closes its connections a moment before it has ended; one that lives on has lost its own.
            if time.monotonic() - (self._lost or 0.0) < 1.0 and not self.how:
                return
            self.how = self.how or "it closed its connection"
        while self._lost is None and not self._outcome and self._read_calls():
            pass
        self._busy = False

    def _result(self) -> Result:
        """A result that holds what has come until now."""
        seconds = 0.0 if self.begun is None else time.monotonic() - self.begun
        self._output.drain(self._to.output_fd)
        text, cut = self._output.text()
        return Result("", seconds=seconds, told=self._told, output=text, output_cut=cut)

    def _drop(self) -> None:
        self._closed = True
        self._to.close()


def attend(workers: Sequence[Worker], seconds: float) -> bool:
    """Takes in what busy workers send, for at most `seconds`. True as soon as one has ended its call."""
    until = time.monotonic() + seconds
    while True:
        busy = [worker for worker in workers if not worker.done]
        if len(busy) < len(workers):
            return True
        owners = {stream: worker for worker in busy for stream in worker._descriptors()}
        left = until - time.monotonic()
        if left <= 0:
            return False
        for stream in wait(list(owners), min(left, 0.1)):
            owners[stream]._attend(stream)
        for worker in busy:
            worker._settle()


def close_all(workers: Sequence[Worker]) -> None:
    """Closes several workers at once."""
    open_ones = [worker for worker in workers if not worker._closed]
    for worker in open_ones:
        worker._closed, worker._busy = True, False
        with contextlib.suppress(OSError):
            worker._to.status.send(b"close\n")
    for worker in open_ones:
        patience = time.monotonic() + START_SECONDS
        try:
            while not worker._gone and time.monotonic() < patience:
                wait([worker._to.status], 1.0)
                worker._read_status()
        finally:
            worker._drop()


_all_workers: weakref.WeakSet[Worker] = weakref.WeakSet()


def _forget_workers() -> None:
    for worker in list(_all_workers):
        worker._drop()


os.register_at_fork(after_in_child=_forget_workers)
