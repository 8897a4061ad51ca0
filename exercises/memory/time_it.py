"""A clock that waits

Return how many seconds a call of `fn` takes: the median of `repeats` calls, each timed by itself, after
`warmup` calls that don't count.

- A call of `fn` may come back while its work is still in a queue. `synchronize()` waits until the queue is
  empty. A time holds the whole work of its call, and none of an earlier one.
- What a call returns is let go before the next one.

`clock()` gives the time in seconds. On a CPU `synchronize` does nothing.

`time_it(lambda: x @ x, repeats=5)` → `0.0021`
"""

import time
import weakref
from collections.abc import Callable
from typing import Any

import torch

from course_utils.exercise import Exercise, expect

exercise = Exercise(
    minutes=10,
    core=True,
    hints=[
        "When may you read the clock for the first time: what could still be in the queue then?",
        "Two readings for each call. Before each of them the queue has to be empty.",
        "For each repeat: synchronize, read the clock, call, synchronize, read the clock. Differences go "
        "into a list for `statistics.median`. Don't give the result of `fn` a name that lives on.",
    ],
)


@exercise.starter
def time_it(
    fn: Callable[[], Any],
    warmup: int = 3,
    repeats: int = 20,
    synchronize: Callable[[], Any] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """The median seconds of one call"""
    raise NotImplementedError


# A machine whose time passes only when something is done on it.
_MACHINE = """
class Machine:
    now = queue = calls = readings = 0
    def __init__(self, costs):
        self.costs = costs
    def fn(self):
        self.now += 1  # to launch it
        self.queue += self.costs[min(self.calls, len(self.costs) - 1)]
        self.calls += 1
    def synchronize(self):
        self.now, self.queue = self.now + self.queue, 0
    def clock(self):
        self.readings += 1
        return float(self.now)
"""
_SETUP = f"{_MACHINE}machine = Machine(costs)"


def _timed(t, wanted):
    came = t.call("time_it(machine.fn, warmup, repeats, machine.synchronize, machine.clock)")
    expect.true(t.machine.readings > 1, "`clock` wasn't called", "expected: before and after each timed call")
    run = ", ".join(map(str, t.costs[t.warmup :]))
    expect.equal(came, wanted, what=f"the median of calls of 1 second to launch and {run} to run")


@exercise.check(given=f"costs, warmup, repeats = [50] * 5, 2, 3\n{_SETUP}")
def waits(t):
    """A time holds the whole work of its call

    A call that puts its work into a queue may return before the work is done. Without `synchronize` before
    the second reading you time the launch.
    """
    _timed(t, 51.0)


@exercise.check(
    given=_SETUP,
    cases={
        "work from before": ("machine.queue = 1000", [5], 0, 1),
        "the warm-up, of 1 second to launch and 1000 to run": ("", [1000, 5, 5], 1, 2),
    },
)
def starts_empty(t, costs, warmup, repeats):
    """A time holds nothing of an earlier call

    What is in the queue when the clock starts is waited for in your time. That may be the warm-up, or work
    from before.
    """
    _timed(t, 6.0)


@exercise.check(
    given=_SETUP,
    cases=[([900, 800, 4, 2, 600], 2, 3, 5.0), ([1, 2, 3, 40, 50], 0, 5, 4.0), ([9, 2, 4], 1, 2, 4.0)],
)
def median(t, costs, warmup, repeats, wanted):
    """It is the median of single calls, and the warm-up doesn't count

    First calls often do more: they allocate, compile, fill caches. And one slow call of many, because
    something else was running, moves a mean by far more than a median. The median of an even number of times
    lies halfway between the middle two.
    """
    _timed(t, wanted)
    expect.equal(t.machine.calls, warmup + repeats, what="the number of calls of `fn`")


@exercise.check
def lets_go(time_it):
    """No result is there when the next call begins

    A result that is kept keeps its memory, so the next call may allocate new memory where the old would have
    done. A name holds its value until it gets another one, and that is after the next call.
    """
    alive, most = [], 0

    def fn():
        nonlocal most
        most = max(most, sum(one() is not None for one in alive))
        made = torch.zeros(10)
        alive.append(weakref.ref(made))
        return made

    expect.looked()
    time_it(fn)
    expect.equal(len(alive), 23, what="the number of calls, warm-up and repeats as they are by default,")
    expect.true(most == 0, f"results of earlier calls that are still there in a call: {most}", "expected: 0")


@exercise.check(given="import time")
def real(t):
    """It works with the real clock

    `time.perf_counter` counts seconds from an arbitrary start. Only differences mean something.
    """
    came = t.call("time_it(lambda: time.sleep(0.002), warmup=1, repeats=3)")
    expect.true(isinstance(came, float), f"the result is {expect.show(came)}, expected a float")
    expect.true(
        0.002 <= came < 60, f"a sleep of 0.002 seconds took {came}", "expected: 0.002 or a little more"
    )
