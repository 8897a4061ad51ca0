"""To repeat without a copy, read the same places again. A step along the repeated dimension stays where it
is, so its stride is 0. This works for a dimension of size 1 and for a new dimension. To repeat two elements
or more, a stride would have to go back and forth, and no stride does. If the sizes are equal, nothing is
repeated, and the stride stays.

Sizes are paired from the right, since new dimensions come first. `expand` removes no dimension.
"""


def broadcast_strides(
    size: tuple[int, ...], stride: tuple[int, ...], shape: tuple[int, ...]
) -> tuple[int, ...] | None:
    """The strides of `x.expand(shape)`, or None where `expand` raises

    `x` is a tensor of this size and stride.
    """
    new = len(shape) - len(size)
    if new < 0:
        return None
    result = [0] * new
    for dim, n in enumerate(size):
        if n == shape[new + dim]:
            result.append(stride[dim])
        elif n == 1:
            result.append(0)
        else:
            return None
    return tuple(result)


# Other right answers

from course_utils.exercise import Edit, Wrong


def _from_the_right(size, stride, shape):
    if len(shape) < len(size):
        return None
    dims, result = list(zip(size, stride, strict=True)), []
    for wanted in reversed(shape):
        n, step = dims.pop() if dims else (1, 0)
        if n not in (1, wanted):
            return None
        result.insert(0, step if n != 1 else 0)
    return result


def _pads_with_ones(size, stride, shape):
    """As if the missing dimensions were there, with size 1 and stride 0."""
    missing = len(shape) - len(size)
    if missing < 0:
        return None
    padded = (1,) * missing + tuple(size)
    if not all(n in (1, m) for n, m in zip(padded, shape, strict=True)):
        return None
    return tuple(
        step * (n == m) for n, step, m in zip(padded, (0,) * missing + tuple(stride), shape, strict=True)
    )


also_right = [_from_the_right, _pads_with_ones]


# Mistakes


def _strides_of_a_copy(size, stride, shape):
    """As `repeat` lays it out."""
    if broadcast_strides(size, stride, shape) is None:
        return None
    return tuple(_product(shape[i + 1 :]) for i in range(len(shape)))


def _product(sizes):
    found = 1
    for n in sizes:
        found *= n
    return found


def _asks_numpy(size, stride, shape):
    import numpy as np

    x = np.lib.stride_tricks.as_strided(np.empty(100, dtype=np.uint8), size, stride)
    try:
        return np.broadcast_to(x, shape).strides
    except ValueError:
        return None


mistakes = [
    Wrong(_strides_of_a_copy, told_by="kept"),
    Edit("keeps the stride", "result.append(0)", "result.append(stride[dim])", told_by="repeated"),
    Edit(
        "new ones come last", "tuple(result)", "tuple(result[new:] + result[:new])", told_by="new_dimensions"
    ),
    Edit("aligns on the left", "shape[new + dim]", "shape[dim]", told_by="new_dimensions"),
    Edit("repeats anything", "elif n == 1", "elif n", told_by="impossible"),
    Edit("repeats stride 0", "elif n == 1", "elif n == 1 or stride[dim] == 0", told_by="impossible"),
    Edit("drops dimensions", "new < 0", "False", told_by="impossible"),
    Wrong(_asks_numpy, told_by="from_the_numbers"),
]
not_tried = {
    "hard numbers": "whole numbers only",
    "dtypes": "no tensor is given",
    "left alone": "tuples stay as they are",
}
