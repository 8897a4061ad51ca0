"""Predict: size, stride, contiguous, shared

`x = torch.arange(12).reshape(3, 4)`. For each expression write down four things: its size, its stride,
whether it is contiguous, and whether it shares storage with `x`.

The first line is answered: `x` has size `(3, 4)` and stride `(4, 1)`, is contiguous, and shares storage with
itself. Replace every `...` with such a line, before you run any of the expressions.

If you aren't sure, guess: the report tells you the rule.
"""

import torch

from course_utils import measure
from course_utils.exercise import Exercise, predict

exercise = Exercise(
    minutes=15,
    core=True,
    hints=[
        "Can the elements stay where they are? They can if an offset and one stride for each dimension read "
        "them in the new order. In torch a stride is never negative.",
        "A transpose swaps sizes and strides. A step along a dimension that is repeated without a copy stays "
        "where it is. No step is made along a dimension of size 1, so its stride doesn't count for "
        "contiguity.",
        "The `clone` of `x.t()` keeps the order of its elements in memory; indexing with a list copies. "
        "`reshape` tries to be a view first: can one stride read `x[:, ::2]`? Can one read `x.t()`?",
    ],
)


@exercise.starter
def predict_strides() -> dict:
    """(size, stride, contiguous?, shares storage with x?)

    x = torch.arange(12).reshape(3, 4)
    """
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
    "x": "This tensor is laid out row by row, and strides count elements, not bytes.",
    "x[1:]": "A slice reads the storage of `x` from a later place, with the same strides. A view may begin "
    "anywhere and still be contiguous.",
    "x[:, 1:]": "The rows stay in the storage of `x`, as far apart as before. Between two of them lies an "
    "element that isn't read.",
    "x[:, 1]": "The column takes one element from each row in the storage of `x` and steps over the others.",
    "x[[0, 2]]": "Indexing with a list copies, into a new tensor, even where a slice could read the rows.",
    "x.t()": "A transpose moves no element. It swaps the two sizes and the two strides.",
    "x[:1].t()": "A transpose swaps the strides, whatever the sizes are. No step is made along a dimension "
    "of size 1, so its stride doesn't count for contiguity.",
    "x.t().clone()": "`clone` makes new storage. Here it keeps the order in which the elements lie, and "
    "there are no gaps to close.",
    "x.flip(0)": "Reading backwards takes a negative stride, and torch has none. So `flip` copies.",
    "x[0].expand(3, 4)": "`expand` writes nothing. There is one row, and a step along the new dimension "
    "stays on it. Twelve elements in four places can't lie one after another.",
    "x[0].repeat(3, 1)": "`repeat` writes the row three times, into a new tensor.",
    "x.t().reshape(12)": "Read row by row, `x.t()` jumps back and forth in the storage, and no single "
    "stride does that. So `reshape` copies.",
    "x[:, ::2].reshape(6)": "`reshape` copies only if it must. In `x[:, ::2]` the first element of a row "
    "lies as far behind the last one of the row above as any two neighbours, so one stride reads all six.",
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


predict.add_check(exercise)


@exercise.check
def parts(predict_strides):
    """Parts of `x`

    An integer or a slice as index gives a view of the same storage, with an offset, sizes, and the strides of
    `x` (times the step of the slice); a list of indices gives a copy. A tensor is contiguous if
    its elements, read in order, lie one after another in its storage.
    """
    _compare(predict_strides, "x", "x[1:]", "x[:, 1:]", "x[:, 1]", "x[[0, 2]]")


@exercise.check
def turned(predict_strides):
    """`x` turned around

    Another order of reading can be a view if each dimension has one stride that isn't negative. `clone`
    copies in any case.
    """
    _compare(predict_strides, "x.t()", "x[:1].t()", "x.t().clone()", "x.flip(0)")


@exercise.check
def repeated(predict_strides):
    """A row of `x`, repeated

    A view reads one row three times: with stride 0, each step reads the same place again. A copy writes three
    rows.
    """
    _compare(predict_strides, "x[0].expand(3, 4)", "x[0].repeat(3, 1)")


@exercise.check
def reshaped(predict_strides):
    """`reshape` of a tensor that isn't contiguous

    `reshape` returns a view if one stride can read the dimensions that it merges, and a copy otherwise. The
    tensor need not be contiguous.
    """
    _compare(predict_strides, "x.t().reshape(12)", "x[:, ::2].reshape(6)")
