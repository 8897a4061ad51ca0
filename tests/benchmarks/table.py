"""One row of the benchmark table: a figure, its bound, and whether it holds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """`figure` against `bound`; `at_most` says on which side of it the figure has to be."""

    what: str
    figure: float
    bound: float
    at_most: bool = True
    unit: str = "×"
    detail: str = ""

    @property
    def holds(self) -> bool:
        return self.figure <= self.bound if self.at_most else self.figure >= self.bound

    def __str__(self) -> str:
        relation = "≤" if self.at_most else "≥"
        word = "ok" if self.holds else "MISSED"
        return (
            f"{self.what:<58} {self.figure:>8.2f} {self.unit:<3} {relation} {self.bound:g}"
            f"   {word:<7} {self.detail}"
        )


def seconds(call: Callable[[], object]) -> float:
    """How long one call takes."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def interleaved(a: Callable[[], object], b: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Median seconds of both, measured in turns so that a busy moment hits both alike."""
    times: list[tuple[float, float]] = [(seconds(a), seconds(b)) for _ in range(repeats)]
    return statistics.median(t[0] for t in times), statistics.median(t[1] for t in times)
