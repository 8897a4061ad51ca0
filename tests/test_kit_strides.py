"""The kit for exercises that compute with strides."""

import math

import numpy as np
import pytest
import torch

from course_utils.exercise import expect
from course_utils.exercise.kits import strides


def of_view(x, shape):
    return x.view(shape).stride()


def test_cases_are_what_torch_does():
    found = strides.cases(of_view, ((2, 3), (3, 1), [(6,), (3, 2)]), ((2, 3), (1, 2), [(6,), (2, 3)]))
    assert found == [
        (((2, 3), (3, 1), (6,)), (1,)),
        (((2, 3), (3, 1), (3, 2)), (2, 1)),
        (((2, 3), (1, 2), (6,)), None),
        (((2, 3), (1, 2), (2, 3)), (1, 2)),
    ]


@pytest.mark.parametrize(
    ("came", "told"),
    [
        ((3, 9, 1), ""),  # along a size of 1 any number is right
        ([3, 0, np.int64(1)], ""),
        (None, "you answer `None`"),
        ((3, 1), "your result has fewer entries than `shape`"),
        ((1, 9, 3), "your strides are right, in the opposite order"),
        ((3, 9, 2), "your strides are others than torch's"),
        ((3, 9, True), "you return something else than a tuple or a list of integers, or `None`"),
        ((3, 9, torch.tensor(1)), "you return something else than a tuple or a list of integers, or `None`"),
    ],
)
def test_strides_are_judged(came, told):
    ((_, wanted),) = strides.cases(of_view, ((6,), (1,), [(2, 1, 3)]))
    said = strides.judge(came, wanted)
    assert said == told or (told.endswith("order") and said.endswith("torch's"))
    assert (strides.judge(None, None), strides.judge((1,), None)) == ("", "you return strides")


def test_all_shapes_of_a_number_of_elements():
    found = strides.shapes(12, 3)
    assert len(found) == len(set(found)) and all(math.prod(shape) == 12 for shape in found)
    assert {(12,), (3, 4), (1, 12), (2, 3, 2)} <= set(found)


@pytest.mark.parametrize("size", [(2, 3, 4), (1, 3), (5,)])
def test_contiguous_is_what_torch_says(size):
    for order in ([*range(len(size))], [*range(len(size))][::-1]):
        x = torch.empty(size).permute(order)
        assert strides.contiguous(tuple(x.shape), x.stride()) == x.is_contiguous()


x = torch.arange(6.0).reshape(2, 3)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: x.t(), "torch's operator `t` ran"),
        (lambda: np.prod((2, 3)), "NumPy's `prod` was called"),
        (lambda: x.untyped_storage(), "a tensor was asked for `untyped_storage()`"),
        (lambda: x.stride(), "a tensor was asked for `stride()`"),
    ],
)
def test_what_is_not_plain_python_is_seen(call, told):
    with pytest.raises(expect.Mismatch) as caught:
        strides.plain_python(call)
    assert caught.value.lines[-2] == told
    strides.plain_python(lambda: math.prod((2, 3)) + len(x) + x.shape[0])
    strides.plain_python(lambda: x.stride(), ask=["stride"])
