"""Where the time went

A profile is a list of events `(name, thread, start, end)`, in microseconds: one for each call of an operator.
On one thread, a call inside another one lies between its start and its end. The *self time* of a call is its
own time without that of the calls directly inside it.

Return the name of the operator with the most self time, summed over all its calls, and that sum.

- Calls on two threads are kept apart, also at the same time.
- The list is in no order, and stays as it is. Intervals that only touch are not nested.

`slowest_operator([("linear", 1, 0.0, 10.0), ("addmm", 1, 2.0, 9.0)])` → `("addmm", 7.0)`
"""

import random

import torch
from torch.profiler import ProfilerActivity, profile

from course_utils.exercise import Exercise, expect

exercise = Exercise(
    minutes=12,
    hints=[
        "Sort the calls of one thread by their start. Which calls are open when the next one begins?",
        "The open ones are a stack. What has ended by then is taken off it; what is on top is the caller.",
        "Give each call its whole time, and take the same time off the call on top of the stack. Sort by "
        "`(start, -end)`, so that a caller comes before a call that begins with it.",
    ],
)


@exercise.starter
def slowest_operator(events: list[tuple[str, int, float, float]]) -> tuple[str, float]:
    """events (name, thread, start, end) -> name, microseconds"""
    raise NotImplementedError


# The events, the operator with the most self time, that time.
_NESTED = {
    "one call inside another": ("('linear', 1, 0., 10.), ('addmm', 1, 2., 9.)", "addmm", 7),
    "most of it outside": ("('linear', 1, 0., 10.), ('addmm', 1, 2., 5.)", "linear", 7),
    "three deep": ("('a', 1, 0., 30.), ('b', 1, 1., 19.), ('c', 1, 2., 12.), ('d', 1, 13., 15.)", "a", 12),
    "one operator": ("('a', 1, 3., 4.5)", "a", 1.5),
}
_SEVERAL = {
    "many short calls": ("('a', 1, 0., 4.), *(('b', 1, 9. + 2 * i, 10. + 2 * i) for i in range(5))", "b", 5),
    "one inside itself": ("('a', 1, 0., 10.), ('a', 1, 1., 7.), ('b', 1, 20., 29.)", "a", 10),
    "two callers": ("('a', 1, 0., 6.), ('x', 1, 1., 5.), ('b', 1, 10., 16.), ('x', 1, 11., 15.)", "x", 8),
}
_THREADS = {
    "inside in time but not in thread": ("('a', 1, 0., 10.), ('b', 2, 1., 9.)", "a", 10),
    "on both": ("('a', 1, 0., 6.), ('b', 2, 0., 4.), ('b', 1, 7., 11.), ('c', 2, 5., 9.)", "b", 8),
}
_SETUP = "events = [{}]".format


def _expect(t, name, time):
    result = t.call("slowest_operator(events)")
    pair = isinstance(result, (tuple, list)) and len(result) == 2
    expect.true(pair, f"the result is {expect.show(result)}", "expected: a name and a time")
    expect.equal(result[0], name, what="the operator")
    expect.equal(float(result[1]), float(time), what="its self time")


@exercise.check(given=_SETUP, cases=_NESTED)
def self_time(t, name, time):
    """Self time leaves out what ran inside

    The outermost call takes longest as a whole. A call two levels down was taken off its own caller already.
    """
    _expect(t, name, time)


@exercise.check(given=_SETUP, cases=_SEVERAL)
def sums(t, name, time):
    """All calls of an operator count together

    Ten thousand calls of a microsecond are a hundredth of a second, and none of them stands out. A call is
    taken off the one around it, also if both have the same name.
    """
    _expect(t, name, time)


@exercise.check(given=_SETUP, cases=_THREADS)
def threads(t, name, time):
    """Threads are apart

    Here a call is inside another only if both are on one thread.
    """
    _expect(t, name, time)


@exercise.check(given=_SETUP, cases=_NESTED | _SEVERAL | _THREADS)
def any_order(slowest_operator, t, name, time):
    """The order of the list means nothing, and the list stays as it is

    When a call began and ended says where it belongs; its place in the list doesn't.
    """
    for seed in range(3):
        order = random.Random(seed).sample(t.events, len(t.events))
        other = expect.given(f"events = {order}", slowest_operator=slowest_operator)
        _expect(other, name, time)
        expect.equal(other.events, order, what="`events` afterwards")


@exercise.check(
    given=_SETUP,
    cases={
        "calls that touch": ("('a', 1, 0., 5.), ('b', 1, 5., 9.), ('c', 1, 9., 12.)", "a", 5),
        "one begins with its caller": ("('a', 1, 0., 10.), ('b', 1, 0., 6.), ('c', 1, 6., 10.)", "b", 6),
        "one listed before the caller it begins with": ("('b', 1, 0., 6.), ('a', 1, 0., 10.)", "b", 6),
    },
)
def edges(t, name, time):
    """Calls may touch, and begin or end with their caller

    What begins when a call ends was not called by it. Of two that begin together the longer one is the
    caller, wherever it stands in the list.
    """
    _expect(t, name, time)


@exercise.check
def of_torch(slowest_operator):
    """On a recorded profile it finds what torch's own table says

    Here `key_averages()` sums self times by name. Both get the same recording.
    """
    layer, x = torch.nn.Linear(512, 512), torch.rand(512, 512)
    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU]) as run:
        layer(layer(x))
    events = [(e.name, e.thread, e.time_range.start, e.time_range.end) for e in run.events()]
    table = {row.key: row.self_cpu_time_total for row in run.key_averages()}
    name, time = slowest_operator(events)
    most = max(table, key=table.get)
    expect.true(name == most, f"it finds {expect.show(name)} in a linear layer, expected `{most!r}`")
    close = abs(time - table[most]) < 0.01 * table[most]
    expect.true(close, f"the time of `{most!r}` is not that of torch's table", "expected: within 1%")
