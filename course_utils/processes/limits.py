"""How long something may take on a machine that has other things to do, and how much it may allocate."""

import os
import resource
import sys
from pathlib import Path

# However many wait for the processor: who waits for what never comes shall be told so in the end.
MOST = 4.0


def stretched(seconds: float) -> float:
    """So many seconds of work, in seconds of the wall: longer by as much as more processes want to run than
    there are cores (the load average of the last minute), at most `MOST` times as long."""
    waiting = os.getloadavg()[0] / (os.cpu_count() or 1)
    return seconds * min(max(waiting, 1.0), MOST)


def bytes_beyond(more: int) -> int:
    """The limit of this process (`RLIMIT_DATA`) that leaves it `more` bytes on top of what it has allocated;
    within the limit that there is. Beyond it torch raises its own error. Linux alone.

    It counts private memory that can be written to. CUDA reserves address space without end, and little of
    that kind; so the limit holds with a GPU too."""
    before, _ = resource.getrlimit(resource.RLIMIT_DATA)
    if sys.platform != "linux":
        return before
    limit = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize() + more
    return limit if before == resource.RLIM_INFINITY else min(limit, before)
