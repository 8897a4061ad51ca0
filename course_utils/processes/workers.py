"""Warm processes: code that may hang, crash or fill memory runs in one, and never here.

The first use (or `warm_up`) starts a server process, which imports torch once and forks a worker for each
request. This process itself is never forked. Workers end when this process does, however it ends.
"""

from __future__ import annotations

import atexit
import codecs
import contextlib
import functools
import json
import os
import pickle
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psutil

from course_utils.processes import transport, tree
from course_utils.processes.stacks import Position, Raised, parse_dump

KEPT_OUTPUT = 64 * 1024  # bytes of what a call prints that are kept; the rest is counted
MOST_TOLD = 4 << 20  # bytes that a call may tell before it ends
MOST_PROCESSES = 64
START_SECONDS = 120.0  # how long a worker may take to begin a call; importing torch is part of the first
SERVER_ENDED = "the warm server"  # with what befell it: why a worker died that had done nothing
T = TypeVar("T")
MARK = "COURSE_WORKERS"  # in the environment of a server and of everything under it


class WorkersError(RuntimeError):
    """A warm process could not be started, or is used after it was closed."""


class NeverStartedError(WorkersError):
    """The server ended before it had forked the worker."""


class CannotSendError(TypeError):
    """A function or an argument cannot be sent to another process."""


@dataclass
class Result:
    """How a call ended.

    `state` is "returned" (see `value`), "raised" (see `error`), "timed out" (see `position`, None where
    it could not be found) or "died". `told`: the plain data that came before the end (`worker_process.tell`).
    `how` says how it died, why it was stopped, or which limit made it raise. `output` is what was printed, at
    most its first 64 KiB; `output_cut` is the number of bytes that came after them.
    """

    state: str
    value: Any = None
    told: list[Any] = field(default_factory=list)
    error: Raised | None = None
    how: str = ""
    position: Position | None = None
    output: str = ""
    output_cut: int = 0
    seconds: float = 0.0

    def describe(self) -> str:
        """What became of it, as the end of a sentence: `raised ValueError: no`, `has returned`."""
        if self.state == "returned":
            return "has returned"
        if self.state == "raised":
            return f"raised {self.error}"
        if self.state == "died":
            return f"died: {self.how}"
        return self.position.describe() if self.position else "did not say where it was"


