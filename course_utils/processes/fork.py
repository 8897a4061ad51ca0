"""A call in a fork of a warm process: what it does to its process dies with it.

The process that forks runs nothing of the call itself. An answer that kills its parent ends this one, and
neither the server nor what other answers run in.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import time
from collections.abc import Callable
from typing import Any

from course_utils.processes import tree, worker_process


def in_a_fork(function: Callable[..., Any], *args: Any) -> None:
    """Calls the function in a fork of this process, which is a warm one. What it tells
    (`worker_process.tell`) goes to whoever made the call; last comes `{"exit": code}`, as
    `os.waitstatus_to_exitcode` gives it.
    """
    pid = os.fork()
    if pid == 0:
        worker_process.run_fork(function, *args)
    # Whoever asks this process where it is means the fork.
    faulthandler.unregister(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, lambda *_: _pass_on(pid))
    _, status = os.waitpid(pid, 0)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    _end_what_is_left()
    worker_process.tell({"exit": os.waitstatus_to_exitcode(status)})


def _pass_on(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGUSR1)


def _end_what_is_left() -> None:
    """Ends all that the fork has started: orphans below this process become its children."""
    until = time.monotonic() + tree.LAST_WORDS
    while True:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        left = tree.children(os.getpid()) if worker_process.LINUX else tree.in_sessions({os.getpid()})
        if not left:
            return
        late = time.monotonic() > until
        tree.kill_tree([pid for pid in left if late or not tree.cleans_up(pid)])
        time.sleep(0.002)
