"""The server of this process: started at the first use, asked for workers, ended at exit; and what a worker
takes over from this process."""

import atexit
import contextlib
import functools
import getpass
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from course_utils.processes import tree

MARK = "COURSE_WORKERS"  # in the environment of a server and of everything under it


class WorkersError(RuntimeError):
    """A warm process could not be started, or is used after it was closed."""


class ServerProcess:
    """A warm server of this process's (`forkserver`)."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.control, theirs = socket.socketpair()
        self.mark = secrets.token_hex(8)
        self.outstanding = 0  # workers asked for and not yet known to be gone
        self._lock = threading.Lock()
        root = str(Path(__file__).parent.parent.parent)
        code = (
            f"import sys; sys.path.insert(0, {root!r}); from course_utils.processes import forkserver; "
            f"forkserver.main({theirs.fileno()}, {self.owner})"
        )
        environment = {**os.environ, MARK: self.mark, "OBJC_DISABLE_INITIALIZE_FORK_SAFETY": "YES"}
        environment["OPENBLAS_NUM_THREADS"] = "1"  # a pool of threads would not survive the server's forks
        with theirs:
            quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
            command, passed = [sys.executable, "-P", "-c", code], [theirs.fileno()]
            options = {"env": environment, "cwd": "/", "start_new_session": True, **quiet}
            self.process = subprocess.Popen(command, pass_fds=passed, **options)

    def ask(self, request: dict[str, Any], descriptors: list[int]) -> None:
        """Asks for a worker. Raises `WorkersError` when the server is gone."""
        message = json.dumps(request).encode()
        data = len(message).to_bytes(4, "big") + message
        self.wake()
        try:
            with self._lock:
                sent = socket.send_fds(self.control, [data], descriptors)
                self.control.sendall(data[sent:])
                self.outstanding += 1
        except OSError as error:
            raise WorkersError(self.epitaph()) from error

    def wake(self) -> None:
        """Lets it go on where something that was forked from it has stopped it."""
        self.process.send_signal(signal.SIGCONT)

    def epitaph(self) -> str:
        """Why it is gone, as far as it said so."""
        said = b""
        with contextlib.suppress(OSError):  # it said nothing
            said = self.control.recv(1 << 16, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        last = said.decode(errors="replace").strip().splitlines()[-1:]
        return "the warm server " + (f"failed: {last[0]}" if last else "was ended")

    def clear_up(self, worker_pid: int | None) -> None:
        """After the server's death: ends what a worker had started. The worker itself has died with it."""
        patience, found = time.monotonic() + 10.0, set()
        while time.monotonic() < patience:
            left = [pid for pid in psutil.pids() if is_marked(pid, self.mark) and pid != self.process.pid]
            left += tree.in_sessions({worker_pid} - {None})
            tree.kill_tree(left)
            found.update(left)  # the mark of one that is ending can no longer be read
            if not tree.alive(found):
                return
            time.sleep(0.01)

    def stop(self) -> None:
        """Ends it; returns when it is gone."""
        self.control.close()
        if self.owner != os.getpid():
            return
        if self.outstanding == 0:
            self.process.kill()  # it has nothing to clear up, and may be busy with an import
        self.wake()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


current: ServerProcess | None = None
_lock = threading.RLock()


def server() -> ServerProcess:
    """The server of this process. One that has been killed is replaced."""
    global current
    with _lock:
        # A copy of this process, forked from it, has a server of its own too.
        if current is None or current.owner != os.getpid() or current.process.poll() is not None:
            current = ServerProcess()
        return current


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


# In a forked copy of this process whoever held the lock would not be: so nobody does meanwhile.
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
atexit.register(shut_down)


def is_marked(pid: int, mark: str) -> bool:
    """Whether the process was started below the server with this mark."""
    return mark in tree.of_each([pid], lambda process: process.environ().get(MARK))


def found_here(mark: str) -> dict[str, Any]:
    """What a worker takes over from this process, so that it finds what is found here."""
    try:
        folder = str(Path.cwd())
    except OSError:
        folder = "/"
    environment = {**os.environ, MARK: mark}
    environment.setdefault("TORCHINDUCTOR_CACHE_DIR", _compiler_cache(environment.get("TMPDIR", "/tmp")))
    limit = sys.getrecursionlimit()
    return {"path": [*sys.path], "environment": environment, "recursion_limit": limit, "folder": folder}


@functools.cache
def _compiler_cache(temporary: str) -> str:
    """Where torch keeps what it has compiled when it is not in a warm process. In a worker's own temporary
    folder it would be gone with the worker, and each first use of the compiler would take ten seconds."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may have no name for its user
        user = f"uid_{os.getuid()}"
    return str(Path(temporary, f"torchinductor_{user}"))
