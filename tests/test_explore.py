"""The stride explorer: what it says against what torch does, on the real widgets."""

from __future__ import annotations

import base64
import inspect
import io
import itertools
import math
import random
import re
import xml.etree.ElementTree as ElementTree

import pytest
import torch
from matplotlib.image import imread

from course_utils import explore
from course_utils.draw.layout import MOST_ELEMENTS, Layout, bounds, same_storage
from course_utils.draw.picture import MARGIN
from course_utils.draw.shapes import WIDTH, to_svg
from course_utils.draw.storage_cells import CELL, short
from course_utils.draw.strides import compose
from course_utils.explore.explorer import Explorer
from course_utils.explore.goal import Goal, same_elements, same_values
from course_utils.explore.history import History
from course_utils.explore.on_the_page import NOTE
from course_utils.explore.reasons import why_no_view
from course_utils.lessons.notebook_files import make_steady

SVG = "{http://www.w3.org/2000/svg}"


def random_view(dice: random.Random) -> torch.Tensor:
    """A view of a small storage: half of them what slices and transposes make, half with any strides that it
    allows, 0 and overlapping ones too."""
    return sliced_view(dice) if dice.random() < 0.5 else strided_view(dice)


def sliced_view(dice: random.Random) -> torch.Tensor:
    size = [dice.choice([1, 2, 2, 3, 4]) for _ in range(dice.randint(1, 4))]
    size[0] = 1 if math.prod(size) > 96 else size[0]  # what a storage row shows whole
    t = torch.arange(100, 100 + math.prod(size)).reshape(size)
    if dice.random() < 0.6:
        t = t.transpose(dice.randrange(t.dim()), dice.randrange(t.dim()))
    if dice.random() < 0.3:
        d = dice.randrange(t.dim())
        t = t.narrow(d, t.size(d) // 2, t.size(d) - t.size(d) // 2)
    return t[::2] if dice.random() < 0.2 else t


def strided_view(dice: random.Random) -> torch.Tensor:
    length = dice.randint(0, 40)
    storage = torch.arange(100, 100 + length)
    while True:
        size = [dice.choice([0, 1, 1, 2, 2, 3, 4]) for _ in range(dice.randint(0, 4))]
        stride = [dice.randint(0, 9) for _ in size]
        offset = dice.randint(0, max(length, 0))
        steps = sum((n - 1) * s for n, s in zip(size, stride, strict=True))
        if 0 in size or offset + steps < length:
            return storage.as_strided(size, stride, offset)


def views(count: int, seed: int) -> list[torch.Tensor]:
    dice = random.Random(seed)
    return [random_view(dice) for _ in range(count)]


def brute_addresses(t: torch.Tensor) -> dict[tuple[int, ...], int]:
    """Where torch itself finds each element, in elements from the start of the storage."""
    start = t.untyped_storage().data_ptr()
    indices = itertools.product(*(range(n) for n in t.shape))
    return {i: (t[i].data_ptr() - start) // t.element_size() for i in indices}


# --- layout --------------------------------------------------------------------------------------------


def test_addresses_counts_and_orders_are_those_of_torch():
    for t in views(600, seed=1):
        layout = Layout.of(t)
        where = brute_addresses(t)
        assert layout.numel == len(where)
        for place, (index, address) in enumerate(where.items()):
            assert layout.address(index) == address
            assert layout.place(index) == place and layout.index(place) == index
        for address in range(-2, layout.length + 2):
            readers = [i for i, a in where.items() if a == address]
            found = layout.find(address)
            assert found in readers if readers else found is None


def test_no_element_beyond_the_size():
    layout = Layout.of(torch.zeros(2, 3))
    for index in ((2, 0), (0, 3), (-1, 0), (0,), (0, 0, 0)):
        with pytest.raises(IndexError):
            layout.address(index)


def test_the_formula_is_a_sum_that_holds():
    x = torch.arange(30).as_strided((3, 4), (4, 1), 3)
    assert Layout.of(x).formula((1, 2)) == "offset + i*stride[0] + j*stride[1] = 3 + 1*4 + 2*1 = 9"
    for t in views(100, seed=2):
        layout = Layout.of(t)
        for index, address in brute_addresses(t).items():
            letters, numbers, *total = layout.formula(index).split(" = ")
            known = dict(zip("ijkl", index, strict=False), offset=layout.offset, stride=layout.stride)
            assert eval(letters, known) == eval(numbers) == address
            assert total == ([str(address)] if index else [])


def test_bounds_are_exactly_where_as_strided_fails():
    for t in views(400, seed=3):
        layout = Layout.of(t)
        if 0 in layout.size:
            continue
        limits = bounds(layout)
        n = len(layout.size)

        def fits(size=layout.size, stride=layout.stride, offset=layout.offset, t=t):
            try:
                t.as_strided(size, stride, offset)
            except RuntimeError:
                return False
            return True

        for d in range(n):
            size, stride = list(layout.size), list(layout.stride)
            size[d] = limits.size[d]
            assert fits(size=size)
            size[d] += 1
            assert not fits(size=size) or math.prod(size) > MOST_ELEMENTS
            stride[d] = limits.stride[d]
            assert fits(stride=stride)
            stride[d] += 1
            assert not fits(stride=stride) or layout.size[d] == 1
        assert fits(offset=limits.offset) and not fits(offset=limits.offset + 1)


def test_an_empty_dimension_can_be_opened_again_from_wherever_sliders_go():
    dice = random.Random(4)
    t = torch.arange(20).reshape(4, 5)[:, :0]
    for _ in range(200):
        limits = bounds(Layout.of(t))
        size, stride, offset = list(t.size()), list(t.stride()), t.storage_offset()
        which = dice.randrange(5)
        if which < 2:
            size[which] = dice.randint(0, limits.size[which])
        elif which < 4:
            stride[which - 2] = dice.randint(0, limits.stride[which - 2])
        else:
            offset = dice.randint(0, limits.offset)
        t = t.as_strided(size, stride, offset)  # raises where it leaves the storage
        assert all(a not in (-1, 20) for a in brute_addresses(t).values())
    closed, opened = (Layout((4, n), (4, 2), 1, 20) for n in (0, 1))
    assert bounds(closed) == bounds(opened)
    past = torch.arange(12)[12:]
    assert bounds(Layout.of(past)).size == (0,) and bounds(Layout.of(past)).offset == 12


def test_one_storage_is_known_from_another_also_where_there_is_no_address():
    x = torch.arange(6)
    assert same_storage(x, x[2:].flip(0)[:0]) is False and same_storage(x, x[6:])
    empty = torch.empty(0)
    assert same_storage(empty, empty.view(0, 1)) and not same_storage(empty, torch.empty(0))


# --- why view fails ----------------------------------------------------------------------------------------


def views_as(t: torch.Tensor, shape: list[int]) -> bool:
    try:
        t.view(shape)
    except (RuntimeError, TypeError):
        return False
    return True


def random_shape(dice: random.Random, numel: int) -> list[int]:
    """A shape, most often one with `numel` elements."""
    shape = []
    left = numel
    while left > 1:
        n = dice.choice([d for d in range(1, left + 1) if left % d == 0])
        shape.append(n)
        left //= n
    shape += [1] * dice.randint(0, 2) + [0] * (numel == 0)
    dice.shuffle(shape)
    kind = dice.random()
    if shape and kind < 0.25:
        shape[dice.randrange(len(shape))] = -1
    if shape and kind > 0.93:
        shape[dice.randrange(len(shape))] += dice.choice([-3, -1, 1, 2])
    if kind < 0.03:
        shape.append(-1)
    return shape


def test_there_is_a_reason_exactly_where_view_fails():
    dice = random.Random(5)
    came = {"views": 0, "apart": 0, "shape": 0}
    for t in views(4000, seed=6):
        shape = random_shape(dice, t.numel())
        reason = why_no_view(t.size(), t.stride(), shape)
        assert (reason is None) == views_as(t, shape), (t.size(), t.stride(), shape)
        apart = re.match(r"Dimensions (\d) and (\d) cannot be merged", reason or "")
        came["views" if reason is None else "apart" if apart else "shape"] += 1
        if apart:
            outer, inner = map(int, apart.groups())
            # They are neighbours, and torch cannot merge these two alone either.
            assert outer < inner and all(t.size(d) == 1 for d in range(outer + 1, inner))
            pair = t.as_strided((t.size(outer), t.size(inner)), (t.stride(outer), t.stride(inner)))
            assert not views_as(pair, [-1])
            assert f"{t.size(inner)} * {t.stride(inner)} = {t.size(inner) * t.stride(inner)}" in reason
    assert min(came.values()) > 300, came


# --- operations and the history ------------------------------------------------------------------------


def test_the_code_is_what_made_the_tensor():
    dice = random.Random(7)
    for t in views(150, seed=8):
        history = History(t, "y")
        for _ in range(4):
            now = history.tensor
            n = now.dim()
            choices = [f".reshape({random_shape(dice, now.numel())})"]
            choices.append(f".expand({(2, *now.shape)})")
            if n:
                d = dice.randrange(n)
                choices += [f".flip({d})", f"[{':, ' * d}{dice.randint(-1, 2)}]"]
                choices.append(f".transpose({d}, {dice.randrange(n)})")
                choices.append(f"[{':, ' * d}{dice.randint(0, 2)}:3:2]")
            code, before = dice.choice(choices), list(history.steps)
            try:
                history.apply(code)
            except (RuntimeError, IndexError, ValueError):
                assert history.steps == before
        again = eval(history.code, {"y": t})
        assert (again.size(), again.stride(), again.storage_offset()) == (
            history.tensor.size(),
            history.tensor.stride(),
            history.tensor.storage_offset(),
        )
        assert same_values(again, history.tensor)
        assert same_storage(again, history.tensor) == (history.copied_at is None)


def test_steps_share_the_tensor_itself():
    x = torch.zeros(3, 4)
    history = History(x)
    history.apply(".t()")
    history.apply("[1:]")
    history.tensor[0, 2] = 7
    assert x[2, 1] == 7 and history.code == "x.t()[1:]" and history.copied_at is None


def test_one_as_strided_takes_the_place_of_the_last():
    history = History(torch.arange(12))
    history.apply("[2:]")
    history.apply(".as_strided((3,), (2,), 0)")
    history.apply(".as_strided((2, 2), (1, 1), 5)")
    assert history.code == "x[2:].as_strided((2, 2), (1, 1), 5)"
    assert history.tensor.tolist() == [[5, 6], [6, 7]]
    history.undo()
    assert history.code == "x[2:]"
    history.reset()
    assert history.tensor is history.start


def test_what_copied_is_named():
    history = History(torch.arange(6).reshape(2, 3))
    history.apply(".t()")
    history.apply(".flip(0)")
    history.apply("[1:]")
    assert history.copied_at.code == ".flip(0)"
    history.undo()
    history.undo()
    assert history.copied_at is None


# --- goals -----------------------------------------------------------------------------------------------


def test_a_goal_is_reached_by_every_route_and_by_no_other_elements():
    x = torch.arange(12).reshape(3, 4)
    goal = Goal(x.t()[1:], x)
    routes = ["x.t()[1:]", "x[:, 1:].t()", "x.as_strided((3, 3), (1, 4), 1)", "x.narrow(1, 1, 3).mT"]
    for route in routes:
        assert goal.judge(eval(route, {"x": x})).reached, route
    for route in ["x", "x.t()", "x.t()[:3]", "x[:, 1:]", "x.t()[1:, :2]"]:
        verdict = goal.judge(eval(route, {"x": x}))
        assert not verdict.reached and not verdict.text
    copied = goal.judge(x.t()[1:].clone())
    assert not copied.reached and "copies" in copied.text


def test_same_elements_agrees_with_the_addresses():
    dice = random.Random(9)
    storage = torch.arange(30)
    seen = set()
    for _ in range(4000):
        sizes = [[dice.choice([0, 1, 1, 2]) for _ in range(2)] for _ in "ab"]
        a, b = (
            storage.as_strided(size, [dice.randint(0, 1), dice.randint(0, 1)], dice.randint(0, 1))
            for size in sizes
        )
        same = a.size() == b.size() and brute_addresses(a) == brute_addresses(b)
        assert same_elements(a, b) == same
        seen.add((same, a.numel() == 0))
    assert len(seen) == 4


def test_equal_values_at_other_places_do_not_reach_a_view():
    x = torch.zeros(6)
    verdict = Goal(x[1:4], x).judge(x[2:5])
    assert not verdict.reached and "other places" in verdict.text


def test_a_goal_of_its_own_storage_asks_for_values_alone():
    x = torch.arange(6.0)
    x[2] = torch.nan
    goal = Goal(x.flip(0), x)
    assert goal.judge(x.flip(0)).reached and goal.judge(x[[5, 4, 3, 2, 1, 0]]).reached
    assert not goal.judge(x).reached
    assert not goal.judge(x.flip(0).double()).reached
    assert not goal.judge(x.flip(0).reshape(2, 3)).reached


# --- the picture -------------------------------------------------------------------------------------------


def cells_of(svg: str, part: str) -> list[ElementTree.Element]:
    return [g for g in ElementTree.fromstring(svg).iter(f"{SVG}g") if g.get("data-part") == part]


def lit(svg: str, part: str) -> list[ElementTree.Element]:
    return [g for g in cells_of(svg, part) if "lit" in g.get("class").split()]


def address_of(cell: ElementTree.Element) -> int:
    return int(cell.get("data-key"))


def index_of(cell: ElementTree.Element) -> tuple[int, ...]:
    name = re.match(r"\[(.*?)\]", cell.find(f"{SVG}title").text)[1]
    return tuple(int(i) for i in name.split(",") if i)


def is_read(cell: ElementTree.Element) -> bool:
    return "fill" in cell.get("class").split()


def is_dashed(cell: ElementTree.Element) -> bool:
    return "stroke-dasharray" in cell.find(f"{SVG}rect").attrib


def text_of(cell: ElementTree.Element) -> str:
    return cell.find(f"{SVG}text").text


def said(svg: str) -> str:
    return " ".join(t.text for t in ElementTree.fromstring(svg).findall(f"{SVG}text"))


def test_every_cell_of_a_small_tensor_is_where_torch_has_it():
    for t in views(150, seed=10):
        where = brute_addresses(t)
        svg = to_svg(compose(t, next(iter(where), None)), "one")
        grid = {index_of(g): g for g in cells_of(svg, "grid")}
        assert {index: address_of(g) for index, g in grid.items()} == where
        assert {index: text_of(g) for index, g in grid.items()} == {i: str(t[i].item()) for i in where}
        storage = {address_of(g): g for g in cells_of(svg, "storage")}
        assert list(storage) == list(range(Layout.of(t).length))
        for address, g in storage.items():
            assert is_read(g) == (address in where.values())
            assert text_of(g) == str(100 + address)


def test_the_lit_cell_is_one_place_in_both_and_its_address_is_spelled_out():
    dice = random.Random(11)
    for t in views(200, seed=12):
        where = brute_addresses(t)
        if not where:
            continue
        index = dice.choice(list(where))
        svg = to_svg(compose(t, index), "one")
        (above,), (below,) = lit(svg, "storage"), lit(svg, "grid")
        assert address_of(above) == address_of(below) == where[index]
        assert Layout.of(t).formula(index) in said(svg).replace("   =", " =").replace("  =", " =")
        twins = {index_of(g) for g in cells_of(svg, "grid") if is_dashed(g)}
        others = {i for i in where if where[i] == where[index]} - {index}
        assert twins == others
        assert ("at the same place" in said(svg)) == bool(others)


DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.uint16,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_is_shown(dtype):
    t = torch.tensor([1, 0, 1, 1, 0, 1]).to(dtype).reshape(2, 3).t()
    explorer = explore.strides(t, goal=t[1:])
    assert explorer.do("[1:]") and explorer.reached
    shown = [text_of(g) for g in cells_of(explorer.picture.value, "grid")]
    assert shown == [short(v) for row in t[1:].tolist() for v in row]
    assert str(dtype).removeprefix("torch.") in said(explorer.picture.value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "T"),
        (False, "F"),
        (-3, "-3"),
        (1234567, "1234567"),
        (123456789, "1.2e8"),
        (0.0, "0"),
        (0.25, ".25"),
        (-0.123456, "-.123"),
        (1.0, "1"),
        (1e-9, "1e-9"),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
    ],
)
def test_values_are_written_short(value, text):
    assert short(value) == text


