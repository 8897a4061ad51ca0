"""What a new worker is asked for and given: its connections, its limits, what it finds as it is here."""

import os
import socket
import sys
from pathlib import Path
from typing import Any

import psutil

from course_utils.processes import client


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
            self.server = client.ask(request, [*ends, *hand_over])
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
        "environment": {**os.environ, client.MARK: client.current.mark if client.current else "1"},
        "recursion_limit": sys.getrecursionlimit(),
        "folder": folder,
    }
