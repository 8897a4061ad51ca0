"""The tree of processes under one: who is in it, how much memory it holds, and its end."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

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


def of_each(pids: Iterable[int], ask: Callable[[psutil.Process], Any]) -> Iterator[Any]:
    """What `ask` says of each of these processes that is there, and ours to ask."""
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            yield ask(psutil.Process(pid))


def holds_more(pids: list[int], limit: int) -> bool:
    """Whether these processes hold more bytes in memory than `limit`, each page that they share counted once
    (or, where the system doesn't tell which those are, for nobody)."""

    def own(process: psutil.Process) -> int:
        full = process.memory_full_info()
        return getattr(full, "pss", full.uss)

    # The second takes ten times as long, and is never more than the first.
    resident = sum(of_each(pids, lambda process: process.memory_info().rss))
    return resident > limit and sum(of_each(pids, own)) > limit


def alive(pids: Iterable[int]) -> list[int]:
    """Those that run: a process that has ended and was not yet waited for does not."""
    states = of_each(pids, lambda process: (process.pid, process.status()))
    return [pid for pid, state in states if state != psutil.STATUS_ZOMBIE]


def _threads(pid: int) -> list[list[str]]:
    """What Linux says of each of its threads, from the letter of its state on; elsewhere there are none."""
    with contextlib.suppress(OSError):  # it has ended, or one of them has
        stats = [(task / "stat").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
        # Before that is the name, in parentheses; it may hold anything.
        return [stat.rpartition(")")[2].split() for stat in stats]
    return []


def is_running(pid: int) -> bool:
    """Whether one of its threads runs, or would if there were a free core. False where that is not known."""
    return any(fields[0] in "RD" for fields in _threads(pid))


_EXITING = 4  # among the kernel's flags of a thread


def is_ending(pid: int) -> bool:
    """Whether the process has ended, waited for or not, or all of its threads are about to."""
    if threads := _threads(pid):
        return all(fields[0] in "ZX" or int(fields[6]) & _EXITING for fields in threads)
    return not alive([pid])


def seconds_spent(pids: list[int]) -> float:
    """Processor time that these processes have used until now."""
    times = of_each(pids, psutil.Process.cpu_times)
    return sum(one.user + one.system for one in times)


# Seconds in which those that clean up may end by themselves: one may only just be starting.
LAST_WORDS = 5.0
# Python's bookkeeper of shared memory and torch's: each unlinks what is left when all others are gone.
_BOOKKEEPERS = "multiprocessing.resource_tracker", "torch_shm_manager"


def _may_clean_up(process: psutil.Process) -> bool:
    words = process.cmdline()
    # None: it is just becoming another program, perhaps one of these.
    return not words or any(name in word for word in words for name in _BOOKKEEPERS)


def kill_tree(roots: list[int], spare_until: float = 0.0) -> None:
    """Kills these processes and all their descendants; up to a time on the monotonic clock, not those that
    clean up. All are stopped before the first is killed: a process that keeps starting others cannot outrun
    this, and none is handed to another parent while we look."""
    stopped: set[int] = set()
    spared: set[int] = set()
    while found := {pid for root in roots for pid in tree(root)} - stopped - spared:
        if time.monotonic() < spare_until:
            asked = of_each(found, lambda process: (process.pid, _may_clean_up(process)))
            spared |= {pid for pid, may in asked if may}
        _signal(found - spared, signal.SIGSTOP)
        stopped |= found - spared
    _signal(stopped, signal.SIGKILL)


def _signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # gone, or not ours
            os.kill(pid, number)


def in_sessions(sessions: set[int]) -> list[int]:
    """The processes of these sessions. Slow: it looks at every process there is."""
    found = []
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            if os.getsid(pid) in sessions and pid not in sessions:
                found.append(pid)
    return found
