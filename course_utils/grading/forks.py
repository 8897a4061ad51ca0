"""Where answers run: forks of a warm process that has imported what checks need."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any

from course_utils.exercise import Exercise
from course_utils.processes import client, fork, workers
from course_utils.processes.result import Result

# What every check needs in its process: imported once, where the processes are forked from.
PRELOAD = ("course_utils.grading.attempt", "course_utils.measure")
READY_TO_COMPILE = "course_utils.processes.ready_to_compile"
READY_TO_MAKE_KERNELS = "course_utils.processes.ready_to_make_kernels"
PRELOAD_TO_COMPILE = (READY_TO_COMPILE, "torch._inductor.compile_fx", READY_TO_MAKE_KERNELS)


# What exercises import, and what checks have imported of torch: that may take longer than the check, so the
# processes that come later have it from the start. In the order in which it was imported.
imported: dict[str, None] = {}
OF_TORCH = re.compile(r"torch(\.\w+)+|" + re.escape(READY_TO_COMPILE))


def repeated(call: Callable[[], list[Result]], times: int) -> list[Result]:
    """What `call` gives. A machine that is very busy may leave a process unanswered, and the server of all
    processes may have been killed by another answer: then it is called again, at most so many times."""
    for left in reversed(range(times + 1)):
        try:
            results = call()
        except workers.WorkersError:
            if not left:
                raise
        else:
            killed = (result.state == "died" and client.SERVER_ENDED in result.how for result in results)
            if not left or not any(killed):
                break
    return results


class Forks:
    """Forks of one warm process. It runs nothing of the answers, so that each begins where the others did.
    `on_output` is called with what they print."""

    def __init__(self, on_output: Callable[[str], None] | None = None) -> None:
        self._on_output = on_output
        self._worker: workers.Worker | None = None
        self._has: set[str] = set()
        self._stopped = False

    def __enter__(self) -> Forks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(
        self, function: Callable[..., Any], *args: Any, needs: Sequence[str] = (), deadline: float
    ) -> Result:
        """What `function(*args)` tells in a fork that has imported `needs`."""

        def once() -> list[Result]:
            if self._stopped:
                raise InterruptedError("it was interrupted")
            wanted = (*PRELOAD, *needs, *imported)
            if self._worker is None or not self._worker.alive or not self._has.issuperset(wanted):
                self.close()
                self._worker, self._has = workers.Worker(preload=wanted), set(wanted)
            options = {"deadline": deadline, "on_output": self._on_output, "plain": True}
            try:
                return [self._worker.call(fork.in_a_fork, function, *args, **options)]
            except workers.WorkersError:
                self.close()
                raise

        return repeated(once, 2)[0]

    def stop(self) -> None:
        """Ends it for good; who waits for what it tells gets an `InterruptedError`."""
        self._stopped = True
        self.close()

    def close(self) -> None:
        """Ends the process, and all that was started below it."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None


def imported_after(modules: int) -> list[str]:
    """The parts of torch that were imported since there were so many modules, in that order; where the
    compiler is among them, instead of its hundreds of parts what brings them all."""
    latest = list(itertools.islice(reversed(sys.modules), max(0, len(sys.modules) - modules)))
    found = [name for name in reversed(latest) if name.startswith("torch.")]
    if not any(name.startswith("torch._dynamo.") for name in found):
        return found
    return [READY_TO_COMPILE, *(name for name in found if name == "torch._inductor.compile_fx")]


def will_need(exercises: Iterable[Exercise]) -> None:
    """Processes that come later have what these exercises import from the start: each would import it
    again."""
    checks = [check for exercise in exercises for check in exercise.checks]
    values = [value for check in checks for value in check.function.__globals__.values()]
    names = {value.__name__ for value in values if isinstance(value, ModuleType)}
    names |= {getattr(value, "__module__", None) or "" for value in values}
    wanted = (name for name in names if name.startswith(("torch.", "course_utils.")) and name in sys.modules)
    imported.update(dict.fromkeys(sorted(wanted)))
