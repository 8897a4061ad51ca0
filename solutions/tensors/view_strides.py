"""A view shows the elements in the order in which they are read, so what counts is where the walk through
them keeps one length of step. Two neighbouring dimensions can be read as one when a step of the outer is as
long as a full run of the inner, `outer step == inner size * inner step`: then walking on is the same as
stepping. Merging all that can be merged leaves blocks, each with one step, and between two blocks the walk
jumps.

A new dimension may lie inside a block, never across a jump. So the new shape is dealt out from the right:
the innermost dimension has the step of the last block, each further one steps over what has been taken, and
a block has to be used up exactly before the next begins. What does not divide has no view.

Dimensions of size 1 are never stepped along and drop out at the start. An expanded dimension is not special:
stride 0 merges where the rule says so, which is with stride 0. In a tensor without elements nothing is read,
so nothing can be in the way."""

import math


def view_strides(
    size: tuple[int, ...], stride: tuple[int, ...], shape: tuple[int, ...]
) -> tuple[int, ...] | None:
    """The strides of `x.view(shape)`, or None where `view` raises

    `x` is a tensor of this size and stride.
    """
    if math.prod(size) != math.prod(shape):
        return None
    if 0 in size:
        return shape  # never stepped along: any numbers do
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


def _asks_about_addresses(size, stride, shape):
    """Reads off where the elements lie: the strides that the new shape would need, then every element."""
    count = math.prod(size)
    if count != math.prod(shape):
        return None
    if not count:
        return (0,) * len(shape)

    def place(number, size, stride):
        found = 0
        for n, step in zip(reversed(size), reversed(stride), strict=True):
            number, i = divmod(number, n)
            found += i * step
        return found

    result = tuple(place(math.prod(shape[i + 1 :]) % count, size, stride) for i in range(len(shape)))
    for number in range(count):
        if place(number, size, stride) != place(number, shape, result):
            return None
    return result


def _both_at_once(size, stride, shape):
    """From the right, through the tensor and the new shape together, as torch does it."""
    if math.prod(size) != math.prod(shape):
        return None
    if 0 in shape:
        return [1 for _ in shape]
    old = [(n, step) for n, step in zip(size, stride, strict=True) if n > 1]
    result, at = [1] * len(shape), len(shape) - 1
    while old:
        length, base = old.pop()
        while old and old[-1][1] == length * base:
            length *= old.pop()[0]
        taken = 1
        while taken < length or (at >= 0 and shape[at] == 1):
            if at < 0:
                return None
            result[at] = taken * base
            taken *= shape[at]
            at -= 1
        if taken != length:
            return None
    return result


equivalent = {
    "line 23: `1` -> `2` (2)": "only a dimension of size 1 gets this stride, and no step is made along it",
    "line 23: `1` -> `0` (2)": "the same",
}


def generated(answer):
    dims = [(n, step) for n in (1, 2, 3) for step in (0, 1, 2, 3)]
    for (a, s), (b, t) in ((p, q) for p in dims for q in dims):
        for shape in ((a * b,), (a, 1, b), (b, a), (1, a * b), (a, b, 1), (1, 1)):
            found = answer((a, b), (s, t), shape)
            yield found and [0 if n == 1 else step for n, step in zip(shape, found, strict=True)]


also_right = [_asks_about_addresses, _both_at_once]
