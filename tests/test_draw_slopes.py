"""The picture of a function beside its backward, by the data that it draws."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from torch.nn import functional as F

from course_utils import draw
from course_utils.draw import palette
from course_utils.draw.slopes import WORDS, compare


def given(forward, backward):
    """A function that computes `forward(x)`, and hands back `backward(x, grad)`."""

    class Given(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return forward(x)

        @staticmethod
        def backward(ctx, grad):
            return backward(*ctx.saved_tensors, grad)

    return Given.apply


def quantize(x):
    return (x.clamp(0, 1) * 4).round() / 4


def overflows(x):
    return torch.where(x.abs() < 20, torch.log(torch.cosh(x)), x.abs() - math.log(2))


def parted(function, *args, **kwargs):
    found = compare(function, *args, **kwargs).stretches
    return [(round(s.start, 2), round(s.stop, 2), s.why) for s in found]


# --- the data ----------------------------------------------------------------------------------------


def test_values_and_slopes_are_those_of_the_function():
    data = compare(torch.sin, -2, 2)
    x = torch.tensor(data.points, dtype=torch.float64)
    assert len(x) == 240 and -2 < x[0] < -1.98 and 1.98 < x[-1] < 2
    torch.testing.assert_close(torch.tensor(data.values, dtype=torch.float64), x.sin())
    torch.testing.assert_close(torch.tensor(data.true, dtype=torch.float64), x.cos(), atol=1e-8, rtol=0)
    torch.testing.assert_close(torch.tensor(data.handed, dtype=torch.float64), x.cos())


@pytest.mark.parametrize(
    "function", [torch.sin, torch.exp, torch.relu, F.gelu, F.hardtanh, torch.round, torch.sign, torch.abs]
)
def test_what_torch_hands_back_is_the_slope(function):
    assert compare(function).stretches == ()
    assert compare(function, dtype=torch.float32).stretches == ()
    assert compare(function, arriving=-4).stretches == ()


def test_a_slope_through_a_staircase_is_rounding():
    assert parted(given(torch.round, lambda x, grad: grad)) == [(-3, 3, "rounding")]
    assert parted(given(torch.sign, lambda x, grad: grad * (x.abs() <= 1))) == [(-1, 1, "rounding")]


def test_where_the_staircase_has_ended_it_is_clipping():
    function = given(quantize, lambda x, grad: grad)
    assert parted(function, -0.5, 1.5) == [(-0.5, 0, "clipping"), (0, 1, "rounding"), (1, 1.5, "clipping")]
    function = given(F.hardtanh, lambda x, grad: grad)
    assert parted(function) == [(-3, -1, "clipping"), (1, 3, "clipping")]
    assert parted(given(quantize, lambda x, grad: grad * ((x >= 0) & (x <= 1))), -0.5, 1.5) == [
        (0, 1, "rounding")
    ]


def test_a_gradient_that_is_clipped_is_seen_by_what_arrives():
    function = given(torch.clone, lambda x, grad: grad.clamp(-1, 1))
    assert parted(function) == []
    assert parted(function, arriving=5) == [(-3, 3, "clipped gradient")]
    assert parted(function, arriving=-5) == [(-3, 3, "clipped gradient")]


def test_a_wrong_backward_is_wrong_where_it_is():
    tanh = given(torch.tanh, lambda x, grad: grad)
    assert parted(tanh) == [(-3, 3, "wrong")]
    assert parted(given(torch.square, lambda x, grad: 2 * x.clamp(max=2) * grad)) == [(2, 3, "wrong")]
    assert parted(given(torch.square, lambda x, grad: 2.1 * x * grad))[0][2] == "wrong"
    # Where two lines cross they agree for a moment.
    assert parted(given(lambda x: x * 2, lambda x, grad: (2 + x - 0.5) * grad)) == [(-3, 3, "wrong")]


def test_nothing_nan_and_no_graph():
    assert parted(given(torch.square, lambda x, grad: 2 * x * grad * (x < 1))) == [(1, 3, "nothing")]
    assert parted(lambda x: (x > 0).float()) == [(-3, 3, "no graph")]
    found = parted(overflows, -120, 120, dtype=torch.float32)
    assert found == [(-120, -89, "not finite"), (89, 120, "not finite")]
    assert parted(overflows, -120, 120) == []


def test_a_function_that_does_not_depend_on_its_input():
    assert compare(lambda x: x.detach() * 0 + torch.ones(240, dtype=x.dtype, requires_grad=True)).true[0] == 0
    assert parted(lambda x: 0 * x) == []


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(ValueError, match="no range"):
        compare(torch.sin, 1, 1)
    with pytest.raises(ValueError, match=r"makes \(\) of \(240,\)"):
        compare(torch.sum)
    with pytest.raises(ValueError, match="0 arrives"):
        compare(torch.sin, arriving=0)


def test_nothing_is_left_behind():
    weight = torch.ones((), dtype=torch.float64, requires_grad=True)
    with torch.no_grad():
        draw.slopes(lambda x: x * weight)
        assert not torch.is_grad_enabled()
    assert weight.grad is None


# --- the picture -------------------------------------------------------------------------------------


def letters_above(picture):
    return [[t.get_text() for t in axes.texts if len(t.get_text()) == 1] for axes in picture.axes]


def test_where_they_part_is_marked_in_both_and_said_once():
    picture = draw.slopes(given(quantize, lambda x, grad: grad), -0.5, 1.5, name="quantize")
    assert letters_above(picture) == [["a", "b", "a"]] * 2
    assert repr(picture) == (
        "quantize from -0.5 to 1.5. "
        f"a   -0.5 to 0, 1 to 1.5: {WORDS['clipping']}; b   0 to 1: {WORDS['rounding']}"
    )
    for axes in picture.axes:
        spans = [p for p in axes.patches if to_hex(p.get_facecolor()).upper() == palette.ODD]
        assert len(spans) == 3
    colours = [line.get_color() for line in picture.axes[1].lines if len(line.get_xdata()) > 2]
    assert colours == [palette.TEXT, palette.GRADIENT]


def test_nothing_is_marked_where_they_agree():
    picture = draw.slopes(torch.sin, name="sin")
    assert letters_above(picture) == [[], []]
    assert repr(picture) == "sin from -3 to 3. the two slopes agree everywhere"


def test_a_step_is_a_gap_in_the_value():
    drawn = draw.slopes(torch.round).axes[0].lines[-1].get_ydata()
    assert sum(math.isnan(y) for y in drawn) == 6
    drawn = draw.slopes(lambda x: torch.exp(4 * x)).axes[0].lines[-1].get_ydata()
    assert not any(math.isnan(y) for y in drawn)


PICTURES = {
    "agree": lambda: draw.slopes(torch.sin),
    "ends together": lambda: draw.slopes(torch.exp, arriving=5.0),
    "at the bottom": lambda: draw.slopes(lambda x: -torch.exp(x), arriving=-12.5),
    "constant": lambda: draw.slopes(lambda x: 0 * x + 7),
    "two kinds": lambda: draw.slopes(given(quantize, lambda x, grad: grad), -0.5, 1.5),
    "clipped": lambda: draw.slopes(given(F.hardtanh, lambda x, grad: grad.clamp(-1, 1)), arriving=5.0),
    "many": lambda: draw.slopes(given(torch.sin, lambda x, grad: grad * (torch.cos(3 * x) > 0))),
    "nan": lambda: draw.slopes(overflows, -120, 120, dtype=torch.float32),
    "no graph": lambda: draw.slopes(lambda x: (x > 0).float()),
    "small": lambda: draw.slopes(lambda x: 1e-9 * x, -1e-3, 1e-3),
    "large": lambda: draw.slopes(lambda x: 1e9 * x**2, -2000, 2000),
}


@pytest.mark.parametrize("make", PICTURES.values(), ids=PICTURES.keys())
def test_no_text_runs_out_of_its_picture_or_over_another(make):
    picture = make()
    renderer = FigureCanvasAgg(picture).get_renderer()
    picture.draw(renderer)
    texts = [*picture.texts, *(text for axes in picture.axes for text in axes.texts)]
    for axes in picture.axes:
        for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
            ticks = zip(axis.get_majorticklocs(), axis.get_majorticklabels(), strict=True)
            texts += [label for place, label in ticks if limits[0] <= place <= limits[1]]
            texts.append(axis.get_offset_text())
    boxes = [(t.get_text(), t.get_window_extent(renderer)) for t in texts if t.get_text()]
    page = picture.bbox
    for text, box in boxes:
        assert page.x0 <= box.x0 and box.x1 <= page.x1, text
        assert page.y0 <= box.y0 and box.y1 <= page.y1, text
    for (a, first), (b, second) in itertools.combinations(boxes, 2):
        over = min(first.y1, second.y1) - max(first.y0, second.y0)
        beside = min(first.x1, second.x1) - max(first.x0, second.x0)
        assert over <= 2 or beside <= 0, f"{a} and {b}"


def test_a_picture_is_the_same_every_time_and_has_no_background():
    first, again = (draw.slopes(torch.tanh)._repr_mimebundle_()[0] for _ in range(2))
    assert first == again
