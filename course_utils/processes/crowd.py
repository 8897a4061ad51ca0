"""How long something may take on a machine that has other things to do."""

from __future__ import annotations

import os

# However many wait for the processor: who waits for what never comes shall be told so in the end.
MOST = 4.0


def stretched(seconds: float) -> float:
    """So many seconds of work, in seconds of the wall: longer by as much as more processes want to run than
    there are cores (the load average of the last minute), at most `MOST` times as long."""
    waiting = os.getloadavg()[0] / (os.cpu_count() or 1)
    return seconds * min(max(waiting, 1.0), MOST)