def default_memory() -> int:
    """Bytes that a worker may hold: 8 GiB, or half of the machine's memory where that is less."""
    return min(8 << 30, psutil.virtual_memory().total // 2)


def isolated(
    function: Callable[..., Any],
    *args: Any,
    deadline: float,
    memory: int | None = None,
    processes: int = MOST_PROCESSES,
    preload: Sequence[str] = (),
    on_output: Callable[[str], None] | None = None,
) -> Result:
    """One call in a fresh process, of which nothing is left when this returns.

    `deadline` is in seconds from the moment the call begins; the limits and `preload` are those of `Worker`.
    Raises `CannotSendError` when the function or an argument cannot be sent to another process,
    `WorkersError` when no process could be started.
    """

    def attempt() -> Result:
        with Worker(memory=memory, processes=processes, preload=preload) as worker:
            return worker.call(function, *args, deadline=deadline, on_output=on_output)

    return once_more(attempt)


def once_more(attempt: Callable[[], T]) -> T:
    """Tries again where the server was killed before it had done anything."""
    try:
        return attempt()
    except NeverStartedError:
        return attempt()


def warm_up() -> None:
    """Starts the server in the background; returns at once. Does nothing inside a warm process."""
    if MARK not in os.environ:
        _server()


def shut_down() -> None:
    """Ends the server and every worker."""
    global _current
    with _lock:
        server, _current = _current, None
    if server is not None:
        server.stop()


class Worker:
    """One warm process. Several calls in a row run in the same process and find what earlier ones left.

    `memory` is in bytes, for the process and all that it starts together; `processes` is how many those may
    be. `preload` names modules to import before forking, for this worker and all later ones. `hand_over`
    are descriptors that the process gets copies of (`worker_process.handed_over`).
    """

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
        self._gone = False
        self._fresh = True
        self._closed = False
        self._lock = threading.Lock()
        self._token = secrets.token_bytes(transport.TOKEN_BYTES)
        self._status_in = bytearray()
        self._call_in = bytearray()
        self._begun: float | None = None
        self._busy = False
        self._lost: float | None = None
        self._outcome: tuple[Any, ...] | None = None
        self._output = _Output(None)
        self._request(tuple(preload), tuple(hand_over))
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
            _wait([self._status], 0.5)
            self._read_status()
        if self._pid is None:
            raise NeverStartedError(self.how)
        return self._pid

    def call(
        self,
        function: Callable[..., Any],
        *args: Any,
        deadline: float,
        on_output: Callable[[str], None] | None = None,
        plain: bool = False,
    ) -> Result:
        """Calls a function in the process and waits for it.

        `deadline`: seconds from its beginning, and again from each time that it tells something. `plain`:
        only what it tells is wanted, and nothing that it returns is unpickled here. After "timed out" or
        "died" the process and everything it had started are gone. Raises `CannotSendError` when the function
        or an argument cannot be sent there, `WorkersError` after `close`.
        """
        with self._lock:
            self.begin(function, *args, on_output=on_output, plain=plain)
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
        """Sends a call without waiting for it."""
        if self._closed:
            raise WorkersError("this worker has been closed")
        try:
            data, sources = transport.dumps((function, args))
        except Exception as error:
            raise CannotSendError(f"this cannot be sent to another process: {error}") from error
        setup = _setup() if self._fresh else None
        self._fresh = False
        payload = pickle.dumps((setup, sources, data, plain), protocol=pickle.HIGHEST_PROTOCOL)
        self._output = _Output(on_output)
        self._begun, self._outcome, self._busy, self._plain = None, None, True, plain
        self._told: list[Any] = []
        self._told_bytes = 0
        self._sent = time.monotonic()
        try:
            self._calls.settimeout(START_SECONDS)
            self._calls.sendall(transport.frame(self._token, transport.CALL, payload))
        except OSError:
            self._lost = time.monotonic()
        finally:
            self._calls.setblocking(False)

    @property
    def done(self) -> bool:
        """Whether the call has ended."""
        return not self._busy

    @property
    def alive(self) -> bool:
        """Whether the process has not ended yet, as far as is known here."""
        return not self._closed and not self._gone

    @property
    def begun(self) -> float | None:
        """When the call began in the process, on the monotonic clock; None while it has not."""
        return self._begun

    def left(self, deadline: float) -> float:
        """Seconds until the call is past its deadline. Raises `WorkersError` when it could not even begin."""
        now = time.monotonic()
        if self._begun is None:
            if now - self._sent > START_SECONDS:
                self.close()
                raise WorkersError("the warm server did not answer")
            return min(deadline, 0.5)
        return self._begun + deadline - now

    def finish(self) -> Result:
        """The result of a call that has ended."""
        seconds = 0.0 if self._begun is None else time.monotonic() - self._begun
        self._output.drain(self._output_fd)
        if self._outcome is None:
            self.close()
            if self._pid is None:
                raise self._failure or NeverStartedError(self.how)
            return self._result("died", seconds, how=self.how or "it ended without a result")
        ended, content = self._outcome
        if ended["state"] == "raised":
            how = f"memory limit of {_gigabytes(self.memory)}" if ended["of_memory"] is True else ""
            return self._result("raised", seconds, error=ended["error"], how=how)
        if self._plain:
            return self._result("returned", seconds)
        try:
            transport.install_sources(ended["sources"])
            value = transport.loads(content)
        except Exception as error:
            what = f"its result could not be read: {type(error).__name__}: {error}"
            return self._result("raised", seconds, error=Raised(type(error).__name__, what, text=what))
        return self._result("returned", seconds, value=value)

    def give_up(self, position: Position | None, how: str) -> Result:
        """Ends a call that takes too long, and the process with it. `position`: where it was; `how`: why."""
        seconds = 0.0 if self._begun is None else time.monotonic() - self._begun
        self._output.drain(self._output_fd)
        self.close()
        return self._result("timed out", seconds, position=position, how=how)

    def position(self, attempts: int = 3) -> Position | None:
        """Where the process is now; None where it does not say."""
        for _ in range(attempts):
            _read_available(self._dump_fd)
            self._read_status()
            # Until the server says that it has ended, the process id is that of no other process.
            if not self.alive or self._pid is None:
                return None
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGUSR1)
            text = bytearray()
            # The dump comes in many small writes, and nothing marks its end.
            while _wait([self._dump_fd], 0.02 if text else 0.5):
                part = _read_available(self._dump_fd)
                if not part:
                    return parse_dump(text.decode(errors="replace"))
                text += part
            if found := parse_dump(text.decode(errors="replace")):
                return found
        return None

    def close(self) -> None:
        """Kills the process and everything it has started; returns when they are gone. May be repeated."""
        close_all([self])

    def _ask_to_close(self) -> None:
        self._closed = True
        self._busy = False
        with contextlib.suppress(OSError):
            self._status.send(b"close\n")

    def _await_end(self) -> None:
        patience = time.monotonic() + START_SECONDS
        try:
            while not self._gone and time.monotonic() < patience:
                _wait([self._status], 1.0)
                self._read_status()
        finally:
            self._drop()

    def _request(self, preload: tuple[str, ...], hand_over: tuple[int, ...]) -> None:
        ends = []
        try:
            self._calls, calls = socket.socketpair()
            self._status, status = socket.socketpair()
            ends += [calls.detach(), status.detach()]
            self._output_fd, output = os.pipe()
            self._dump_fd, dump = os.pipe()
            ends += [output, dump]
            for fd in (self._output_fd, self._dump_fd):
                os.set_blocking(fd, False)
            self._calls.setblocking(False)
            self._status.setblocking(False)
            request = {
                "token": self._token.hex(),
                "memory": self.memory,
                "processes": self.processes,
                "address_space": 0 if _has_cuda() else self.memory,
                "preload": preload,
            }
            self._server = _server_for(request, [*ends, *hand_over])
        finally:
            for fd in ends:
                os.close(fd)

    def _descriptors(self) -> list[Any]:
        streams: list[Any] = [self._status]
        if self._lost is None:
            streams.append(self._calls)
        if not self._output.ended:
            streams.append(self._output_fd)
        return streams

    def _attend(self, ready: Any) -> None:
        if ready is self._status:
            self._read_status()
        elif ready is self._calls:
            self._read_calls()
        else:
            self._output.read(self._output_fd)

    def _read_calls(self) -> None:
        try:
            part = self._calls.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        if not part:
            self._lost = self._lost or time.monotonic()
            return
        self._call_in += part
        while len(self._call_in) >= transport.HEADER_BYTES:
            try:
                header = bytes(self._call_in[: transport.HEADER_BYTES])
                kind, length = transport.read_header(self._token, header)
                if len(self._call_in) < transport.HEADER_BYTES + length:
                    return
                payload = bytes(self._call_in[transport.HEADER_BYTES : transport.HEADER_BYTES + length])
                del self._call_in[: transport.HEADER_BYTES + length]
                if kind == transport.RESULT:
                    self._outcome = _read_result(payload)
                    self._busy = False
                    continue
                self._begun = time.monotonic()
                if kind == transport.PART:
                    self._told_bytes += length
                    if self._told_bytes > MOST_TOLD:
                        raise transport.GarbledError
                    self._told.append(json.loads(payload))
            except Exception:
                self.how = "what it sent back could not be read"
                self._lost = 0.0
                return

    def _read_status(self) -> None:
        try:
            part = self._status.recv(4096)
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
            self.how = self._server.epitaph()
            self._server.clear_up(self._pid)
            if self._folder:
                shutil.rmtree(self._folder, ignore_errors=True)

    def _note(self, what: str, detail: str = "") -> None:
        if what == "pid":
            pid, self._folder = detail.split(maxsplit=1)
            self._pid = int(pid)
        elif what == "exit":
            self.how = self.how or how_it_ended(int(detail))
        elif what == "limit":
            of_memory = f"memory limit of {_gigabytes(self.memory)}"
            self.how = of_memory if detail == "memory" else f"process limit of {self.processes}"
        elif what == "gone":
            self._end_of_life()
        elif what == "failed":
            self._failure = WorkersError(f"no process could be started: {detail}")
            self._end_of_life()

    def _end_of_life(self) -> None:
        self._gone = True
        self._server.outstanding -= 1

    def _settle(self) -> None:
        """Decides whether a process that no longer answers has died."""
        if not self._busy or (self._lost is None and not self._gone):
            return
        if not self._gone:
            # It closes its connections a moment before it has ended; one that lives on has lost its own.
            if time.monotonic() - (self._lost or 0.0) < 1.0 and not self.how:
                return
            self.how = self.how or "it closed its connection"
        self._read_rest()
        self._busy = False

    def _read_rest(self) -> None:
        while self._lost is None and not self._outcome:
            before = len(self._call_in), self._begun
            self._read_calls()
            if (len(self._call_in), self._begun) == before:
                return

    def _result(self, state: str, seconds: float, **known: Any) -> Result:
        text, cut = self._output.text()
        return Result(state, seconds=seconds, told=self._told, output=text, output_cut=cut, **known)

    def _drop(self) -> None:
        self._closed = True
        for end in (self._calls, self._status):
            end.close()
        for name in ("_output_fd", "_dump_fd"):
            fd = getattr(self, name)
            if fd >= 0:
                setattr(self, name, -1)
                os.close(fd)


