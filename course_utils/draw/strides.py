"""Storage and the ways of reading it: the tape above the grid, several tensors on one tape, the walk."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.axes import Axes
from torch import Tensor

from course_utils.draw import palette
from course_utils.draw.picture import COLUMNS, Picture, canvas, cell, code_width, say, trim

# More than this cannot be read at the width of a notebook.
MOST_CELLS = 80
TAPE_WIDTH, SHORT_TAPE = 20, 12
MARGIN = 2.8  # units, for the names at the left
LINE = 0.75  # units, from one line of text to the next


# --- what is drawn ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reading:
    """A tensor as a way of reading a storage; all distances in elements.

    `values` is all that the storage holds. `addresses` are the places in it of the tensor's elements, in the
    order of reading (the last dimension first).
    """

    values: tuple[Any, ...]
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    addresses: tuple[int, ...]

    @property
    def times(self) -> Counter[int]:
        """How many elements of the tensor each place of the storage is; without those that are not read."""
        return Counter(self.addresses)

    @property
    def steps(self) -> tuple[int, ...]:
        """How far it is in storage from each element to the next one that is read."""
        return tuple(b - a for a, b in zip(self.addresses, self.addresses[1:], strict=False))

    def address(self, index: Sequence[int]) -> int:
        """Where element `index` lies. Raises `IndexError` where the tensor has no such element."""
        if len(index) != len(self.size) or not all(0 <= i < n for i, n in zip(index, self.size, strict=True)):
            raise IndexError(f"a tensor of size {self.size} has no element {list(index)}")
        return self.offset + sum(i * s for i, s in zip(index, self.stride, strict=True))

    def place(self, index: Sequence[int]) -> int:
        """The number of element `index` in the order of reading."""
        place = 0
        for i, n in zip(index, self.size, strict=True):
            place = place * n + i
        return place


def reading(tensor: Tensor) -> Reading:
    """How `tensor` reads its storage. Raises `ValueError` where there are no values to show (`meta`)."""
    if tensor.device.type == "meta":
        raise ValueError("a tensor on meta has a size and strides, but no values to draw")
    tensor = tensor.detach()
    whole = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor.untyped_storage())
    size, stride = tuple(tensor.size()), tensor.stride()
    places = torch.full((), tensor.storage_offset())
    for n, step in zip(size, stride, strict=True):
        places = places.unsqueeze(-1) + torch.arange(n) * step
    values = tuple(whole.cpu().tolist())
    return Reading(values, size, stride, tensor.storage_offset(), tuple(places.flatten().tolist()))


def by_storage(tensors: dict[str, Tensor]) -> list[dict[str, Reading]]:
    """The tensors, those that share a storage together; in the order in which they are given."""
    groups: dict[int, dict[str, Reading]] = {}
    for name, tensor in tensors.items():
        # An empty storage has no address of its own.
        key = tensor.untyped_storage().data_ptr() or -len(groups) - 1
        groups.setdefault(key, {})[name] = reading(tensor)
    return list(groups.values())


# --- pictures ----------------------------------------------------------------------------------------


def strides(tensor: Tensor, name: str = "x", light: Sequence[int] | None = None) -> Picture:
    """The storage of a tensor as a tape, the tensor as a grid below it, one element lit in both.

    `light` is the index of that element (default: the last one). Raises `ValueError` for a tensor of more
    than three dimensions, and for one that is too large or too wide to be read.
    """
    read = reading(tensor)
    _must_be_readable(read)
    index = tuple(light) if light is not None else tuple(n - 1 for n in read.size)
    lit = read.address(index) if read.addresses or light is not None else None
    *planes, rows, columns = (1, 1, 1, *read.size)[-3:]
    shown = math.prod(planes) if read.addresses else 0
    wide = max(shown * (columns + 1), 4)
    if wide - 1 > TAPE_WIDTH:
        raise ValueError(f"a grid of {wide - 1} columns is too wide to be read; at most {TAPE_WIDTH}")
    words = [f"size {read.size}  stride {read.stride}  offset {read.offset}"]
    if lit is not None:
        words.append(_sum(read, index, lit))
    tape = 1.0
    top = tape + _tape_height(read) + 0.7
    start = top + (rows if shown else 1) + 0.7
    picture, axes = canvas(start + LINE * len(words) + 0.5, _describe(name, read))

    say(axes, 0.2, tape + 0.5, "storage", bold=True)
    _tape(axes, read, lit, tape)
    say(axes, 0.2, top + 0.5, "tensor", bold=True)
    if not shown:
        say(axes, MARGIN, top + 0.5, "no elements")
    grid = [(p, r, c) for p in range(shown) for r in range(rows) for c in range(columns)]
    for place, (address, (plane, row, column)) in enumerate(zip(read.addresses, grid, strict=True)):
        x, y = MARGIN + plane * (columns + 1) + column, top + row
        here = place == read.place(index)
        cell(axes, x, y, _short(read.values[address]), palette.LIT if here else palette.VIEW, edged=here)
    say(axes, MARGIN, start, name, code=True, bold=True)
    for line, text in enumerate(words, 1):
        say(axes, MARGIN, start + line * LINE, text, code=True)
    trim(picture, axes)
    return picture


def tapes(**tensors: Tensor) -> Picture:
    """Several tensors and what each reads: one tape for each storage, below it a strip for each tensor."""
    groups = by_storage(tensors)
    margin = max(MARGIN, max((code_width(name) for name in tensors), default=0) + 2.0)
    rights = [code_width(_strides_of(read), 9) for group in groups for read in group.values()]
    width = min(SHORT_TAPE, int(COLUMNS - margin - 0.4 - max(rights, default=0)))
    height = 0.0
    for group in groups:
        for read in group.values():
            _must_be_readable(read, dimensions=None)
        height += 0.6 + len(_rows(read.values, width)) * (1.6 + LINE * len(group))
    words = "; ".join(_describe(name, read) for group in groups for name, read in group.items())
    count = f"{len(groups)} storage{'' if len(groups) == 1 else 's'}"
    picture, axes = canvas(height, f"{count}. {words}")
    y = 0.6
    for group in groups:
        values = next(iter(group.values())).values
        read_by_any = {address for read in group.values() for address in read.addresses}
        for number, row in enumerate(_rows(values, width)):
            say(axes, 0.2, y + 0.5, "storage", bold=True)
            for x, address in enumerate(row):
                faint = address not in read_by_any
                cell(axes, margin + x, y, _short(values[address]), palette.VIEW, faint=faint)
                say(axes, margin + x + 0.5, y - 0.22, str(address), size=8, ha="center")
            y += 1.4
            for name, read in group.items():
                say(axes, 0.2, y, name, code=True, bold=True)
                say(axes, margin - 0.2, y, "reads", ha="right")
                for x, address in enumerate(row):
                    if address in read.times:
                        _mark(axes, margin + x, y, read.times[address])
                if number == 0:
                    say(axes, margin + len(row) + 0.4, y, _strides_of(read), size=9, code=True)
                y += LINE
            y += 0.2
        y += 0.6
    trim(picture, axes)
    return picture


def walk(tensor: Tensor, name: str = "x") -> Picture:
    """The elements of a tensor in the order of reading, as a path below its storage: each lies one line lower
    than the one before.

    Steps as long as the first are alike, so that one stride is a straight line; the others stand out. Raises
    `ValueError` for a storage that does not fit on one tape.
    """
    read = reading(tensor)
    if len(read.values) > TAPE_WIDTH:
        raise ValueError(f"the storage has {len(read.values)} elements; a walk can show {TAPE_WIDTH}")
    _must_be_readable(read, dimensions=None)
    first = 1.9  # the line of the first element
    down = min(0.55, 9 / max(len(read.addresses), 1))
    foot = first + down * len(read.addresses) + 0.4
    picture, axes = canvas(foot + LINE + 0.5, _describe_walk(name, read))
    say(axes, 0.2, 0.7, "storage", bold=True)
    _tape(axes, read, None, 0.2, numbers=False)
    if read.addresses:
        say(axes, 0.2, first, "read first", size=9)
    if len(read.addresses) > 2:
        say(axes, 0.2, first + down * len(read.steps), "read last", size=9)
    places = [(MARGIN + address + 0.5, first + down * n) for n, address in enumerate(read.addresses)]
    for number, step in enumerate(read.steps):
        _step(axes, places[number], places[number + 1], step, odd=step != read.steps[0], named=number == 0)
    for x, y in places:
        axes.plot(x, y, "o", color=palette.TEXT, markersize=5, zorder=6)
    say(axes, MARGIN, foot, name, code=True, bold=True)
    say(axes, MARGIN, foot + LINE, _steps_in_words(read))
    trim(picture, axes)
    return picture


# --- parts -------------------------------------------------------------------------------------------


def _must_be_readable(read: Reading, dimensions: int | None = 3) -> None:
    if dimensions is not None and len(read.size) > dimensions:
        raise ValueError(f"{len(read.size)} dimensions; a grid can show {dimensions}")
    if max(len(read.values), len(read.addresses)) > MOST_CELLS:
        cells = max(len(read.values), len(read.addresses))
        raise ValueError(f"{cells} cells are too many to be read; at most {MOST_CELLS}")


def _rows(values: Sequence[Any], width: int) -> list[range]:
    """The addresses in each row of a tape."""
    starts = range(0, max(len(values), 1), width)
    return [range(start, min(start + width, len(values))) for start in starts]


def _pitch(read: Reading) -> float:
    """From one row of a tape to the next; more where counts stand above the cells."""
    return 2.0 if max(read.times.values(), default=1) > 1 else 1.5


def _tape_height(read: Reading) -> float:
    return len(_rows(read.values, TAPE_WIDTH)) * _pitch(read) - _pitch(read) + 1


def _tape_cell(read: Reading, address: int, top: float) -> tuple[float, float]:
    return MARGIN + address % TAPE_WIDTH, top + address // TAPE_WIDTH * _pitch(read)


def _tape(axes: Axes, read: Reading, lit: int | None, top: float, *, numbers: bool = True) -> None:
    if not read.values:
        say(axes, MARGIN, top + 0.5, "empty")
    for address, value in enumerate(read.values):
        x, y = _tape_cell(read, address, top)
        times = read.times[address]
        fill = palette.LIT if address == lit else palette.VIEW if times else palette.STORAGE
        cell(axes, x, y, _short(value), fill, faint=not times, edged=address == lit)
        if numbers:
            say(axes, x + 0.5, y - 0.22, str(address), size=8, ha="center", bold=address == lit)
            if times > 1:
                say(axes, x + 0.5, y - 0.66, f"×{times}", size=8.5, ha="center", bold=True)


def _mark(axes: Axes, x: float, y: float, times: int) -> None:
    """This place of the tape is read: a bar below it, with how often where that is more than once."""
    axes.plot([x + 0.1, x + 0.9], [y, y], color=palette.VIEW, linewidth=9, solid_capstyle="butt")
    if times > 1:
        say(axes, x + 0.5, y + 0.01, f"×{times}", size=8, colour=palette.INK, ha="center", bold=True)


def _step(
    axes: Axes, start: tuple[float, float], end: tuple[float, float], step: int, *, odd: bool, named: bool
) -> None:
    """From one element to the next that is read; how far that is, where it is the first such step."""
    axes.plot(
        *zip(start, end, strict=True),
        color=palette.ODD if odd else palette.VIEW,
        linewidth=2.2,
        linestyle=(0, (3, 1.5)) if odd else "solid",
        zorder=5,
    )
    x, y = start
    if odd:
        # Beside the upper end, on the side that the path leaves.
        back = step < 0
        say(axes, x + (0.35 if back else -0.35), y, f"{step:+d}", size=9, ha="left" if back else "right")
    elif named:
        # Above the path, which has nothing above its first step.
        say(axes, x + 0.1, y - 0.4, f"{step:+d}", size=9)


def _short(value: Any) -> str:
    if isinstance(value, bool):
        return "T" if value else "F"
    if isinstance(value, complex):
        return "c"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _strides_of(read: Reading) -> str:
    return f"size {read.size} stride {read.stride} offset {read.offset}"


def _sum(read: Reading, index: Sequence[int], lit: int) -> str:
    parts = [str(read.offset), *(f"{i}*{s}" for i, s in zip(index, read.stride, strict=True))]
    return f"[{', '.join(map(str, index))}] is storage[{' + '.join(parts)}] = storage[{lit}]"


def _describe(name: str, read: Reading) -> str:
    return f"{name}: {_strides_of(read)}, reads {len(read.times)} of {len(read.values)} places"


def _describe_walk(name: str, read: Reading) -> str:
    return f"{name}: read in order, the steps in storage are {', '.join(f'{step:+d}' for step in read.steps)}"


def _steps_in_words(read: Reading) -> str:
    if not read.steps:
        return "no step: at most one element"
    first, odd = read.steps[0], sum(step != read.steps[0] for step in read.steps)
    if not odd:
        return f"every step is {first:+d}: one stride reads all {len(read.addresses)} elements"
    return f"{odd} of {len(read.steps)} steps are not {first:+d}: no single stride reads them in this order"
