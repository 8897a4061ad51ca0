"""The pictures, by the data that they draw."""

from __future__ import annotations

import io
import itertools
import subprocess
import sys

import pytest
import torch
from drawn import assert_no_text_is_cut_off_or_covers_another, contrast, linear
from matplotlib.colors import to_hex, to_rgb
from matplotlib.image import imread

from course_utils import draw
from course_utils.draw import palette
from course_utils.draw.layout import Layout
from course_utils.draw.storages import by_storage

X = torch.arange(12).reshape(3, 4)

VIEWS = {
    "x": X,
    "x[1:]": X[1:],
    "x[:, 1]": X[:, 1],
    "x[::2, 1:3]": X[::2, 1:3],
    "x.t()": X.t(),
    "x[1].expand(3, 4)": X[1].expand(3, 4),
    "x.unfold(1, 2, 1)": X.unfold(1, 2, 1),
    "x.flip(0)": X.flip(0),
    "x[2, 3]": X[2, 3],
    "x[:0]": X[:0],
    "x.as_strided((2, 2), (5, 3), 1)": X.as_strided((2, 2), (5, 3), 1),
    "floats": torch.linspace(0, 1, 7)[1:],
    "booleans": torch.tensor([True, False, True])[::2],
    "nothing": torch.empty(0, 3),
    "a parameter": torch.nn.Parameter(torch.ones(2, 2)).t(),
    "halves": torch.ones(4, dtype=torch.bfloat16)[1:3],
}
every_view = pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())