def _read_result(payload: bytes) -> tuple[dict[str, Any], bytes]:
    line, _, content = payload.partition(b"\n")
    ended = json.loads(line)
    if ended["state"] == "raised":
        ended["error"] = Raised.of_plain(ended["error"])
    return ended, content


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
        for stream in _wait(list(owners), min(left, 0.1)):
            owners[stream]._attend(stream)
        for worker in busy:
            worker._settle()


def close_all(workers: Sequence[Worker]) -> None:
    """Closes several workers at once."""
    open_ones = [worker for worker in workers if not worker._closed]
    for worker in open_ones:
        worker._ask_to_close()
    for worker in open_ones:
        worker._await_end()


class _Output:
    """What a call prints: the beginning is kept, the rest is counted."""

    def __init__(self, listener: Callable[[str], None] | None) -> None:
        self.listener = listener
        self.ended = False
        self._kept: list[str] = []
        self._room = KEPT_OUTPUT
        self._cut = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def read(self, fd: int) -> bool:
        """Takes in what is there. False: nothing is."""
        try:
            part = os.read(fd, 1 << 16)
        except BlockingIOError:
            return False
        except OSError:
            part = b""
        if not part:
            self.ended = True
            return False
        kept = part[: self._room]
        self._room -= len(kept)
        self._cut += len(part) - len(kept)
        text = self._decoder.decode(kept)
        if text:
            self._kept.append(text)
            if self.listener is not None:
                self.listener(text)
        return True

    def drain(self, fd: int) -> None:
        """Takes in what has been printed until now, but no more than a pipe can hold."""
        for _ in range(64):
            if self.ended or fd < 0 or not self.read(fd):
                return

    def text(self) -> tuple[str, int]:
        """What was kept, and how many bytes were not."""
        return "".join(self._kept), self._cut


