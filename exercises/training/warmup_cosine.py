"""Warm-up, then a cosine

Return a `LambdaLR` for `optimizer` that multiplies the rate of each group by a factor:

- from 0 at step 0 it rises in a straight line to 1 at step `warmup`,
- then it falls along half a cosine wave, `(1 + cos(pi * t)) / 2` with `t` from 0 to 1, to 0 at step `total`,
- and it stays at 0.

`warmup` may be 0: then step 0 has the full rate. `warmup < total`. A new scheduler that loads the
`state_dict()` of another goes on where that one stood (the optimizer has loaded its own).

With a rate of 0.1, `warmup_cosine(optimizer, 2, 6)` sets 0, 0.05, 0.1, 0.0854, 0.05, 0.0146, then 0.
"""

import math

import torch
from torch.optim.lr_scheduler import LambdaLR

from course_utils.exercise import Exercise, expect

exercise = Exercise(
    minutes=8,
    hints=[
        "`LambdaLR` multiplies the rate that each group began with. What does your function return "
        "at the steps 0, `warmup` and `total`?",
        "How far is a step on its way from `warmup` to `total`, as a number from 0 to 1? And past the end?",
        "Three cases: `step / warmup` before `warmup`; 0 from `total` on; between them the cosine of "
        "`(step - warmup) / (total - warmup)`. Count nothing yourself: the step is the argument.",
    ],
)


@exercise.starter
def warmup_cosine(
    optimizer: torch.optim.Optimizer, warmup: int, total: int
) -> LambdaLR:
    raise NotImplementedError


_SETUP = """
parameters = [nn.Parameter(torch.zeros(2)) for _ in range(2)]
optimizer = torch.optim.SGD([{"params": parameters[:1]}, {"params": parameters[1:], "lr": 2.0}], lr=0.5)
"""
_READ = """
rates = []
for step in range(steps):
    rates.append([group["lr"] for group in optimizer.param_groups])
    optimizer.step()
    scheduler.step()
"""
_NEAR = 2e-6  # the factor may have been computed in float32
_CASES = [(2, 6), (1, 2), (5, 6), (4, 20), (10, 13)]


def _factor(step, warmup, total):
    """The same curve, written in another way."""
    rise = min(step / warmup, 1.0) if warmup else 1.0
    fallen = min(max((step - warmup) / (total - warmup), 0.0), 1.0)
    return rise * math.cos(math.pi / 2 * fallen) ** 2 if fallen < 1 else 0.0


def _expect_rates(t, steps, group=0):
    """In these steps the optimizer has the rates that it should have, in this group."""
    t.run("scheduler = warmup_cosine(optimizer, warmup, total)")
    told = f"it returns {expect.show(t.scheduler)}"
    expect.true(isinstance(t.scheduler, LambdaLR), told, "expected: a LambdaLR")
    t.run(f"steps = total + 4{_READ}")
    for step in steps:
        wanted, what = (0.5, 2.0)[group] * _factor(step, t.warmup, t.total), f"the rate at step {step}"
        came = float(t.rates[step][group])
        told = f"{what} is {came:.6g}, expected {wanted:.6g}"
        expect.true(math.isclose(came, wanted, rel_tol=1e-6, abs_tol=_NEAR), told)


@exercise.check(given=_SETUP, cases=_CASES)
def rises(t, warmup, total):
    """The rate rises in equal parts from 0, for `warmup` steps

    `LambdaLR` calls your function with the number of the step: with 0 when it is made, and then in each
    `scheduler.step()`, once for each group. It multiplies the rate that the group began with by the result.
    """
    _expect_rates(t, range(warmup))


@exercise.check(given=_SETUP, cases=_CASES)
def falls(t, warmup, total):
    """At step `warmup` it is full. Half a cosine wave later, at step `total`, it is 0

    The wave begins at `warmup` and has `total - warmup` steps. Measured from step 0 it would start below its
    height, with a jump.
    """
    _expect_rates(t, range(warmup, total + 1))


@exercise.check(given=_SETUP, cases=_CASES)
def stays(t, warmup, total):
    """Past the end it stays at 0

    A cosine goes up again after half a wave. A loop that runs a few steps longer would train at rates that
    nobody planned.
    """
    _expect_rates(t, range(total, total + 4))


@exercise.check(given=_SETUP, cases=[(0, 1), (0, 5)])
def without(t, warmup, total):
    """Without a warm-up it begins at the full rate

    With `warmup=0` no step is a part of the warm-up, so nothing is divided by 0.
    """
    _expect_rates(t, range(total + 2))


@exercise.check(given=_SETUP, cases=[(2, 6)])
def groups(t, warmup, total):
    """Each group keeps its own rate, times the factor

    `LambdaLR` knows the rate that each group began with. So your function returns a factor, the same for all
    groups, and needs to know nothing of rates.
    """
    _expect_rates(t, range(total + 1), group=1)


@exercise.check(
    given=f"{_SETUP}old = optimizer", cases={f"saved at step {steps}": steps for steps in (3, 12)}
)
def resumes(t, steps):
    """A new scheduler goes on from the `state_dict` of another

    `LambdaLR` saves the number of its step, and gives it to your function. Of a plain function it saves
    nothing: what that counts or notes by itself is lost.
    """
    t.run("scheduler = warmup_cosine(optimizer, 4, 10)" + _READ + _SETUP.split("\n", 2)[2])
    t.run("saved = scheduler.state_dict()\nscheduler = warmup_cosine(optimizer, 4, 10)")
    t.run("optimizer.load_state_dict(old.state_dict())\nscheduler.load_state_dict(saved)")
    t.run(_READ)
    for step, rates in enumerate(t.rates, steps):
        for i, (came, rate) in enumerate(zip(rates, (0.5, 2.0), strict=True)):
            what = f"the rate of group {i} at step {step}"
            expect.equal(came, rate * _factor(step, 4, 10), what=what, atol=_NEAR)
