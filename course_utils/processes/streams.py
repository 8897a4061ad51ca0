"""What comes out of a process: bytes of several descriptors, and what a call prints."""

import codecs
import os
import select
from collections.abc import Callable
from typing import Any

KEPT_OUTPUT = 64 * 1024  # bytes of what a call prints that are kept; the rest is counted
NOT_SHOWN = "\n… what is printed from here on is not shown\n"


class Output:
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
        text = self._decoder.decode(kept)
        if text:
            self._kept.append(text)
        if len(kept) < len(part) and not self._cut:
            text += NOT_SHOWN
        self._cut += len(part) - len(kept)
        if text and self.listener is not None:
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


def wait(streams: list[Any], seconds: float) -> list[Any]:
    """Those of these sockets and descriptors that can be read, after at most `seconds`."""
    by_fd = {stream if isinstance(stream, int) else stream.fileno(): stream for stream in streams}
    poll = select.poll()
    for fd in by_fd:
        if fd >= 0:
            poll.register(fd, select.POLLIN)
    return [by_fd[fd] for fd, _ in poll.poll(max(0.0, seconds) * 1000)]


def read_available(fd: int) -> bytes:
    """What can be read now; nothing where the other end is gone."""
    try:
        return os.read(fd, 1 << 16)
    except OSError:
        return b""


def read_burst(fd: int) -> tuple[str, bool]:
    """What comes, from within 0.5 s until nothing does for 20 ms; and whether the other end is gone."""
    text = bytearray()
    while wait([fd], 0.02 if text else 0.5):
        part = read_available(fd)
        if not part:
            return text.decode(errors="replace"), True
        text += part
    return text.decode(errors="replace"), False