def test_nothing_is_written_over_its_neighbour():
    for t in (torch.arange(100).reshape(4, 25), torch.randn(3, 4), torch.arange(96).reshape(4, 2, 3, 4)):
        scene = compose(t, tuple(0 for _ in t.shape))
        assert all(box.words[0].width <= box.width for box in scene.boxes)
        boxes = [(box.x, box.y) for box in scene.boxes]
        assert len(set(boxes)) == len(boxes)
        for (x, y), (u, v) in itertools.combinations(boxes, 2):
            assert abs(x - u) >= CELL - 0.01 or abs(y - v) >= CELL


def test_a_goal_stands_beside_the_tensor_where_there_is_room_and_below_where_not():
    x = torch.arange(12).reshape(3, 4)

    def top(scene, part):
        return min(box.y for box in scene.boxes if box.part == part)

    beside = compose(x, (0, 0), goal=x.t(), goal_words=", by views alone")
    assert top(beside, "goal") == top(beside, "grid")
    wide = torch.arange(20).reshape(1, 20)
    below = compose(wide, (0, 0), goal=wide.t()[:4], goal_words=", by views alone")
    assert top(below, "goal") > top(below, "grid")
    assert not any(box.key for box in beside.boxes if box.part == "goal")


def test_signs_other_than_colour():
    svg = to_svg(compose(torch.arange(6)[::2], (1,)), "some")
    (cell,) = lit(svg, "storage")
    assert cell.find(f"{SVG}rect").get("stroke-width") == "3"
    assert cell.find(f"{SVG}text").get("font-weight") == "bold"
    assert [is_dashed(g) for g in cells_of(svg, "storage")] == [False, True] * 3


