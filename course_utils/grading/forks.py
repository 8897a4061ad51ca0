"""Where answers run: forks of a warm server that has imported what checks need."""

from __future__ import annotations

import contextlib
import itertools
import re
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any

from course_utils import torch_private
from course_utils.exercise import Exercise
from course_utils.processes.client import ServerProcess
from course_utils.processes.result import Result
from course_utils.processes.workers import Worker, close_all, tried_again

# What every check needs in its process: imported once, where the processes are forked from.
PRELOAD = ("course_utils.grading.attempt", "course_utils.measure")
READY_TO_COMPILE = "course_utils.grading.ready_to_compile"
READY_TO_MAKE_KERNELS = "course_utils.grading.ready_to_make_kernels"
READY_TO_INTERPRET = "course_utils.grading.ready_to_interpret"
PRELOAD_TO_COMPILE = (READY_TO_COMPILE, torch_private.COMPILE_FX, READY_TO_MAKE_KERNELS)


# What exercises import, and what checks have imported of torch: that may take longer than the check, so the
# processes that come later have it from the start. In the order in which it was imported.
imported: dict[str, None] = {}
OF_TORCH = re.compile(r"torch(\.\w+)+|" + re.escape(READY_TO_COMPILE))


class Forks:
    """Forks of the warm server: each call has one of its own, and begins where the others did. `on_output` is
    called with what they print. Used by several threads at once."""

    def __init__(self, on_output: Callable[[str], None] | None = None) -> None:
        self._on_output = on_output
        self._running: set[Worker] = set()
        self._ending: deque[Worker] = deque()
        self._stopped = False

    def __enter__(self) -> Forks:
        return self

    def __exit__(self, *_: object) -> None:
        close_all([*self._running, *self._ending])

    def call(
        self, function: Callable[..., Any], *args: Any, needs: Sequence[str] = (), deadline: float
    ) -> Result:
        """What `function(*args)` tells in a fork that has imported `needs`. The end of that process is
        awaited while the next one runs."""

        def once(server: ServerProcess | None) -> list[Result]:
            worker = Worker((*PRELOAD, *needs, *imported), server=server)
            self._running.add(worker)
            try:
                if self._stopped:
                    raise InterruptedError("it was interrupted")
                options = {"deadline": deadline, "on_output": self._on_output, "plain": True}
                return [worker.call(function, *args, **options)]
            finally:
                worker.end()
                self._ending.append(worker)
                self._running.discard(worker)

        result = tried_again(once)[0]
        if result.state == "raised":  # what an answer raises is told; this is a process that cannot go on
            result.state, result.how = "died", str(result.error)
        while len(self._ending) > 1:
            with contextlib.suppress(IndexError):  # other threads were faster
                self._ending.popleft().close()
        return result

    def stop(self) -> None:
        """Ends it for good; who waits for what it tells gets an `InterruptedError`."""
        self._stopped = True
        for worker in list(self._running):
            worker.end()


def imported_after(modules: int) -> list[str]:
    """The parts of torch that were imported since there were so many modules, in that order; where the
    compiler is among them, instead of its hundreds of parts what brings them all."""
    latest = list(itertools.islice(reversed(sys.modules), max(0, len(sys.modules) - modules)))
    found = [name for name in reversed(latest) if name.startswith("torch.")]
    if not any(name.startswith(f"{torch_private.DYNAMO}.") for name in found):
        return found
    return [READY_TO_COMPILE, *(name for name in found if name == torch_private.COMPILE_FX)]


def will_need(exercises: Iterable[Exercise]) -> None:
    """Processes that come later have what these exercises import from the start: each would import it
    again."""
    checks = [check for exercise in exercises for check in exercise.checks]
    values = [value for check in checks for value in check.function.__globals__.values()]
    names = {value.__name__ for value in values if isinstance(value, ModuleType)}
    names |= {getattr(value, "__module__", None) or "" for value in values}
    wanted = (name for name in names if name.startswith(("torch.", "course_utils.")) and name in sys.modules)
    imported.update(dict.fromkeys(sorted(wanted)))
