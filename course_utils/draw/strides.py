"""A tensor over its storage: the storage above, the grid below, one element lit in both."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence

from torch import Tensor

from course_utils.draw.layout import Layout, must_be_drawable
from course_utils.draw.picture import Picture
from course_utils.draw.shapes import WIDTH, Scene, to_picture, trimmed
from course_utils.draw.storage_cells import CELL, Cells, short, storage_values
from course_utils.wrong_use import public

LINE = 19
LEFT = (34, 50)  # beside a grid, for the numbers of its rows; where each grid has a name, for that too
BESIDE = 440  # where a goal begins that has room beside the tensor


@public
def strides(tensor: Tensor, name: str = "x", light: Sequence[int] | None = None) -> Picture:
    """The picture of a tensor with up to four dimensions, called `name`. `light` is the index of the element
    that is lit (default: the last one).

    Raises `IndexError` where there is no such element, `TypeError` for what has no strides and `ValueError`
    for what is too large.
    """
    must_be_drawable(tensor)
    index = tuple(n - 1 for n in tensor.size()) if tensor.numel() else None
    if light is not None:
        Layout.of(tensor).address(light)
        index = tuple(light)
    return to_picture(trimmed(compose(tensor, index, code=name, title=True)))


def compose(
    tensor: Tensor,
    index: tuple[int, ...] | None,
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
    storage; `goal` is drawn too, as a grid to arrive at, with `goal_words` beside its size.
    """
    layout = Layout.of(tensor)
    scene = Scene(_describe(code, layout, index), linked=True)
    cells = Cells.of(tensor, *([] if goal is None else [goal]))
    y = 0.0
    if title:
        scene.write(1, 10, code, 14, code=True, bold=True)
        y = 26
    y = _storage(scene, cells, tensor, index, origin, y) + 8
    reading = f"size {layout.size}   stride {layout.stride}   offset {layout.offset}"
    top = _heading(scene, "tensor", reading, 1, y)
    end = _grid(scene, cells, "grid", tensor, index, 1, top)
    words = "" if goal is None else f"size {tuple(goal.size())}{goal_words}"
    narrow = goal is not None and max(_across(cells, tensor), 66 + 7.6 * len(reading)) < BESIDE
    beside = narrow and max(_across(cells, goal), 42 + 7.6 * len(words)) < WIDTH - BESIDE
    if beside:
        start = _heading(scene, "goal", words, BESIDE, y)
        end = max(end, _grid(scene, cells, "goal", goal, None, BESIDE, start))
    end = _sum(scene, layout, index, end)
    if goal is not None and not beside:
        start = _heading(scene, "goal", words, 1, end + 12)
        end = _grid(scene, cells, "goal", goal, None, 1, start)
    scene.height = end + 4
    scene.width = max(WIDTH, *(box.x + box.width + 2 for box in scene.boxes), 0)
    return scene


def _across(cells: Cells, tensor: Tensor) -> float:
    """How wide a grid is at most; only one that is no row of grids can stand beside another."""
    return LEFT[0] + (tensor.size(-1) if tensor.dim() else 1) * cells.width if tensor.dim() < 3 else WIDTH


def _heading(scene: Scene, title: str, text: str, x: float, y: float) -> float:
    scene.write(x, y + LINE / 2, title, bold=True)
    scene.write(x + (42 if len(title) < 5 else 63), y + LINE / 2, text, code=True)
    return y + LINE + 4


def _storage(
    scene: Scene, cells: Cells, tensor: Tensor, index: tuple[int, ...] | None, origin: str, y: float
) -> float:
    layout, size = Layout.of(tensor), tensor.untyped_storage().nbytes()
    total = f"{layout.length} × {str(tensor.dtype).removeprefix('torch.')}"
    total += f" {'=' if layout.length * tensor.element_size() == size else 'in'} {size} bytes"
    y = _heading(scene, "storage", f"{total}   {origin}".rstrip(), 1, y)
    if not layout.length:
        scene.write(1, y + CELL / 2, "empty")
        return y + CELL
    lit = layout.address(index) if index is not None else None
    values, times = storage_values(tensor), Counter(layout.addresses())
    below = 13 if max(times.values(), default=0) > 1 else 3
    for start in range(0, layout.length, cells.in_a_row):
        row = range(start, min(start + cells.in_a_row, layout.length))
        cells.row(scene, row, values, times, 1, y + 13, lit)
        y += 13 + CELL + below
    return y