def test_two_pictures_on_a_page_keep_to_themselves():
    a, b = explore.strides(torch.arange(3)), explore.strides(torch.arange(4))
    ids = [ElementTree.fromstring(e.picture.value).get("id") for e in (a, b)]
    assert ids[0] != ids[1]
    style = ElementTree.fromstring(a.picture.value).find(f"{SVG}style").text
    selectors = re.findall(r"(?m)^([^{\n]+)\{", style)
    assert selectors and all(part.startswith(f"#{ids[0]}") for s in selectors for part in s.split(","))


# --- the widget --------------------------------------------------------------------------------------------


def explorer_of(*size: int, **more):
    return explore.strides(torch.arange(math.prod(size)).reshape(size), **more)


def lit_address(explorer) -> int:
    (above,), (below,) = lit(explorer.picture.value, "storage"), lit(explorer.picture.value, "grid")
    assert address_of(above) == address_of(below)
    return address_of(above)


def open_panel(explorer, name: str):
    explorer.menu.value = name
    assert explorer.panel.children == (explorer.panels[name].box,)
    return explorer.panels[name]


def test_index_sliders_move_the_light():
    e = explorer_of(3, 4)
    t = e.tensor
    for i, j in itertools.product(range(3), range(4)):
        e.index_sliders[0].value, e.index_sliders[1].value = i, j
        assert e.index == (i, j) and lit_address(e) == brute_addresses(t)[i, j]
        assert e.walk.value == e.play.value == 4 * i + j


