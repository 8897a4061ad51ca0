"""The queue has to be empty at both readings. The first `synchronize` waits for what was there before,
outside the time; the second for the work of this call, inside it.

The median of single calls is robust: a call that something else has disturbed is one of many, however slow.
"""

import time
from collections.abc import Callable
from statistics import median
from typing import Any


def time_it(
    fn: Callable[[], Any],
    warmup: int = 3,
    repeats: int = 20,
    synchronize: Callable[[], Any] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    for _ in range(warmup):
        fn()
    times = []
    for _ in range(repeats):
        synchronize()
        start = clock()
        fn()
        synchronize()
        times.append(clock() - start)
    return median(times)


# Other right answers

from course_utils.exercise import Edit, Wrong


def _one_loop(fn, warmup=3, repeats=20, synchronize=lambda: None, clock=time.perf_counter):
    def once():
        synchronize()
        before = clock()
        fn()
        synchronize()
        return clock() - before

    times = sorted([once() for _ in range(warmup + repeats)][warmup:])
    return (times[(repeats - 1) // 2] + times[repeats // 2]) / 2


def _by_quantiles(fn, warmup=3, repeats=20, synchronize=lambda: None, clock=time.perf_counter):
    import numpy as np

    while warmup:
        fn()
        warmup -= 1
    seconds = np.empty(repeats)
    synchronize()
    for i in range(repeats):
        start = clock()
        out = fn()
        synchronize()
        seconds[i] = clock() - start
        del out
    return float(np.quantile(seconds, 0.5))


also_right = [_one_loop, _by_quantiles]


def _all_at_once(fn, warmup=3, repeats=20, synchronize=lambda: None, clock=time.perf_counter):
    for _ in range(warmup):
        fn()
    synchronize()
    start = clock()
    for _ in range(repeats):
        fn()
    synchronize()
    return (clock() - start) / repeats


mistakes = [
    Edit("stops too early", "        synchronize()\n        times", "        times", told_by="waits"),
    Edit("starts too early", "        synchronize()\n        start", "        start", told_by="starts_empty"),
    Wrong(_all_at_once, told_by="median"),
    Edit("mean", "return median(times)", "return sum(times) / len(times)", told_by="median"),
    Edit(
        "keeps results",
        "        fn()\n        synchronize()",
        "        out = fn()\n        synchronize()",
        told_by="lets_go",
    ),
]

not_tried = {
    "hard numbers": "the real clock is",
    "dtypes": "Python's numbers",
    "left alone": "`fn` is called",
}
