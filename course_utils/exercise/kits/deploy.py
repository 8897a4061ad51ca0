"""A server for matrices of three columns, in the place of one in C++: it starts at once, has no model, and
does what servers do on bad days.

An answer has four columns: the number of the request, then the numbers of the request, doubled. The program
is this file.
"""

import array
import fcntl
import os
import signal
import struct
import sys
import termios
import time

LOG = 70 * (b"served a request".ljust(999) + b"\n")  # more than a pipe holds
PIECE = 4093
SENT = {"ends": 0, "ends in the header": 5, "ends in the numbers": 25}  # bytes
SECONDS = 120  # after which it ends, whatever became of its client


def command(how: str = "") -> list[str]:
    """What starts it. `how`: "in pieces", "logs", or how much of the second answer it sends before it ends:
    "ends", "ends in the header", "ends in the numbers"."""
    return [sys.executable, "-I", "-S", __file__, how]


def _serve(how: str) -> None:
    signal.alarm(SECONDS)
    asked = 0
    while len(header := sys.stdin.buffer.read(16)) == 16:
        rows, columns = struct.unpack("<qq", header)
        if not (0 <= rows < 1 << 20 and 0 <= columns < 1 << 10):
            _send(_error(f"the header of the request says {rows} rows, {columns} columns"), how)
            return
        numbers = array.array("f", sys.stdin.buffer.read(4 * rows * columns))
        asked += 1
        if how == "logs":
            os.write(2, LOG)
        if columns != 3:
            _send(_error(f"{columns} columns \u2260 3 columns"), how)
            continue
        answer = bytearray(struct.pack("<qq", rows, 4))
        for i in range(rows):
            answer += array.array("f", [asked, *(2 * x for x in numbers[3 * i : 3 * i + 3])]).tobytes()
        if asked == 2 and how in SENT:
            _send(answer[: SENT[how]], how)
            return
        _send(answer, how)


def _error(text: str) -> bytes:
    said = text.encode()
    return struct.pack("<qq", -1, len(said)) + said


def _send(data: bytes, how: str) -> None:
    if how == "in pieces":
        os.write(1, data[:5])
        data = data[5:]
        # The rest goes when these were taken, so nobody can take all at once.
        while any(fcntl.ioctl(1, termios.FIONREAD, bytes(4))):
            time.sleep(0.001)
    step = PIECE if how == "in pieces" else 1 << 30
    for i in range(0, len(data), step):
        sys.stdout.buffer.write(data[i : i + step])
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    _serve(sys.argv[1])
