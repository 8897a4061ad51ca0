"""The length of a cycle

Applied again and again, `step` comes back to a value that it has had before, and from there goes in a
circle. Return how many different values the circle has. `start` need not be on it.

With `step = lambda x: (x + 1) % 5` and `start = torch.tensor(0)` → `5`
"""

import os
from collections.abc import Callable

import torch
from torch import Tensor

from course_utils import expect
from course_utils.exercise import Exercise

exercise = Exercise(
    minutes=10,
    hints=[
        "Draw the values for `x -> (x * x + 1) % 20`, from 3 on. Which of them come again?",
        "Whoever has walked long enough is on the circle.",
        "Two walkers, one twice as fast as the other, meet on the circle.",
    ],
)


@exercise.starter
def period(step: Callable[[Tensor], Tensor], start: Tensor) -> int:
    """The number of values on the circle that `start` leads to"""
    raise NotImplementedError


@exercise.check(isolated=True, deadline=3)
def one_circle(period):
    """A circle that `start` is on"""
    t = expect.given("step = lambda x: (x + 1) % 5\nstart = torch.tensor(0)", period=period)
    expect.equal(t.call("period(step, start)"), 5)
    expect.unchanged(t.start, torch.tensor(0), what="`start`")


@exercise.check(isolated=True, deadline=3)
def several_elements(period):
    """Values with several elements"""
    t = expect.given("step = lambda x: x.roll(1)\nstart = torch.tensor([1, 2, 3])", period=period)
    expect.equal(t.call("period(step, start)"), 3)


@exercise.check(isolated=True, deadline=3)
def all_different(period):
    """Elements that come again before the whole value does"""
    t = expect.given("step = lambda x: x.roll(1)\nstart = torch.tensor([1, 2, 1, 2, 1, 3])", period=period)
    expect.equal(t.call("period(step, start)"), 6)


@exercise.check(isolated=True, deadline=3)
def way_to_the_circle(period):
    """A circle that `start` is not on"""
    t = expect.given("step = lambda x: (x * x + 1) % 20\nstart = torch.tensor(3)", period=period)
    expect.equal(t.call("period(step, start)"), _brute(t.step, t.start))


@exercise.check(isolated=True, deadline=3)
def stands_still(period):
    """A circle of one value"""
    t = expect.given("step = lambda x: x // 2\nstart = torch.tensor(100)", period=period)
    expect.equal(t.call("period(step, start)"), 1)


def _brute(step, start):
    seen = [start.tolist()]
    while (value := step(torch.tensor(seen[-1])).tolist()) not in seen:
        seen.append(value)
    return len(seen) - seen.index(value)


@exercise.mistake
def waits_for_the_start(step, start):
    """You wait until `start` comes again. Where it only leads to the circle, it never does."""
    count, x = 1, step(start)
    while not torch.equal(x, start):
        count, x = count + 1, step(x)
    return count


@waits_for_the_start.variant
def loops_until_back(step, start):
    x, count = start.clone(), 0
    while True:
        x = step(x)
        count += 1
        if x.tolist() == start.tolist():
            return count


@exercise.mistake
def counts_the_way(step, start):
    """You count every value up to the first that comes again, with those on the way to the circle."""
    seen, x = [], start
    while not any(torch.equal(x, y) for y in seen):
        seen.append(x)
        x = step(x)
    return len(seen)


@counts_the_way.variant
def size_of_set(step, start):
    seen = set()
    while str(start.tolist()) not in seen:
        seen.add(str(start.tolist()))
        start = step(start)
    return len(seen)


@exercise.mistake
def ends_the_process(step, start):
    """`os._exit` ends the whole process at once: nobody is left to return the number to. `return` leaves all
    loops of a function."""
    seen, x = [], start
    while True:
        for i, y in enumerate(seen):
            if torch.equal(x, y):
                os._exit(len(seen) - i)
        seen.append(x)
        x = step(x)


@exercise.mistake
def table_of_all_values(step, start):
    """You reserve a place for every value that an int64 can have. There are more of them than bytes in any
    machine: note down the values that you meet."""
    first_seen = torch.zeros(2**62, dtype=torch.int8)
    count = 0
    while not first_seen[start]:
        count += 1
        first_seen[start], start = count, step(start)
    return count + 1 - first_seen[start].item()


@exercise.mistake
def compares_one_element(step, start):
    """You compare single elements. Two values are the same when all of their elements are."""
    seen, x = [], start
    while x.flatten()[0].item() not in seen:
        seen.append(x.flatten()[0].item())
        x = step(x)
    return len(seen) - seen.index(x.flatten()[0].item())
