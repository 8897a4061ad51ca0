"""Calls in warm processes, and what becomes of them.

The first use starts a server process, which imports torch once and forks a worker for each request. This
process itself is never forked. Workers end when this process does, however it ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import secrets
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from socket import SHUT_WR, socket, socketpair
from typing import Any

import psutil

from course_utils.processes import client, limits, transport, tree
from course_utils.processes.client import ServerProcess, WorkersError
from course_utils.processes.result import Result
from course_utils.processes.streams import Output, pipe, read_burst
from course_utils.stacks import Position, Raised, parse_dump
from course_utils.words import gigabytes, how_it_ended

# Bytes that a worker may hold, with all that it has started.
MOST_MEMORY = min(8 << 30, psutil.virtual_memory().total // 2)
START_SECONDS = 120.0  # how long a worker may take to begin a call; importing torch is part of the first


class CannotSendError(TypeError):
    """A function or an argument cannot be sent to another process."""


class Worker(contextlib.AbstractContextManager):
    """One warm process. Several calls in a row run in the same process and find what earlier ones left.
    `preload` names modules to import before forking, for this worker and all later ones. `hand_over` are
    descriptors that the process gets copies of (`worker_process.handed_over`). `server`: the one that forks
    it, where that is not everybody's. `pid` is known once it has begun a call. Raises `WorkersError` when it
    cannot be asked for."""

    def __init__(
        self, preload: Sequence[str] = (), hand_over: Sequence[int] = (), server: ServerProcess | None = None
    ) -> None:
        self.server, self.memory = server or client.server(), MOST_MEMORY
        self.pid: int | None = None
        self.done, self.how = True, ""
        # When the call began in the process, or last told something, on the monotonic clock.
        self.begun: float | None = None
        self._owner = os.getpid()
        self.gone = False  # whether the process has ended, with all that it started, as far as is known here
        self._closed = self._server_ended = False
        self._lost: float | None = None  # since when it says nothing more
        self._in = bytearray()  # what has come and is not whole yet
        self._token = secrets.token_bytes(transport.TOKEN_BYTES)
        self._folder = str(Path(tempfile.gettempdir(), f"course-{secrets.token_hex(8)}"))
        pairs = [socketpair(), socketpair(), pipe(), pipe()]
        self._calls, self._status, self._printed, self._dump = self._ends = [here for here, _ in pairs]
        self._calls.setblocking(False)
        self._status.setblocking(False)
        request = {"token": self._token.hex(), "memory": self.memory, "folder": self._folder}
        try:
            fds = [there.fileno() for _, there in pairs]
            self.server.ask({**request, "preload": [*preload]}, [*fds, *hand_over])
        finally:
            for _, there in pairs:
                there.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, function: Callable[..., Any], *args: Any, deadline: float, **how: Any) -> Result:
        """Calls a function in the process and waits for it. `deadline`: seconds from its beginning, and again
        from each time that it tells something; `how`: the options of `begin`. After "timed out" or "died" the
        process and everything it had started are gone. Raises `CannotSendError` when the function or an
        argument cannot be sent there, `WorkersError` where it could not begin, or after `close`."""
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
        found = client.found_here(self.server.mark) if self.pid is None else None
        payload = pickle.dumps((found, sources, data, plain), protocol=pickle.HIGHEST_PROTOCOL)
        self._result, self._output = Result(""), Output(self._printed, on_output)
        self._plain, self._told_bytes, self._sent = plain, 0, time.monotonic()
        self.begun, self.done = None, False
        try:
            self._calls.settimeout(START_SECONDS)
            self._calls.sendall(transport.frame(self._token, transport.CALL, payload))
        except OSError:  # it has ended
            self._lost = time.monotonic()
        finally:
            self._calls.setblocking(False)

    def left(self, deadline: float) -> float:
        """Seconds until the call is past its deadline, of a machine as busy as it is now. Raises
        `WorkersError` when it could not even begin."""
        now = time.monotonic()
        if self.begun is not None:
            return self.begun + limits.stretched(deadline) - now
        if now - self._sent > START_SECONDS:
            self.close()
            raise WorkersError("the warm server did not answer")
        return min(deadline, 0.5)

    def finish(self) -> Result:
        """The result of a call that has ended."""
        if self._result.state:
            return self._complete()
        self._result.state = "died"
        result = self._complete()
        self.close()
        if self.pid is None:
            raise WorkersError(self.how)
        result.how, result.server_ended = self.how or "it ended without a result", self._server_ended
        return result

    def give_up(self, position: Position | None, how: str) -> Result:
        """Ends a call that takes too long, and the process with it. `position`: where it was; `how`: why."""
        result = self._complete()
        result.state, result.position, result.how = "timed out", position, how
        result.stopped = time.monotonic()
        self.close()
        return result

    def position(self, attempts: int = 3) -> Position | None:
        """Where the process is now; None where it does not say."""
        for _ in range(attempts):
            self._dump.read(1 << 16)
            self._read_status()
            # Until the server says that it has ended, the process id is that of no other process.
            if self.gone or self.pid is None:
                return None
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGUSR1)
            # The dump comes in many small writes, and nothing marks its end.
            if found := parse_dump(read_burst(self._dump)):
                return found
        return None

    def end(self) -> None:
        """Has the process and everything it has started killed, and does not wait for that."""
        if self._owner == os.getpid():  # and not a forked copy's
            with contextlib.suppress(OSError):  # closed, or the server is gone
                self._status.shutdown(SHUT_WR)

    def close(self) -> None:
        """Kills the process and everything it has started; returns when they are gone. May be repeated."""
        close_all([self])

    def _complete(self) -> Result:
        """The result, with what was printed until now."""
        result = self._result
        result.seconds = 0.0 if self.begun is None else time.monotonic() - self.begun
        self._output.drain()
        result.output, result.output_cut = self._output.text, self._output.cut
        return result

    def _streams(self) -> dict[Any, Callable[[], Any]]:
        """What it may be heard on, with what reads that."""
        streams: dict[Any, Callable[[], Any]] = {self._status: self._read_status}
        if self._lost is None:
            streams[self._calls] = self._read_calls
        if not self._output.ended:
            streams[self._printed] = self._output.read
        return streams

    def _read_calls(self) -> None:
        part = _read(self._calls)
        if part is None:
            return
        if not part:
            self._lost = time.monotonic()
        self._in += part
        try:
            for kind, payload in transport.frames(self._token, self._in):
                self._take(kind, payload)
        except Exception:  # whatever comes of bytes that an answer has sent
            self.how, self._lost = "what it sent back could not be read", 0.0

    def _take(self, kind: bytes, payload: bytes) -> None:
        if kind == transport.RESULT:
            line, _, content = payload.partition(b"\n")
            self._take_end(json.loads(line), content)
            self.done = True
            return
        self.begun = time.monotonic()
        if kind == transport.STARTED:
            self.pid = int(payload)
            return
        self._told_bytes += len(payload)
        if self._told_bytes > transport.MOST_TOLD:
            raise ValueError("it tells too much")
        self._result.told.append(json.loads(payload))

    def _take_end(self, ended: dict[str, Any], content: bytes) -> None:
        result = self._result
        if ended["error"]:
            result.error, result.state = Raised.of_plain(ended["error"]), "raised"
            result.how = f"memory limit of {gigabytes(self.memory)}" if ended["of_memory"] is True else ""
            return
        result.state = "returned"
        if not self._plain:
            try:
                transport.install_sources(ended["sources"])
                result.value = pickle.loads(content)
            except Exception as error:
                kind = type(error).__name__
                result.error = Raised(kind, f"its result could not be read: {kind}: {error}")
                result.state = "raised"

    def _read_status(self) -> None:
        part = _read(self._status)
        if part is None or self.gone:
            return
        for line in part.decode().splitlines():  # each was sent whole
            what, _, detail = line.partition(" ")
            if what == "exit":
                self.how = self.how or how_it_ended(int(detail))
            elif what == "gone":
                self.gone = True
                self.server.outstanding -= 1
            else:  # the limit that it is beyond, or why it is not there
                self.how = detail
        if not part and not self.gone:
            self.gone = self._server_ended = True
            self.how = self.server.epitaph()
            self.server.clear_up(self.pid)
            shutil.rmtree(self._folder, ignore_errors=True)

    def _notice_death(self) -> None:
        """Ends the call of a process that no longer answers. It closes its connections a moment before it has
        ended, and how it ended may be told late; one that lives on has lost its own."""
        silent = self.gone and not wait([self._calls], 0)  # also where what it has started kept them open
        if silent or (self._lost is not None and (self.how or self._lives_on())):
            self.how = self.how or "it closed its connection"
            self.done = True

    def _lives_on(self) -> bool:
        """Whether it has long been silent and has not ended: the server has no status to tell."""
        return time.monotonic() - self._lost > 1.0 and self.pid is not None and not tree.is_ending(self.pid)


def attend(workers: Sequence[Worker], seconds: float) -> bool:
    """Takes in what these workers send, for at most `seconds`. True as soon as one has ended its call."""
    until = time.monotonic() + seconds
    while not any(worker.done for worker in workers):
        left = until - time.monotonic()
        if left <= 0:
            return False
        streams = {stream: read for worker in workers for stream, read in worker._streams().items()}
        for stream in wait(streams, min(left, 0.1)):
            streams[stream]()
        for worker in workers:
            worker._notice_death()
    return True


def close_all(workers: Sequence[Worker]) -> None:
    """Closes several workers at once."""
    open_ones = [worker for worker in workers if not worker._closed]
    for worker in open_ones:
        worker.end()
    for worker in open_ones:
        try:
            patience = time.monotonic() + START_SECONDS
            while not worker.gone and time.monotonic() < patience:
                worker.server.wake()
                wait([worker._status], 1.0)
                worker._read_status()
        finally:
            worker._closed = worker.done = True
            for end in worker._ends:
                end.close()


_one_at_a_time = threading.Lock()


def tried_again(attempt: Callable[[ServerProcess | None], list[Result]]) -> list[Result]:
    """What `attempt` gives, called with None. Whatever runs below the server of all may end it: then it is
    called once more, with a server of its own. Who ends that one has done it itself."""
    with contextlib.suppress(WorkersError):
        results = attempt(None)
        if not any(result.server_ended for result in results):
            return results
    with _one_at_a_time:
        own = ServerProcess()
        try:
            return attempt(own)
        finally:
            own.stop()


def _read(connection: socket) -> bytes | None:
    """What is there; None where nothing is, no bytes where the other end is gone."""
    try:
        return connection.recv(1 << 20)
    except BlockingIOError:
        return None
    except OSError:
        return b""
