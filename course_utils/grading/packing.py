"""Checks and answers on their way to another process."""

import functools
import pickle
import sys
from dataclasses import dataclass
from typing import Any

import cloudpickle

from course_utils.exercise import Check
from course_utils.grading.recipe import ToMake
from course_utils.processes import transport, worker_process


@dataclass(frozen=True)
class Packed:
    """Checks on their way."""

    data: bytes

    def unpacked(self) -> dict[str, Check]:
        """The checks, by name, in the process that they came to. A kernel in them is compiled or interpreted
        as this process does it now."""
        data, sources = pickle.loads(self.data)
        transport.install_sources(sources)
        return {check.name: check for check in pickle.loads(data)}


@functools.lru_cache(maxsize=64)
def packed(checks: tuple[Check, ...]) -> Packed:
    """The checks as they travel. The same object for the same checks."""
    by_value(*(check.function for check in checks))
    return Packed(pickle.dumps(transport.dumps(checks)))


@dataclass(frozen=True)
class PackedAnswer(ToMake):
    """An answer that is unpacked where the check runs: what that raises is what the answer raises."""

    data: bytes
    sources: transport.Sources

    @classmethod
    def of(cls, answer: Any) -> Any:
        """The answer as it travels; one that is a recipe stays as it is. Raises what pickling it raises."""
        return answer if isinstance(answer, ToMake) else cls(*transport.dumps(answer))

    def make(self) -> Any:
        """The answer, in the process that it came to. Raises what unpacking it raises."""
        transport.install_sources(self.sources)
        answer = pickle.loads(self.data)
        worker_process.publish(answer)
        return answer


def by_value(*objects: Any) -> None:
    """Exercises and solutions are loaded by path: a worker cannot import them, so they travel whole."""
    for thing in objects:
        module = sys.modules.get(getattr(thing, "__module__", None) or "")
        if module is not None and module.__name__.partition(".")[0] in ("exercises", "solutions"):
            cloudpickle.register_pickle_by_value(module)
