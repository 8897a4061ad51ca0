"""The slow calls too

Time functions side by side. In each of `rounds` rounds (at least one) every function of `calls` runs once,
timed by itself, so that a slow second of the machine hits all of them. Before that each runs `warmup`
times, and these calls don't count.

- For each name, return the percentiles `"p50"`, `"p90"` and `"p99"`, and the `"slowest"` call.
- A percentile is the **nearest rank, not interpolated**: the smallest measured time that is at least as long
  as p percent of all times.

`clock()` gives the time in seconds.

For times of 3, 1, 4 and 2 seconds, `latency_report({"eager": f}, rounds=4)` →
`{"eager": {"p50": 2.0, "p90": 4.0, "p99": 4.0, "slowest": 4.0}}`
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

from course_utils.exercise import Exercise, Rows, expect

exercise = Exercise(
    minutes=15,
    core=True,
    hints=[
        "Two loops, one inside the other: which of them goes over the rounds? And in which list does a time "
        "belong?",
        "Sort a list of n times. How many of them, at least, may a percentile not fall short of? At which "
        "index does it stand, then? Try n = 4 and p = 50 on paper.",
        "The rank is p times n over 100, rounded up, and the index is one less. Or let NumPy do it: the "
        "lesson's quantile has a `method`. Make one new list for each name.",
    ],
)


@exercise.starter
def latency_report(
    calls: Mapping[str, Callable[[], Any]],
    rounds: int = 100,
    warmup: int = 10,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, dict[str, float]]:
    """The percentiles and the slowest call of each, in seconds"""
    raise NotImplementedError


# A machine whose time passes only when something is done on it.
_MACHINE = """
class Machine:
    def __init__(self, **costs):
        self.now, self.called, self.costs = 0.0, [], costs
        self.calls = {name: lambda name=name: self.run(name) for name in costs}
    def run(self, name):
        costs = self.costs[name]
        self.now += costs[self.called.count(name) % len(costs)]
        self.called.append(name)
    def clock(self):
        return self.now
"""
_PERCENTS = {"p50": 50, "p90": 90, "p99": 99}


def _machine(costs, *_):
    return f"{_MACHINE}machine = Machine({costs})"


def _report(t, rounds, warmup=0):
    """What came, and what is expected of these times, by trying each of them."""
    came = t.call(f"latency_report(machine.calls, {rounds}, {warmup}, machine.clock)")
    names = [*t.machine.costs]
    expect.true(isinstance(came, dict), f"the result is {expect.show(came)}, expected a dictionary")
    expect.equal(sorted(came), sorted(names), what="the list of names in the report")
    wanted = {}
    for name in names:
        keys = sorted([*_PERCENTS, "slowest"])
        expect.equal(sorted(came[name]), keys, what=f"the list of keys for {name!r}")
        costs = t.machine.costs[name]
        times = [costs[i % len(costs)] for i in range(warmup, warmup + rounds)]
        wanted[name] = {
            key: min(x for x in times if 100 * sum(y <= x for y in times) >= percent * rounds)
            for key, percent in _PERCENTS.items()
        }
        wanted[name]["slowest"] = max(times)
    return came, wanted


@exercise.check(
    given=_machine,
    cases={
        "`rounds=4`": ("f=[3.25, 1.5, 9.0, 2.0]", 4),
        "`rounds=1`": ("f=[7.0]", 1),
        "`rounds=5`": ("f=[2.0, 2.0, 9.0, 2.0, 5.0]", 5),
        "`rounds=10`": ("f=[1.5 ** (i * 7 % 10) for i in range(10)]", 10),
        "`rounds=100`": ("f=[(i * 37 % 100 + 1.5) ** 2 for i in range(100)]", 100),
        "`rounds=101`": ("f=[(i * 37 % 101 + 1.5) ** 2 for i in range(101)]", 101),
        "`rounds=250`": ("f=[(i * 37 % 250 + 1.5) ** 2 for i in range(250)]", 250),
    },
)
def nearest_rank(t, rounds):
    """Each percentile is a time that was measured

    Of n sorted times the one at rank p · n / 100, rounded up and counted from 1, is the smallest that at
    least p percent don't exceed. Of fewer than 100 times p99 is the slowest. `np.percentile` interpolates
    unless it's told otherwise.
    """
    came, wanted = _report(t, rounds)
    for key in _PERCENTS:
        expect.equal(came["f"][key], wanted["f"][key], what=f"{key} of {rounds} times")


@exercise.check(given=_machine("f=[1.0] * 150 + [900.0] + [1.0] * 149"))
def slowest(t):
    """The slowest call is the slowest, not p99

    Of 1,000 calls ten may be slower than p99, however much. A user meets them as well.
    """
    came, wanted = _report(t, 300)
    expect.equal(came["f"]["p99"], wanted["f"]["p99"], what="p99 of 299 times of 1 and one of 900")
    expect.equal(came["f"]["slowest"], 900.0, what="the slowest of 299 times of 1 and one of 900")


@exercise.check(given=_machine("fast=[1.0, 2.0, 3.0, 4.0], slow=[100.0, 300.0, 200.0, 400.0], steady=[10.0]"))
def apart(t):
    """Each function has its own times

    `dict.fromkeys(names, [])` and `[[]] * n` hold one list in several places. And all that runs between two
    readings of the clock is in the time.
    """
    came, wanted = _report(t, 4)
    for name in wanted:
        expect.equal(came[name], wanted[name], what=f"`report[{name!r}]`")


@exercise.check
def warm_up(latency_report):
    """Calls of the warm-up run, and don't count

    First calls may allocate, compile and fill caches. Such time is paid once, so here it doesn't count.
    The warm-up comes before the first round, and in no later one.
    """
    with Rows() as rows:
        for warmup, rounds, costs in (
            (2, 3, "[900.0, 800.0, 3.0, 1.0, 2.0]"),
            (0, 3, "[900.0, 1.0, 2.0]"),
            (1, 1, "[900.0, 5.0]"),
        ):
            with rows.of(f"`warmup={warmup}`"):
                t = expect.given(_machine(f"f={costs}, g={costs}"), latency_report=latency_report)
                came, wanted = _report(t, rounds, warmup)
                numbers = [t.machine.called.count(name) for name in "fg"]
                expect.equal(numbers, 2 * [warmup + rounds], what="the list of calls of `f` and of `g`")
                expect.equal(came, wanted, what="`report`")
        with rows.of("no numbers given"):
            t = expect.given(_machine("f=[1.0]"), latency_report=latency_report)
            t.call("latency_report(machine.calls)")
            number = t.machine.called.count("f")
            expect.equal(number, 110, what="the number of calls, rounds and warm-up as they are by default,")


@exercise.check(given=_machine("f=[1.0], g=[1.0], h=[1.0]"))
def in_turn(t):
    """In each round every function runs once

    A machine may be slower for a while, when something else runs on it or when it's hot. If the functions run
    one after the other, that may hit one of them and make it look slow. In turn, some slow rounds hit them
    all.
    """
    _report(t, 4, 2)
    called = t.call("machine.called")
    counted = called[-12:]
    rounds = [counted[i : i + 3] for i in range(0, 12, 3)]
    expect.equal(len(called), 18, what="the number of calls of 3 functions, 2 + 4 times each,")
    told = f"after the warm-up the order of the calls is {' '.join(counted)}"
    in_turn = all(sorted(one) == ["f", "g", "h"] for one in rounds)
    expect.true(in_turn, told, "expected: in each round f, g and h once")
