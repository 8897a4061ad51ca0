"""Where the time went

A profile is a list of events `(name, thread, start, end)`, in microseconds: one for each call of an operator.
On one thread, a call inside another one lies between its start and its end. The *self time* of a call is its
own time without that of the calls directly inside it.

Return the name of the operator with the most self time, summed over all its calls, and that sum.

- Calls on two threads at the same time have nothing to do with each other.
- The list is in no order. Intervals that only touch are not nested.

`slowest_operator([("linear", 1, 0.0, 10.0), ("addmm", 1, 2.0, 9.0)])` → `("addmm", 7.0)`
"""

import random

import torch
from torch.profiler import ProfilerActivity, profile

from course_utils.exercise import Exercise, Rows, expect

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


PROFILES = {
    "one call inside another": ("[('linear', 1, 0., 10.), ('addmm', 1, 2., 9.)]", ("addmm", 7.0)),
    "most of it outside": ("[('linear', 1, 0., 10.), ('addmm', 1, 2., 5.)]", ("linear", 7.0)),
    "three deep": (
        "[('a', 1, 0., 30.), ('b', 1, 1., 19.), ('c', 1, 2., 12.), ('d', 1, 13., 15.)]",
        ("a", 12.0),
    ),
    "calls that touch": ("[('a', 1, 0., 5.), ('b', 1, 5., 9.), ('c', 1, 9., 12.)]", ("a", 5.0)),
    "one begins with its caller": ("[('a', 1, 0., 10.), ('b', 1, 0., 6.), ('c', 1, 6., 10.)]", ("b", 6.0)),
    "one operator": ("[('a', 1, 3., 4.5)]", ("a", 1.5)),
}
SEVERAL = {
    "many short calls": (
        "[('long', 1, 0., 5.)] + [('short', 1, 10. + 2 * i, 11. + 2 * i) for i in range(8)]",
        ("short", 8.0),
    ),
    "an operator inside itself": (
        "[('copy_', 1, 0., 10.), ('copy_', 1, 1., 7.), ('fill_', 1, 20., 29.)]",
        ("copy_", 10.0),
    ),
    "the same inside different callers": (
        "[('a', 1, 0., 6.), ('x', 1, 1., 5.), ('b', 1, 10., 16.), ('x', 1, 11., 15.)]",
        ("x", 8.0),
    ),
}
THREADS = {
    "inside in time, on another thread": ("[('a', 1, 0., 10.), ('b', 2, 1., 9.)]", ("a", 10.0)),
    "both threads add up": (
        "[('a', 1, 0., 6.), ('b', 2, 0., 4.), ('b', 1, 7., 11.), ('c', 2, 4., 9.)]",
        ("b", 8.0),
    ),
}


def _each(slowest_operator, profiles):
    with Rows() as rows:
        for label, (events, wanted) in profiles.items():
            with rows.of(label):
                t = expect.given(f"events = {events}", slowest_operator=slowest_operator)
                result = t.call("slowest_operator(events)")
                expect.true(
                    isinstance(result, tuple) and len(result) == 2,
                    f"the result is {expect.show(result)}",
                    "expected: a name and a time",
                )
                expect.equal(result[0], wanted[0], what="the operator")
                expect.equal(
                    torch.tensor(result[1]).double(), torch.tensor(wanted[1]).double(), what="its self time"
                )


@exercise.check
def self_time(slowest_operator):
    """Self time leaves out what ran inside

    The outermost call always takes longest as a whole. A call two levels down was taken off its own caller
    already.
    """
    _each(slowest_operator, PROFILES)


@exercise.check
def sums(slowest_operator):
    """All calls of an operator count together

    Ten thousand calls of a microsecond are a hundredth of a second, and none of them stands out.
    """
    _each(slowest_operator, SEVERAL)


@exercise.check
def threads(slowest_operator):
    """Threads are apart

    Backward runs on a thread of its own on a GPU, and a loader's pinning does too. What overlaps there is
    work at the same time, not a call inside.
    """
    _each(slowest_operator, THREADS)


@exercise.check
def any_order(slowest_operator):
    """The order of the list means nothing, and the list stays as it is

    A profiler writes an event when it ends, so callers come after what they called.
    """
    with Rows() as rows:
        for label, (events, wanted) in {**PROFILES, **SEVERAL, **THREADS}.items():
            for seed in range(3):
                with rows.of(f"{label}, shuffled"):
                    mixed = eval(events)
                    random.Random(seed).shuffle(mixed)
                    t = expect.given(f"events = {mixed}", slowest_operator=slowest_operator)
                    expect.equal(t.call("slowest_operator(events)")[0], wanted[0], what="the operator")
                    expect.equal(t.events, mixed, what="`events` afterwards")


@exercise.check
def of_torch(slowest_operator):
    """On a recorded profile it finds what torch's own table says

    `key_averages()` sums self times by name. Both get the same recording, so the times are what they are.
    """
    x = torch.rand(64, 64, requires_grad=True)
    with profile(activities=[ProfilerActivity.CPU]) as run:
        (x @ x).softmax(-1).log().sum().backward()
    events = [(e.name, e.thread, e.time_range.start, e.time_range.end) for e in run.events()]
    table = {row.key: row.self_cpu_time_total for row in run.key_averages()}
    name, time = slowest_operator(events)
    most = max(table, key=table.get)
    close = abs(table.get(name, 0) - table[most]) < 1
    expect.true(
        close, f"it finds `{name}`; by torch's table that is not the one with the most", f"expected `{most}`"
    )
    expect.true(abs(time - table[most]) < 1, "the time is not that of torch's table", "expected: within 1 µs")