def test_the_walk_goes_in_the_order_of_reading():
    e = explorer_of(3, 4)
    e.do(".t()")
    seen = []
    for place in range(12):
        e.play.value = place
        assert tuple(s.value for s in e.index_sliders[:2]) == e.index
        seen.append(lit_address(e))
    assert seen == list(brute_addresses(e.tensor).values())


def test_each_button_does_what_is_written_on_it():
    x = torch.arange(24).reshape(2, 3, 4)

    def clicked(name, **values):
        e = explore.strides(x)
        panel = open_panel(e, name)
        for control, value in values.items():
            named = {one.description: one for one in panel.controls}
            named[control.replace("range", "start:stop")].value = value
        assert not panel.button.disabled
        label = panel.button.description
        panel.button.click()
        assert e.code == "x" + label, (name, e.message.value)
        assert same_values(e.tensor, eval(e.code, {"x": x}))
        return label

    assert clicked("transpose") == ".transpose(1, 2)"
    assert clicked("transpose", **{"swap dim": 0, "with dim": 2}) == ".transpose(0, 2)"
    assert clicked("reshape", shape=" 4 6") == ".reshape(4, 6)"
    assert clicked("slice", dim=1, range=(0, 2)) == "[:, :2]"
    assert clicked("slice") == "[1:]"
    assert clicked("slice", dim=2, range=(1, 3)) == "[:, :, 1:3]"
    assert clicked("slice", dim=2, step=2, range=(0, 4)) == "[:, :, ::2]"
    assert clicked("select", dim=1, at=2) == "[:, 2]"
    assert clicked("narrow", dim=1, start=1, length=2) == ".narrow(1, 1, 2)"
    assert clicked("expand") == ".expand(2, 2, 3, 4)"
    assert clicked("flip", dim=2) == ".flip(2)"
    assert clicked("reshape", shape="4, 6") == ".reshape(4, 6)"
    assert clicked("view", shape="(6, -1)") == ".view(6, -1)"