def _grid(
    scene: Scene,
    cells: Cells,
    part: str,
    tensor: Tensor,
    index: tuple[int, ...] | None,
    x: float,
    y: float,
) -> float:
    """The elements as cells: the last two dimensions a grid, those before them a row of grids each."""
    layout = Layout.of(tensor)
    lit = layout.address(index) if index is not None else None
    if not layout.numel:
        scene.write(x, y + CELL / 2, "no elements")
        return y + CELL
    n = len(layout.size)
    rows, columns = (1, 1, *layout.size)[-2:]
    values = iter(tensor.detach().reshape(-1).tolist())
    margin = LEFT[n > 2]
    wide, tall = margin + columns * cells.width, rows * CELL + 32
    across = max(1, int(WIDTH // wide))
    if n == 4:
        across = min(across, layout.size[1])
    planes = list(itertools.product(*map(range, layout.size[:-2])))
    for number, plane in enumerate(planes):
        left = x + number % across * wide + margin
        top = y + number // across * tall + 18
        _numbers(scene, cells, layout, plane, left, top)
        for row, column in itertools.product(range(rows), range(columns)):
            at = (*plane, row, column)[-n:] if n else ()
            value, name = next(values), f"[{', '.join(map(str, at))}]"
            place = left + column * cells.width, top + row * CELL
            if part == "goal":
                scene.boxes.append(cells.box(*place, short(value), part, f"{name} = {value}"))
                continue
            address, here = layout.address(at), at == index
            more = f"{name} is storage[{address}] = {value}"
            twin = not here and address == lit
            scene.boxes.append(cells.box(*place, short(value), part, more, address, lit=here, twin=twin))
    return y + math.ceil(len(planes) / across) * tall


def _numbers(
    scene: Scene, cells: Cells, layout: Layout, plane: tuple[int, ...], left: float, top: float
) -> None:
    """The indices around one grid."""
    if plane:
        name = f"[{', '.join(map(str, plane))}]"
        scene.write(left - 5, top - 8, name, 10, "end", code=True, bold=True)
    for i in range(layout.size[-2] if len(layout.size) > 1 else 0):
        scene.write(left - 6, top + (i + 0.5) * CELL, str(i), 9.5, "end", faint=True)
    for i in range(layout.size[-1] if layout.size else 0):
        scene.write(left + (i + 0.5) * cells.width, top - 7, str(i), 9.5, "middle", faint=True)


def _sum(scene: Scene, layout: Layout, index: tuple[int, ...] | None, y: float) -> float:
    if index is None:
        scene.write(1, y + LINE / 2, "no element, so no address")
        return y + LINE
    name = f"[{', '.join(map(str, index))}]" if index else "the element"
    formula = layout.formula(index)
    lines = [f"{name} is at {formula}"]
    if len(lines[0]) > 90:
        letters, rest = formula.split(" = ", 1)
        lines = [f"{name} is at {letters}", f"  = {rest}"]
    for line in lines:
        scene.write(1, y + LINE / 2, line, code=True, bold=True)
        y += LINE
    others = layout.addresses().count(layout.address(index)) - 1
    if others:
        said = "another element is" if others == 1 else f"{others} other elements are"
        scene.write(1, y + LINE / 2, f"{said} at the same place (dashed outline)")
        y += LINE
    return y


def _describe(code: str, layout: Layout, index: tuple[int, ...] | None) -> str:
    words = f"{code}: size {layout.size}, stride {layout.stride}, offset {layout.offset}"
    if index is None:
        return f"{words}; no elements"
    return f"{words}; element {list(index)} is storage[{layout.address(index)}] of {layout.length}"
