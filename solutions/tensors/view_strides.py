"""A view shows the elements in the order in which they are read. Two neighbouring dimensions can be merged
if a step of the outer is as long as a full run of the inner: `outer step == inner size * inner step`. Merge
all that can be. What is left are blocks, each with one step, and the walk jumps between two blocks.

A new dimension may lie inside a block, but not across a jump. So deal out the new shape from the right: the
innermost dimension has the step of the last block, and each further one steps over what has been taken. A
block must be used up exactly before the next one begins. If a dimension doesn't divide what is left, there
is no view.

No step is made along dimensions of size 1, so leave them out at the start. Expanded dimensions need no case
of their own: by the same rule stride 0 merges with stride 0, and with nothing else.
"""


def view_strides(
    size: tuple[int, ...], stride: tuple[int, ...], shape: tuple[int, ...]
) -> tuple[int, ...] | None:
    """The strides of `x.view(shape)`, or None where `view` raises

    `x` is a tensor of this size and stride, with as many elements as `shape`.
    """
    blocks = []  # (length, step): what can be read with one step
    for dim, n in enumerate(size):
        if n == 1:
            continue
        length, step = n, stride[dim]
        if blocks and blocks[-1][1] == n * step:
            length *= blocks.pop()[0]
        blocks.append((length, step))
    result, left, step = [], 1, 1
    for n in reversed(shape):
        if left == 1 and n > 1:
            left, step = blocks.pop()
        if left % n:
            return None
        result.append(step)
        left, step = left // n, step * n
    return tuple(reversed(result))


# Other right answers

import itertools
import math

import torch

from course_utils.exercise import Edit, Wrong


def _asks_about_addresses(size, stride, shape):
    """Where each element lies, in the order of reading; then the strides that this would need."""

    def walk(size, stride):
        every = itertools.product(*map(range, size))
        return [sum(i * step for i, step in zip(index, stride, strict=True)) for index in every]

    places = walk(size, stride)
    result = [places[math.prod(shape[i + 1 :]) % len(places)] for i in range(len(shape))]
    return result if walk(shape, result) == places else None


def _both_at_once(size, stride, shape):
    """From the right, through the tensor and the new shape together."""
    old = [(n, step) for n, step in zip(size, stride, strict=True) if n > 1]
    result, left, step = [], 1, 0
    for n in reversed(shape):
        if left == 1 and n > 1:
            left, step = old.pop()
            while old and old[-1][1] == left * step:
                left *= old.pop()[0]
        if left % n:
            return None
        result, left, step = [step, *result], left // n, step * n
    return result


also_right = [_asks_about_addresses, _both_at_once]


# Mistakes


def _only_contiguous(size, stride, shape):
    new = [math.prod(size[i + 1 :]) for i in range(len(size))]
    if any(n > 1 and a != b for n, a, b in zip(size, stride, new, strict=True)):
        return None
    return [math.prod(shape[i + 1 :]) for i in range(len(shape))]


def _asks_torch(size, stride, shape):
    x = torch.empty_strided(size, stride)
    y = x.reshape(shape)
    return y.stride() if y.data_ptr() == x.data_ptr() else None


mistakes = [
    Wrong(_only_contiguous, told_by="merges"),
    Edit("cuts from the left", "reversed(shape)", "shape", told_by="cuts"),
    Edit("never merges", "blocks and blocks[-1][1] == n * step", "False", told_by="cuts"),
    Edit("merges everything", "blocks and blocks[-1][1] == n * step", "blocks", told_by="merges"),
    Edit(
        "size 1 parts its neighbours",
        "n == 1:\n            continue",
        "False:\n            pass",
        told_by="size_one",
    ),
    Edit("what does not divide", "left % n", "False", told_by="merges"),
    Edit("0 merges with all", "== n * step", "in (0, n * step)", told_by="expanded"),
    Wrong(_asks_torch, told_by="from_the_numbers"),
]
not_tried = {
    "hard numbers": "whole numbers only",
    "dtypes": "no tensor is given",
    "left alone": "tuples stay as they are",
}

equivalent = {
    "line 16: `1` -> `2` (2)": "only a dimension of size 1 gets this stride, and no step is made along it",
    "line 16: `1` -> `0` (2)": "the same",
}
