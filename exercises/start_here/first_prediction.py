"""A first prediction

For `x = torch.arange(6).reshape(2, 3)`, which is `[[0, 1, 2], [3, 4, 5]]`: what does each expression give?
Replace every `...` by a dtype such as `torch.int64`, or by a shape such as `(2, 3)`; the shape of a tensor
with one dimension is written `(7,)`, that of a tensor with no dimensions `()`.

Write down what you believe before you run anything. A wrong prediction costs nothing, and
shows you what you didn't know.
"""

import torch

from course_utils.exercise import Exercise, predict

exercise = Exercise(
    minutes=5,
    core=True,
    hints=[
        "`/` is true division, as in Python: is 4 / 2 an `int` there, or a `float`?",
        "Summing along a dimension makes one number out of all that lie along it. Which dimension is gone?",
        "A sum over `bool` counts, and a count does not fit into a `bool`. An integer as index picks one "
        "entry, and its dimension goes; a slice like `0:1` picks a range, and its dimension stays.",
    ],
)


@exercise.starter
def first_prediction() -> dict:
    """What each expression gives, for x = torch.arange(6).reshape(2, 3)"""
    return {
        "x.dtype": torch.int64,  # an example: this one is answered
        # dtypes
        "(x / 1).dtype": ...,
        "(x // 3).dtype": ...,
        "(x + 0.5).dtype": ...,
        "(x > 2).sum().dtype": ...,
        # shapes
        "x.sum(dim=1).shape": ...,
        "x.sum().shape": ...,
        "x[0].shape": ...,
        "x[0:1].shape": ...,
    }


_WHYS = {
    "x.dtype": "`arange` of Python's integers makes signed integers with 64 bits.",
    "(x / 1).dtype": "`/` is true division: it leaves the integers, also where every quotient is whole, as "
    "here, for torch's default floating dtype, which has 32 bits.",
    "(x // 3).dtype": "`//` rounds the quotient down: of integers it makes integers, here of "
    "the dtype of `x`.",
    "(x + 0.5).dtype": "A Python number brings its kind, floating point here, and not its width: that is "
    "torch's default, 32 bits, where Python and NumPy take 64.",
    "(x > 2).sum().dtype": "A sum over `bool` counts, and is made in the dtype in which all integers are "
    "summed, the signed one with 64 bits.",
    "x.sum(dim=1).shape": "`dim` names the dimension that is summed away. It goes, and the others stay; "
    "`keepdim=True` would keep it with size 1.",
    "x.sum().shape": "Every dimension is summed away, and none is left. A tensor without dimensions has one "
    "element all the same.",
    "x[0].shape": "An integer as index picks one entry, and the dimension that it picks from goes.",
    "x[0:1].shape": "A slice picks a range, and its dimension stays, also where the range has one entry.",
}


def _compare(first_prediction, *lines):
    truths = {line: eval(line, {"x": torch.arange(6).reshape(2, 3)}) for line in lines}
    predict.compare(predict.written_down(first_prediction), truths, _WHYS, all_lines=_WHYS)


predict.add_check(exercise)


@exercise.check
def arithmetic(first_prediction):
    """The dtype of a result: arithmetic

    The dtype of such a result follows from what goes in, not from its values: it is chosen before any element
    is looked at.
    """
    _compare(first_prediction, "x.dtype", "(x / 1).dtype", "(x // 3).dtype", "(x + 0.5).dtype")


@exercise.check
def counting(first_prediction):
    """The dtype of a result: counting

    Comparing gives `True` and `False`, and a sum over them is a number: how many are `True`. That is why
    `(a == b).sum()` counts.
    """
    _compare(first_prediction, "(x > 2).sum().dtype")


@exercise.check
def sums(first_prediction):
    """The shape of a sum

    Ask of each dimension what becomes of it. One that is summed over goes.
    """
    _compare(first_prediction, "x.sum(dim=1).shape", "x.sum().shape")


@exercise.check
def picks(first_prediction):
    """The shape of what an index picks

    Ask of each dimension what becomes of it. An integer removes its dimension, a slice keeps it.
    """
    _compare(first_prediction, "x[0].shape", "x[0:1].shape")
