"""What a reader sees while a report takes its time: which check is running. It goes when the report comes."""

from __future__ import annotations

import contextlib
import contextvars
import os
import threading
from collections.abc import Callable, Iterator

from course_utils.exercise import Check

AFTER = 1.0  # seconds without a report
BUILDS = {"compiler": "the C++ compiler builds something", "cmake": "CMake builds a program"}
# Where it is set nothing is shown: a lesson that is built has the same outputs on any machine.
QUIET = "COURSE_QUIET"


@contextlib.contextmanager
def told(total: int) -> Iterator[Callable[[Check], None]]:
    """Gives a function that is to be called with each check that begins. After a second, and from then on
    with each further check, a line in the cell says which of `total` is running. Outside of a notebook it
    shows nothing."""
    line = _Line(total)
    try:
        yield line.begins
    finally:
        line.ends()


class _Line:
    def __init__(self, total: int) -> None:
        self._total, self._number, self._text = total, 0, ""
        self._shown, self._over, self._lock = None, False, threading.Lock()
        # What a thread displays would go nowhere without the context of the cell.
        context = contextvars.copy_context()
        self._timer = threading.Timer(AFTER, context.run, [self._show])
        self._timer.daemon = True
        if _display() is not None:
            self._timer.start()

    def begins(self, check: Check) -> None:
        self._number += 1
        builds = "".join(f"; {BUILDS[need]}, which takes seconds" for need in check.needs if need in BUILDS)
        self._text = f"checking {self._number} of {self._total}: {check.title}{builds} …"
        if self._shown is not None:
            self._show()

    def ends(self) -> None:
        self._timer.cancel()
        with self._lock:
            self._over = True
            if self._shown is not None:
                self._shown.update({"text/plain": "", "text/html": ""}, raw=True)

    def _show(self) -> None:
        with self._lock:
            if self._over or not self._text:
                return
            if self._shown is None:
                self._shown = _display()({"text/plain": self._text}, raw=True, display_id=True)
            else:
                self._shown.update({"text/plain": self._text}, raw=True)


def _display() -> Callable[..., object] | None:
    """What shows something in a cell; None where there is no cell, and where nothing is to be shown."""
    if os.environ.get(QUIET):
        return None
    try:
        from IPython import get_ipython
        from IPython.display import display
    except ImportError:
        return None
    shell = get_ipython()
    return display if shell is not None and hasattr(shell, "kernel") else None
