"""The dtype of a result follows from what goes in, not from its values: integers under `/` become floating
point of the default dtype, `float32`; a Python number brings its kind (integer or floating) but not its
width; and `sum` over booleans or integers gives `int64`.

A shape follows from what happens to each dimension. With sizes `(n0, n1)`, summing over `dim=1` leaves
`(n0,)`, summing over all leaves `()`; an integer as index removes its dimension, and a slice keeps it.
"""

import torch


def first_prediction() -> dict:
    """What each expression gives, for x = torch.arange(6).reshape(2, 3)"""
    return {
        "x.dtype": torch.int64,  # an example: this one is answered
        # dtypes
        "(x / 1).dtype": torch.float32,
        "(x // 3).dtype": torch.int64,
        "(x + 0.5).dtype": torch.float32,
        "(x > 2).sum().dtype": torch.int64,
        # shapes
        "x.sum(dim=1).shape": (2,),
        "x.sum().shape": (),
        "x[0].shape": (3,),
        "x[0:1].shape": (1, 3),
    }


# Other right answers

from course_utils.exercise import Edit, Wrong


def _in_lists():
    return first_prediction() | {"x.sum(dim=1).shape": 2, "x[0].shape": [3], "x[0:1].shape": [1, 3]}


also_right = [_in_lists]


# Mistakes


def _asks_torch():
    x = torch.arange(6).reshape(2, 3)
    return {line: eval(line, {"x": x}) for line in first_prediction()}


mistakes = [
    Wrong(_asks_torch, told_by="written_down"),
    Edit(
        "a division of integers",
        '/ 1).dtype": torch.float32',
        '/ 1).dtype": torch.int64',
        told_by="arithmetic",
    ),
    Edit("Python's floats", '0.5).dtype": torch.float32', '0.5).dtype": torch.float64', told_by="arithmetic"),
    Edit("a sum of booleans", 'sum().dtype": torch.int64', 'sum().dtype": torch.bool', told_by="counting"),
    Edit(
        "the dimension that stays", '"x.sum(dim=1).shape": (2,)', '"x.sum(dim=1).shape": (3,)', told_by="sums"
    ),
    Edit("a list of one", '"x.sum().shape": ()', '"x.sum().shape": (1,)', told_by="sums"),
    Edit("an index keeps it", '"x[0].shape": (3,)', '"x[0].shape": (1, 3)', told_by="picks"),
    Edit("a slice of one", '"x[0:1].shape": (1, 3)', '"x[0:1].shape": (3,)', told_by="picks"),
]
