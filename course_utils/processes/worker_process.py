"""The inside of a warm process: what it does between being forked and being killed."""

import contextlib
import ctypes
import faulthandler
import json
import linecache
import os
import pickle
import resource
import signal
import socket
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable
from typing import Any, NoReturn

from course_utils.processes import transport
from course_utils.stacks import Raised, raised

LINUX = sys.platform == "linux"
# Larger results are refused: whoever waits for them would have to hold them too.
LARGEST_RESULT = 1 << 30
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36

_libc = ctypes.CDLL(None)
_getpid, _exit = os.getpid, os._exit  # an answer may replace these

# Descriptors that were given to this process, which its first call knows what to do with.
handed_over: tuple[int, ...] = ()
_caller = 0
_send: Callable[[bytes, bytes], None]  # sends one frame, of this kind, to whoever called


def live(
    token: bytes, limit: int, folder: str, server: int, calls: int, output: int, dump: int, *handed: int
) -> NoReturn:
    """Becomes a worker: answers calls until the connection closes. `calls`, `output` and `dump` are its
    descriptors for what is asked of it, what it prints and where it is; `limit` is the most bytes that it may
    allocate, `folder` for temporary files, `server` the process that forked it."""
    global handed_over
    handed_over = handed
    try:
        os.setsid()
        _end_with(server)
        set_child_subreaper()
        _keep_only(output, {calls, dump, *handed})
        faulthandler.register(signal.SIGUSR1, file=dump, all_threads=False, chain=False)
        _set_up(limit, folder)
        _answer_calls(socket.socket(fileno=calls), token)
    except BaseException:  # whatever went wrong, a forked process must not go on as the server
        _exit(1)
    _exit(0)


def prepare() -> None:
    """In the server, what all its workers are to have from the start: each would pay for it again."""
    import torch

    # Whoever connects to a `TCPStore` looks up a name for 127.0.0.1, to have one for messages. Where no name
    # server answers, a rank begins ten seconds late: so these processes ask none. The function is glibc's.
    if configure := getattr(_libc, "__nss_configure_lookup", None):
        configure(b"hosts", b"files")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    torch.set_num_threads(1)
    # What is defined in a notebook belongs to `__main__`; the server's own is not it.
    sys.modules["__main__"] = types.ModuleType("__main__")
    how = {"buffering": 1, "encoding": "utf-8", "errors": "backslashreplace", "closefd": False}
    sys.stdin = sys.__stdin__ = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", **how)
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", **how)


def tell(data: Any) -> None:
    """Sends plain data to whoever made the call that this process runs, before it has ended (`Result.told`).
    Raises what `json.dumps` raises."""
    if _getpid() == _caller:  # and not a copy that the call has forked
        _send(transport.PART, json.dumps(data).encode())


def hide_gpus() -> None:
    """From now on, this process sees no GPU. Then backward starts no thread, which forks would not take
    along, and what compiles asks for nothing that it does not use."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def set_child_subreaper() -> bool:
    """From now on, orphans among this process's descendants become its children. False: not possible here."""
    return LINUX and _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def _end_with(parent: int) -> None:
    """From now on, this process ends when its parent does."""
    if LINUX:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:
        _exit(1)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.2)
    os.killpg(0, signal.SIGKILL)


def _keep_only(output: int, keep: set[int]) -> None:
    """Standard streams of its own, and no descriptor of the server's or of another worker's."""
    os.dup2(output, 1)
    os.dup2(output, 2)
    low = 3
    for one in sorted(keep):
        os.closerange(low, one)
        low = one + 1
    os.closerange(low, max(low, 1 << 20 if LINUX else 4096))


def _set_up(limit: int, folder: str) -> None:
    import numpy.random
    import torch

    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["TMPDIR"] = folder
    tempfile.tempdir = folder  # where an answer has removed it, the next choice would be everybody's
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    # All workers are forked with the same generators; processes started on their own would differ. Python's
    # own sees to that itself, and `torch.seed` would also look for every kind of GPU.
    torch.default_generator.seed()
    numpy.random.seed(int.from_bytes(os.urandom(4)))


def _answer_calls(connection: socket.socket, token: bytes) -> None:
    global _send, _caller
    pid = _caller = _getpid()
    came = bytearray()

    def _send(kind: bytes, payload: bytes) -> None:
        connection.sendall(transport.frame(token, kind, payload))

    while part := connection.recv(1 << 20):
        came += part
        for _, payload in transport.frames(token, came):
            _send(transport.STARTED, str(pid).encode())
            result = _call(payload)
            if _getpid() != pid:
                _exit(0)  # the answer forked, and this is the copy: it has no result to give
            _flush()
            _send(transport.RESULT, result)


def _call(payload: bytes) -> bytes:
    """Runs one call; the result: a line of JSON, and below it the pickled value, where one is wanted."""
    try:
        found, sources, data, plain = pickle.loads(payload)
        if found:
            _take_over(**found)
        transport.install_sources(sources)
        function, args = pickle.loads(data)
        for thing in (function, *args):
            publish(thing)
        value = function(*args)
    except BaseException as error:  # also SystemExit and KeyboardInterrupt: they end the call, not the worker
        linecache.checkcache()
        of_torch = isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
        return _failed(raised(error), of_torch or isinstance(error, MemoryError))
    try:
        data, sources = (b"", {}) if plain else transport.dumps(value, to_cpu=True)
        if len(data) > LARGEST_RESULT:
            raise ValueError(f"it takes {len(data)} bytes; at most {LARGEST_RESULT} can be sent")
    except BaseException as error:
        what = f"the result, of type {type(value).__name__}, cannot be sent to another process: {error}"
        return _failed(Raised(type(error).__name__, what))
    return json.dumps({"error": None, "sources": sources}).encode() + b"\n" + data


def _failed(error: Raised, of_memory: bool = False) -> bytes:
    return json.dumps({"error": error.as_plain(), "of_memory": of_memory}).encode() + b"\n"


def _take_over(path: list[str], environment: dict[str, str], recursion_limit: int, folder: str) -> None:
    """What is found where the call comes from is found here too."""
    sys.path[:] = path
    environment["TMPDIR"] = os.environ["TMPDIR"]
    os.environ.clear()
    os.environ.update(environment)
    sys.setrecursionlimit(recursion_limit)
    with contextlib.suppress(OSError):  # it is gone
        os.chdir(folder)


def publish(thing: Any) -> None:
    """Puts what a notebook defines and `thing` uses into `__main__`: plain pickle looks there for functions
    and classes, and the compiler for whatever a function of `__main__` uses by name."""
    if not isinstance(thing, type | types.FunctionType):
        thing = type(thing)
    names = {thing.__name__: thing} if thing.__module__ == "__main__" else {}
    for one in (thing, *vars(thing).values()):
        if isinstance(one, types.FunctionType) and one.__globals__.get("__name__") == "__main__":
            names |= {name: value for name, value in one.__globals__.items() if not name.startswith("__")}
    vars(sys.modules["__main__"]).update(names)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    _libc.fflush(None)