def test_a_button_without_sense_cannot_be_clicked():
    e = explorer_of(3)
    panel = open_panel(e, "reshape")
    for typed, odd in (("three", "three"), ("abc", "abc"), ("1e9, 2", "1e9"), ("3, <b>", "&lt;b&gt;")):
        panel.shape.value = typed
        assert panel.button.disabled
        assert f"Sizes are whole numbers, such as 3, -1; {odd} is none." in panel.wrong.value
        assert panel.wrong in panel.box.children
    panel.shape.value = "3, 1"
    assert not panel.button.disabled and panel.wrong.value == ""
    point = explore.strides(torch.tensor(5))
    for name in ("transpose", "slice", "select", "narrow", "flip"):
        assert point.panels[name].button.disabled
        assert "It has no dimension." in point.panels[name].wrong.value
    assert point.index == () and lit_address(point) == 0


def test_a_view_that_fails_says_why_and_changes_nothing():
    e = explorer_of(3, 4)
    e.do(".t()")
    before = (e.tensor, e.picture.value, e.code)
    panel = open_panel(e, "view")
    panel.shape.value = "12"
    panel.button.click()
    assert (e.tensor, e.picture.value, e.code) == before
    try:
        e.tensor.view(12)
    except RuntimeError as error:
        own = str(error)
    shown = e.message.value.replace("&#x27;", "'")
    assert own in shown and "x.t().view(12)" in shown and "Dimensions 0 and 1 cannot be merged" in shown
    panel.shape.value = "2, 2, 3"
    panel.button.click()
    assert e.message.value == "" and tuple(e.tensor.stride()) == (2, 1, 4)


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (".expand(5, 4)", "RuntimeError"),
        ("[7]", "IndexError"),
        (".nothing()", "AttributeError"),
        (".view(1, 1, 1, 3, 4)", "5 dimensions"),
        (".shape", "not a tensor"),
        (".view(5)", "The tensor has 12 elements; the shape asks for 5."),
        (".expand(50, 3, 4)", "600 elements; the picture has room for 300"),
        (".t(", "SyntaxError"),
        (".as_strided((3, 5), (4, 1), 0)", "out of bounds"),
    ],
)
def test_what_fails_is_said_and_left_alone(code, says):
    e = explorer_of(3, 4)
    assert not e.do(code)
    assert says in e.message.value and e.code == "x" and not e.history.steps


