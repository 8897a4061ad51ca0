"""Torch sorts dtypes into kinds: booleans, integers, floats, complex numbers. Within a kind the tensors with
dimensions decide; a higher kind without dimensions lifts the result to that kind's default. A division
leaves the integers, a sum of integers is kept in int64.
"""

import torch


def predict_promotion() -> dict:
    return {
        "quotient": torch.float32,
        "halves": torch.float32,
        "scalar": torch.float32,
        "total": torch.int64,
    }
