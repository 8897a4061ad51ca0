"""Predict: size, stride, contiguous, shared

`x = torch.arange(12).reshape(3, 4)`. For each expression write down four things: its size, its stride,
whether it is contiguous, and whether it shares storage with `x`.

The first line is answered: `x` has size `(3, 4)` and stride `(4, 1)`, is contiguous, and shares storage with
itself. Replace every `...` by such a line, before you run any of the expressions. Where an expression copies,
ask yourself whether it had to, and in which order the copy is laid out.

Most of these lines follow from offset, size and stride. Some are habits of torch's that no formula gives;
commit to a guess there too, and the report will tell you.
"""

import torch

from course_utils import expect
from course_utils.exercise import Exercise

exercise = Exercise(
    minutes=20,
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


def _compare(predictions, *expressions):
    truths = {}
    for expression in expressions:
        x = torch.arange(12).reshape(3, 4)
        y = eval(expression, {"x": x})
        shared = y.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        truths[expression] = tuple(y.size()), y.stride(), y.is_contiguous(), shared
    parts = ("size", "stride", "contiguous", "shared")
    expect.all_predicted(predictions, truths, names=exercise.starter_object(), parts=parts)


@exercise.check
def parts(predict_strides):
    """Parts of `x`"""
    _compare(predict_strides(), "x", "x[1:]", "x[:, 1:]", "x[:, 1]", "x[[0, 2]]")


@exercise.check
def turned(predict_strides):
    """`x` turned around"""
    _compare(predict_strides(), "x.t()", "x[:1].t()", "x.t().clone()", "x.flip(0)")


@exercise.check
def repeated(predict_strides):
    """A row of `x`, repeated"""
    _compare(predict_strides(), "x[0].expand(3, 4)", "x[0].repeat(3, 1)")


@exercise.check
def reshaped(predict_strides):
    """`reshape` where the tensor is not contiguous"""
    _compare(predict_strides(), "x.t().reshape(12)", "x[:, ::2].reshape(6)")


@exercise.check
def written_down(predict_strides):
    """The predictions are written down, not computed"""
    expect.written_down(predict_strides)


# What the people below believe of the lines that their misunderstanding does not touch.
_ELSEWHERE = {
    "x": ((3, 4), (4, 1), True, True),
    "x[1:]": ((2, 4), (4, 1), True, True),
    "x[:, 1:]": ((3, 3), (4, 1), False, True),
    "x[:, 1]": ((3,), (4,), False, True),
    "x[[0, 2]]": ((2, 4), (4, 1), True, False),
    "x.t()": ((4, 3), (1, 4), False, True),
    "x[:1].t()": ((4, 1), (1, 4), True, True),
    "x.t().clone()": ((4, 3), (1, 4), False, False),
    "x.flip(0)": ((3, 4), (4, 1), True, False),
    "x[0].expand(3, 4)": ((3, 4), (0, 1), False, True),
    "x[0].repeat(3, 1)": ((3, 4), (4, 1), True, False),
    "x.t().reshape(12)": ((12,), (1,), True, False),
    "x[:, ::2].reshape(6)": ((6,), (2,), False, True),
}


@exercise.mistake
def asks_torch():
    """You let torch compute the answers. They are right, and you have not found out what you believed:
    write the lines down first, then run the check."""
    x = torch.arange(12).reshape(3, 4)
    lines = {}
    for expression in _ELSEWHERE:
        y = eval(expression, {"x": x})
        shares = y.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        lines[expression] = (tuple(y.shape), y.stride(), y.is_contiguous(), shares)
    return lines


@asks_torch.variant
def looks_at_one_of_them():
    return {**_ELSEWHERE, "x.flip(0)": ((3, 4), torch.zeros(3, 4).flip(0).stride(), True, False)}


@exercise.mistake
def strides_follow_the_size():
    """You compute every stride from the size, as if the elements of each tensor lay side by side. That
    holds for a new tensor. A view keeps the distances that the elements have in the storage of `x`."""
    return {
        **_ELSEWHERE,
        "x[:, 1:]": ((3, 3), (3, 1), True, True),
        "x[:, 1]": ((3,), (1,), True, True),
        "x.t()": ((4, 3), (3, 1), True, True),
        "x[:1].t()": ((4, 1), (1, 1), True, True),
        "x.t().clone()": ((4, 3), (3, 1), True, False),
        "x[0].expand(3, 4)": ((3, 4), (4, 1), True, True),
        "x.t().reshape(12)": ((12,), (1,), True, True),
        "x[:, ::2].reshape(6)": ((6,), (1,), True, True),
    }


@strides_follow_the_size.variant
def everything_is_contiguous():
    def line(*size, shares):
        stride, width = [], 1
        for n in reversed(size):
            stride.insert(0, width)
            width *= n
        return size, tuple(stride), True, shares

    views = {
        "x": line(3, 4, shares=True),
        "x[1:]": line(2, 4, shares=True),
        "x[:, 1:]": line(3, 3, shares=True),
        "x[:, 1]": line(3, shares=True),
        "x.t()": line(4, 3, shares=True),
        "x[:1].t()": line(4, 1, shares=True),
        "x[0].expand(3, 4)": line(3, 4, shares=True),
        "x.t().reshape(12)": line(12, shares=True),
        "x[:, ::2].reshape(6)": line(6, shares=True),
    }
    copies = {
        "x[[0, 2]]": line(2, 4, shares=False),
        "x.t().clone()": line(4, 3, shares=False),
        "x.flip(0)": line(3, 4, shares=False),
        "x[0].repeat(3, 1)": line(3, 4, shares=False),
    }
    return views | copies


@exercise.mistake
def slices_copy():
    """You expect a slice to be a copy, as it is of a Python list. A slice of a tensor is a view: another
    offset, another size, the same storage."""
    return {
        **_ELSEWHERE,
        "x[1:]": ((2, 4), (4, 1), True, False),
        "x[:, 1:]": ((3, 3), (3, 1), True, False),
        "x[:, 1]": ((3,), (1,), True, False),
    }


@exercise.mistake
def slices_copy_before_reshape_too():
    """You expect a slice to be a copy, as it is of a Python list, and what is made of it to belong to that
    copy. A slice of a tensor is a view, and `x[:, ::2].reshape(6)` is a view of that view."""
    return {
        **_ELSEWHERE,
        "x[1:]": ((2, 4), (4, 1), True, False),
        "x[:, 1:]": ((3, 3), (3, 1), True, False),
        "x[:, 1]": ((3,), (1,), True, False),
        "x[:, ::2].reshape(6)": ((6,), (1,), True, False),
    }


@exercise.mistake
def a_list_is_a_slice():
    """Rows 0 and 2 could be a view, two rows of storage apart; indexing with a list copies them all the
    same. torch does not look for a pattern in the numbers. `x[::2]` is the view."""
    return {**_ELSEWHERE, "x[[0, 2]]": ((2, 4), (8, 1), False, True)}


@exercise.mistake
def transposing_moves():
    """You expect a transpose to move the elements into their new order. It moves nothing: it swaps the two
    sizes and the two strides, whatever the number of elements."""
    return {
        **_ELSEWHERE,
        "x.t()": ((4, 3), (3, 1), True, False),
        "x[:1].t()": ((4, 1), (1, 1), True, False),
        "x.t().clone()": ((4, 3), (3, 1), True, False),
    }


@transposing_moves.variant
def a_transpose_is_new():
    lines = dict(_ELSEWHERE)
    for expression in ("x.t()", "x.t().clone()"):
        lines[expression] = [[4, 3], [3, 1], True, False]
    lines["x[:1].t()"] = [4, 1], [1, 1], True, False
    return lines


@exercise.mistake
def transposing_copies():
    """You expect a transpose to be a copy in the new order. It is a view: the elements stay where they are,
    and the two sizes and the two strides are swapped, whatever the number of elements."""
    return {
        **_ELSEWHERE,
        "x.t()": ((4, 3), (3, 1), True, False),
        "x[:1].t()": ((4, 1), (1, 1), True, False),
    }


@exercise.mistake
def a_part_is_laid_out_anew():
    """You gave `x[:, 1:]` the stride of a new tensor with three columns. Its rows still lie in the storage of
    `x`, where the next one begins 4 elements further on."""
    return {**_ELSEWHERE, "x[:, 1:]": ((3, 3), (3, 1), True, True)}


@exercise.mistake
def a_column_is_a_row():
    """You gave the column the stride 1, as if its elements lay side by side. They lie in the storage of `x`,
    one in every row of 4: the stride is 4."""
    return {**_ELSEWHERE, "x[:, 1]": ((3,), (1,), True, True)}


@exercise.mistake
def slices_are_contiguous():
    """You expect a slice of a contiguous tensor to be contiguous. It is where it takes whole rows; `x[:, 1:]`
    and `x[:, 1]` leave out elements between those that they read, so a walk through them makes jumps."""
    return {
        **_ELSEWHERE,
        "x[:, 1:]": ((3, 3), (4, 1), True, True),
        "x[:, 1]": ((3,), (4,), True, True),
    }


@exercise.mistake
def one_dimension_is_contiguous():
    """You expect a tensor of one dimension to be contiguous. It is with stride 1; with stride 4 or 2 the
    elements have others between them."""
    return {
        **_ELSEWHERE,
        "x[:, 1]": ((3,), (4,), True, True),
        "x[:, ::2].reshape(6)": ((6,), (2,), True, True),
    }


@exercise.mistake
def begins_at_the_beginning():
    """You expect `x[1:]` not to be contiguous because it begins later. Contiguous says how the elements lie
    to each other; where the first one is, the offset, does not count."""
    return {**_ELSEWHERE, "x[1:]": ((2, 4), (4, 1), False, True)}


@exercise.mistake
def transposing_keeps_the_strides():
    """You swapped the sizes and kept the strides. Both are swapped: one step along the first dimension of
    `x.t()` is one step along a row of `x`, 1 in storage."""
    return {**_ELSEWHERE, "x.t()": ((4, 3), (4, 1), False, True)}


@exercise.mistake
def turned_is_never_contiguous():
    """A transpose need not lose contiguity: `x[:1].t()` has 4 rows of one element each, side by side in
    storage. The stride of a dimension of size 1 does not count, since no step is ever made along it."""
    return {**_ELSEWHERE, "x[:1].t()": ((4, 1), (1, 4), False, True)}


@exercise.mistake
def one_column_is_new():
    """`x[:1].t()` is contiguous, and you gave it the stride of a new tensor of that size. A transpose swaps
    the strides it finds, `(4, 1)`; that the 4 belongs to a dimension of size 1 now, and is never used, makes
    no difference to it."""
    return {**_ELSEWHERE, "x[:1].t()": ((4, 1), (1, 1), True, True)}


@exercise.mistake
def clone_tidies_up():
    """You expect a clone to be laid out anew. `clone` keeps the strides of what it copies, as long as these
    leave no holes: a clone of a transposed tensor is transposed too. `.contiguous()` is what lays the
    elements out anew."""
    return {**_ELSEWHERE, "x.t().clone()": ((4, 3), (3, 1), True, False)}


@clone_tidies_up.variant
def a_copy_is_contiguous():
    lines = {expression: list(line) for expression, line in _ELSEWHERE.items()}
    lines["x.t().clone()"][1:3] = (3, 1), True
    return lines


@exercise.mistake
def flip_is_a_view():
    """In NumPy a flip is a view, with a negative stride. torch has no negative strides: reading backwards
    cannot be described, so `flip` copies."""
    return {**_ELSEWHERE, "x.flip(0)": ((3, 4), (-4, 1), False, True)}


@exercise.mistake
def expand_writes_copies():
    """You expect `expand` to write the row three times. It writes nothing: the new dimension has stride 0,
    so every step along it stays at the same row. `repeat` is what copies."""
    return {**_ELSEWHERE, "x[0].expand(3, 4)": ((3, 4), (4, 1), True, False)}


@exercise.mistake
def expand_has_a_real_stride():
    """Your first stride of the expanded row is the distance to a next row, and there is only one row in it.
    To read the same row again each step has to stay where it is: its stride is 0."""
    return {**_ELSEWHERE, "x[0].expand(3, 4)": ((3, 4), (4, 1), True, True)}


@exercise.mistake
def expand_is_contiguous():
    """The strides are right, and a tensor with them is not contiguous: that would take `(4, 1)`, and twelve
    elements one after another. Here are four, read three times."""
    return {**_ELSEWHERE, "x[0].expand(3, 4)": ((3, 4), (0, 1), True, True)}


@exercise.mistake
def repeat_is_expand():
    """You expect `repeat` to be a view with stride 0. That is `expand`; `repeat` writes the row as often as
    it was asked to, into a new storage."""
    return {**_ELSEWHERE, "x[0].repeat(3, 1)": ((3, 4), (0, 1), False, True)}


@exercise.mistake
def reshape_always_copies():
    """You expect `reshape` to copy whatever is not contiguous. It copies only where no strides can describe
    the result. `x[:, ::2]` has an element every 2 in storage, from one row to the next too, so one stride
    reads all six."""
    return {**_ELSEWHERE, "x[:, ::2].reshape(6)": ((6,), (1,), True, False)}


@reshape_always_copies.variant
def contiguous_or_copied():
    lines = _ELSEWHERE.copy()
    lines["x[:, ::2].reshape(6)"] = (6, 1, True, False)
    return lines


@exercise.mistake
def reshape_closes_the_gaps():
    """`x[:, ::2].reshape(6)` is a view, as you say, and a view moves nothing: the elements that it leaves out
    stay between those that it reads. Its stride is 2, so it is not contiguous."""
    return {**_ELSEWHERE, "x[:, ::2].reshape(6)": ((6,), (1,), True, True)}


@exercise.mistake
def reshape_never_copies():
    """You expect `reshape` to be a view always. Read row by row, `x.t()` jumps 4, 4, then back 7: no single
    stride does that, so the elements have to be copied into their new order."""
    return {**_ELSEWHERE, "x.t().reshape(12)": ((12,), (1,), True, True)}


@exercise.mistake
def strides_in_bytes():
    """Your strides are 8 times too long: in bytes, as NumPy gives them. torch counts them in elements."""
    return {
        expression: line if expression == "x" else (line[0], tuple(8 * step for step in line[1]), *line[2:])
        for expression, line in _ELSEWHERE.items()
    }


@exercise.mistake
def shared_before_contiguous():
    """The last two entries of your lines are exchanged: first comes whether the tensor is contiguous, then
    whether it shares storage with `x`."""
    return {name: (*line[:2], line[3], line[2]) for name, line in _ELSEWHERE.items()}


@exercise.mistake
def stride_before_size():
    """The first two entries of your lines are exchanged: first comes the size, then the stride."""
    return {name: line if name == "x" else (line[1], line[0], *line[2:]) for name, line in _ELSEWHERE.items()}
