"""Which dtype comes out?

Replace each `...` by the dtype of the result, such as `torch.float32`. What you wrote is compared with
what torch does when you check.

`torch.ones(2) + torch.ones(2)` → `torch.float32`
"""

import torch

from course_utils import expect
from course_utils.exercise import Exercise

exercise = Exercise(
    minutes=5,
    hints=[
        "An integer has no half. What must a division do?",
        "A tensor without dimensions is treated like a Python number, when another tensor has dimensions.",
        "A sum of many small integers does not fit where each of them fits.",
    ],
)


@exercise.starter
def predict_promotion() -> dict:
    """The dtype of each result"""
    return {
        "quotient": ...,  # torch.arange(4) / 2
        "halves": ...,  # torch.ones(2, dtype=torch.float16) + torch.ones(2, dtype=torch.bfloat16)
        "scalar": ...,  # torch.ones(2) * torch.tensor(2.0, dtype=torch.float64)
        "total": ...,  # torch.ones(2, dtype=torch.int8).sum()
    }


def _ask(predictions, name, code):
    expect.predicted(predictions, name, eval(code, {"torch": torch}).dtype, code=code)


@exercise.check
def quotient(predict_promotion):
    """Integers, divided"""
    _ask(predict_promotion(), "quotient", "torch.arange(4) / 2")


@exercise.check
def halves(predict_promotion):
    """Two kinds of half precision"""
    code = "torch.ones(2, dtype=torch.float16) + torch.ones(2, dtype=torch.bfloat16)"
    _ask(predict_promotion(), "halves", code)


@exercise.check
def scalar(predict_promotion):
    """A tensor without dimensions"""
    _ask(predict_promotion(), "scalar", "torch.ones(2) * torch.tensor(2.0, dtype=torch.float64)")


@exercise.check
def total(predict_promotion):
    """A sum of small integers"""
    _ask(predict_promotion(), "total", "torch.ones(2, dtype=torch.int8).sum()")


@exercise.mistake
def operands_decide():
    """You took the dtype of the operands for that of the result. A quotient of integers is a float, and a
    sum of integers an int64: both would not fit otherwise."""
    return {
        "quotient": torch.int64,
        "halves": torch.float32,
        "scalar": torch.float32,
        "total": torch.int8,
    }


@exercise.mistake
def widest_wins():
    """You let the widest dtype win. A tensor without dimensions has no say within its kind: float64 does not
    widen a float32 tensor that has dimensions."""
    return {
        "quotient": torch.float32,
        "halves": torch.float32,
        "scalar": torch.float64,
        "total": torch.int64,
    }


@exercise.mistake
def half_is_enough():
    """Neither of the two half precisions holds the values of the other, so their sum is a float32."""
    return {
        "quotient": torch.float32,
        "halves": torch.float16,
        "scalar": torch.float32,
        "total": torch.int64,
    }
