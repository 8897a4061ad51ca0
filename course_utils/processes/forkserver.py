"""The warm server: a process that has torch imported and forks a worker whenever one is asked for.

It runs no operator of torch, starts no thread and does not touch a GPU, so that its forks are sound. It
watches over its workers: their memory, their number of processes, their end. When its client is gone, or
says that it is done with a worker, it kills the worker and everything that the worker has started.

The client asks over the control connection, one message for each worker, with the descriptors that the
worker gets. About this worker they then speak over a status connection of its own: the server writes
`failed REASON`, `exit STATUS` or `limit WHICH`, and at last `gone`; the client closes it.
"""

import contextlib
import gc
import importlib
import json
import math
import os
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from course_utils import torch_private
from course_utils.processes import huge_pages, limits, tree, worker_process
from course_utils.words import gigabytes

# Imported before the first worker is forked, and what is imported later, when nobody wants anything: what
# the first DistributedDataParallel or torch.compile of a process waits for, in steps of less than a second.
FIRST = ("torch", "torch.distributed", "numpy.random", "course_utils.processes.ranks")
WHEN_IDLE = (torch_private.SYMBOLIC_SHAPES, torch_private.DYNAMO, torch_private.COMPILE_FX)
IDLE_SECONDS = 0.3
# Forks after which even a server without idle time makes itself cheaper to fork: it takes half a second, and
# about so many forks to earn that back.
BUSY_FORKS = 60

MOST_PROCESSES = 64  # that a worker may be, with all that it has started
LOOK_EVERY = 0.05  # seconds between two looks at the workers' memory and processes
SWEEP_EVERY = 0.002  # seconds between two looks for what a dead worker left

_missing: set[str] = set()  # modules that there are not, and that need not be looked for again


@dataclass
class Child:
    """A worker as the server sees it. `died`: when, on the monotonic clock."""

    pid: int
    status: socket.socket
    memory: int
    folder: Path
    ended_by_us: bool = False
    died: float | None = None


