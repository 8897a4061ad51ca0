"""The tree of processes under one: who is in it, how much memory it holds, and its end."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil


def children(pid: int) -> list[int]:
    """The processes that `pid` is the parent of now, those that have ended unseen included."""
    with contextlib.suppress(OSError):  # a kernel that has no such files, or it has ended
        tasks = Path(f"/proc/{pid}/task").iterdir()
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]
    with contextlib.suppress(psutil.Error):
        return [child.pid for child in psutil.Process(pid).children()]
    return []


def tree(pid: int) -> list[int]:
    """`pid` and all its descendants."""
    found = [pid]
    for one in found:  # grows while it is walked
        found += [child for child in children(one) if child not in found]
    return found


def holds_more(pids: list[int], limit: int) -> bool:
    """Whether these processes hold more bytes in memory than `limit`, each page that they share counted once
    (or, where the system doesn't tell which those are, for nobody)."""

    def total(of: Callable[[psutil.Process], int]) -> int:
        found = 0
        for pid in pids:
            with contextlib.suppress(psutil.Error):
                found += of(psutil.Process(pid))
        return found

    def own(process: psutil.Process) -> int:
        full = process.memory_full_info()
        return getattr(full, "pss", full.uss)

    # The second takes ten times as long, and is never more than the first.
    return total(lambda process: process.memory_info().rss) > limit and total(own) > limit


def alive(pids: list[int]) -> list[int]:
    """Those that run: a process that has ended and was not yet waited for does not."""
    found = []
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
    return found


def is_running(pid: int) -> bool:
    """Whether one of its threads runs, or would if there were a free core. False where that is not known."""
    with contextlib.suppress(OSError, IndexError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            # The name, in parentheses, may hold anything; the state is the letter after it.
            if (task / "stat").read_text().rpartition(")")[2].split()[0] in "RD":
                return True
    return False


def seconds_spent(pids: list[int]) -> float:
    """Processor time that these processes have used until now."""
    total = 0.0
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            times = psutil.Process(pid).cpu_times()
            total += times.user + times.system
    return total


# Seconds in which those that clean up may end by themselves: one may only just be starting.
LAST_WORDS = 5.0
# Python's bookkeeper of shared memory and torch's: each unlinks what is left when all others are gone.
_BOOKKEEPERS = "multiprocessing.resource_tracker", "torch_shm_manager"


def _may_clean_up(pid: int) -> bool:
    with contextlib.suppress(psutil.Error):
        words = psutil.Process(pid).cmdline()
        # None: it is just becoming another program, perhaps one of these.
        return not words or any(name in word for word in words for name in _BOOKKEEPERS)
    return False


def kill_tree(roots: list[int], spare_until: float = 0.0) -> None:
    """Kills these processes and all their descendants; up to a time on the monotonic clock, not those that
    clean up. All are stopped before the first is killed: a process that keeps starting others cannot outrun
    this, and none is handed to another parent while we look."""
    stopped: set[int] = set()
    spared: set[int] = set()
    while found := {pid for root in roots for pid in tree(root)} - stopped - spared:
        if time.monotonic() < spare_until:
            spared |= {pid for pid in found if _may_clean_up(pid)}
        signal_all(found - spared, signal.SIGSTOP)
        stopped |= found - spared
    signal_all(stopped, signal.SIGKILL)


def signal_all(pids: Iterable[int], number: int) -> None:
    """Sends a signal to those that are there, and ours."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def in_sessions(sessions: set[int]) -> list[int]:
    """The processes of these sessions. Slow: it looks at every process there is."""
    found = []
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            if os.getsid(pid) in sessions and pid not in sessions:
                found.append(pid)
    return found
