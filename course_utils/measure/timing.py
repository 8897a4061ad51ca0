"""How much longer one piece of code takes than another."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

# A sample repeats a short call until it takes this long: below, the clock and the call itself show.
_SAMPLE_SECONDS = 1e-3
_FEWEST_PAIRS = 7


@dataclass(frozen=True)
class Ratio:
    """Time of one over time of another. `ratio` is the median of `pairs` pairs, uncertain by `noise`.

    `enough`: the noise is smaller than the distance to `target`, so that the ratio may be judged by it.
    """

    ratio: float
    noise: float
    target: float
    pairs: int

    @property
    def enough(self) -> bool:
        return self.noise < abs(self.ratio - self.target)

    def __str__(self) -> str:
        return f"{self.ratio:.2f} ± {self.noise:.2f}"


def time_ratio(
    a: Callable[[], Any],
    b: Callable[[], Any],
    *,
    target: float = 1.0,
    seconds: float = 1.0,
    most_pairs: int = 51,
) -> Ratio:
    """How many times as long as `b()` does `a()` take, both on this machine and in this moment?

    Both are warmed up, then timed in turns and each pair in the other order than the last, so that a busy
    moment hits both alike; a GPU is waited for. It ends when `target` is well outside of the noise, after
    `most_pairs`, or after about `seconds` (at least seven pairs are timed). A check that finds
    `not ratio.enough` has to say *could not check*.

    Times differ from run to run, so nothing of this may be printed by a check.
    """
    for _ in range(2):
        a(), b()
    repeats_a, repeats_b = _repeats(a), _repeats(b)
    end = time.perf_counter() + seconds
    ratios: list[float] = []
    collecting = gc.isenabled()
    gc.disable()
    try:
        while len(ratios) < _FEWEST_PAIRS or (len(ratios) < most_pairs and time.perf_counter() < end):
            if len(ratios) % 2:
                second = _sample(b, repeats_b)
                ratios.append(_sample(a, repeats_a) / second)
            else:
                first = _sample(a, repeats_a)
                ratios.append(first / _sample(b, repeats_b))
            so_far = _ratio(ratios, target)
            if len(ratios) >= _FEWEST_PAIRS and 4 * so_far.noise < abs(so_far.ratio - target):
                break
    finally:
        if collecting:
            gc.enable()
    return _ratio(ratios, target)


def _ratio(ratios: list[float], target: float) -> Ratio:
    """The median, and how far from it the median's 95 % interval reaches (by ranks: no shape is assumed)."""
    ordered = sorted(ratios)
    reach = 0.98 * math.sqrt(len(ordered))
    low = ordered[max(0, math.floor(len(ordered) / 2 - reach))]
    high = ordered[min(len(ordered) - 1, math.ceil(len(ordered) / 2 + reach) - 1)]
    middle = statistics.median(ordered)
    return Ratio(middle, max(high - middle, middle - low), target, len(ordered))


def _repeats(fn: Callable[[], Any]) -> int:
    return max(1, min(10_000, math.ceil(_SAMPLE_SECONDS / max(_sample(fn, 1), 1e-9))))


def _sample(fn: Callable[[], Any], repeats: int) -> float:
    """Seconds of one call."""
    _wait()
    start = time.perf_counter()
    for _ in range(repeats):
        fn()
    _wait()
    return (time.perf_counter() - start) / repeats


def _wait() -> None:
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
