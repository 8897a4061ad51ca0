"""The compiler fuses what it sees in one graph. A function that calls all steps is traced through them, and
between two of them nothing asks for a value, so there is one graph and one kernel: each element is read once,
goes through all steps in a register, and is written once.

The first call compiles and stays out of the times. Then both run in turns. The two times of a pair are from
the same moment, so what slows the machine down cancels in their ratio, and the middle one of the ratios does
not notice a moment in which something else ran."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def fuse_pointwise(
    steps: list[Callable[[Tensor], Tensor]],
    x: Tensor,
    backend: Any,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[Callable[[Tensor], Tensor], float]:
    def chain(t: Tensor) -> Tensor:
        for step in steps:
            t = step(t)
        return t

    fused = torch.compile(chain, backend=backend)
    fused(x)
    ratios = []
    for _ in range(25):
        start = clock()
        chain(x)
        middle = clock()
        fused(x)
        end = clock()
        ratios.append((middle - start) / (end - middle))
    return fused, statistics.median(ratios)


# Other right answers

from course_utils.exercise import Edit, Wrong


def best_of_each(steps, x, backend, clock=time.perf_counter):
    """In turns as well; of each the shortest time."""

    class Chain(torch.nn.Module):
        def forward(self, t):
            for step in steps:
                t = step(t)
            return t

    plain, fused = Chain(), Chain()
    fused.compile(backend=backend)
    fused(x)
    times = {plain: [], fused: []}
    for _ in range(9):
        for module in times:
            start = clock()
            module(x)
            times[module].append(clock() - start)
    return fused, min(times[plain]) / min(times[fused])


def shares_of_the_time(steps, x, backend, clock=time.perf_counter):
    """Compares shares: those of the steps in the time of each pair."""
    shares, run = [], _chain(steps)
    compiled = torch.compile(run, backend=backend, fullgraph=True)
    compiled(x)
    while len(shares) < 21:
        times = []
        for function in (compiled, run):
            times.append(-clock())
            function(x)
            times[-1] += clock()
        shares.append(times[1] / sum(times))
    share = statistics.median(shares)
    return compiled, share / (1 - share)


def _chain(steps):
    def run(x):
        for step in steps:
            x = step(x)
        return x

    return run


also_right = [best_of_each, shares_of_the_time]


# Mistakes


def each_step_alone(steps, x, backend, clock=time.perf_counter):
    return fuse_pointwise([torch.compile(step, backend=backend) for step in steps], x, lambda g, i: g, clock)


def one_after_the_other(steps, x, backend, clock=time.perf_counter):
    plain, fused = _chain(steps), torch.compile(_chain(steps), backend=backend)
    fused(x)
    times = []
    for function in [plain] * 11 + [fused] * 11:
        start = clock()
        function(x)
        times.append(clock() - start)
    return fused, statistics.median(times[:11]) / statistics.median(times[11:])


mistakes = [
    Wrong(each_step_alone, told_by="one_graph"),
    Edit(
        "asks for NaN between",
        "t = step(t)",
        "t = step(t)\n            if t.isnan().any():\n                raise ValueError",
        told_by="one_graph",
    ),
    Edit("returns the plain one", "return fused,", "return chain,", told_by="compiled_once"),
    Edit(
        "compiles in each call",
        "fused = torch.compile(chain, backend=backend)\n    fused(x)",
        "def fused(t):\n        return torch.compile(chain, backend=backend)(t)",
        told_by="compiled_once",
    ),
    Edit(
        "upside down",
        "(middle - start) / (end - middle)",
        "(end - middle) / (middle - start)",
        told_by="without_compiling",
    ),
    Edit("times the first call", "    fused(x)\n    ratios", "    ratios", told_by="without_compiling"),
    Edit("takes the mean", "statistics.median", "statistics.mean", told_by="on_a_busy_machine"),
    Wrong(one_after_the_other, told_by="on_a_busy_machine"),
]

equivalent = {
    "line 24: `25` -> `26`": "one pair more",
    "line 24: `25` -> `24`": "one pair less",
}
