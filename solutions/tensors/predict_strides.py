"""Ask one question about each line: is there an offset, and one stride for each dimension, so that element
`[i, j]` of the result is `storage[offset + i * stride[0] + j * stride[1]]`, in the storage of `x`?

A slice has them: `x[1:]` begins 4 further on, and `x[:, 1]` takes every fourth element. A transpose has them
too (it swaps the strides), and so has a repeated row (stride 0). `x[:, ::2].reshape(6)` has one: rows are 4
apart, which is two steps of 2. `x.t().reshape(12)`, read 0, 4, 8, 1, …, has none. For `flip` the stride would
be negative, and torch has no negative strides. So these two copy. A list of integers as index copies too.

A tensor is contiguous if each stride is the product of the sizes to its right; sizes of 1 don't count. The
`clone` of `x.t()` keeps its order, so it isn't contiguous.
"""


def predict_strides() -> dict:
    """(size, stride, contiguous?, shares storage with x?) for x = torch.arange(12).reshape(3, 4)"""
    return {
        "x": ((3, 4), (4, 1), True, True),  # an example: this one is answered
        # parts
        "x[1:]": ((2, 4), (4, 1), True, True),
        "x[:, 1:]": ((3, 3), (4, 1), False, True),
        "x[:, 1]": ((3,), (4,), False, True),
        "x[[0, 2]]": ((2, 4), (4, 1), True, False),
        # turned
        "x.t()": ((4, 3), (1, 4), False, True),
        "x[:1].t()": ((4, 1), (1, 4), True, True),
        "x.t().clone()": ((4, 3), (1, 4), False, False),
        "x.flip(0)": ((3, 4), (4, 1), True, False),
        # repeated
        "x[0].expand(3, 4)": ((3, 4), (0, 1), False, True),
        "x[0].repeat(3, 1)": ((3, 4), (4, 1), True, False),
        # reshaped
        "x.t().reshape(12)": ((12,), (1,), True, False),
        "x[:, ::2].reshape(6)": ((6,), (2,), False, True),
    }


# Other right answers

import torch

from course_utils.exercise import Edit, Wrong


def _in_lists():
    return {line: list(map(_listed, told)) for line, told in predict_strides().items()}


def _listed(part):
    return list(part) if isinstance(part, tuple) else part


also_right = [_in_lists]


# Mistakes


def _asks_torch():
    x, lines = torch.arange(12).reshape(3, 4), {}
    for line in predict_strides():
        y = eval(line, {"x": x})
        shared = y.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        lines[line] = y.shape, y.stride(), y.is_contiguous(), shared
    return lines


def _strides_in_bytes():
    lines = predict_strides()
    return lines | {k: (v[0], tuple(8 * s for s in v[1]), *v[2:]) for k, v in lines.items() if k != "x"}


mistakes = [
    Wrong(_asks_torch, told_by="written_down"),
    Wrong(_strides_in_bytes, told_by="parts"),
    Edit(
        "a slice copies",
        '"x[1:]": ((2, 4), (4, 1), True, True)',
        '"x[1:]": ((2, 4), (4, 1), True, False)',
        told_by="parts",
    ),
    Edit("keeps the strides", '"x.t()": ((4, 3), (1, 4)', '"x.t()": ((4, 3), (4, 1)', told_by="turned"),
    Edit(
        "clone tidies up",
        '"x.t().clone()": ((4, 3), (1, 4), False',
        '"x.t().clone()": ((4, 3), (3, 1), True',
        told_by="turned",
    ),
    Edit(
        "flips with a negative stride",
        "(4, 1), True, False),\n        # repeated",
        "(-4, 1), False, True),\n        # repeated",
        told_by="turned",
    ),
    Edit("a real stride", "(0, 1), False, True", "(4, 1), True, True", told_by="repeated"),
    Edit("reshape always copies", "(2,), False, True", "(1,), True, False", told_by="reshaped"),
]
