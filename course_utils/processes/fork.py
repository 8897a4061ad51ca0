"""A call in a fork of a warm process: what it does to its process dies with it.

The process that forks runs nothing of the call itself. An answer that kills its parent ends this one, and
neither the server nor what other answers run in.
"""

import contextlib
import faulthandler
import os
import select
import signal
import time
from collections.abc import Callable
from typing import Any

from course_utils.processes import huge_pages, tree, worker_process

# To gather memory takes about as long as it saves in so many forks.
MANY_FORKS = 60
_forks = 0


def in_a_fork(function: Callable[..., Any], *args: Any) -> None:
    """Calls the function in a fork of this process, which is a warm one. What it tells
    (`worker_process.tell`) goes to whoever made the call; last comes `{"exit": code}`, as
    `os.waitstatus_to_exitcode` gives it."""
    global _forks
    _forks += 1
    if _forks == MANY_FORKS:
        huge_pages.gather()
    before = _below(0)
    done, say_done = os.pipe()
    pid = os.fork()
    if pid == 0:
        worker_process.run_fork(say_done, function, *args)
    os.close(say_done)
    # Whoever asks this process where it is means the fork.
    faulthandler.unregister(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, lambda *_: tree.signal_all([pid], signal.SIGUSR1))
    _end(before)
    code = 0 if _is_done(done, pid) else os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(done)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    if set(_below(pid)) - {pid}:  # it has started others; else its end is awaited with the next call
        _end(lambda: _below(pid))
    worker_process.tell({"exit": code})


def _is_done(done: int, pid: int) -> bool:
    if not hasattr(os, "pidfd_open"):
        return False
    ended = os.pidfd_open(pid)
    try:
        ready, _, _ = select.select([done, ended], [], [])
        return done in ready and os.read(done, 1) == b"."
    finally:
        os.close(ended)


def _below(fork: int) -> list[int]:
    return tree.children(os.getpid()) if worker_process.LINUX else tree.in_sessions({fork})


def _end(those: list[int] | Callable[[], list[int]]) -> None:
    """Ends these processes; returns when they are gone. A function is asked again and again."""
    until = time.monotonic() + tree.LAST_WORDS
    while True:
        left = those() if callable(those) else [pid for pid in those if pid in tree.children(os.getpid())]
        if not left:
            return
        tree.kill_tree(left, spare_until=until)
        for pid in left:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.001)
