"""A walker that is twice as fast gains one step at a time, so it catches up with the other, and it can do so
on the circle only. One more round from there, counted, is the length.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def period(step: Callable[[Tensor], Tensor], start: Tensor) -> int:
    slow, fast = step(start), step(step(start))
    while not torch.equal(slow, fast):
        slow, fast = step(slow), step(step(fast))
    count, fast = 1, step(slow)
    while not torch.equal(slow, fast):
        count, fast = count + 1, step(fast)
    return count


# Other right answers

from course_utils.exercise import Edit, Wrong


def notes_everything(step: Callable[[Tensor], Tensor], start: Tensor) -> int:
    seen = {}
    while (key := tuple(start.flatten().tolist())) not in seen:
        seen[key] = len(seen)
        start = step(start)
    return len(seen) - seen[key]


def doubles_the_patience(step: Callable[[Tensor], Tensor], start: Tensor) -> int:
    mark, x, count, patience = start, step(start), 1, 1
    while not torch.equal(mark, x):
        if count == patience:
            mark, patience, count = x, 2 * patience, 0
        x, count = step(x), count + 1
    return count


also_right = [notes_everything, doubles_the_patience]


def waits_for_the_start(step: Callable[[Tensor], Tensor], start: Tensor) -> int:
    count, x = 1, step(start)
    while not torch.equal(x, start):
        count, x = count + 1, step(x)
    return count


mistakes = [
    Wrong(waits_for_the_start, told_by="way_to_the_circle"),
    Edit(
        "counts from nought",
        "count, fast = 1, step(slow)",
        "count, fast = 0, step(slow)",
        told_by="one_circle",
    ),
    Edit(
        "looks at one element",
        "count, fast = 1, step(slow)\n    while not torch.equal(slow, fast)",
        "count, fast = 1, step(slow)\n    while slow.flatten()[0] != fast.flatten()[0]",
        told_by="all_different",
    ),
]
