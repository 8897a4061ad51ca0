"""The picture of a tensor over its storage, as shapes at places: the tape above, the grid below.

It is measured in pixels of the page and drawn by `render`. Of a large tensor, and of a large storage, the
part around the lit element is shown.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from course_utils.draw.words import Words
from course_utils.explore.layout import Layout

WIDTH = 700
CELL = 29  # how high a cell is, and how wide where nothing in it is longer
LETTER = 5.5  # how wide one is, small but still readable
LINE = 19
TAPE_ROWS = 4
LEFT = (34, 50)  # beside a grid, for the numbers of its rows; where each grid has a name, for that too
BESIDE = 440  # where a goal begins that has room beside the tensor
# How much of each dimension a grid shows, the last dimension first, by the number of dimensions.
SHOWN = {0: (), 1: (22,), 2: (22, 10), 3: (10, 6, 6), 4: (6, 5, 4, 4)}
NO_GAP = 3  # as many unread places are shown; more become an ellipsis


# --- shapes ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """A box with a value. `part` is "tape", "grid" or "goal"; `read` says whether the tensor reads it; `lit`
    is the one that is spoken of, `twin` another element at the same place. `words` say all about it."""

    x: float
    y: float
    width: float
    part: str
    text: str
    words: str
    address: int | None = None
    index: tuple[int, ...] | None = None
    read: bool = True
    lit: bool = False
    twin: bool = False


@dataclass
class Scene:
    """Shapes on a page `WIDTH` wide and `height` high, and what they show in one sentence. All cells are
    `cell` wide."""

    description: str
    cell: float = CELL
    height: float = 0
    cells: list[Cell] = field(default_factory=list)
    words: list[Words] = field(default_factory=list)

    @property
    def slots(self) -> int:
        """How many cells fit into a row of the tape."""
        return int(WIDTH // self.cell)

    @property
    def longest(self) -> int:
        """How many letters the longest value has."""
        return max((len(cell.text) for cell in self.cells), default=0)

    @property
    def needed(self) -> float:
        """How wide the cells would have to be for what is written in them and above them."""
        addresses = (len(str(cell.address)) for cell in self.cells if cell.part == "tape")
        return max(CELL, LETTER * max(self.longest, *addresses, 0) + 5)


# --- what is shown of it -----------------------------------------------------------------------------------


def window(size: int, most: int, around: int) -> range:
    """At most `most` of `size` positions, with `around` among them, as near to the middle as can be."""
    start = max(0, min(around - most // 2, size - most))
    return range(start, min(size, start + most))


def windows(size: Sequence[int], index: Sequence[int], cell: float = CELL) -> list[range]:
    """What a grid with cells so wide shows of each dimension."""
    last, *others = SHOWN[len(size)] or (0,)
    most = reversed([int(last * CELL / cell), *others]) if size else ()
    return [window(n, m, i) for n, m, i in zip(size, most, index, strict=True)]


def runs_of_tape(layout: Layout, shown: Sequence[range], lit: int | None, slots: int) -> list[range]:
    """The places of the storage that a tape with rows of `slots` cells shows: all of them where there is
    room, otherwise what is read, otherwise what the shown part of the grid reads, from the lit place
    outwards."""
    most = TAPE_ROWS * slots
    if layout.length <= most:
        return [range(layout.length)]
    reach = layout.reach
    begin, end = max(0, reach.start - 1), min(layout.length, reach.stop + 1)
    if len(reach) <= most - 4:
        if end - begin < 2 * slots:  # next to nothing: show some of what surrounds it
            end = min(layout.length, begin + 2 * slots - 1)
        return [range(begin, end)]
    places = {
        layout.offset + sum(i * s for i, s in zip(index, layout.stride, strict=True))
        for index in itertools.product(*shown)
    }
    kept: list[int] = []
    for place in sorted(places, key=lambda a: (abs(a - (lit or 0)), a)):
        if _slots(_joined([*kept, place], layout.length), layout.length) > most:
            break
        kept.append(place)
    return _joined(kept, layout.length)


def _joined(places: list[int], length: int) -> list[range]:
    runs: list[range] = []
    for place in sorted(places):
        if runs and place - runs[-1].stop <= NO_GAP:
            runs[-1] = range(runs[-1].start, place + 1)
        else:
            runs.append(range(place, place + 1))
    if runs and runs[0].start <= NO_GAP:
        runs[0] = range(0, runs[0].stop)
    if runs and length - runs[-1].stop <= NO_GAP:
        runs[-1] = range(runs[-1].start, length)
    return runs


def _slots(runs: list[range], length: int) -> int:
    ends = (runs[0].start > 0) + (runs[-1].stop < length) if runs else 0
    return sum(len(run) for run in runs) + max(len(runs) - 1, 0) + ends


def short(value: Any) -> str:
    """A value in few characters: three digits that count, whole numbers as they are up to seven."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "T" if value else "F"
    if isinstance(value, complex):
        real, imaginary = _digits(value.real, 4), _digits(value.imag, 4)
        if not value.imag:
            return real
        sign = "" if imaginary.startswith("-") or not value.real else "+"
        return (real if value.real else "") + sign + imaginary + "j"
    if isinstance(value, int) and len(str(value)) <= 7:
        return str(value)
    return _digits(value, 5)