def test_sliders_are_an_as_strided_that_never_leaves_the_storage():
    dice = random.Random(15)
    e = explorer_of(4, 5)
    panel = open_panel(e, "as_strided")
    sliders = [*panel.sizes[:2], *panel.strides[:2], panel.offset]
    for _ in range(150):
        slider = dice.choice(sliders)
        slider.value = dice.randint(slider.min, slider.max)
        assert e.message.value == ""
        assert [s.value for s in panel.sizes[:2]] == list(e.tensor.size())
        assert [s.value for s in panel.strides[:2]] == list(e.tensor.stride())
        assert panel.offset.value == e.tensor.storage_offset()
        assert all(0 <= a < 20 for a in brute_addresses(e.tensor).values())
        assert len(e.history.steps) <= 1 and same_storage(e.tensor, e.history.start)
        if e.index is not None:
            assert lit_address(e) == brute_addresses(e.tensor)[e.index]
        for s in sliders:
            assert s.min <= s.value <= s.max


def test_the_lit_place_stays_lit_while_it_is_read():
    e = explorer_of(3, 4)
    e.light(1, 2)
    e.do(".t()")
    assert e.index == (2, 1) and lit_address(e) == 6
    e.do("[1:]")
    assert e.index == (1, 1) and lit_address(e) == 6
    e.do(".reshape(9)")  # a copy: the element has another address there
    assert not same_storage(e.tensor, e.history.start) and "has copied" in said(e.picture.value)
    e.undo()
    assert e.code == "x.t()[1:]"
    e.reset()
    assert e.code == "x" and e.undo_button.disabled and e.reset_button.disabled


