"""Pictures of Triton kernels: which cells are outlined, filled, crossed or outside is what was measured."""

import functools
import re

import numpy as np
import pytest
import torch
from drawn import assert_no_text_is_cut_off_or_covers_another

from course_utils import draw, explore, measure
from course_utils.draw import kernel_seen, palette
from course_utils.draw.kernel import HATCH, HUES, compose
from course_utils.draw.shapes import to_svg
from course_utils.exercise.kits.kernels import tl, triton
from course_utils.explore.on_the_page import NOTE
from course_utils.wrong_use import WrongUse


@triton.jit
def add_one(x, out, n, B: tl.constexpr, MASKED: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    value = tl.load(x + i, mask=(i < n) | (not MASKED))
    tl.store(out + i, value + 1, mask=(i < n) | (not MASKED))


@triton.jit
def transpose(x, y, n, T: tl.constexpr):
    rows = tl.program_id(0) * T + tl.arange(0, T)
    columns = tl.program_id(1) * T + tl.arange(0, T)
    tile = tl.load(x + rows[:, None] * n + columns[None, :])
    tl.store(y + columns[:, None] * n + rows[None, :], tl.trans(tile))


@triton.jit
def transpose_by_columns(x, y, n, B: tl.constexpr):
    column, row = tl.program_id(0), tl.arange(0, B)
    tl.store(y + column * n + row, tl.load(x + row * n + column))


@triton.jit
def by_rows(x, n, B: tl.constexpr):
    row, column = tl.program_id(0), tl.arange(0, B)
    tl.load(x + row * n + column, mask=column < n)


@triton.jit
def shift(x, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(x + i, tl.load(x + i + 1, mask=i + 1 < n), mask=i + 1 < n)


@triton.jit
def count(x, out, counted, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.atomic_add(counted, 1)
    tl.store(out, tl.sum(tl.load(x + i) + tl.load(x + tl.arange(0, B)), 0))


@functools.cache
def added(n=100, masked=True, block=32):
    x, out = torch.zeros(n), torch.zeros(n)
    return measure.kernel(add_one, (-(-n // block),), x, out, n, B=block, MASKED=masked)


@functools.cache
def transposed(n=16, tile=8):
    x, y = torch.randn(2, n, n)
    return measure.kernel(transpose, (n // tile, n // tile), x, y + 0, n, T=tile)


@functools.cache
def by_columns(n):
    return measure.kernel(transpose_by_columns, (n,), torch.zeros(n, n), torch.zeros(n, n), n, B=n)


@functools.cache
def shifted():
    return measure.kernel(shift, (4,), torch.arange(100.0), 100, B=32)


@functools.cache
def counts():
    return measure.kernel(
        count, (4,), torch.ones(64), torch.zeros(1), torch.zeros(1, dtype=torch.int32), B=16
    )


def words(scene) -> list[str]:
    return [word.text for word in scene.words] + [word.text for box in scene.boxes for word in box.words]


def cells(scene, names, columns):
    """Of each tensor: the elements in an outline, those with a fill, those with a cross, all by colour, and
    those that are hatched. Read off the shapes: an element lies where its middle does."""
    colours = {colour: name for name, colour in palette.FILLS.items()}
    heads = {w.text: w for w in scene.words if w.text in names and w.bold and w.code}
    edges = [a for a, b in (line.points for line in scene.lines if line.line == 0.5) if a[0] == b[0]]
    found = {}
    for name, head in heads.items():
        top = next(y for x, y in edges if abs(x - head.x) < 0.1 and 10 < y - head.y < 30)
        cell = min(x for x, y in edges if y == top and x > head.x + 1) - head.x

        def inside(points, head=head, top=top, cell=cell, name=name):
            (a, b), (c, d) = np.min(points, 0) - (head.x, top), np.max(points, 0) - (head.x, top)
            rows = range(max(0, round(b / cell - 0.3)), round(d / cell + 0.3))
            across = range(max(0, round(a / cell - 0.3)), round(c / cell + 0.3))
            return {row * columns[name] + column for row in rows for column in across}

        limit = top + cell * 64.5
        near = [
            w.y for w in scene.words if w.x == head.x and w.y > top + 5 and w.pixels == 11 and w.y < limit
        ]
        right = min([w.x for w in heads.values() if w.y == head.y and w.x > head.x], default=1e9) - 31

        end = min(near)

        def here(points, top=top, end=end, head=head, right=right):
            (a, b), (c, d) = np.min(points, 0), np.max(points, 0)
            return a > head.x - 1 and c < right and b > top - 1 and d < end

        kinds = {"loaded": {}, "stored": {}, "crossed": {}}
        for area in scene.areas:
            if here(area.points):
                kinds["stored"].setdefault(area.fill, set()).update(inside(area.points))
        hatched = [one for one in scene.lines if one.line == HATCH and here(one.points)]
        kinds["hatched"] = set().union(*(inside(one.points) for one in hatched))
        for line in scene.lines:
            if line.line not in (0.5, HATCH) and here(line.points):
                kind = "loaded" if len(line.points) == 5 else "crossed"
                colour = colours.get(line.colour, line.colour and "ink")
                kinds[kind].setdefault(colour, set()).update(inside(line.points))
        found[name] = kinds
    return found


def test_a_program_loads_what_has_an_outline_and_stores_what_is_filled():
    found = added()
    seen = kernel_seen.Seen(found)
    for program, (first, end) in enumerate([(0, 32), (32, 64), (64, 96), (96, 100)]):
        shown = cells(compose(seen, program), ("x", "out"), {"x": 32, "out": 32})
        mine, behind = {HUES[program]: set(range(first, end))}, set(range(end, 32 * (program + 1)))
        assert shown["x"] == {"loaded": mine, "stored": {}, "crossed": {}, "hatched": behind}
        assert shown["out"] == {"loaded": {}, "stored": mine, "crossed": {}, "hatched": behind}
    every = cells(compose(seen), ("x", "out"), {"x": 32, "out": 32})
    parts = {HUES[p]: set(range(32 * p, min(32 * p + 32, 100))) for p in range(4)}
    assert every["x"]["loaded"] == parts == every["out"]["stored"]


def test_what_a_mask_leaves_out_of_a_row_is_hatched_where_nobody_uses_it():
    x = torch.zeros(3, 20)
    found = kernel_seen.Seen(measure.kernel(by_rows, (3,), x, 20, B=32))
    each = [cells(compose(found, program), ("x",), {"x": 20})["x"] for program in (0, 1, 2, None)]
    assert [one["hatched"] for one in each] == [{*range(20 * row, 20 * row + 12)} for row in (1, 2, 3, 3)]
    assert [set().union(*one["loaded"].values()) for one in each[:2]] == [{*range(20)}, {*range(20, 40)}]
    short = cells(compose(kernel_seen.Seen(added(10, block=4))), ("x", "out"), {"x": 12, "out": 12})
    assert short["x"]["hatched"] == short["out"]["hatched"] == {10, 11}
    words_of = [words(compose(kernel_seen.Seen(one))) for one in (added(), added(96))]
    assert ["hatched: masked" in one for one in words_of] == [True, False]


def test_tiles_of_a_grid_of_two_dimensions():
    seen = kernel_seen.Seen(transposed())
    scene = compose(seen, 1)  # (0, 1): rows 0 to 7, columns 8 to 15
    assert scene.description.startswith("transpose: program 1 (of 0–3), (0, 1) in the grid (2, 2)")
    shown = cells(scene, ("x", "y"), {"x": 16, "y": 16})
    tile = {16 * row + column for row in range(8) for column in range(8, 16)}
    (hue,) = shown["x"]["loaded"]
    assert shown["x"]["loaded"][hue] == tile
    assert shown["y"]["stored"] == {hue: {16 * (e % 16) + e // 16 for e in tile}}
    assert draw.kernel(transposed(), (0, 1)).description == draw.kernel(transposed(), 1).description


def test_what_lies_behind_the_end_is_drawn_there_and_counted():
    picture = draw.kernel(added(masked=False), 3)
    assert "28 loads outside the tensor" in repr(picture) and "28 stores outside" in repr(picture)
    shown = cells(compose(kernel_seen.Seen(added(masked=False)), 3), ("x", "out"), {"x": 32, "out": 32})
    behind = set(range(100, 128))
    assert shown["x"]["loaded"] == {"saved": set(range(96, 100)), "odd": behind}
    assert shown["out"]["stored"] == {"saved": set(range(96, 100)), "odd": behind}
    assert "outside" not in repr(draw.kernel(added(masked=False), 2))


def test_a_line_that_only_strays_is_named():
    found = measure.kernel(add_one, (2,), torch.zeros(32), torch.zeros(32), 64, B=32, MASKED=False)
    for site in (None, 0):
        assert "0 sectors, 0 at best" in words(compose(kernel_seen.Seen(found), 1, site))
    assert "32 loads outside the tensor" in repr(draw.kernel(found, 1))


def test_what_is_raced_for_is_crossed():
    found = shifted()
    seen = kernel_seen.Seen(found)
    assert found.tensors["x"].raced.nonzero().flatten().tolist() == [32, 64, 96]
    shown = cells(compose(seen), ("x",), {"x": 32})["x"]
    assert shown["crossed"] == {"ink": {32, 64, 96}} and shown["stored"]["odd"] == {32, 64, 96}
    shown = cells(compose(seen, 1), ("x",), {"x": 32})["x"]
    assert shown["crossed"] == {"ink": {32, 64}}
    assert "with programs 0, 2" in repr(draw.kernel(found, 1))
    raced = [int(tensor.raced.sum()) for tensor in counts().tensors.values()]
    assert raced == [0, 1, 0]  # atomics race with nobody


def test_what_several_programs_use_and_what_is_loaded_again_is_said():
    text = repr(draw.kernel(counts()))
    assert "x: 64 of 64 loaded, 16 of them more than once, grey: used by 4 programs" in text
    assert "counted: 1 of 1 loaded, all more than once, 1 of 1 stored, grey: used by 4 programs" in text
    assert "×4" in words(compose(kernel_seen.Seen(counts())))


@pytest.mark.parametrize("make", [added, transposed, lambda: by_columns(16), shifted, counts])
def test_sectors_are_those_that_were_measured(make):
    found = make()
    seen = kernel_seen.Seen(found)
    for number, site in enumerate(found.sites):
        each = [seen.touched(number, program)[1:] for program in range(found.programs)]
        assert np.sum(each, 0).tolist() == [site.sectors, site.fewest] == [*seen.touched(number, None)[1:]]


def test_a_tape_shades_the_sectors_of_a_column():
    seen = kernel_seen.Seen(by_columns(16))
    scene = compose(seen, 2, 0)
    assert "16 sectors, 2 at best" in words(scene)
    shaded = [area for area in scene.areas if area.fill == "storage"]
    assert len(shaded) == 16  # each row has two sectors, and one of them holds column 2
    lanes = [area for area in scene.areas if area.fill == HUES[2] and area.points[0][0] > 57]
    assert sum(max(lane.points)[0] - min(lane.points)[0] < 80 / 8 for lane in lanes) == 16
    assert len([w for w in words(compose(seen)) if re.fullmatch(r"\d+ sectors, 32 at best", w)]) == 2


def test_of_a_large_tensor_a_part_is_drawn_that_shows_what_is_touched():
    text = words(compose(kernel_seen.Seen(found := added(4096 + 512, block=512))))
    assert "4608 in rows of 64: rows 0 to 63" in text
    assert "4608 in rows of 64: rows 8 to 71" in words(compose(kernel_seen.Seen(found), 8))
    assert not [text for text in text if "drawn are" in text]
    double = torch.zeros(8192, dtype=torch.float64)
    last = compose(
        kernel_seen.Seen(measure.kernel(add_one, (2,), double, double, 8192, B=4096, MASKED=True)), 1
    )
    assert "drawn are 1,024 of 2,048 sectors, from the first that is touched" in words(last)
    assert "byte 32,768" in words(last)
    assert "100 in rows of 32" in words(compose(kernel_seen.Seen(added())))
    x = torch.zeros(4, 200)
    wide = measure.kernel(add_one, (2,), x, x + 0, 800, B=512, MASKED=True)
    assert "4 × 200: rows 0 to 3, columns 0 to 127" in words(compose(kernel_seen.Seen(wide)))
    for shape in ((), (0,), (2, 3, 4)):
        x = torch.zeros(shape)
        found = measure.kernel(add_one, (1,), x, x + 0, x.numel(), B=32, MASKED=True)
        assert draw.kernel(found).description == draw.kernel(found).description


def test_a_view_has_its_own_elements_and_says_where_it_begins():
    base = torch.zeros(64, 2)
    found = measure.kernel(shift, (1,), base[:, 1], 64, B=32)  # steps of one: every second lies in a gap
    assert "begins 4 bytes into a sector" in repr(draw.kernel(found))
    shown = cells(compose(kernel_seen.Seen(found), 0), ("x",), {"x": 32})["x"]
    assert shown["stored"] == {"view": set(range(16))}
    assert "16 stores outside the tensor" in repr(draw.kernel(found))


@pytest.mark.parametrize("program", [None, 3])
@pytest.mark.parametrize("make", [added, lambda: added(masked=False), transposed, shifted, counts])
def test_words_can_be_read(make, program):
    assert_no_text_is_cut_off_or_covers_another(draw.kernel(make(), program))


@pytest.mark.parametrize("program", [4, -1, (1, 1), (4,)])
def test_a_program_that_is_not_there(program):
    with pytest.raises(WrongUse, match=r"a grid of \(4,\) has no such program; given was"):
        draw.kernel(added(), program)


def test_the_explorer_goes_from_program_to_program_and_looks_at_a_line_alone():
    found = shifted()
    explorer = explore.kernel(found)

    def shows() -> str:
        return to_svg(explorer.scene(), f"KernelExplorer-{explorer.model_id}")

    assert explorer.step is None and explorer.slider.max == 3
    assert explorer.chosen.value == "all" and explorer.chosen.label == "all"
    for _ in range(4):
        explorer.forward_button.click()
    assert explorer.step == 3 and explorer.forward_button.disabled
    explorer.slider.value = 1
    assert "program 1 (of 0–3)" in explorer.message.value and explorer.picture.value == shows()
    explorer.chosen.value = next(label for label in explorer.chosen.options if "load" in label)
    assert "32 of 100 loaded" in explorer.picture.value and "100 stored" not in explorer.picture.value
    assert explorer.picture.value == shows() and "5 sectors, 4 at best" in shows()
    explorer.whole_button.click()
    assert explorer.step is None and "16 sectors, 13 at best" in explorer.picture.value
    explorer.chosen.value = "all"
    strays = explore.kernel(added(masked=False))
    assert "program 3 loads x at element 100" in strays.message.value
    assert "; and 55 more</div>" in strays.message.value


def test_without_a_kernel_the_explorer_is_a_picture():
    data, _ = explore.kernel(added())._repr_mimebundle_()
    assert data["text/plain"].startswith("add_one: 4 programs") and "image/png" in data
    texts = explore.kernel(added())._still().axes[0].texts
    assert NOTE in [text.get_text() for text in texts]
