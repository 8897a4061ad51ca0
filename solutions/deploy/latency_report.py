"""The outer loop is over the rounds, so a slow second is spread over all functions.

The rank p · n / 100 is rounded up: then at least p percent of the times stand up to there, and with one less
there wouldn't. `-(-a // b)` rounds up in whole numbers, where no rounding of floats can interfere.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any


def latency_report(
    calls: Mapping[str, Callable[[], Any]],
    rounds: int = 100,
    warmup: int = 10,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, dict[str, float]]:
    times = {name: [] for name in calls}
    for _ in range(warmup):
        for call in calls.values():
            call()
    for _ in range(rounds):
        for name, call in calls.items():
            start = clock()
            call()
            times[name].append(clock() - start)
    report = {}
    for name, measured in times.items():
        measured.sort()
        ranks = {f"p{p}": -(-p * rounds // 100) for p in (50, 90, 99)}
        report[name] = {key: measured[rank - 1] for key, rank in ranks.items()}
        report[name]["slowest"] = measured[-1]
    return report


# Other right answers

from collections import defaultdict
from functools import partial

import numpy as np

from course_utils.exercise import Edit, Wrong


def _by_quantiles(calls, rounds=100, warmup=10, clock=time.perf_counter, method="inverted_cdf"):
    times = np.empty((warmup + rounds, len(calls)))
    for row in times:
        for i, call in enumerate(calls.values()):
            start = clock()
            call()
            row[i] = clock() - start
    found = np.quantile(times[warmup:], [0.5, 0.9, 0.99, 1], axis=0, method=method)
    keys = ("p50", "p90", "p99", "slowest")
    return {name: dict(zip(keys, found[:, i].tolist(), strict=True)) for i, name in enumerate(calls)}


def _counts(calls, rounds=100, warmup=10, clock=time.perf_counter):
    """The smallest that enough don't exceed, literally. Every other round goes backwards."""
    [call() for call in calls.values() for _ in range(warmup)]
    times = defaultdict(list)
    for number in range(rounds):
        for name in list(calls)[:: 1 if number % 2 else -1]:
            before, _, after = clock(), calls[name](), clock()
            times[name].append(after - before)

    def reaches(p, name, x):
        return sum(y <= x for y in times[name]) * 100 >= p * rounds

    return {
        name: {
            f"p{p}" if p < 100 else "slowest": min(filter(partial(reaches, p, name), times[name]))
            for p in (50, 90, 99, 100)
        }
        for name in calls
    }


also_right = [_by_quantiles, _counts]


def _interpolates(calls, rounds=100, warmup=10, clock=time.perf_counter):
    return _by_quantiles(calls, rounds, warmup, clock, method="linear")


def _one_after_the_other(calls, rounds=100, warmup=10, clock=time.perf_counter):
    each = [latency_report({name: call}, rounds, warmup, clock) for name, call in calls.items()]
    return {name: numbers for report in each for name, numbers in report.items()}


_LOOP = "        for name, call in calls.items():\n        "
mistakes = [
    Wrong(_interpolates, told_by="nearest_rank"),
    Edit("one too far", "measured[rank - 1]", "measured[min(rank, rounds - 1)]", told_by="nearest_rank"),
    Edit("rounds down", "-(-p * rounds // 100)", "max(p * rounds // 100, 1)", told_by="nearest_rank"),
    Edit("p99 for the slowest", "measured[-1]", 'report[name]["p99"]', told_by="slowest"),
    Edit("counts the warm-up", "range(rounds)", "range(warmup + rounds)", told_by="warm_up"),
    Wrong(_one_after_the_other, told_by="in_turn"),
    Edit("one list", "{name: [] for name in calls}", "dict.fromkeys(calls, [])", told_by="apart"),
    Edit(
        "since the round began",
        _LOOP + "    start = clock()\n",
        "        start = clock()\n" + _LOOP[:-8],
        told_by="apart",
    ),
]
not_tried = {
    "hard numbers": "measured times, none is added",
    "dtypes": "no tensor is given",
    "left alone": "no tensor is given",
}
