"""A tensor over its storage: the tape above, the grid below, one element lit in both."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from torch import Tensor

from course_utils.draw.layout import Layout, must_be_strided
from course_utils.draw.picture import Picture
from course_utils.draw.shapes import WIDTH, Scene, to_picture, trimmed
from course_utils.draw.tape import (
    CELL,
    Cells,
    row_of_tape,
    runs_of_tape,
    short,
    storage_values,
    values_of,
    with_gaps,
)
from course_utils.draw.words import Words

LINE = 19
LEFT = (34, 50)  # beside a grid, for the numbers of its rows; where each grid has a name, for that too
BESIDE = 440  # where a goal begins that has room beside the tensor
# How much of each dimension a grid shows, the last dimension first, by the number of dimensions.
SHOWN = {0: (), 1: (22,), 2: (22, 10), 3: (10, 6, 6), 4: (6, 5, 4, 4)}


def strides(tensor: Tensor, name: str = "x", light: Sequence[int] | None = None) -> Picture:
    """The picture of a tensor with up to four dimensions, called `name`. `light` is the index of the element
    that is lit (default: the last one).

    Raises `IndexError` where there is no such element, `TypeError` for what has no strides and `ValueError`
    for more than four dimensions.
    """
    must_be_strided(tensor)
    index = tuple(n - 1 for n in tensor.size()) if tensor.numel() else None
    if light is not None:
        Layout.of(tensor).address(light)
        index = tuple(light)
    return to_picture(trimmed(compose(tensor, index, code=name, title=True)))


def compose(
    tensor: Tensor,
    index: Sequence[int] | None,
    *,
    code: str = "x",
    origin: str = "",
    goal: Tensor | None = None,
    goal_words: str = "",
    title: bool = False,
) -> Scene:
    """The picture of `tensor` with element `index` lit (None: no element is). Boxes at the same place of the
    storage have its address as their key.

    `code` is the expression it is the value of, written above it with `title`; `origin` stands beside the
    storage; `goal` is drawn too, as a grid to arrive at, with `goal_words` beside its size. Of a large tensor
    the part around the lit element is shown.
    """
    index = tuple(index) if index is not None else None

    def draw(cells: Cells) -> Scene:
        scene = Scene(_describe(code, Layout.of(tensor), index), linked=True)
        y = 0.0
        if title:
            scene.words.append(Words(1, 10, code, 14, code=True, bold=True))
            y = 26
        scene.height = _compose(scene, cells, tensor, index, origin, goal, goal_words, y) + 4
        return scene

    # What is shown decides how wide the cells are, and that how much is shown; wider cells never show more.
    cells = Cells()
    draw(cells)
    return draw(cells.fitted())


def _compose(
    scene: Scene,
    cells: Cells,
    tensor: Tensor,
    index: tuple[int, ...] | None,
    origin: str,
    goal: Tensor | None,
    goal_words: str,
    y: float,
) -> float:
    layout = Layout.of(tensor)
    lit = layout.address(index) if index is not None else None
    shown = windows(layout.size, index or (0,) * len(layout.size), cells.width)
    y = _tape(scene, cells, tensor, layout, shown, lit, origin, y) + 8
    reading = f"size {layout.size}   stride {layout.stride}   offset {layout.offset}"
    top = _heading(scene, "tensor", reading, 1, y)
    end = _grid(scene, cells, "grid", tensor, shown, index, 1, top)
    if goal is None:
        return _sum(scene, layout, index, lit, end)
    aimed = windows(goal.size(), (0,) * goal.dim(), cells.width)
    words = f"size {tuple(goal.size())}{goal_words}"
    narrow = max(_across(cells, shown), 66 + 7.6 * len(reading)) < BESIDE
    if narrow and max(_across(cells, aimed), 42 + 7.6 * len(words)) < WIDTH - BESIDE:
        start = _heading(scene, "goal", words, BESIDE, y)
        end = max(end, _grid(scene, cells, "goal", goal, aimed, None, BESIDE, start))
        return _sum(scene, layout, index, lit, end)
    y = _sum(scene, layout, index, lit, end) + 12
    start = _heading(scene, "goal", words, 1, y)
    return _grid(scene, cells, "goal", goal, aimed, None, 1, start)


def window(size: int, most: int, around: int) -> range:
    """At most `most` of `size` positions, with `around` among them, as near to the middle as can be."""
    start = max(0, min(around - most // 2, size - most))
    return range(start, min(size, start + most))


def windows(size: Sequence[int], index: Sequence[int], cell: float = CELL) -> list[range]:
    """What a grid with cells so wide shows of each dimension."""
    last, *others = SHOWN[len(size)] or (0,)
    most = reversed([int(last * CELL / cell), *others]) if size else ()
    return [window(n, m, i) for n, m, i in zip(size, most, index, strict=True)]


def _across(cells: Cells, shown: Sequence[range]) -> float:
    """How wide a grid is at most; only one that is no row of grids can stand beside another."""
    return LEFT[0] + len(shown[-1] if shown else "1") * cells.width if len(shown) < 3 else WIDTH


def _heading(scene: Scene, title: str, text: str, x: float, y: float) -> float:
    scene.words.append(Words(x, y + LINE / 2, title, bold=True))
    scene.words.append(Words(x + (42 if len(title) < 5 else 63), y + LINE / 2, text, code=True))
    return y + LINE + 4


def _tape(
    scene: Scene,
    cells: Cells,
    tensor: Tensor,
    layout: Layout,
    shown: Sequence[range],
    lit: int | None,
    origin: str,
    y: float,
) -> float:
    bytes_each, dtype = tensor.element_size(), str(tensor.dtype).removeprefix("torch.")
    total = f"{layout.length:,} × {dtype} = {tensor.untyped_storage().nbytes():,} bytes"
    if layout.length * bytes_each != tensor.untyped_storage().nbytes():
        total = f"{layout.length:,} × {dtype} in {tensor.untyped_storage().nbytes():,} bytes"
    y = _heading(scene, "storage", f"{total}   {origin}".rstrip(), 1, y)
    slots = cells.in_a_row
    runs = runs_of_tape(layout, shown, lit, slots)
    places = list(with_gaps(runs, layout.length))
    if not places:
        scene.words.append(Words(1, y + CELL / 2, "empty"))
        return y + CELL
    values = {place: v for run in runs for place, v in zip(run, storage_values(tensor, run), strict=True)}
    times = {place: layout.times(place) for place in values}
    below = 13 if max(times.values()) > 1 else 3
    for start in range(0, len(places), slots):
        row = places[start : start + slots]
        row_of_tape(scene, cells, row, values, times, 1, y + 13, lit)
        y += 13 + CELL + below
    return y


def _grid(
    scene: Scene,
    cells: Cells,
    part: str,
    tensor: Tensor,
    shown: Sequence[range],
    index: tuple[int, ...] | None,
    x: float,
    y: float,
) -> float:
    """The elements as cells: the last two dimensions a grid, those before them a row of grids each."""
    layout = Layout.of(tensor)
    lit = layout.address(index) if index is not None else None
    if not layout.numel:
        scene.words.append(Words(x, y + CELL / 2, "no elements"))
        return y + CELL
    columns = shown[-1] if shown else range(1)
    rows = shown[-2] if len(shown) > 1 else range(1)
    values = iter(element_values(tensor, shown))
    margin = LEFT[len(shown) > 2]
    wide, tall = margin + len(columns) * cells.width, len(rows) * CELL + 32
    across = max(1, int(WIDTH // wide))
    if len(shown) == 4:
        across = min(across, len(shown[1]))
    planes = list(itertools.product(*shown[:-2]))
    for number, plane in enumerate(planes):
        left = x + number % across * wide + margin
        top = y + number // across * tall + 18
        _numbers(scene, cells, layout, shown, plane, left, top)
        for (r, row), (c, column) in itertools.product(enumerate(rows), enumerate(columns)):
            at = (*plane, row, column)[-len(shown) :] if shown else ()
            value, name = next(values), f"[{', '.join(map(str, at))}]"
            place = left + c * cells.width, top + r * CELL
            if part == "goal":
                scene.boxes.append(cells.box(*place, short(value), part, f"{name} = {value}"))
                continue
            address, here = layout.address(at), at == index
            more = f"{name} is storage[{address}] = {value}"
            twin = not here and address == lit
            scene.boxes.append(cells.box(*place, short(value), part, more, address, lit=here, twin=twin))
    y += math.ceil(len(planes) / across) * tall
    if any(len(run) < n for run, n in zip(shown, layout.size, strict=True)):
        said = ", ".join(f"{run.start}:{run.stop}" for run in shown)
        scene.words.append(Words(x + margin, y, f"shown: [{said}] of {layout.size}", 11, faint=True))
        y += LINE - 4
    return y


def element_values(tensor: Tensor, shown: Sequence[range]) -> list[object]:
    """The elements of the shown part of a tensor, in the order of reading."""
    part = tensor.detach()
    for dim, run in enumerate(shown):
        part = part.narrow(dim, run.start, len(run))
    return values_of(part)


def _numbers(
    scene: Scene,
    cells: Cells,
    layout: Layout,
    shown: Sequence[range],
    plane: tuple[int, ...],
    left: float,
    top: float,
) -> None:
    """The indices around one grid, with an ellipsis where it goes on."""
    if plane:
        name = f"[{', '.join(map(str, plane))}]"
        scene.words.append(Words(left - 5, top - 8, name, 10, "end", code=True, bold=True))
    if len(shown) > 1:
        rows, size = shown[-2], layout.size[-2]
        for i in rows:
            y = top + (i - rows.start + 0.5) * CELL
            scene.words.append(Words(left - 6, y, str(i), 9.5, "end", faint=True))
        if rows.stop < size:
            scene.words.append(Words(left - 6, top + len(rows) * CELL + 4, "⋮", 12, "end", faint=True))
        if rows.start > 0:
            scene.words.append(Words(left - 16, top - 4, "⋮", 12, "end", faint=True))
    if shown:
        columns, size = shown[-1], layout.size[-1]
        for i in columns:
            x = left + (i - columns.start + 0.5) * cells.width
            scene.words.append(Words(x, top - 7, str(i), 9.5, "middle", faint=True))
        if columns.stop < size:
            scene.words.append(Words(left + len(columns) * cells.width + 2, top - 7, "…", 12, faint=True))
        if columns.start > 0:
            scene.words.append(Words(left - 1, top - 7, "…", 12, "end", faint=True))


def _sum(scene: Scene, layout: Layout, index: tuple[int, ...] | None, lit: int | None, y: float) -> float:
    if index is None:
        scene.words.append(Words(1, y + LINE / 2, "no element, so no address"))
        return y + LINE
    name = f"[{', '.join(map(str, index))}]" if index else "the element"
    formula = layout.formula(index)
    lines = [f"{name} is at {formula}"]
    if len(lines[0]) > 90:
        letters, rest = formula.split(" = ", 1)
        lines = [f"{name} is at {letters}", f"  = {rest}"]
    for line in lines:
        scene.words.append(Words(1, y + LINE / 2, line, code=True, bold=True))
        y += LINE
    others = layout.times(lit) - 1 if lit is not None else 0
    if others:
        said = "another element is" if others == 1 else f"{others:,} other elements are"
        scene.words.append(Words(1, y + LINE / 2, f"{said} at the same place (dashed outline)"))
        y += LINE
    return y


def _describe(code: str, layout: Layout, index: tuple[int, ...] | None) -> str:
    words = f"{code}: size {layout.size}, stride {layout.stride}, offset {layout.offset}"
    if index is None:
        return f"{words}; no elements"
    return f"{words}; element {list(index)} is storage[{layout.address(index)}] of {layout.length:,}"
