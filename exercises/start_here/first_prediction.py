"""A first prediction

For `x = torch.arange(6).reshape(2, 3)`, which is `[[0, 1, 2], [3, 4, 5]]`: what does each expression give?
Replace every `...` by a dtype such as `torch.int64`, or by a shape such as `(2, 3)`; the shape of a tensor
with one dimension is written `(7,)`, that of a tensor with no dimensions `()`.

Write down what you believe before you run anything. A wrong prediction costs nothing: it is the quickest way
to find out what you did not know.
"""

import torch

from course_utils import expect
from course_utils.exercise import Exercise

exercise = Exercise(
    minutes=5,
    hints=[
        "`/` is true division, as in Python: what is 3 / 2, and which dtypes can hold it?",
        "Summing along a dimension makes one number out of all that lie along it. Which dimension is gone?",
        "A sum over `bool` counts, and a count does not fit into a `bool`. An index like `0` picks one "
        "entry, and its dimension goes; a slice like `0:1` picks a range, and its dimension stays.",
    ],
)


@exercise.starter
def first_prediction() -> dict:
    """What each expression gives, for x = torch.arange(6).reshape(2, 3)"""
    return {
        "x.dtype": torch.int64,  # an example: this one is answered
        # dtypes
        "(x / 3).dtype": ...,
        "(x // 3).dtype": ...,
        "(x + 0.5).dtype": ...,
        "(x > 2).sum().dtype": ...,
        # shapes
        "x.sum(dim=1).shape": ...,
        "x.sum().shape": ...,
        "x[0].shape": ...,
        "x[0:1].shape": ...,
    }


def _compare(predictions, *expressions):
    truths = {}
    for expression in expressions:
        truth = eval(expression, {"x": torch.arange(6).reshape(2, 3), "torch": torch})
        truths[expression] = tuple(truth) if isinstance(truth, torch.Size) else truth
    expect.all_predicted(predictions, truths, names=exercise.starter_object())


@exercise.check
def arithmetic(first_prediction):
    """The dtype of a result: arithmetic"""
    _compare(first_prediction(), "x.dtype", "(x / 3).dtype", "(x // 3).dtype", "(x + 0.5).dtype")


@exercise.check
def counting(first_prediction):
    """The dtype of a result: counting"""
    _compare(first_prediction(), "(x > 2).sum().dtype")


@exercise.check
def sums(first_prediction):
    """The shape of a sum"""
    _compare(first_prediction(), "x.sum(dim=1).shape", "x.sum().shape")


@exercise.check
def picks(first_prediction):
    """The shape of what an index picks"""
    _compare(first_prediction(), "x[0].shape", "x[0:1].shape")


@exercise.check
def written_down(first_prediction):
    """The predictions are written down, not computed"""
    expect.written_down(first_prediction)


# What the people below believe of the lines that their misunderstanding does not touch.
_ELSEWHERE = {
    "x.dtype": torch.int64,
    "(x / 3).dtype": torch.float32,
    "(x // 3).dtype": torch.int64,
    "(x + 0.5).dtype": torch.float32,
    "(x > 2).sum().dtype": torch.int64,
    "x.sum(dim=1).shape": (2,),
    "x.sum().shape": (),
    "x[0].shape": (3,),
    "x[0:1].shape": (1, 3),
}


