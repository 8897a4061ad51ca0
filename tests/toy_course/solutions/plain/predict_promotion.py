"""Torch sorts dtypes into kinds: booleans, integers, floats, complex numbers. Within a kind the tensors with
dimensions decide; a higher kind without dimensions lifts the result to that kind's default. A division
leaves the integers, a sum of integers is kept in int64.
"""

import torch


def predict_promotion() -> dict:
    return {
        "torch.arange(4) / 2": torch.float32,
        "torch.ones(2) * torch.tensor(2.0, dtype=torch.float64)": torch.float32,
        "torch.ones(2, dtype=torch.int8).sum()": torch.int64,
    }


# Other right answers

from course_utils.exercise import Edit

mistakes = [
    Edit("the sum stays small", 'sum()": torch.int64', 'sum()": torch.int8', told_by="dtypes"),
    Edit("the widest wins", 'float64)": torch.float32', 'float64)": torch.float64', told_by="dtypes"),
]
