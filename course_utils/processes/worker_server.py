"""The warm server: a process that has torch imported and forks a worker whenever one is asked for.

It runs no operator of torch, starts no thread and does not touch a GPU, so that its forks are sound. It
watches over its workers: their memory, their number of processes, their end. When its client is gone, or
says that it is done with a worker, it kills the worker and everything that the worker has started.

The client asks over the control connection, one message for each worker, with the descriptors that
the worker gets. After that, client and server speak of this worker over its own status connection: the
server writes `pid N FOLDER` or `failed REASON`, then `exit STATUS`, `limit NAME`, `gone`; the client
writes `close`.
"""

import contextlib
import functools
import gc
import importlib
import json
import math
import os
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from course_utils.processes import huge_pages, transport, tree
from course_utils.processes.worker_process import Birth, live, set_child_subreaper

# Imported before the first worker is forked, and what is imported later, when nobody wants anything: what
# the first DistributedDataParallel or torch.compile of a process waits for, in steps of less than a second.
FIRST = ("torch", "torch.distributed", "numpy.random", "course_utils.processes.rank_process")
WHEN_IDLE = ("torch.fx.experimental.symbolic_shapes", "torch._dynamo", "torch._inductor.compile_fx")
IDLE_SECONDS = 0.3
# Forks after which even a server without idle time makes itself cheaper to fork: it takes half a second, and
# about so many forks to earn that back.
BUSY_FORKS = 100

LOOK_EVERY = 0.05  # seconds between two looks at the workers' memory and processes
SWEEP_EVERY = 0.002  # seconds between two looks for what a dead worker left
GIVE_UP_AFTER = 10.0  # seconds after which a process that SIGKILL does not end is left to the system


@dataclass
class Ward:
    """A worker as the server sees it."""

    pid: int
    status: socket.socket
    memory: int
    processes: int
    folder: str
    ended_by_us: bool = False
    died: float | None = None
    inbox: bytearray = field(default_factory=bytearray)