@exercise.mistake
def asks_torch():
    """You let torch compute the answers. They are right, and you have learned nothing about what you
    believed: write the values down first, then run the check."""
    x = torch.arange(6).reshape(2, 3)
    return {
        "x.dtype": x.dtype,
        "(x / 3).dtype": (x / 3).dtype,
        "(x // 3).dtype": (x // 3).dtype,
        "(x + 0.5).dtype": (x + 0.5).dtype,
        "(x > 2).sum().dtype": (x > 2).sum().dtype,
        "x.sum(dim=1).shape": x.sum(dim=1).shape,
        "x.sum().shape": x.sum().shape,
        "x[0].shape": x[0].shape,
        "x[0:1].shape": x[0:1].shape,
    }


@asks_torch.variant
def asks_in_a_loop():
    names = ["x.dtype", "(x / 3).dtype", "(x // 3).dtype", "(x + 0.5).dtype", "(x > 2).sum().dtype"]
    names += ["x.sum(dim=1).shape", "x.sum().shape", "x[0].shape", "x[0:1].shape"]
    return {name: eval(name, {"x": torch.tensor([[0, 1, 2], [3, 4, 5]])}) for name in names}


@exercise.mistake
def integers_stay_integers():
    """You expect integers to stay integers, as in C. `/` is true division and gives the default floating
    dtype, also where every quotient is whole; only `//` stays in `int64`."""
    return {**_ELSEWHERE, "(x / 3).dtype": torch.int64}


@exercise.mistake
def floor_division_is_division():
    """You expect `//` to give floating point. It rounds the quotient down, and of integers it makes an
    integer again; `/` is the one that leaves the integers."""
    return {**_ELSEWHERE, "(x // 3).dtype": torch.float32}


@exercise.mistake
def the_tensor_decides():
    """You expect the dtype of the tensor to win over a number. A number has no width of its own, but it has
    a kind: 0.5 is floating point, a kind above the integers, so the result is floating point too."""
    return {**_ELSEWHERE, "(x + 0.5).dtype": torch.int64}


@exercise.mistake
def thinks_in_double():
    """You expect `float64`, the one floating dtype that Python and NumPy start from. A number of Python's
    does not bring its own width: the result takes torch's default, which is `float32`."""
    return {
        **_ELSEWHERE,
        "(x / 3).dtype": torch.float64,
        "(x + 0.5).dtype": torch.float64,
    }


@exercise.mistake
def numbers_are_double():
    """You expect `0.5` to bring the width of Python's floats. A number decides the kind, floating point, and
    not the width: that is torch's default, `float32`."""
    return {**_ELSEWHERE, "(x + 0.5).dtype": torch.float64}


@exercise.mistake
def quotients_are_double():
    """You expect a quotient of integers in `float64`, as NumPy gives it. torch makes it in its default dtype
    for floating point, `float32`."""
    return {**_ELSEWHERE, "(x / 3).dtype": torch.float64}


@exercise.mistake
def sums_keep_their_dtype():
    """You expect the sum of booleans to be a boolean. A sum over `bool`, or over any integer dtype, is made
    in `int64`: that is why `(a == b).sum()` counts."""
    return {**_ELSEWHERE, "(x > 2).sum().dtype": torch.bool}


@exercise.mistake
def counts_in_int32():
    """You expect a count in `int32`. Sums of booleans and of integers are made in `int64`, torch's dtype for
    whole numbers wherever none is asked for."""
    return {**_ELSEWHERE, "(x > 2).sum().dtype": torch.int32}


@exercise.mistake
def names_the_dimension_that_stays():
    """You read `dim=1` as the dimension that stays. It is the one that is summed away: of `(2, 3)` without
    dimension 1, `(2,)` is left."""
    return {**_ELSEWHERE, "x.sum(dim=1).shape": (3,)}


@names_the_dimension_that_stays.variant
def sums_each_column():
    rows, columns = 2, 3
    dtypes = {
        "x.dtype": torch.int64,
        "(x / 3).dtype": torch.float32,
        "(x // 3).dtype": torch.int64,
        "(x + 0.5).dtype": torch.float32,
        "(x > 2).sum().dtype": torch.int64,
    }
    shapes = {
        "x.sum(dim=1).shape": columns,
        "x.sum().shape": [],
        "x[0].shape": [columns],
        "x[0:1].shape": [rows - 1, columns],
    }
    return dtypes | shapes


@exercise.mistake
def keeps_the_other_dimension():
    """In your result dimension 0 has become 1, and `dim=1` has stayed. `dim` names the dimension that is
    summed over; that one goes, and of `(2, 3)` the `(2,)` is left."""
    return {**_ELSEWHERE, "x.sum(dim=1).shape": (1, 3)}


@exercise.mistake
def a_sum_keeps_its_dimension():
    """You expect the dimension that is summed over to stay, with size 1. It goes; `keepdim=True` is what
    keeps it."""
    return {**_ELSEWHERE, "x.sum(dim=1).shape": (2, 1)}


@exercise.mistake
def a_number_is_a_list_of_one():
    """You expect the sum of everything to have one dimension, of size 1. Both dimensions are summed away and
    none is left: the shape is `()`, and a tensor of that shape has one element all the same."""
    return {**_ELSEWHERE, "x.sum().shape": (1,)}


@exercise.mistake
def an_index_keeps_its_dimension():
    """You expect `x[0]` to keep dimension 0, with size 1. An index picks one entry, and the dimension that
    it picks from goes; `x[0:1]`, a slice, keeps it."""
    return {**_ELSEWHERE, "x[0].shape": (1, 3)}


@exercise.mistake
def a_slice_of_one_is_an_entry():
    """You expect `x[0:1]` to be the row itself. A slice gives a range of rows, even where it has one: the
    dimension stays, with size 1. `x[0]` drops it."""
    return {**_ELSEWHERE, "x[0:1].shape": (3,)}


@exercise.mistake
def dimensions_never_go():
    """You expect every dimension to stay, with size 1 where there was more. A sum drops the dimension that
    it sums over (`keepdim=True` keeps it), and an index drops the one that it picks from; only a slice
    keeps it."""
    return {
        **_ELSEWHERE,
        "x.sum(dim=1).shape": (2, 1),
        "x.sum().shape": (1, 1),
        "x[0].shape": (1, 3),
    }
