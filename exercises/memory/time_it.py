"""A clock that waits

Return how many seconds a call of `fn` takes: the median of `repeats` calls, each timed by itself, after
`warmup` calls that don't count.

- `fn` may only put its work into a queue. `synchronize()` waits until the queue is empty. A time holds the
  whole work of its call, and none of an earlier one.
- What a call returns is let go before the next one.

`clock()` gives the time in seconds. On a CPU `synchronize` does nothing.

`time_it(lambda: x @ x, repeats=5)` → `0.0021`
"""

import time
import weakref
from collections.abc import Callable
from typing import Any

import torch

from course_utils.exercise import Exercise, Rows, expect

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
    def __init__(self, costs, launch=1.0):
        self.now, self.queue, self.calls = 0.0, 0.0, 0
        self.costs, self.launch = costs, launch
    def fn(self):
        self.now += self.launch
        self.queue += self.costs[min(self.calls, len(self.costs) - 1)]
        self.calls += 1
    def synchronize(self):
        self.now += self.queue
        self.queue = 0.0
    def clock(self):
        return self.now
"""
_CALL = "time_it(machine.fn, {}, {}, machine.synchronize, machine.clock)"


def _machine(time_it, costs, extra=""):
    return expect.given(f"{_MACHINE}machine = Machine({costs})\n{extra}", time_it=time_it)


@exercise.check
def waits(time_it):
    """A time holds the whole work of its call

    A call on a GPU returns once its work is in the queue. Without `synchronize` before the second reading you
    time the launch.
    """
    t = _machine(time_it, "[50.0]")
    came = t.call(_CALL.format(2, 5))
    expect.equal(came, 51.0, what="the median of calls of 1 second to launch and 50 to run")


@exercise.check
def starts_empty(time_it):
    """A time holds nothing of an earlier call

    What is in the queue when the clock starts is waited for in your time. That may be the warm-up, or work
    from before.
    """
    with Rows() as rows:
        for label, warmup, extra in (
            ("work from before", 0, "machine.queue = 1000.0"),
            ("the warm-up", 2, ""),
        ):
            with rows.of(label):
                t = _machine(time_it, "[1000.0, 1000.0, 5.0]" if warmup else "[5.0]", extra)
                came = t.call(_CALL.format(warmup, 1))
                expect.equal(came, 6.0, what="the time of one call of 1 second to launch and 5 to run")


@exercise.check
def median(time_it):
    """It is the median of single calls, and the warm-up doesn't count

    The first calls allocate, compile, fill caches. And one slow call, because something else was running,
    moves a mean, not a median.
    """
    with Rows() as rows:
        for costs, warmup, repeats, wanted in (
            ([900.0, 800.0, 4.0, 2.0, 600.0], 2, 3, 5.0),
            ([1.0, 2.0, 3.0, 40.0, 50.0], 0, 5, 4.0),
            ([9.0, 2.0, 4.0], 1, 2, 4.0),
        ):
            with rows.of(f"costs {costs}, warmup {warmup}, repeats {repeats}"):
                t = _machine(time_it, costs)
                expect.equal(t.call(_CALL.format(warmup, repeats)), wanted, what="the median")
                expect.equal(t.machine.calls, warmup + repeats, what="the number of calls")


@exercise.check
def lets_go(time_it):
    """No result is there when the next call begins

    A result that is kept needs memory. The next call then allocates new memory where the old would
    have done.
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


@exercise.check
def real(time_it):
    """It works with the real clock

    `time.perf_counter` counts seconds from an arbitrary start. Only differences mean something.
    """
    t = expect.given("import time", time_it=time_it)
    came = t.call("time_it(lambda: time.sleep(0.002), warmup=1, repeats=3)")
    expect.true(isinstance(came, float), f"the result is {expect.show(came)}, expected a float")
    expect.true(
        0.002 <= came < 60, f"a sleep of 0.002 seconds took {came}", "expected: 0.002 or a little more"
    )
