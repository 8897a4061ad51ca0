"""A function beside its backward: what the picture says against derivatives that are known."""

import math

import pytest
import torch
from drawn import assert_words_can_be_read

from course_utils import draw
from course_utils.draw.slopes import compare


class Through(torch.autograd.Function):
    """round, straight through."""

    @staticmethod
    def forward(ctx, x):
        return torch.round(x)

    @staticmethod
    def backward(ctx, grad):
        return grad


class Clipped(torch.autograd.Function):
    """clamp, with a slope of 1 everywhere."""

    @staticmethod
    def forward(ctx, x):
        return x.clamp(-1, 1)

    @staticmethod
    def backward(ctx, grad):
        return grad


@pytest.mark.parametrize(
    ("function", "slope"),
    [
        (torch.sin, torch.cos),
        (torch.exp, torch.exp),
        (lambda x: x**3, lambda x: 3 * x**2),
        (torch.relu, lambda x: (x > 0).double()),
    ],
    ids=["sin", "exp", "cube", "relu"],
)
def test_slopes_are_those_of_the_function(function, slope):
    found = compare(function)
    assert torch.allclose(found.true, slope(found.points), rtol=1e-5, atol=1e-7)
    assert torch.allclose(found.handed, found.true, rtol=1e-5, atol=1e-7)
    assert torch.equal(found.values, function(found.points)) and found.stretches() == []


def test_where_they_part_is_marked_in_both_panels_and_said():
    found = compare(Clipped.apply)
    assert found.stretches() == [pytest.approx((-3, -1)), pytest.approx((1, 3))]
    picture = draw.slopes(Clipped.apply, name="clipped")
    assert "differ from -3 to -1 and from 1 to 3" in repr(picture)
    for axes in picture.axes:
        spans = [patch for patch in axes.patches if patch.get_width() == pytest.approx(2)]
        assert len(spans) == 2
    assert_words_can_be_read(picture)
    assert "differ nowhere" in repr(draw.slopes(torch.tanh, name="tanh"))


def test_a_step_is_a_gap_in_the_value():
    found = compare(Through.apply)
    assert sum(map(math.isnan, found.values.tolist())) == 6
    assert found.stretches() == [pytest.approx((-3, 3))] and found.handed.tolist() == [1.0] * 240


def test_a_picture_is_the_same_every_time():
    one, two = (draw.slopes(Through.apply, name="round").png() for _ in range(2))
    assert one == two
