"""What comes out of a process: bytes of several descriptors, and what a call prints."""

import codecs
import os
from collections.abc import Callable
from io import FileIO
from multiprocessing.connection import wait

KEPT_OUTPUT = 64 * 1024  # bytes of what a call prints that are kept; the rest is counted
NOT_SHOWN = "\n… what is printed from here on is not shown\n"


class Output:
    """What a call prints into a pipe: the beginning is kept, the rest is counted."""

    def __init__(self, pipe: FileIO, listener: Callable[[str], None] | None) -> None:
        self.pipe, self.listener = pipe, listener
        self.ended = False
        self.text, self.cut = "", 0  # what was kept, and how many bytes were not
        self._room = KEPT_OUTPUT
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def read(self) -> bool:
        """Takes in what is there. False: nothing is."""
        part = self.pipe.read(1 << 16)
        if not part:
            self.ended = part is not None
            return False
        kept = part[: self._room]
        self._room -= len(kept)
        text = self._decoder.decode(kept)
        self.text += text
        if len(kept) < len(part) and not self.cut:
            text += NOT_SHOWN
        self.cut += len(part) - len(kept)
        if text and self.listener is not None:
            self.listener(text)
        return True

    def drain(self) -> None:
        """Takes in what has been printed until now, but no more than a pipe can hold."""
        for _ in range(64):
            if self.ended or not self.read():
                return


def pipe() -> tuple[FileIO, FileIO]:
    """A pipe: the end that is read, which gives None where nothing is there, and the one that is written."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    return FileIO(read), FileIO(write, "w")


def read_burst(pipe: FileIO) -> str:
    """What comes, from within 0.5 s until nothing does for 20 ms."""
    text = bytearray()
    while wait([pipe], 0.02 if text else 0.5) and (part := pipe.read(1 << 16)):
        text += part
    return text.decode(errors="replace")
