"""A storage as a tape: a cell for each place, its address above, how often it is read below.

Of a large storage the part around the lit place is shown.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from course_utils.draw import words
from course_utils.draw.layout import Layout
from course_utils.draw.shapes import WIDTH, Box, Scene
from course_utils.draw.words import Words

CELL = 29  # how high a cell is, and how wide where nothing in it is longer
GAP = 1.5  # pixels around a cell that stay free
LETTER = 5.5  # how wide one is, small but still readable
TAPE_ROWS = 4
NO_GAP = 3  # as many unread places are shown; more become an ellipsis


@dataclass
class Cells:
    """How wide the cells of a picture are, and how many letters the longest text in them and the longest
    address above them have."""

    width: float = CELL
    longest: int = 1
    longest_address: int = 1

    @property
    def in_a_row(self) -> int:
        """How many of them fit beside each other."""
        return int(WIDTH // self.width)

    @property
    def pixels(self) -> float:
        """How large values are written: as large as the longest fits."""
        return round(min(12.0, (self.width - 2 * GAP - 2) / (words.LETTER * self.longest)), 1)

    def fitted(self) -> Cells:
        """Cells that are wide enough for what is written in these and above them."""
        width = max(CELL, LETTER * max(self.longest, self.longest_address) + 5)
        return Cells(width, self.longest, self.longest_address)

    def box(
        self,
        x: float,
        y: float,
        text: str,
        part: str,
        more: str = "",
        address: int | None = None,
        *,
        read: bool = True,
        lit: bool = False,
        twin: bool = False,
    ) -> Box:
        """The cell at this place: filled where it is `read`, with an edge where it is the one that is spoken
        of, with a dashed edge where it is another element at the place of that one."""
        self.longest = max(self.longest, len(text))
        middle = x + self.width / 2, y + CELL / 2
        inside = Words(*middle, text, self.pixels, "middle", code=True, bold=lit, faint=not read)
        return Box(
            x + GAP,
            y + GAP,
            self.width - 2 * GAP,
            CELL - 2 * GAP,
            ("lit" if lit else "view") if read else "",
            (inside,),
            more,
            3 if lit else 2.2 if twin else 0 if read else 1,
            twin or not read,
            part,
            "" if address is None else str(address),
        )


# --- what is shown of it -----------------------------------------------------------------------------------


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


def with_gaps(runs: list[range], length: int) -> Iterator[int | str]:
    """The places of the runs, and between them how many are left out."""
    end = 0
    for run in runs:
        if run.start > end:
            yield f"+{short_count(run.start - end)}"
        yield from run
        end = run.stop
    if length > end and runs:
        yield f"+{short_count(length - end)}"


# --- values ------------------------------------------------------------------------------------------------


def storage_values(tensor: Tensor, run: range) -> list[Any]:
    """What lies in the storage at the places of `run`, read as the tensor's dtype."""
    tensor = tensor.detach()
    if tensor.device.type == "meta":
        return ["·"] * len(run)
    flat = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor.untyped_storage())
    return values_of(flat[run.start : run.stop])


def values_of(tensor: Tensor) -> list[Any]:
    """The elements in the order of reading, as Python's numbers."""
    if tensor.device.type == "meta":
        return ["·"] * tensor.numel()
    try:
        values = tensor.resolve_conj().resolve_neg().tolist()
    except RuntimeError:  # a dtype of which torch has no single numbers, such as packed pairs of 4 bits
        return ["?"] * tensor.numel()
    for _ in range(tensor.dim() - 1):
        values = [value for row in values for value in row]
    return values if tensor.dim() else [values]


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


def short_count(n: int) -> str:
    """A number of places in few characters."""
    return str(n) if n < 10_000 else short(float(n))


# --- the tape ----------------------------------------------------------------------------------------------


def row_of_tape(
    scene: Scene,
    cells: Cells,
    row: Sequence[int | str],
    values: dict[int, Any],
    times: Mapping[int, int],
    x: float,
    y: float,
    lit: int | None = None,
) -> None:
    """Cells for these places, from `x` on and with their upper edge at `y`; for a text an ellipsis with that
    text above it. `times`: how often a place is read."""
    for place in row:
        middle = x + cells.width / 2
        if isinstance(place, str):
            scene.words.append(Words(middle, y + CELL / 2, "…", 15, "middle", bold=True))
            scene.words.append(Words(middle, y - 6, place, 8, "middle", faint=True))
        else:
            n, here = times.get(place, 0), place == lit
            how = "read once" if n == 1 else f"read {n:,} times" if n else "not read"
            more = f"storage[{place}] = {values[place]}, {how}"
            cells.longest_address = max(cells.longest_address, len(str(place)))
            text = short(values[place])
            scene.boxes.append(cells.box(x, y, text, "tape", more, place, read=n > 0, lit=here))
            scene.words.append(Words(middle, y - 6, str(place), 9.5, "middle", bold=here, faint=not here))
            if n > 1:
                scene.words.append(Words(middle, y + CELL + 6, f"×{short_count(n)}", 10, "middle"))
        x += cells.width
