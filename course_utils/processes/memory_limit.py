"""A limit on what this process may allocate from now on: beyond it, torch raises its own error.

It counts private memory that can be written to. CUDA reserves address space without end, and little of that
kind; so the limit holds with a GPU too.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

Limits = tuple[int, int]


def set_limit(more: int, *, for_good: bool = False) -> Limits:
    """At most `more` bytes on top of what is allocated now; within a limit that there is already. Returns the
    limits before, for `put_back`. `for_good`: nothing in this process can raise it again. Linux alone."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    if sys.platform != "linux":
        return before
    pages = int(Path("/proc/self/statm").read_text().split()[5])
    limit = pages * resource.getpagesize() + more
    if before[0] != resource.RLIM_INFINITY:  # inside another process, whose limit holds for what it starts
        limit = min(limit, before[0])
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit if for_good else before[1]))
    return before


def put_back(before: Limits) -> None:
    """The limits as they were."""
    resource.setrlimit(resource.RLIMIT_DATA, before)