def test_undo_and_reset_buttons():
    e = explorer_of(3, 4)
    e.do(".t()")
    e.do("[1:]")
    e.undo_button.click()
    assert e.code == "x.t()"
    e.do("[:0]")
    assert e.index is None and e.index_sliders[0].disabled and "no elements" in said(e.picture.value)
    e.reset_button.click()
    assert e.tensor is e.history.start and e.index == (2, 3) and not e.index_sliders[0].disabled


def test_a_goal_is_recognised_by_clicks():
    x = torch.arange(12).reshape(3, 4)
    e = explore.strides(x, goal=x.t()[1:])
    assert not e.reached and e.message.value == ""
    assert [text_of(g) for g in cells_of(e.picture.value, "goal")] == [
        str(v) for v in x.t()[1:].flatten().tolist()
    ]
    panel = open_panel(e, "slice")
    panel.dim.value = 1
    panel.range.value = (1, 4)
    panel.button.click()
    assert not e.reached
    open_panel(e, "transpose").button.click()
    assert e.reached and "Reached" in e.message.value and "x[:, 1:].t()" in e.message.value
    e.undo()
    assert not e.reached and e.message.value == ""
    e.do(".t().contiguous()")
    assert not e.reached and "copies" in e.message.value


def test_the_goal_is_reached_by_sliders_too():
    x = torch.arange(10)
    e = explore.strides(x, goal=x[1::2])
    panel = open_panel(e, "as_strided")
    panel.sizes[0].value = 5
    panel.strides[0].value = 2
    assert not e.reached
    panel.offset.value = 1
    assert e.reached


@pytest.mark.parametrize(
    "t",
    [
        torch.tensor(3.5),
        torch.empty(0),
        torch.empty(2, 0, 3),
        torch.arange(3).expand(4, 3),
        torch.arange(8).unfold(0, 3, 1),
        torch.arange(12)[5:],
        torch.arange(12)[12:],
        torch.nn.Parameter(torch.ones(2, 2)).t(),
        torch.ones(2, 2, requires_grad=True),
        torch.randn(2, 3, 2, 2).permute(3, 1, 0, 2),
        torch.arange(6).to(torch.int16).view(torch.int8)[1:4],
    ],
    ids=lambda t: f"{tuple(t.shape)}{t.stride()}",
)
def test_any_tensor_can_be_explored(t):
    e = explore.strides(t)
    assert e.tensor is t
    if t.numel():
        e.light(*(0 for _ in t.shape))
        assert lit_address(e) == t.storage_offset()
    assert e.do(".reshape(-1)") and e.do(".unsqueeze(0)")
    assert e._repr_mimebundle_()[0]["image/png"]


# --- the still ---------------------------------------------------------------------------------------------


def test_a_built_notebook_keeps_a_picture_and_words():
    import nbformat

    e = explorer_of(3, 4)
    e.do(".t()")
    data, metadata = e._repr_mimebundle_()
    assert data["application/vnd.jupyter.widget-view+json"]["model_id"] == e.model_id
    output = nbformat.v4.new_output("execute_result", data, metadata=metadata, execution_count=1)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("e", outputs=[output])])
    make_steady(notebook)
    (kept,) = notebook.cells[0].outputs
    assert set(kept.data) == {"image/png", "text/plain"}
    assert kept.data["text/plain"] == (
        "x.t(): size (4, 3), stride (1, 4), offset 0; element [3, 2] is storage[11] of 12"
    )
    image = imread(io.BytesIO(base64.b64decode(kept.data["image/png"])))
    assert image.shape[1] == 2 * (WIDTH + 2 * MARGIN) and image[0, 0].min() > 0.99


def test_a_still_says_how_to_get_the_controls_and_a_widget_does_not():
    e = explorer_of(3, 4)
    (said,) = [text for text in e._still().axes[0].texts if "Run this cell" in text.get_text()]
    assert said.get_text() == NOTE and said.get_position()[1] < 0  # above what the explorer draws
    assert e.picture in e.children and NOTE not in e.picture.value
    for name in explore.__all__:
        kind = inspect.signature(getattr(explore, name), eval_str=True).return_annotation
        assert kind._still is Explorer._still


def test_a_still_is_the_same_each_time():
    stills = [explorer_of(2, 3)._repr_mimebundle_()[0] for _ in range(2)]
    for kind in ("image/png", "text/plain"):
        assert stills[0][kind] == stills[1][kind]
