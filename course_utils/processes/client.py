"""The server of this process: started at the first use, asked for workers, ended at exit; and what a new
worker is given: its connections, its limits, what it finds as it is here."""

import atexit
import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import psutil

from course_utils.processes import tree

SERVER_ENDED = "the warm server"  # with what befell it: why a worker died that had done nothing
MARK = "COURSE_WORKERS"  # in the environment of a server and of everything under it
T = TypeVar("T")


class WorkersError(RuntimeError):
    """A warm process could not be started, or is used after it was closed."""


class NeverStartedError(WorkersError):
    """The server ended before it had forked the worker."""


def warm_up() -> None:
    """Starts the server in the background; returns at once. Does nothing inside a warm process."""
    if MARK not in os.environ:
        server()


def shut_down() -> None:
    """Ends the server and every worker."""
    global current
    with _lock:
        old, current = current, None
    if old is not None:
        old.stop()


def once_more(attempt: Callable[[], T]) -> T:
    """Tries again where the server was killed before it had done anything."""
    try:
        return attempt()
    except NeverStartedError:
        return attempt()


class Server:
    """The server process of this client."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.control, theirs = socket.socketpair()
        self.mark = secrets.token_hex(8)
        self.outstanding = 0  # workers asked for and not yet known to be gone
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
            quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
            command, passed = [sys.executable, "-P", "-c", code], [theirs.fileno()]
            options = {"env": environment, "cwd": "/", "start_new_session": True, **quiet}
            self.process = subprocess.Popen(command, pass_fds=passed, **options)

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
            left = [pid for pid in psutil.pids() if is_marked(pid, self.mark) and pid != self.process.pid]
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
current: Server | None = None
# In a forked copy: its parent's server. Kept, so that nothing waits for a process that is not a child.
_not_ours: list[Server] = []


def server() -> Server:
    global current
    with _lock:
        if current is None or not current.usable:
            current = Server()
        return current


def ask(request: dict[str, Any], descriptors: list[int]) -> Server:
    """Asks for a worker; a server that has been killed is replaced."""
    for _ in range(2):
        asked = server()
        try:
            asked.ask(request, descriptors)
            return asked
        except OSError:
            with contextlib.suppress(subprocess.TimeoutExpired):
                asked.process.wait(5)
    raise WorkersError(asked.epitaph())


def _forget_parent() -> None:
    """In a forked copy of this process: the server and the workers are not ours."""
    global current, _lock
    _lock = threading.RLock()
    if current is not None:
        current.control.close()
        _not_ours.append(current)
        current = None


os.register_at_fork(after_in_child=_forget_parent)
atexit.register(shut_down)


def is_marked(pid: int, mark: str) -> bool:
    """Whether the process was started below the server with this mark."""
    try:
        return psutil.Process(pid).environ().get(MARK) == mark
    except psutil.Error:
        return False


class Connection:
    """This process's ends of what leads to a worker; `server` is the one that was asked for it."""

    def __init__(
        self, token: bytes, memory: int, processes: int, preload: tuple[str, ...], hand_over: tuple[int, ...]
    ) -> None:
        self.output_fd = self.dump_fd = -1
        self.calls, calls = socket.socketpair()
        self.status, status = socket.socketpair()
        ends = [calls.detach(), status.detach()]
        try:
            self.output_fd, output = os.pipe()
            self.dump_fd, dump = os.pipe()
            ends += [output, dump]
            for fd in (self.output_fd, self.dump_fd):
                os.set_blocking(fd, False)
            self.calls.setblocking(False)
            self.status.setblocking(False)
            request = {"token": token.hex(), "memory": memory, "processes": processes, "preload": preload}
            self.server = ask(request, [*ends, *hand_over])
        except BaseException:
            self.close()
            raise
        finally:
            for fd in ends:
                os.close(fd)

    def close(self) -> None:
        """Closes this process's ends. May be repeated."""
        for end in (self.calls, self.status):
            end.close()
        pipes, self.output_fd, self.dump_fd = (self.output_fd, self.dump_fd), -1, -1
        for fd in pipes:
            if fd >= 0:
                os.close(fd)


def default_memory() -> int:
    """Bytes that a worker may hold: 8 GiB, or half of the machine's memory where that is less."""
    return min(8 << 30, psutil.virtual_memory().total // 2)


def found_here() -> dict[str, Any]:
    """What a worker takes over from this process, so that it finds what is found here."""
    try:
        folder = str(Path.cwd())
    except OSError:
        folder = "/"
    return {
        "path": list(sys.path),
        "environment": {**os.environ, MARK: current.mark if current else "1"},
        "recursion_limit": sys.getrecursionlimit(),
        "folder": folder,
    }
