"""One question decides most lines: is there an offset and one stride for each dimension, so that element
`[i, j]` of the result is `storage[offset + i * stride[0] + j * stride[1]]`, in the storage of `x`?

For a slice there is: `x[1:]` begins 4 further on, `x[:, 1]` takes every fourth. For a transpose too (the
strides change places), and for a repeated row (stride 0). For `x[:, ::2].reshape(6)` there is: rows are 4
apart, which is two steps of 2. For `x.t().reshape(12)`, read 0, 4, 8, 1, …, there is none; for `flip` it
would be negative, which torch does not have. Those are copied. Indexing with a list copies without asking.

A tensor is contiguous when each stride is the product of the sizes to its right, sizes of 1 not counted. A
new tensor usually is; a `clone` keeps the strides of its source, and so `x.t().clone()` is not.
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
        "parts",
    ),
    Edit("keeps the strides", '"x.t()": ((4, 3), (1, 4)', '"x.t()": ((4, 3), (4, 1)', told_by="turned"),
    Edit(
        "clone tidies up",
        '"x.t().clone()": ((4, 3), (1, 4), False',
        '"x.t().clone()": ((4, 3), (3, 1), True',
        "turned",
    ),
    Edit(
        "flips with a negative stride",
        "(4, 1), True, False),\n        # repeated",
        "(-4, 1), False, True),\n        # repeated",
        "turned",
    ),
    Edit("a real stride", "(0, 1), False, True", "(4, 1), True, True", told_by="repeated"),
    Edit("reshape always copies", "(2,), False, True", "(1,), True, False", told_by="reshaped"),
]