class Server:
    """Serves one client over `control` until it is gone."""

    def __init__(self, control: socket.socket, client_pid: int) -> None:
        self.control = control
        self.client_pid = client_pid
        self.wards: dict[int, Ward] = {}
        self.idle_steps = deque([*(functools.partial(warm, [name]) for name in WHEN_IDLE), huge_pages.gather])
        self.forks = 0
        self.reaps_orphans = set_child_subreaper()
        self.last_look = self.last_request = time.monotonic()
        self.selector = selectors.DefaultSelector()
        self.selector.register(control, selectors.EVENT_READ)
        self.wakeup, self._wakeup_write = socket.socketpair()
        self.wakeup.setblocking(False)
        self._wakeup_write.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakeup_write.fileno(), warn_on_full_buffer=False)
        self.selector.register(self.wakeup, selectors.EVENT_READ)

    def serve(self) -> None:
        """Returns when the client is gone and everything it had started is too."""
        for name in FIRST:
            importlib.import_module(name)
        warm([])
        while os.getppid() == self.client_pid:
            for key, _ in self.selector.select(self._patience()):
                if key.fileobj is self.control:
                    if not self._take_request():
                        self._end_all()
                        return
                elif key.fileobj is self.wakeup:
                    with contextlib.suppress(BlockingIOError):
                        self.wakeup.recv(4096)
                elif key.data in self.wards:
                    self._listen(self.wards[key.data])
            self._reap()
            self._sweep()
            self._enforce_limits()
            # Not while there is a worker: its limits and its end want our attention.
            if self.idle_steps and not self.wards and time.monotonic() - self.last_request > IDLE_SECONDS:
                self.idle_steps.popleft()()
        self._end_all()

    def _patience(self) -> float:
        if any(ward.died is not None for ward in self.wards.values()):
            return SWEEP_EVERY
        if self.wards:
            return LOOK_EVERY
        return IDLE_SECONDS if self.idle_steps else 1.0

    def _take_request(self) -> bool:
        """Forks the worker that the client asks for. False: the client is gone."""
        try:
            length, fds, _, _ = socket.recv_fds(self.control, 4, 16)
            if len(length) < 4:
                return False
            data = transport.read_exactly(self.control.recv, int.from_bytes(length, "big"))
            request = json.loads(data.decode())
        except (OSError, EOFError):
            return False
        if request["preload"]:
            warm(request["preload"])
        if self.forks == BUSY_FORKS:
            huge_pages.gather()
        self.forks += 1
        try:
            self._fork(request, *fds)
        except OSError as error:  # no memory for one more process, no room for its folder
            with contextlib.suppress(OSError):
                os.write(fds[1], f"failed {error}\n".encode())
            for fd in fds:
                os.close(fd)
        self.last_request = time.monotonic()
        return True

    def _fork(
        self, request: dict, call_fd: int, status_fd: int, output_fd: int, dump_fd: int, *handed_over: int
    ) -> None:
        folder, memory = tempfile.mkdtemp(prefix="course-"), request["memory"]
        token = bytes.fromhex(request["token"])
        birth = Birth(token, call_fd, output_fd, dump_fd, memory, folder, os.getpid(), handed_over)
        try:
            pid = os.fork()
        except OSError:
            Path(folder).rmdir()
            raise
        if pid == 0:
            live(birth)
        for fd in (call_fd, output_fd, dump_fd, *handed_over):
            os.close(fd)
        status = socket.socket(fileno=status_fd)
        status.setblocking(False)
        ward = self.wards[pid] = Ward(pid, status, memory, request["processes"], folder)
        self.selector.register(status, selectors.EVENT_READ, pid)
        self._tell(ward, f"pid {pid} {folder}")

    def _listen(self, ward: Ward) -> None:
        try:
            data = ward.status.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        ward.inbox += data
        if not data or b"close" in ward.inbox:
            with contextlib.suppress(KeyError):
                self.selector.unregister(ward.status)
            self._end(ward)

    def _end(self, ward: Ward) -> None:
        if ward.died is None and not ward.ended_by_us:
            ward.ended_by_us = True
            tree.kill_tree([ward.pid], spare_until=math.inf)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            ward = self.wards.get(pid)
            if ward is not None and ward.died is None:
                ward.died = time.monotonic()
                if not ward.ended_by_us:
                    self._tell(ward, f"exit {os.waitstatus_to_exitcode(status)}")

    def _sweep(self) -> None:
        """Kills what dead workers have left behind; says `gone` once there is nothing of it."""
        dead = [ward for ward in self.wards.values() if ward.died is not None]
        if not dead:
            return
        if self.reaps_orphans:  # what the dead have left comes to us: children that are not workers
            living = {pid for pid, ward in self.wards.items() if ward.died is None}
            strays = [pid for pid in tree.children(os.getpid()) if pid not in living]
        else:
            strays = tree.in_sessions({ward.pid for ward in dead})
        tree.kill_tree(strays, spare_until=max(ward.died for ward in dead) + tree.LAST_WORDS)
        overdue = time.monotonic() - GIVE_UP_AFTER
        for ward in dead:
            if not strays or ward.died < overdue:
                del self.wards[ward.pid]
                with contextlib.suppress(KeyError, ValueError):
                    self.selector.unregister(ward.status)
                shutil.rmtree(ward.folder, ignore_errors=True)
                self._tell(ward, "gone")
                ward.status.close()

    def _enforce_limits(self) -> None:
        now = time.monotonic()
        if now - self.last_look < LOOK_EVERY:
            return
        self.last_look = now
        for ward in self.wards.values():
            if ward.died is not None or ward.ended_by_us:
                continue
            pids = tree.tree(ward.pid)
            over = "processes" if len(pids) > ward.processes else ""
            if not over and tree.memory(pids) > ward.memory and tree.own_memory(pids) > ward.memory:
                over = "memory"
            if over:
                self._tell(ward, f"limit {over}")
                self._end(ward)

    def _end_all(self) -> None:
        for ward in self.wards.values():
            self._end(ward)
        while self.wards:
            self._reap()
            self._sweep()
            time.sleep(SWEEP_EVERY)

    def _tell(self, ward: Ward, line: str) -> None:
        with contextlib.suppress(OSError):
            ward.status.send(line.encode() + b"\n")


@contextlib.contextmanager
def _no_gpu_is_asked_for() -> Iterator[None]:
    """After torch has asked CUDA whether there is a GPU, forks of this process cannot use one."""
    import torch

    is_available = torch.cuda.is_available
    torch.cuda.is_available = lambda: False
    try:
        yield
    finally:
        torch.cuda.is_available = is_available
        concluded = sys.modules.get("torch.utils._triton")
        for kept in list(vars(concluded).values()) if concluded else ():
            if hasattr(kept, "cache_clear"):
                kept.cache_clear()


def warm(modules: list[str] | tuple[str, ...]) -> None:
    """Imports modules, and makes what they have left cheap to fork."""
    with _no_gpu_is_asked_for():
        for name in modules:
            if name not in sys.modules:
                with contextlib.suppress(ImportError):
                    importlib.import_module(name)
    gc.collect()
    # What is here now stays: a collection in a worker would copy the pages it looks at.
    gc.freeze()


def main(control_fd: int, client_pid: int) -> None:
    """The server process, from start to end."""
    control = socket.socket(fileno=control_fd)
    control.set_inheritable(False)
    try:
        Server(control, client_pid).serve()
    except BaseException:
        with contextlib.suppress(OSError):
            control.sendall(traceback.format_exc().encode())
        os._exit(1)
    os._exit(0)
