"""Talk to a model in C++

A C++ server answers on its pipes, one by one, little endian:

    request, answer: rows, columns (int64), then rows × columns numbers (float32)
    error:           -1, length (int64), then `length` bytes of text (UTF-8)

Write its client. `ServeInCpp(command)` starts the server, once. `model(x)` sends a matrix of any strides and
dtype, maybe without rows, and returns the answer as a tensor of its own. The server may send in pieces, and
writes a long log to stderr.

- An error raises `RuntimeError` with the server's text; the next request works.
- If the server ends, raise: don't wait.
- `close()` ends the server, also a dead one. No process, zombie or open pipe is left.

`ServeInCpp(["./server", "net.pt2"])(torch.ones(4, 3)).shape` → `torch.Size([4, 2])`
"""

import contextlib
import os
import subprocess
import time
from pathlib import Path
from unittest import mock

import psutil
import torch
from torch import Tensor

from course_utils import cpp
from course_utils.exercise import Exercise, Rows, expect

exercise = Exercise(
    minutes=20,
    hints=[
        "`subprocess.Popen` starts a process, with `stdin=subprocess.PIPE` and `stdout=subprocess.PIPE`. "
        "Which bytes may wait in a buffer on your side? What does a `read` return when the server is gone?",
        "`struct.pack('<2q', …)` makes the two numbers, `.numpy().tobytes()` the others. Write a method that "
        "reads a number of bytes or raises, and use it for all that comes.",
        "Flush after each request. An error has bytes to read too: read them before you raise. To close: "
        "close its input, wait for it, close its output. Popen has one call that does all three.",
    ],
)


@exercise.starter
class ServeInCpp:
    """A model in another process"""

    def __init__(self, command: list[str]) -> None:
        raise NotImplementedError

    def __call__(self, x: Tensor) -> Tensor:
        """(rows, columns) -> the server's answer, a matrix in float32"""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


def _client(how="", more=""):
    """A client of the stand-in; its answers have the number of the request, then the input doubled."""
    made = f"model = ServeInCpp(deploy.command({repr(how) if how else ''}))"
    return f"from course_utils.exercise.kits import deploy\n{made}\n{more}"


def _no_stderr():
    """What this process and those that it starts write there is thrown away."""
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 2)


def _answer(number, x):
    x = x.float()
    return torch.cat([torch.full((len(x), 1), float(number)), 2 * x], 1)


def _asks(t, number, x):
    """One more request, and its answer."""
    t.run(f"y{number} = model({x})")
    what = f"`y{number}` (a first column with the number of the request, then `x` doubled)"
    wanted = _answer(number, t.call(x))
    expect.equal(t.call(f"y{number}"), wanted, what=what)


@exercise.check(isolated=True, deadline=10, given=_client())
def requests(t):
    """One server answers all requests

    A server that starts anew has to load its model. A pipe carries bytes and no dtype: two int64 and float32,
    row by row. What `write` gets may stay in Python's buffer until it's flushed. What `read` takes is gone
    from the pipe, whatever it belongs to, and a tensor over a buffer changes with it.
    """
    inputs = (
        "torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])",
        "torch.arange(6.0).view(3, 2).t()",
        "torch.arange(24.0).view(4, 6)[::2, 1::2]",
        "torch.arange(6).view(2, 3)",
        "torch.ones(1, 3, dtype=torch.float64)",
        "torch.full((1, 3), -0.5, dtype=torch.bfloat16)",
        "torch.zeros(0, 3)",
    )
    for number, x in enumerate(inputs, 1):
        _asks(t, number, x)
    first = _answer(1, t.call(inputs[0]))
    expect.equal(t.call("y1"), first, what="`y1` at the end")


@exercise.check(isolated=True, deadline=10, given=_client("in pieces"))
def in_pieces(t):
    """An answer may come in pieces

    A pipe hands over what is there. `os.read`, and a pipe without a buffer, may return fewer bytes than you
    ask for. How many belong to an answer stands in its header and nowhere else.
    """
    _asks(t, 1, "torch.arange(90_000.0).view(-1, 3)")
    _asks(t, 2, "torch.ones(2, 3)")


@exercise.check(isolated=True, deadline=10)
def logs(ServeInCpp):
    """The server may log as much as it likes

    A pipe holds some 64 KiB; then whoever writes waits until somebody reads. So a pipe for stderr that
    nobody reads stops the server. With `stderr=subprocess.STDOUT` its words stand between the numbers.
    """
    _no_stderr()
    t = expect.given(_client("logs"), ServeInCpp=ServeInCpp)
    for number in (1, 2):
        _asks(t, number, "torch.ones(2, 3)")


