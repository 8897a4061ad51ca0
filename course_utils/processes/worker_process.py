"""The inside of a warm process: what it does between being forked and being killed."""

import contextlib
import ctypes
import faulthandler
import getpass
import json
import linecache
import os
import pickle
import random
import resource
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_utils.processes import memory_limit, transport
from course_utils.processes.stacks import Raised, raised

LINUX = sys.platform == "linux"
# Larger results are refused: whoever waits for them would have to hold them too.
LARGEST_RESULT = 1 << 30
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36

_libc = ctypes.CDLL(None)
_getpid, _exit = os.getpid, os._exit  # an answer may replace these


@dataclass(frozen=True)
class Birth:
    """What a new process is given: its connections, its limits, its folder for temporary files. `memory` is a
    limit in bytes on top of what it has; `handed_over` are descriptors that its first call knows what to do
    with."""

    token: bytes
    call_fd: int
    output_fd: int
    dump_fd: int
    memory: int
    folder: str
    server_pid: int
    handed_over: tuple[int, ...] = ()


# The descriptors of this process's `Birth`.
handed_over: tuple[int, ...] = ()
_caller = 0


def _send(kind: bytes, payload: bytes) -> None:
    """Sends one frame to whoever called; to nobody until `_answer_calls` puts there what does."""


def live(birth: Birth) -> None:
    """Becomes a worker: answers calls until the connection closes. Never returns."""
    try:
        _settle(birth)
        connection = socket.socket(fileno=birth.call_fd)
        _answer_calls(connection, birth)
    except BaseException:  # whatever went wrong, a forked process must not go on as the server
        _exit(1)
    _exit(0)


def tell(data: Any) -> None:
    """Sends plain data to whoever made the call that this process runs, before it has ended (`Result.told`).
    Raises what `json.dumps` raises."""
    if _getpid() == _caller:  # and not a copy that the call has forked
        _send(transport.PART, json.dumps(data).encode())


def run_fork(say_done: int, function: Callable[..., Any], *args: Any) -> None:
    """The life of a fork of this process: one call, then a full stop into `say_done`. Never returns."""
    global _caller
    _caller = _getpid()
    parent = os.getppid()
    os.setsid()
    _end_with(parent)
    code = 1
    try:
        function(*args)
        code = 0
    except BaseException:  # whatever went wrong, this process must not go on as the one that forked it
        sys.stderr.write(traceback.format_exc())
    _flush()
    if code == 0 and _getpid() == _caller:
        os.write(say_done, b".")
    _exit(code)


def hide_gpus() -> None:
    """From now on, this process sees no GPU. Then backward starts no thread, which forks would not take
    along, and what compiles asks for nothing that it does not use."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def set_child_subreaper() -> bool:
    """From now on, orphans among this process's descendants become its children. False: not possible here."""
    return LINUX and _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def _settle(birth: Birth) -> None:
    global handed_over
    handed_over = birth.handed_over
    os.setsid()
    _end_with(birth.server_pid)
    set_child_subreaper()
    # Whoever connects to a `TCPStore` looks up a name for 127.0.0.1, to have one for messages. Where no name
    # server answers, a rank begins ten seconds late: so this process asks none. The function is glibc's.
    if configure := getattr(_libc, "__nss_configure_lookup", None):
        configure(b"hosts", b"files")
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _keep_only(birth)
    faulthandler.register(signal.SIGUSR1, file=birth.dump_fd, all_threads=False, chain=False)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ["TMPDIR"] = birth.folder
    tempfile.tempdir = birth.folder  # where an answer has removed it, the next choice would be everybody's
    # What is defined in a notebook belongs to `__main__`; the server's own is not it.
    sys.modules["__main__"] = types.ModuleType("__main__")
    memory_limit.set_limit(birth.memory, for_good=True)
    _start_torch()


def _keep_only(birth: Birth) -> None:
    """Standard streams of its own, and no descriptor of the server's or of another worker's."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(birth.output_fd, 1)
    os.dup2(birth.output_fd, 2)
    low = 3
    for keep in sorted((birth.call_fd, birth.dump_fd, *birth.handed_over)):
        os.closerange(low, keep)
        low = keep + 1
    os.closerange(low, max(low, 1 << 20 if LINUX else 4096))
    how = {"buffering": 1, "encoding": "utf-8", "errors": "backslashreplace", "closefd": False}
    sys.stdin = sys.__stdin__ = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", **how)
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", **how)


def _start_torch() -> None:
    import torch

    torch.set_num_threads(1)
    # All workers are forked with the same generators; processes started on their own would differ.
    torch.default_generator.seed()  # `torch.seed` would also look for every kind of GPU
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    random.seed()


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


def _answer_calls(connection: socket.socket, birth: Birth) -> None:
    global _send, _caller
    pid = _caller = _getpid()

    def _send(kind: bytes, payload: bytes) -> None:
        connection.sendall(transport.frame(birth.token, kind, payload))

    while True:
        try:
            header = transport.read_exactly(connection.recv, transport.HEADER_BYTES)
            _, length = transport.read_header(birth.token, header)
            payload = transport.read_exactly(connection.recv, length)
        except EOFError:
            return
        _send(transport.STARTED, b"")
        result = _call(payload)
        del payload
        if _getpid() != pid:
            _exit(0)  # the answer forked, and this is the copy: it has no result to give
        _flush()
        _send(transport.RESULT, result)


def _call(payload: bytes) -> bytes:
    """Runs one call; the result as bytes: a line of JSON, and below it the value, pickled, where there is one
    and it is wanted."""
    try:
        function, args, plain = _unpack(payload)
        value = function(*args)
    except BaseException as error:  # also SystemExit and KeyboardInterrupt: they end the call, not the worker
        linecache.checkcache()
        of_torch = isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
        return _failed(raised(error), of_torch or isinstance(error, MemoryError))
    if plain:
        return b'{"state": "returned", "sources": {}}\n'
    try:
        data, sources = transport.dumps(value, to_cpu=True)
        if len(data) > LARGEST_RESULT:
            raise ValueError(f"it takes {len(data)} bytes; at most {LARGEST_RESULT} can be sent")
    except BaseException as error:
        what = f"the result, of type {type(value).__name__}, cannot be sent to another process: {error}"
        return _failed(Raised(type(error).__name__, what, text=what))
    return json.dumps({"state": "returned", "sources": sources}).encode() + b"\n" + data


def _failed(error: Raised, of_memory: bool = False) -> bytes:
    data = {"state": "raised", "error": error.as_plain(), "of_memory": of_memory}
    return json.dumps(data).encode() + b"\n"


def _unpack(payload: bytes) -> tuple[Any, tuple[Any, ...], bool]:
    setup, sources, data, plain = pickle.loads(payload)
    if setup:
        sys.path[:] = setup["path"]
        folder = os.environ["TMPDIR"]
        os.environ.clear()
        os.environ.update(setup["environment"], TMPDIR=folder)
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", _compiler_cache(setup["environment"]))
        sys.setrecursionlimit(setup["recursion_limit"])
        with contextlib.suppress(OSError):
            os.chdir(setup["folder"])
    transport.install_sources(sources)
    function, args = pickle.loads(data)
    for thing in (function, *args):
        publish(thing)
    return function, args, plain


def _compiler_cache(environment: dict[str, str]) -> str:
    """Where torch keeps what it has compiled when it is not in a warm process. In a worker's own temporary
    folder it would be gone with the worker, and every first use of the compiler would take ten seconds
    instead of one."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid_{os.getuid()}"
    return str(Path(environment.get("TMPDIR", "/tmp")) / f"torchinductor_{user}")


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
