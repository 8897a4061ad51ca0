"""The compiler fuses what it sees in one graph. It traces through a function that calls all steps, and
nothing between two of them needs a value, so there is one graph and, for pointwise steps like these, one
kernel: each element is read once, goes through all steps in a register, and is written once.

The first call compiles, so it isn't timed. Then both run in turns. The two times of a pair are from nearly
the same moment, so a slow change of the machine's pace nearly cancels in their ratio. The median of the
ratios ignores a moment in which something else ran."""

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

import itertools

from course_utils.exercise import Edit, Wrong


def best_of_each(steps, x, backend, clock=time.perf_counter):
    fused, plain_times, fused_times = _in_turns(steps, x, backend, clock)
    return fused, min(plain_times) / min(fused_times)


def middle_of_each(steps, x, backend, clock=time.perf_counter):
    fused, plain_times, fused_times = _in_turns(steps, x, backend, clock)
    return fused, statistics.median(plain_times) / statistics.median(fused_times)


def _in_turns(steps, x, backend, clock):
    plain, fused = _chain(steps), torch.compile(_chain(steps), backend=backend, fullgraph=True)
    fused(x)
    marks = [clock()]
    for function in [plain, fused] * 9:
        function(x)
        marks.append(clock())
    times = [after - before for before, after in itertools.pairwise(marks)]
    return fused, times[::2], times[1::2]


def _chain(steps):
    def run(x):
        for step in steps:
            x = step(x)
        return x

    return run


also_right = [best_of_each, middle_of_each]


# Mistakes


def one_after_the_other(steps, x, backend, clock=time.perf_counter):
    plain, fused = _chain(steps), torch.compile(_chain(steps), backend=backend)
    fused(x)
    times = []
    for function in [plain] * 11 + [fused] * 11:
        start = clock()
        function(x)
        times.append(clock() - start)
    return fused, statistics.median(times[:11]) / statistics.median(times[11:])


def ignores_its_argument(steps, x, backend, clock=time.perf_counter):
    fused, speedup = fuse_pointwise(steps, x, backend, clock)
    return lambda _: fused(x), speedup


def compiles_without_gradients(steps, x, backend, clock=time.perf_counter):
    with torch.no_grad():
        return fuse_pointwise(steps, x, backend, clock)


_COMPILED = "fused = torch.compile(chain, backend=backend)"
_ALONE = "steps = [torch.compile(step, backend=backend) for step in steps]\n    fused = chain"
_IN_EACH_CALL = "fused = lambda t: torch.compile(chain, backend=backend)(t)"
_ASKS = "t = step(t)\n            if t.isnan().any():\n                raise ValueError"

mistakes = [
    Wrong(ignores_its_argument, told_by="results"),
    Edit("each step alone", _COMPILED, _ALONE, told_by="one_graph"),
    Edit("asks for NaN between", "t = step(t)", _ASKS, told_by="one_graph"),
    Wrong(compiles_without_gradients, told_by="compiled_once"),
    Edit("compiles in each call", _COMPILED, _IN_EACH_CALL, told_by="compiled_once"),
    Edit("times the first call", "    fused(x)\n    ratios", "    ratios", told_by="without_compiling"),
    Edit("takes the mean", "statistics.median", "statistics.mean", told_by="on_a_busy_machine"),
    Wrong(one_after_the_other, told_by="on_a_busy_machine"),
]

equivalent = {
    "line 24: `25` -> `26`": "one pair more",
    "line 24: `25` -> `24`": "one pair less",
}

not_tried = {
    "hard numbers": "the steps compute",
    "dtypes": "the steps compute",
    "left alone": "a step may write to its input",
}
