"""The protocol is all that the two processes share, so each side must write and read exactly what it says.
A buffered `read(n)` waits for `n` bytes or the end: fewer mean that the server is gone. `flush` sends what
`write` has put into the buffer.

stderr is left alone: the log goes where this process's own goes. `communicate` closes the input, at which the
server ends, reads what is left, closes the output and waits; a broken pipe doesn't trouble it.
"""

import struct
import subprocess

import numpy as np
import torch
from torch import Tensor


class ServeInCpp:
    def __init__(self, command: list[str]) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe)

    def __call__(self, x: Tensor) -> Tensor:
        numbers = x.float().cpu().numpy()
        self.process.stdin.write(struct.pack("<2q", *x.shape))
        self.process.stdin.write(numbers.tobytes())
        self.process.stdin.flush()
        rows, columns = struct.unpack("<2q", self.read(16))
        if rows == -1:
            raise RuntimeError(self.read(columns).decode())
        answer = self.read(4 * rows * columns)
        return torch.tensor(np.frombuffer(answer, "<f4").reshape(rows, columns))

    def read(self, count: int) -> bytes:
        data = self.process.stdout.read(count)
        if len(data) < count:
            raise EOFError("the server has ended")
        return data

    def close(self) -> None:
        self.process.communicate()


# Other right answers

import contextlib
import io
import os

from course_utils.exercise import Edit, Wrong


class _Descriptors:
    """Without buffers."""

    def __init__(self, command):
        self.server = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
        )

    def __call__(self, x):
        x = x.detach().to("cpu", torch.float32).contiguous()
        message = io.BytesIO()
        message.write(x.shape[0].to_bytes(8, "little") + x.shape[1].to_bytes(8, "little"))
        message.write(memoryview(x.numpy()).cast("B") if x.numel() else b"")
        left = message.getvalue()
        while left:
            left = left[os.write(self.server.stdin.fileno(), left) :]
        rows = int.from_bytes(self.exactly(8), "little", signed=True)
        columns = int.from_bytes(self.exactly(8), "little", signed=True)
        if rows < 0:
            raise RuntimeError("the server says: " + str(self.exactly(columns), "utf-8"))
        y = torch.empty(rows, columns)
        y.flatten()[:] = torch.tensor(struct.unpack(f"<{y.numel()}f", self.exactly(y.nbytes)))
        return y

    def exactly(self, count):
        data = bytearray()
        while len(data) < count:
            more = os.read(self.server.stdout.fileno(), count - len(data))
            if not more:
                raise RuntimeError(f"the server ended with {self.server.wait()}")
            data += more
        return bytes(data)

    def close(self):
        self.server.kill()
        with contextlib.suppress(BrokenPipeError):
            self.server.stdin.close()
        self.server.stdout.close()
        self.server.wait()


class _Fills(ServeInCpp):
    """Reads into the tensor."""

    def __call__(self, x):
        x = x.detach().float().numpy().astype("<f4", order="C")
        header = np.array(x.shape, dtype="<i8")
        self.process.stdin.write(b"".join([header.tobytes(), x.tobytes()]))
        self.process.stdin.flush()
        assert self.process.stdout.readinto(header) == 16
        if header[0] < 0:
            raise RuntimeError(self.read(int(header[1])).decode("utf-8"))
        answer = np.empty(header, dtype="f4")
        if answer.size and self.process.stdout.readinto(answer.data.cast("B")) < answer.nbytes:
            raise ConnectionError
        return torch.from_numpy(answer)


also_right = [_Descriptors, _Fills]


# Mistakes


class _OnceForEach(ServeInCpp):
    def __init__(self, command):
        self.command = command
        super().__init__(command)

    def __call__(self, x):
        self.close()
        super().__init__(self.command)
        return super().__call__(x)


class _WaitsForever(ServeInCpp):
    def read(self, count):
        data = b""
        while len(data) < count:
            data += self.process.stdout.read1(count - len(data))
        return data


# With one look, which finds it gone only on some days.
_KILLS = "p = self.process; p.kill(); p.poll(); p.stdout.close(); p.stdin.close()"

mistakes = [
    Wrong(_OnceForEach, told_by="requests"),
    Edit("as it lies", "numbers.tobytes()", "numbers.tobytes('A')", told_by="requests"),
    Edit("any dtype", ".float()", "", told_by="requests"),
    Edit("reads once", "stdout.read(count)", "stdout.read1(count)", told_by="in_pieces"),
    Edit("nobody reads the log", "stdout=pipe)", "stdout=pipe, stderr=pipe)", told_by="logs"),
    Edit("the error stays in the pipe", "self.read(columns).decode()", "'error'", told_by="errors"),
    Wrong(_WaitsForever, told_by="the_end"),
    Edit("asks once", "self.process.communicate()", _KILLS, told_by="closes"),
]

equivalent = {
    "line 15: `x.float().cpu()` -> `x.float()`": "all that is sent here is on the CPU",
    "line 27: `if len(data) < count:` -> `if False:`": "what takes the bytes raises where they are too few",
}
not_tried = {
    "hard numbers": "nothing is computed",
    "left alone": "the task does not ask for it",
    "seeds": "nothing hangs on the numbers",
}