class Forkserver:
    """Serves one client over `control` until it is gone."""

    def __init__(self, control: socket.socket, client_pid: int) -> None:
        self.control, self.client_pid = control, client_pid
        self.children: dict[int, Child] = {}
        self.when_idle = [*(partial(warm, [name]) for name in WHEN_IDLE), huge_pages.gather]
        self.forks = 0  # since the last import
        self.reaps_orphans = worker_process.set_child_subreaper()
        self.last_look = self.last_request = time.monotonic()
        self.wakeup, self._signalled = socket.socketpair()  # can be read when a child has ended
        self._signalled.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._signalled.fileno(), warn_on_full_buffer=False)

    def serve(self) -> None:
        """Returns when the client is gone and everything it had started is too."""
        warm(FIRST)
        worker_process.prepare()
        while os.getppid() == self.client_pid and self._answer():
            self._sweep()
            self._enforce_limits()
            # Not while there is a worker: its limits and its end want our attention.
            idle = not self.children and time.monotonic() - self.last_request > IDLE_SECONDS
            if idle and self.when_idle:
                self.when_idle.pop(0)()
        for child in self._living():
            self._end(child)
        while self.children:
            self._sweep()
            time.sleep(SWEEP_EVERY)

    def _living(self) -> list[Child]:
        return [child for child in self.children.values() if child.died is None and not child.ended_by_us]

    def _answer(self) -> bool:
        """Waits for something to do, and does what is asked. False: the client is gone."""
        living = {child.status: child for child in self._living()}
        dying = any(child.died is not None for child in self.children.values())
        seconds = SWEEP_EVERY if dying else LOOK_EVERY if self.children else IDLE_SECONDS
        for stream in wait([self.control, self.wakeup, *living], seconds):
            if stream is self.control:
                if not self._take_request():
                    return False
            elif stream is self.wakeup:
                self.wakeup.recv(4096)
            else:  # the client is done with this worker
                self._end(living[stream])
        return True

    def _take_request(self) -> bool:
        """Forks the worker that the client asks for. False: the client is gone."""
        data, size = b"", 0
        with contextlib.suppress(OSError):
            length, fds, _, _ = socket.recv_fds(self.control, 4, 16)
            size = int.from_bytes(length, "big")
            while len(data) < size and (part := self.control.recv(size - len(data))):
                data += part
        if not size or len(data) < size:
            return False
        request = json.loads(data)
        if warm(request["preload"]):
            self.forks = 0
            self.when_idle.append(huge_pages.gather)
        self.forks += 1
        if self.forks == BUSY_FORKS:
            huge_pages.gather()
        self._fork(request, *fds)
        self.last_request = time.monotonic()
        return True

    def _fork(self, request: dict[str, Any], calls: int, status: int, *fds: int) -> None:
        server, limit = os.getpid(), limits.bytes_beyond(request["memory"])
        child = Child(0, socket.socket(fileno=status), request["memory"], Path(request["folder"]))
        try:
            child.folder.mkdir(mode=0o700)
            child.pid = os.fork()
        except OSError as error:  # no memory for one more process, no room for its folder
            _tell(child, f"failed no process could be started: {error}")
            _dismiss(child)
        else:
            if child.pid == 0:
                token = bytes.fromhex(request["token"])
                worker_process.live(token, limit, str(child.folder), server, calls, *fds)
            self.children[child.pid] = child
        for fd in (calls, *fds):
            os.close(fd)

    def _end(self, child: Child) -> None:
        child.ended_by_us = True
        if self.reaps_orphans:  # what it has started comes to us
            os.kill(child.pid, signal.SIGKILL)
        else:
            tree.kill_tree([child.pid], spare_until=math.inf)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):  # there is none
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                child = self.children.get(ended[0])
                if child is not None and child.died is None:
                    child.died = time.monotonic()
                    if not child.ended_by_us:
                        _tell(child, f"exit {os.waitstatus_to_exitcode(ended[1])}")

    def _sweep(self) -> None:
        """Kills what dead workers have left behind; says `gone` once there is nothing of it."""
        self._reap()
        dead = [child for child in self.children.values() if child.died is not None]
        if not dead:
            return
        if self.reaps_orphans:  # what the dead have left comes to us: children that are not workers
            living = {pid for pid, child in self.children.items() if child.died is None}
            strays = [pid for pid in tree.children(os.getpid()) if pid not in living]
        else:
            strays = tree.in_sessions({child.pid for child in dead})
        if strays:
            tree.kill_tree(strays, spare_until=max(child.died for child in dead) + tree.LAST_WORDS)
            return
        for child in dead:
            del self.children[child.pid]
            _dismiss(child)

    def _enforce_limits(self) -> None:
        now = time.monotonic()
        if now - self.last_look < LOOK_EVERY:
            return
        self.last_look = now
        for child in self._living():
            pids = tree.tree(child.pid)
            if len(pids) > MOST_PROCESSES:
                _tell(child, f"limit process limit of {MOST_PROCESSES}")
                self._end(child)
            elif tree.holds_more(pids, child.memory):
                _tell(child, f"limit memory limit of {gigabytes(child.memory)}")
                self._end(child)


def _tell(child: Child, line: str) -> None:
    with contextlib.suppress(OSError):  # the client may be gone
        child.status.send(line.encode() + b"\n")


def _dismiss(child: Child) -> None:
    """Nothing of it is left."""
    shutil.rmtree(child.folder, ignore_errors=True)
    _tell(child, "gone")
    child.status.close()


def warm(modules: Iterable[str]) -> bool:
    """Imports modules, those that there are, and makes what they have left cheap to fork. False: all of them
    had been imported."""
    new = [name for name in modules if name not in sys.modules and name not in _missing]
    if not new:
        return False
    import torch

    # After torch has asked CUDA whether there is a GPU, forks of this process cannot use one.
    is_available = torch.cuda.is_available
    torch.cuda.is_available = lambda: False
    for name in new:
        try:
            importlib.import_module(name)
        except ImportError:
            _missing.add(name)
    torch.cuda.is_available = is_available
    concluded = sys.modules.get(torch_private.TRITON)
    for kept in list(vars(concluded).values()) if concluded else ():
        if hasattr(kept, "cache_clear"):
            kept.cache_clear()
    gc.collect()
    # What is here now stays: a collection in a worker would copy the pages it looks at.
    gc.freeze()
    return True


def main(control_fd: int, client_pid: int) -> None:
    """The server process, from start to end. What it raises is told to the client."""
    control = socket.socket(fileno=control_fd)
    control.set_inheritable(False)
    try:
        Forkserver(control, client_pid).serve()
    except BaseException:
        control.sendall(traceback.format_exc().encode())
    finally:
        os._exit(0)
