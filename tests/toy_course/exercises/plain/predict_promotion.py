"""Which dtype comes out?

Replace each `...` by the dtype of the result, such as `torch.float32`. What you wrote is compared with
what torch does when you check.

`torch.ones(2) + torch.ones(2)` → `torch.float32`
"""

import torch

from course_utils.exercise import Exercise, predict

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
        "torch.arange(4) / 2": ...,
        "torch.ones(2) * torch.tensor(2.0, dtype=torch.float64)": ...,
        "torch.ones(2, dtype=torch.int8).sum()": ...,
    }


_WHYS = {
    "torch.arange(4) / 2": "A division leaves the integers.",
    "torch.ones(2) * torch.tensor(2.0, dtype=torch.float64)": "Tensors with dimensions decide.",
    "torch.ones(2, dtype=torch.int8).sum()": "A sum of integers is kept in int64.",
}


@exercise.check
def dtypes(predict_promotion):
    """The dtype of each result

    Torch sorts dtypes into kinds: booleans, integers, floats, complex numbers.
    """
    truths = {line: eval(line, {"torch": torch}).dtype for line in _WHYS}
    predict.compare(predict.written_down(predict_promotion), truths, _WHYS)