def addresses_in_memory(t: torch.Tensor) -> list[int]:
    """Where torch itself finds each element, from the start of the storage."""
    start = t.untyped_storage().data_ptr()
    indices = itertools.product(*(range(n) for n in t.shape))
    return [(t[index].data_ptr() - start) // t.element_size() for index in indices]


@every_view
def test_addresses_are_where_torch_finds_the_elements(view):
    assert Layout.of(view).addresses() == addresses_in_memory(view)


def test_a_flip_reads_a_storage_of_its_own():
    # torch has no negative strides.
    assert by_storage({"x": X, "flip": X.flip(0)})[1].keys() == {"flip"}


def test_the_walk_is_a_straight_line_exactly_where_a_flat_view_exists():
    for view in VIEWS.values():
        if view.numel() > 1:
            try:
                view.view(-1)
                flat = True
            except RuntimeError:
                flat = False
            assert ("one stride reads all" in " ".join(words(draw.walk(view)))) == flat


def test_tensors_are_grouped_by_what_they_share():
    other = torch.arange(3)
    groups = by_storage({"x": X, "other": other, "a": X[1:], "b": X.t(), "copy": X.t().reshape(-1)})
    assert [list(group) for group in groups] == [["x", "a", "b"], ["other"], ["copy"]]


def test_empty_storages_are_not_taken_for_one():
    assert len(by_storage({"a": torch.empty(0), "b": torch.empty(0)})) == 2


def test_an_element_that_is_not_there_cannot_be_lit():
    for index in [(3, 0), (0, -1), (0,)]:
        with pytest.raises(IndexError):
            draw.strides(X, light=index)


def test_what_cannot_be_read_is_refused():
    with pytest.raises(ValueError, match="5 dimensions"):
        draw.strides(torch.zeros(1, 1, 2, 2, 2))
    with pytest.raises(TypeError, match="sparse"):
        draw.strides(torch.eye(2).to_sparse())
    with pytest.raises(ValueError, match="101 places in its storage"):
        draw.storages(x=torch.zeros(101))
    with pytest.raises(ValueError, match="301 elements"):
        draw.strides(torch.zeros(1).expand(301))
    with pytest.raises(ValueError, match="21 elements"):
        draw.walk(torch.zeros(21))


# --- what of it stands in the picture ----------------------------------------------------------------


def cells(picture, fill):
    """How many boxes are filled with this colour."""
    found = [to_hex(patch.get_facecolor()).upper() for patch in picture.axes[0].patches if patch.get_fill()]
    return sum(colour == fill.upper() for colour in found)


def words(picture):
    return [text.get_text() for text in picture.axes[0].texts]


def test_what_is_read_is_lit_in_the_storage_and_in_the_grid():
    picture = draw.strides(X[1:, :2], "x[1:, :2]", light=(1, 0))
    assert cells(picture, palette.VIEW) == 2 * 3
    assert cells(picture, palette.LIT) == 2
    assert "[1, 0] is at offset + i*stride[0] + j*stride[1] = 4 + 1*4 + 0*1 = 8" in words(picture)
    assert "×2" not in words(picture)


def test_one_place_that_is_many_elements_is_lit_once_and_counted():
    picture = draw.strides(X[0].expand(3, 4), "x[0].expand(3, 4)", light=(2, 1))
    assert cells(picture, palette.VIEW) == 3 + 11
    assert cells(picture, palette.LIT) == 2
    assert words(picture).count("×3") == 4


def test_nothing_is_lit_in_an_empty_tensor():
    picture = draw.strides(X[:0], "x[:0]")
    assert cells(picture, palette.VIEW) == cells(picture, palette.LIT) == 0
    assert "no elements" in words(picture)
    assert "empty" in words(draw.strides(torch.empty(0), "e"))


def test_a_row_for_each_storage():
    x = torch.arange(6)
    picture = draw.storages(x=x, a=x[1:4], c=x.reshape(2, 3).t().reshape(6))
    assert words(picture).count("storage") == 2
    assert cells(picture, palette.VIEW) == 2 * 6 + 6 + 3 + 6
    assert repr(picture) == (
        "2 storages. x: size (6,) stride (1,) offset 0, reads 6 of 6 places; "
        "a: size (3,) stride (1,) offset 1, reads 3 of 6 places; "
        "c: size (6,) stride (1,) offset 0, reads 6 of 6 places"
    )


def test_a_walk_says_where_one_stride_does_not_go_on():
    assert "3 of 11 steps are not +4: no single stride reads them in this order" in words(draw.walk(X.t()))
    assert "every step is +2: one stride reads all 6 elements" in words(draw.walk(X[:, ::2]))
    assert words(draw.walk(X.t())).count("-7") == 3
    assert "no step: at most one element" in words(draw.walk(X[0, 0]))


PICTURES = {
    **{f"strides of {name}": lambda n=name, t=t: draw.strides(t, n) for name, t in VIEWS.items()},
    "three dimensions": lambda: draw.strides(torch.arange(24).reshape(2, 3, 4).permute(2, 0, 1), "x.permute"),
    "a long storage, read often": lambda: draw.strides(
        torch.arange(40).reshape(2, 20)[:, :3].expand(2, 2, 3), "y"
    ),
    "the largest": lambda: draw.strides(torch.arange(100).reshape(4, 25), "y"),
    "storages": lambda: draw.storages(x=X, turned=X.t(), repeated=X[0].expand(3, 4), other=torch.zeros(20)),
    "overlapping rows": lambda: draw.strides(torch.arange(6).as_strided((4, 3), (1, 1)), "s", (1, 2)),
    "walks": lambda: draw.walk(X.t(), "x.t()"),
    "a walk back and forth": lambda: draw.walk(X[0].expand(3, 4), "e"),
    "a long name": lambda: draw.storages(a_name_of_many_letters=X, b=X.t().clone()),
}


@pytest.mark.parametrize("make", PICTURES.values(), ids=PICTURES.keys())
def test_no_text_runs_out_of_its_picture_or_over_another(make):
    assert_no_text_is_cut_off_or_covers_another(make())


# --- in a notebook -----------------------------------------------------------------------------------


def test_a_picture_is_the_same_every_time_and_lies_on_a_page_of_its_own():
    data, about = draw.strides(X.t(), "x.t()")._repr_mimebundle_()
    again, _ = draw.strides(X.t(), "x.t()")._repr_mimebundle_()
    assert data == again
    assert data["text/plain"] == (
        "x.t(): size (4, 3), stride (1, 4), offset 0; element [3, 2] is storage[11] of 12"
    )
    assert about["image/png"]["width"] <= 900
    for picture in (draw.walk(X.t()), draw.schedules({"halves": [1, 0.5, 0.25]})):
        image = imread(io.BytesIO(picture.png()))
        page = (*to_rgb(palette.PAGE), 1)[: image.shape[2]]
        # A picture of few colours may be off by one.
        assert abs(image[0] - page).max() < 0.005 and image[..., 3:].min(initial=1) == 1


def test_a_picture_is_no_wider_than_what_is_on_it():
    def width(picture):
        return picture._repr_mimebundle_()[1]["image/png"]["width"]

    assert width(draw.walk(X[:, ::2])) < 560
    assert width(draw.strides(X[1:, :2], "y")) < 600
    assert width(draw.strides(torch.arange(20))) > 620


def test_drawing_changes_nothing():
    x = torch.arange(6.0, requires_grad=True)
    version, stride = x._version, x.stride()
    draw.strides(x), draw.storages(x=x), draw.walk(x)
    assert (x._version, x.stride(), x.requires_grad, x.grad) == (version, stride, True, None)


def test_no_pyplot_is_needed():
    code = (
        "import sys, torch; from course_utils import draw; draw.strides(torch.arange(3)).png();"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# --- colours -----------------------------------------------------------------------------------------


def test_text_can_be_read_on_every_fill_and_on_the_page_of_a_picture():
    assert contrast("#777777", "#FFFFFF") == pytest.approx(4.48, abs=0.01)
    assert contrast(palette.TEXT, palette.PAGE) >= 4.5
    for fill in palette.FILLS.values():
        assert contrast(palette.INK, fill) >= 4.5


def test_lines_and_fills_are_seen_on_a_white_page_and_on_a_dark_one():
    for page in (palette.PAGE, "#FFFFFF", "#111111"):
        assert contrast(palette.LINE, page) >= 3
        for fill in palette.FILLS.values():
            assert contrast(fill, page) >= 1.2


# What is seen without one of the three kinds of cones (Machado, Oliveira and Fernandes, 2009), on linear RGB.
SIGHTS = {
    "all cones": "1 0 0  0 1 0  0 0 1",
    "no long": "0.152286 1.052583 -0.204868  0.114503 0.786281 0.099216  -0.003882 -0.048116 1.051998",
    "no medium": "0.367322 0.860646 -0.227968  0.280085 0.672501 0.047413  -0.01182 0.04294 0.968881",
    "no short": "1.255528 -0.076749 -0.178779  -0.078411 0.930809 0.147602  0.004733 0.691367 0.3039",
}
TO_XYZ = "0.4124564 0.3575761 0.1804375  0.2126729 0.7151522 0.072175  0.0193339 0.119192 0.9503041"


def times(matrix, vector):
    rows = torch.tensor([float(number) for number in matrix.split()], dtype=torch.float64).reshape(3, 3)
    return rows @ torch.as_tensor(vector, dtype=torch.float64)


def lab(rgb):
    """CIELAB of linear RGB, in which a distance of 1 can barely be seen."""
    ratio = times(TO_XYZ, rgb.clamp(min=0)) / torch.tensor([0.95047, 1.0, 1.08883])
    x, y, z = torch.where(ratio > 0.008856, ratio ** (1 / 3), 7.787 * ratio + 16 / 116)
    return torch.stack((116 * y - 16, 500 * (x - y), 200 * (y - z)))


@pytest.mark.parametrize("matrix", SIGHTS.values(), ids=SIGHTS.keys())
def test_any_two_fills_can_be_told_apart(matrix):
    seen = {name: lab(times(matrix, linear(colour))) for name, colour in palette.FILLS.items()}
    for a, b in itertools.combinations(seen, 2):
        assert torch.dist(seen[a], seen[b]) >= 15, f"{a} and {b}"
