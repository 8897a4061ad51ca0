"""The compiler fuses what it sees in one graph. A function that calls all steps is traced through them, and
between two of them nothing asks for a value, so there is one graph and one kernel: each element is read once,
goes through all steps in a register, and is written once.

The first call compiles and stays out of the times. Then both run in turns. The two times of a pair are from
the same moment, so what slows the machine down cancels in their ratio, and the middle one of the ratios does
not notice a moment in which something else ran."""

import functools
import itertools
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
    for _ in range(50):
        start = clock()
        chain(x)
        middle = clock()
        fused(x)
        end = clock()
        ratios.append((middle - start) / (end - middle))
    return fused, statistics.median(ratios)


# Other right answers


def shares_of_the_time(steps, x, backend, clock=time.perf_counter):
    """Compares shares: those of the steps in the time of each pair."""

    def apply(t, step):
        return step(t)

    def run(t):
        return functools.reduce(apply, steps, t)

    compiled = torch.compile(run, backend=backend, fullgraph=True)
    compiled(x)
    shares = []
    while len(shares) < 21:
        times = []
        for function in (compiled, run):
            times.append(-clock())
            function(x)
            times[-1] += clock()
        shares.append(times[1] / (sum(times) or 1.0))
    share = float(torch.tensor(shares, dtype=torch.float64).median())
    return compiled, share / max(1 - share, 1e-9)


class _Chain(torch.nn.Module):
    def __init__(self, steps):
        super().__init__()
        self.steps = tuple(steps)

    def forward(self, t):
        for step in self.steps:
            t = step(t)
        return t


def as_a_module(steps, x, backend, clock=time.perf_counter):
    """Each run of the compiled one lies between two of the other, and is compared with their mean."""
    plain, fused = _Chain(steps), _Chain(steps)
    fused.compile(backend=backend)
    marks = []
    for number in range(26):
        if number == 0:
            fused(x)
        (plain, fused)[number % 2](x)
        marks.append(clock())
    lasted = [b - a for a, b in zip(marks, marks[1:], strict=False)]
    ratios = [
        (before + after) / 2 / max(one, 1e-9)
        for one, before, after in zip(lasted[2::2], lasted[1::2], lasted[3::2], strict=False)
    ]
    return fused, sorted(ratios)[len(ratios) // 2]


equivalent = {
    "line 26: `50` -> `49`": "one pair less",
    "line 26: `50` -> `51`": "one pair more is not told from a run that is not timed",
}


def generated(answer):
    for number in (1, 3):
        clock = itertools.count().__next__
        fused, speedup = answer([torch.sin] * number, torch.ones(3), "eager", clock)
        yield fused(torch.linspace(0, 1, 3))
        yield speedup


also_right = [shares_of_the_time, as_a_module]
