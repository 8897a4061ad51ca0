"""Predict: size, stride, contiguous, shared

`x = torch.arange(12).reshape(3, 4)`. For each expression write down four things: its size, its stride,
whether it is contiguous, and whether it shares storage with `x`.

The first line is answered: `x` has size `(3, 4)` and stride `(4, 1)`, is contiguous, and shares storage with
itself. Replace every `...` by such a line, before you run any of the expressions.

Most lines follow from offset, size and stride. Some are habits of torch's that no formula gives; commit to a
guess there too, and the report will tell you the rule.
"""

import torch

from course_utils import measure
from course_utils.exercise import Exercise, predict

exercise = Exercise(
    minutes=20,
    core=True,
    hints=[
        "Ask first whether the elements could stay where they are: is there an offset and a stride for each "
        "dimension that reads them in the new order? Strides are whole numbers, and in torch never negative.",
        "A transpose swaps sizes and strides and nothing else. A dimension that is repeated without a copy "
        "has to stay in its place at every step. A dimension of size 1 is never stepped along, so its stride "
        "does not count for contiguity.",
        "`clone` keeps the strides of what it copies where that leaves no holes; indexing with a list always "
        "copies. `reshape` tries to be a view first: can `x[:, ::2]` be read with one stride? Can `x.t()`?",
    ],
)


@exercise.starter
def predict_strides() -> dict:
    """(size, stride, contiguous?, shares storage with x?) for x = torch.arange(12).reshape(3, 4)"""
    return {
        "x": ((3, 4), (4, 1), True, True),  # an example: this one is answered
        # parts
        "x[1:]": ...,
        "x[:, 1:]": ...,
        "x[:, 1]": ...,
        "x[[0, 2]]": ...,
        # turned
        "x.t()": ...,
        "x[:1].t()": ...,
        "x.t().clone()": ...,
        "x.flip(0)": ...,
        # repeated
        "x[0].expand(3, 4)": ...,
        "x[0].repeat(3, 1)": ...,
        # reshaped
        "x.t().reshape(12)": ...,
        "x[:, ::2].reshape(6)": ...,
    }


_WHYS = {
    "x": "A new tensor is laid out row by row, and strides count elements, not bytes.",
    "x[1:]": "A slice reads the storage of `x`, from a later place on and with the same strides. Where a "
    "view begins does not count for contiguity.",
    "x[:, 1:]": "The rows still lie in the storage of `x`, as far apart as before; between two of them there "
    "is an element that is not read.",
    "x[:, 1]": "The column is read from the storage of `x`, one element in every row; the rest of the "
    "row lies between it and the next.",
    "x[[0, 2]]": "Indexing with a list copies, into a new tensor, even where a slice could read the rows.",
    "x.t()": "A transpose moves no element: the two sizes change places, and so do the two strides.",
    "x[:1].t()": "A transpose swaps the strides that it finds, whatever the sizes are. Along a size of 1 no "
    "step is made, so its stride does not count for contiguity.",
    "x.t().clone()": "`clone` makes a storage of its own and keeps the strides of what it copies, as long as "
    "these leave no holes.",
    "x.flip(0)": "Reading backwards would take a negative stride, which torch does not have: `flip` copies.",
    "x[0].expand(3, 4)": "`expand` writes nothing. There is one row, and a step along the new dimension has "
    "to stay at it. Twelve elements in four places are not laid out one after another.",
    "x[0].repeat(3, 1)": "`repeat` writes the row as often as it was asked to, into a new tensor.",
    "x.t().reshape(12)": "Read row by row, `x.t()` goes forth and back in the storage of `x`; no single "
    "stride does that. `reshape` has to copy there, into a new tensor.",
    "x[:, ::2].reshape(6)": "`reshape` copies only where it must. In `x[:, ::2]` the next row begins as far "
    "from the last element as two neighbours are apart, so one stride reads all six.",
}


def _compare(predict_strides, *lines):
    truths = {}
    for line in lines:
        x = torch.arange(12).reshape(3, 4)
        y = eval(line, {"x": x})
        truths[line] = y.size(), y.stride(), y.is_contiguous(), measure.same_storage(x, y)
    predictions = predict.written_down(predict_strides)
    parts = ("size", "stride", "contiguous", "shared")
    predict.compare(predictions, truths, _WHYS, parts=parts, all_lines=_WHYS)


@exercise.check
def written_down(predict_strides):
    """The predictions are written down, not computed

    A prediction is what you believe before torch tells you. One that torch has computed is right, and you
    have not found out what you believed.
    """
    predict.written_down(predict_strides)


@exercise.check
def parts(predict_strides):
    """Parts of `x`

    An index or a slice is a view: another offset, other sizes, the strides of `x` (times the step of the
    slice), the same storage. A tensor is contiguous where reading it in order means walking its storage in
    steps of 1.
    """
    _compare(predict_strides, "x", "x[1:]", "x[:, 1:]", "x[:, 1]", "x[[0, 2]]")


@exercise.check
def turned(predict_strides):
    """`x` turned around

    Another order of reading is a view where each dimension has one stride for it, and the stride is not
    negative.
    """
    _compare(predict_strides, "x.t()", "x[:1].t()", "x.t().clone()", "x.flip(0)")


@exercise.check
def repeated(predict_strides):
    """A row of `x`, repeated

    One row can be read three times, or three rows can be written. Stride 0 reads the same place again at
    every step.
    """
    _compare(predict_strides, "x[0].expand(3, 4)", "x[0].repeat(3, 1)")


@exercise.check
def reshaped(predict_strides):
    """`reshape` where the tensor is not contiguous

    `reshape` is a view where strides can describe the result, and a copy elsewhere. What decides is whether
    the dimensions that it merges can be read with one stride, not whether the tensor is contiguous.
    """
    _compare(predict_strides, "x.t().reshape(12)", "x[:, ::2].reshape(6)")
