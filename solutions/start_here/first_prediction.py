"""A dtype follows from the kinds of what goes in, not from the values: integers under `/` become floating
point of the default dtype, `float32`; a Python number brings its kind (integer or floating) but not its
width; and a sum of booleans or integers is made in `int64`, because a count must fit.

A shape follows from what happens to each dimension. With sizes `(n0, n1)`, summing over `dim=1` leaves
`(n0,)`, summing over all leaves `()`; an index removes its dimension and a slice keeps it."""

import torch


def first_prediction() -> dict:
    """What each expression gives, for x = torch.arange(6).reshape(2, 3)"""
    return {
        "x.dtype": torch.int64,  # an example: this one is answered
        # dtypes
        "(x / 3).dtype": torch.float32,
        "(x // 3).dtype": torch.int64,
        "(x + 0.5).dtype": torch.float32,
        "(x > 2).sum().dtype": torch.int64,
        # shapes
        "x.sum(dim=1).shape": (2,),
        "x.sum().shape": (),
        "x[0].shape": (3,),
        "x[0:1].shape": (1, 3),
    }
