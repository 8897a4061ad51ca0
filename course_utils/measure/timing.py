"""How much longer one piece of code takes than another."""

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from course_utils.measure.memory import collector_off
from course_utils.wrong_use import public

# A sample repeats a short call until it takes this long: below, the clock and the call itself show.
_SAMPLE_SECONDS = 1e-3
_FEWEST_PAIRS, _MOST_PAIRS = 7, 51


@dataclass(frozen=True)
class Ratio:
    """Time of one over time of another. `ratio` is the median of `pairs` pairs, uncertain by `noise`.

    `enough`: the noise is smaller than the distance to 1, so that one may be called the slower.
    """

    ratio: float
    noise: float
    pairs: int

    @property
    def enough(self) -> bool:
        return self.noise < abs(self.ratio - 1)

    def __str__(self) -> str:
        return f"{self.ratio:.2f} ± {self.noise:.2f}"


@public
def time_ratio(
    a: Callable[[], Any],
    b: Callable[[], Any],
    *,
    seconds: float = 1.0,
    clock: Callable[[], float] = time.perf_counter,
) -> Ratio:
    """Measures how many times as long as `b()` a call of `a()` takes, on this machine and in this moment.

    Both are warmed up, then timed in turns and each pair in the other order than the last, so that a busy
    moment hits both alike; a GPU is waited for. It ends when 1 is well outside of the noise, after 51 pairs,
    or after about `seconds` (at least seven pairs are timed). `clock`: with `time.process_time`, seconds of
    the processor, which are less noisy on a busy machine; for work on one thread. Times differ from run to
    run, so nothing of this may be printed by a check.
    """
    for _ in range(2):
        a(), b()
    repeats_a, repeats_b = _repeats(a, clock), _repeats(b, clock)
    end = time.perf_counter() + seconds
    ratios: list[float] = []
    with collector_off():
        while len(ratios) < _FEWEST_PAIRS or (len(ratios) < _MOST_PAIRS and time.perf_counter() < end):
            if len(ratios) % 2:
                second = sample(b, repeats_b, clock)
                ratios.append(sample(a, repeats_a, clock) / second)
            else:
                first = sample(a, repeats_a, clock)
                ratios.append(first / sample(b, repeats_b, clock))
            so_far = _ratio(ratios)
            if len(ratios) >= _FEWEST_PAIRS and 4 * so_far.noise < abs(so_far.ratio - 1):
                break
    return _ratio(ratios)


def _ratio(ratios: list[float]) -> Ratio:
    """The median, and how far from it the median's 95 % interval reaches (by ranks: no shape is assumed)."""
    ordered = sorted(ratios)
    reach = 0.98 * math.sqrt(len(ordered))
    low = ordered[max(0, math.floor(len(ordered) / 2 - reach))]
    high = ordered[min(len(ordered) - 1, math.ceil(len(ordered) / 2 + reach) - 1)]
    middle = statistics.median(ordered)
    return Ratio(middle, max(high - middle, middle - low), len(ordered))


def _repeats(fn: Callable[[], Any], clock: Callable[[], float]) -> int:
    return max(1, min(10_000, math.ceil(_SAMPLE_SECONDS / max(sample(fn, 1, clock), 1e-9))))


def sample(fn: Callable[[], Any], repeats: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of one call, the mean of so many; a GPU is waited for."""
    wait = torch.accelerator.synchronize if torch.accelerator.is_available() else lambda: None
    wait()
    start = clock()
    for _ in range(repeats):
        fn()
    wait()
    return (clock() - start) / repeats