@exercise.check(isolated=True, deadline=10, given=_client())
def errors(t):
    """An error raises with the server's words, and the next request works

    Bytes that you don't read stay in the pipe, and the next answer begins with them. The length of a text
    is in bytes: in UTF-8 a letter may have several.
    """
    t.run("good, bad = torch.ones(2, 3), torch.ones(2, 2)")
    error = expect.raises(RuntimeError, lambda: t.call("model(bad)"), what="a refused request")
    text = "2 columns ≠ 3 columns"
    expect.true(text in str(error), f"the error says {str(error)!r}", f"expected: the server's {text!r}")
    t.run("try: model(bad)\nexcept RuntimeError: pass")
    _asks(t, 3, "good")


@exercise.check(
    isolated=True,
    deadline=10,
    given=lambda how: _client(how, "x = torch.ones(2, 3)\nfirst = model(x)"),
    cases=["ends in the header", "ends in the numbers", "ends"],
)
def the_end(t):
    """A server that ends raises an error

    At the end of a pipe `read` returns no bytes, at once and every time: a loop that waits for more never
    ends. What a `write` to a process that is gone raises is `BrokenPipeError`, if it raises at all.
    """
    expect.equal(t.call("first"), _answer(1, t.x))
    try:
        came = t.call("model(x)")
    except Exception:
        expect.looked()
    else:
        expect.true(False, f"the result is {expect.show(came)}, expected an error")


@contextlib.contextmanager
def _not_gone_yet():
    """A process to which a signal was sent has not ended when `poll` asks for the first time. Whether it has
    depends on the machine otherwise, and so would the verdict."""
    popen, signalled = subprocess.Popen, set()
    send, ask = popen.send_signal, popen.poll

    def send_signal(process, number):
        send(process, number)
        signalled.add(process)

    def poll(process):
        if process not in signalled:
            return ask(process)
        signalled.remove(process)
        return None

    with mock.patch.multiple(popen, send_signal=send_signal, poll=poll):
        yield


def _wait_for(processes):
    """Until they have ended and nobody holds the other end of their pipes: one may close before the other."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            while process.status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.001)


@exercise.check(isolated=True, deadline=10)
def closes(ServeInCpp):
    """`close()` leaves no process and no pipe behind

    Here a process that ended stays as a zombie until its parent has asked how it ended: `wait` does,
    `poll` if it has ended by then. A pipe stays open until it's closed. Bytes that couldn't be written
    wait in the buffer, and closing tries them again.
    """
    this, held = psutil.Process(), []
    try_it = "try: model(x)\nexcept Exception: pass\n"
    with Rows() as rows:
        for label, how, more in (
            ("after an answer", "", "model(x)\n"),
            ("without a request", "", ""),
            ("after the server ended", "ends", f"model(x)\n{try_it}"),
        ):
            with rows.of(label), _not_gone_yet():
                processes, pipes = set(this.children()), this.num_fds()
                # While somebody holds the client, nobody else asks how the process ended.
                code = _client(how, f"x = torch.ones(2, 3)\n{more}")
                held.append(expect.given(code, ServeInCpp=ServeInCpp))
                if how:
                    _wait_for(set(this.children()) - processes)
                    held[-1].run(try_it)
                held[-1].run("model.close()")
                left = len(set(this.children()) - processes)
                expect.at_most(left, 0, "processes of the server that are left, running or as a zombie")
                expect.at_most(this.num_fds() - pipes, 0, "open files that are left")


# The program and the package are made once: a minute, or minutes on a machine that is busy.
@exercise.check(isolated=True, needs=("compiler", "cmake"), deadline=300)
def in_cpp(ServeInCpp):
    """A server in C++ computes what the model computes

    AOTInductor compiled the model to a library. The server is one `main` around it, without Python, and can
    speak with whoever knows its header.
    """
    _no_stderr()
    setup = """
from course_utils import cpp_server
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).eval()
command = [str(cpp_server.program()), str(cpp_server.package(net, columns=3))]"""
    try:
        expect.given(setup)
    except cpp.BuildError as error:
        raise expect.CannotCheck("; ".join(["the server could not be built", *error.lines])) from error
    t = expect.given(f"{setup}\nmodel = ServeInCpp(command)", ServeInCpp=ServeInCpp)
    for x in ("torch.randn(4, 3)", "torch.randn(1, 3)", "torch.randn(3, 500).t()"):
        t.run(f"x = {x}\ny = model(x)")
        with torch.no_grad():
            expect.equal(t.call("y"), t.net(t.x), what="`y`")
    expect.raises(RuntimeError, lambda: t.call("model(torch.ones(2, 5))"), what="a request of five columns")
    t.run("z = model(x)\nmodel.close()")
    expect.equal(t.call("z"), t.y, what="the answer after an error")