class _Server:
    """The server process of this client."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.control, theirs = socket.socketpair()
        self.mark = secrets.token_hex(8)
        # Workers asked for and not yet known to be gone.
        self.outstanding = 0
        self._lock = threading.Lock()
        self._epitaph = ""
        root = str(Path(__file__).parent.parent.parent)
        code = (
            f"import sys; sys.path.insert(0, {root!r}); from course_utils.processes import worker_server; "
            f"worker_server.main({theirs.fileno()}, {self.owner})"
        )
        environment = {
            **os.environ,
            MARK: self.mark,
            # A pool of threads in the server would not survive its forks.
            "OPENBLAS_NUM_THREADS": "1",
            "OBJC_DISABLE_INITIALIZE_FORK_SAFETY": "YES",
        }
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", code],
                pass_fds=[theirs.fileno()],
                env=environment,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    @property
    def usable(self) -> bool:
        """Whether it is ours (not a forked copy's) and runs."""
        return self.owner == os.getpid() and self.process.poll() is None

    def ask(self, request: dict[str, Any], descriptors: list[int]) -> None:
        """Asks for a worker. Raises `OSError` when the server is gone."""
        message = json.dumps(request).encode()
        with self._lock:
            data = len(message).to_bytes(4, "big") + message
            sent = socket.send_fds(self.control, [data], descriptors)
            if sent < len(data):
                self.control.sendall(data[sent:])
            self.outstanding += 1

    def epitaph(self) -> str:
        """Why it is gone, as far as it said so."""
        with self._lock:
            if not self._epitaph:
                said = b""
                with contextlib.suppress(OSError):
                    self.control.setblocking(False)
                    said = self.control.recv(1 << 16)
                last = said.decode(errors="replace").strip().splitlines()[-1:]
                self._epitaph = f"{SERVER_ENDED} failed: {last[0]}" if last else f"{SERVER_ENDED} was ended"
            return self._epitaph

    def clear_up(self, worker_pid: int | None) -> None:
        """After the server's death: ends what a worker had started. The worker itself has died with it."""
        patience = time.monotonic() + 10.0
        while time.monotonic() < patience:
            left = [pid for pid in psutil.pids() if _is_marked(pid, self.mark) and pid != self.process.pid]
            if worker_pid is not None:
                left += tree.in_sessions({worker_pid})
            if not tree.alive(left):
                return
            tree.kill_tree(left)
            time.sleep(0.01)

    def stop(self) -> None:
        """Ends it; returns when it is gone."""
        self.control.close()
        if self.owner != os.getpid():
            return
        if self.outstanding == 0:
            self.process.kill()  # it has nothing to clear up, and may be busy with an import
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


_lock = threading.RLock()
_current: _Server | None = None
# In a forked copy: its parent's server. Kept, so that nothing waits for a process that is not a child.
_not_ours: list[_Server] = []
_all_workers: weakref.WeakSet[Worker] = weakref.WeakSet()


def _server() -> _Server:
    global _current
    with _lock:
        if _current is None or not _current.usable:
            _current = _Server()
        return _current


def _server_for(request: dict[str, Any], descriptors: list[int]) -> _Server:
    """Asks for a worker; a server that has been killed is replaced."""
    for attempt in range(2):
        server = _server()
        try:
            server.ask(request, descriptors)
        except OSError:
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.process.wait(5)
            if attempt:
                raise WorkersError(server.epitaph()) from None
        else:
            return server
    raise AssertionError("unreachable")


def _forget_parent() -> None:
    """In a forked copy of this process: the server and the workers are not ours."""
    global _current, _lock
    _lock = threading.RLock()
    if _current is not None:
        _current.control.close()
        _not_ours.append(_current)
        _current = None
    for worker in list(_all_workers):
        worker._drop()


os.register_at_fork(after_in_child=_forget_parent)
atexit.register(shut_down)


def _setup() -> dict[str, Any]:
    """What a worker takes over from this process, so that it finds what is found here."""
    try:
        folder = os.getcwd()  # noqa: PTH109
    except OSError:
        folder = "/"
    return {
        "path": list(sys.path),
        "environment": {**os.environ, MARK: _current.mark if _current else "1"},
        "recursion_limit": sys.getrecursionlimit(),
        "folder": folder,
    }


@functools.cache
def _has_cuda() -> bool:
    # A limit on the address space would keep CUDA from starting: it reserves far more than it uses.
    torch = sys.modules.get("torch")
    return Path("/dev/nvidiactl").exists() if torch is None else torch.version.cuda is not None


def _wait(streams: list[Any], seconds: float) -> list[Any]:
    """Those of these sockets and descriptors that can be read, after at most `seconds`."""
    by_fd = {stream if isinstance(stream, int) else stream.fileno(): stream for stream in streams}
    poll = select.poll()
    for fd in by_fd:
        if fd >= 0:
            poll.register(fd, select.POLLIN)
    return [by_fd[fd] for fd, _ in poll.poll(max(0.0, seconds) * 1000)]


def _read_available(fd: int) -> bytes:
    try:
        return os.read(fd, 1 << 16)
    except OSError:
        return b""


def how_it_ended(code: int) -> str:
    """An exit code, as `os.waitstatus_to_exitcode` gives it, in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"signal {-code}"


def _gigabytes(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"


def _is_marked(pid: int, mark: str) -> bool:
    try:
        return psutil.Process(pid).environ().get(MARK) == mark
    except psutil.Error:
        return False