def _digits(value: float, most: int) -> str:
    for precision in (3, 2, 1):
        text = f"{value:.{precision}g}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")
        text = text.replace("0.", ".", 1) if text.lstrip("-").startswith("0.") else text
        if len(text) <= most:
            break
    return text


def storage_values(tensor: Tensor, run: range) -> list[Any]:
    """What lies in the storage at the places of `run`, read as the tensor's dtype."""
    tensor = tensor.detach()
    if tensor.device.type == "meta":
        return ["·"] * len(run)
    flat = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor.untyped_storage())
    return _values(flat[run.start : run.stop])


def element_values(tensor: Tensor, shown: Sequence[range]) -> list[Any]:
    """The elements of the shown part of a tensor, in the order of reading."""
    part = tensor.detach()
    for dim, run in enumerate(shown):
        part = part.narrow(dim, run.start, len(run))
    return ["·"] * part.numel() if part.device.type == "meta" else _values(part)


def _values(tensor: Tensor) -> list[Any]:
    try:
        values = tensor.resolve_conj().resolve_neg().tolist()
    except RuntimeError:  # a dtype of which torch has no single numbers, such as packed pairs of 4 bits
        return ["?"] * tensor.numel()
    for _ in range(tensor.dim() - 1):
        values = [value for row in values for value in row]
    return values if tensor.dim() else [values]


# --- the picture -------------------------------------------------------------------------------------------


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
    """The picture of `tensor` with element `index` lit (None: no element is).

    `code` is the expression it is the value of, written above it with `title`; `origin` stands beside the
    storage; `goal` is drawn too, as a grid to arrive at, with `goal_words` beside its size.
    """
    index = tuple(index) if index is not None else None
    said = _describe(code, Layout.of(tensor), index)

    def draw(cell: float) -> Scene:
        scene = Scene(said, cell)
        y = 0.0
        if title:
            scene.words.append(Words(1, 10, code, 14, code=True, bold=True))
            y = 26
        scene.height = _compose(scene, tensor, index, origin, goal, goal_words, y) + 4
        return scene

    # What is shown decides how wide the cells are, and that how much is shown; wider cells never show more.
    scene = draw(CELL)
    return scene if scene.needed <= CELL else draw(scene.needed)


def _compose(
    scene: Scene,
    tensor: Tensor,
    index: tuple[int, ...] | None,
    origin: str,
    goal: Tensor | None,
    goal_words: str,
    y: float,
) -> float:
    layout = Layout.of(tensor)
    lit = layout.address(index) if index is not None else None
    shown = windows(layout.size, index or (0,) * len(layout.size), scene.cell)
    y = _tape(scene, tensor, layout, shown, lit, origin, y) + 8
    reading = f"size {layout.size}   stride {layout.stride}   offset {layout.offset}"
    top = _heading(scene, "tensor", reading, 1, y)
    end = _grid(scene, "grid", tensor, layout, shown, index, lit, 1, top)
    if goal is None:
        return _sum(scene, layout, index, lit, end)
    aim = Layout.of(goal)
    aimed = windows(aim.size, (0,) * len(aim.size), scene.cell)
    words = f"size {aim.size}{goal_words}"
    narrow = max(_across(scene, shown), 66 + 7.6 * len(reading)) < BESIDE
    if narrow and max(_across(scene, aimed), 42 + 7.6 * len(words)) < WIDTH - BESIDE:
        start = _heading(scene, "goal", words, BESIDE, y)
        end = max(end, _grid(scene, "goal", goal, aim, aimed, None, None, BESIDE, start))
        return _sum(scene, layout, index, lit, end)
    y = _sum(scene, layout, index, lit, end) + 12
    start = _heading(scene, "goal", words, 1, y)
    return _grid(scene, "goal", goal, aim, aimed, None, None, 1, start)


def _across(scene: Scene, shown: Sequence[range]) -> float:
    """How wide a grid is at most; only one that is no row of grids can stand beside another."""
    return LEFT[0] + len(shown[-1] if shown else "1") * scene.cell if len(shown) < 3 else WIDTH


def _heading(scene: Scene, title: str, text: str, x: float, y: float) -> float:
    scene.words.append(Words(x, y + LINE / 2, title, bold=True))
    scene.words.append(Words(x + (42 if len(title) < 5 else 63), y + LINE / 2, text, code=True))
    return y + LINE + 4


