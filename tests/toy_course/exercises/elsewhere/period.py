"""The length of a cycle

Applied again and again, `step` comes back to a value that it has had before, and from there goes in a
circle. Return how many different values the circle has. `start` need not be on it.

With `step = lambda x: (x + 1) % 5` and `start = torch.tensor(0)` → `5`
"""

from collections.abc import Callable

import torch
from torch import Tensor

from course_utils.exercise import Exercise, expect

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
    """A circle that `start` is on

    Where `start` is on the circle it comes again itself.
    """
    t = expect.given("step = lambda x: (x + 1) % 5\nstart = torch.tensor(0)", period=period)
    expect.equal(t.call("period(step, start)"), 5)
    expect.unchanged(t.start, torch.tensor(0), what="`start`")


@exercise.check(isolated=True, deadline=3)
def several_elements(period):
    """Values with several elements

    A value is all of its elements.
    """
    t = expect.given("step = lambda x: x.roll(1)\nstart = torch.tensor([1, 2, 3])", period=period)
    expect.equal(t.call("period(step, start)"), 3)


@exercise.check(isolated=True, deadline=3)
def all_different(period):
    """Elements that come again before the whole value does

    A value is all of its elements: one alone may come again earlier.
    """
    t = expect.given("step = lambda x: x.roll(1)\nstart = torch.tensor([1, 2, 1, 2, 1, 3])", period=period)
    expect.equal(t.call("period(step, start)"), 6)


@exercise.check(isolated=True, deadline=3)
def way_to_the_circle(period):
    """A circle that `start` is not on

    `start` itself may never come again.
    """
    t = expect.given("step = lambda x: (x * x + 1) % 20\nstart = torch.tensor(3)", period=period)
    expect.equal(t.call("period(step, start)"), _brute(t.step, t.start))


@exercise.check(isolated=True, deadline=3)
def stands_still(period):
    """A circle of one value

    A value that stays is a circle of one.
    """
    t = expect.given("step = lambda x: x // 2\nstart = torch.tensor(100)", period=period)
    expect.equal(t.call("period(step, start)"), 1)


def _brute(step, start):
    seen = [start.tolist()]
    while (value := step(torch.tensor(seen[-1])).tolist()) not in seen:
        seen.append(value)
    return len(seen) - seen.index(value)