def _tape(
    scene: Scene,
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
    slots = list(_tape_slots(layout, runs_of_tape(layout, shown, lit, scene.slots)))
    if not slots:
        scene.words.append(Words(1, y + CELL / 2, "empty"))
        return y + CELL
    values = {
        place: value
        for run in (slot for slot in slots if isinstance(slot, range))
        for place, value in zip(run, storage_values(tensor, run), strict=True)
    }
    flat = [place for slot in slots for place in (slot if isinstance(slot, range) else [slot])]
    times = {place: layout.times(place) for place in values}
    counted = any(n > 1 for n in times.values())
    for row in (flat[start : start + scene.slots] for start in range(0, len(flat), scene.slots)):
        y += 13
        for column, place in enumerate(row):
            x = column * scene.cell + 1
            if isinstance(place, str):
                scene.words.append(Words(x + scene.cell / 2, y + CELL / 2, "…", 15, "middle", bold=True))
                scene.words.append(Words(x + scene.cell / 2, y - 6, place, 8, "middle", faint=True))
                continue
            n = times[place]
            how = "read once" if n == 1 else f"read {n:,} times" if n else "not read"
            words = f"storage[{place}] = {values[place]}, {how}"
            here = place == lit
            scene.cells.append(
                Cell(x, y, scene.cell, "tape", short(values[place]), words, place, read=n > 0, lit=here)
            )
            middle = x + scene.cell / 2
            scene.words.append(Words(middle, y - 6, str(place), 9.5, "middle", bold=here, faint=not here))
            if n > 1:
                scene.words.append(Words(middle, y + CELL + 6, f"×{_short_count(n)}", 10, "middle"))
        y += CELL + (13 if counted else 3)
    return y


def _tape_slots(layout: Layout, runs: list[range]) -> Iterator[range | str]:
    """Runs of places, and between them how many places are left out."""
    end = 0
    for run in runs:
        if run.start > end:
            yield f"+{_short_count(run.start - end)}"
        yield run
        end = run.stop
    if layout.length > end and runs:
        yield f"+{_short_count(layout.length - end)}"


def _short_count(n: int) -> str:
    return str(n) if n < 10_000 else short(float(n))


def _grid(
    scene: Scene,
    part: str,
    tensor: Tensor,
    layout: Layout,
    shown: Sequence[range],
    index: tuple[int, ...] | None,
    lit: int | None,
    x: float,
    y: float,
) -> float:
    """The elements as cells: the last two dimensions a grid, those before them a row of grids each."""
    if not layout.numel:
        scene.words.append(Words(x, y + CELL / 2, "no elements"))
        return y + CELL
    columns = shown[-1] if shown else range(1)
    rows = shown[-2] if len(shown) > 1 else range(1)
    values = iter(element_values(tensor, shown))
    margin = LEFT[len(shown) > 2]
    wide, tall = margin + len(columns) * scene.cell, len(rows) * CELL + 32
    across = max(1, WIDTH // wide)
    if len(shown) == 4:
        across = min(across, len(shown[1]))
    planes = list(itertools.product(*shown[:-2]))
    for number, plane in enumerate(planes):
        left = x + number % across * wide + margin
        top = y + number // across * tall + 18
        _numbers(scene, layout, shown, plane, left, top)
        for (r, row), (c, column) in itertools.product(enumerate(rows), enumerate(columns)):
            at = (*plane, row, column)[-len(shown) :] if shown else ()
            value, address = next(values), layout.address(at)
            here = at == index
            name = f"[{', '.join(map(str, at))}]"
            words = f"{name} = {value}"
            if part == "grid":
                words = f"{name} is storage[{address}] = {value}"
            scene.cells.append(
                Cell(
                    left + c * scene.cell,
                    top + r * CELL,
                    scene.cell,
                    part,
                    short(value),
                    words,
                    address if part == "grid" else None,
                    at,
                    lit=here,
                    twin=not here and address == lit,
                )
            )
    cut = [d for d, run in enumerate(shown) if len(run) < layout.size[d]]
    y += math.ceil(len(planes) / across) * tall
    if cut:
        said = ", ".join(f"{run.start}:{run.stop}" for run in shown)
        scene.words.append(Words(x + margin, y, f"shown: [{said}] of {layout.size}", 11, faint=True))
        y += LINE - 4
    return y


def _numbers(
    scene: Scene, layout: Layout, shown: Sequence[range], plane: tuple[int, ...], left: float, top: float
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
            x = left + (i - columns.start + 0.5) * scene.cell
            scene.words.append(Words(x, top - 7, str(i), 9.5, "middle", faint=True))
        if columns.stop < size:
            scene.words.append(Words(left + len(columns) * scene.cell + 2, top - 7, "…", 12, faint=True))
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
