"""A storage as a row of cells: one for each place, its address above, how often it is read below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from course_utils.draw import labels
from course_utils.draw.labels import Label
from course_utils.draw.shapes import WIDTH, Box, Scene

CELL = 29  # how high a cell is, and how wide where nothing in it is longer
GAP = 1.5  # pixels around a cell that stay free
LETTER = 5.5  # how wide one is, small but still readable


@dataclass(frozen=True)
class Cells:
    """Cells wide enough for texts of `longest` letters, and for the addresses above them."""

    longest: int = 1

    @classmethod
    def of(cls, *tensors: Tensor) -> Cells:
        """For what lies in the storages of these tensors."""
        shown = [short(value) for tensor in tensors for value in storage_values(tensor)]
        return cls(max(map(len, shown), default=1))

    @property
    def width(self) -> float:
        return max(CELL, LETTER * self.longest + 5)

    @property
    def in_a_row(self) -> int:
        """How many of them fit beside each other."""
        return int(WIDTH // self.width)

    @property
    def pixels(self) -> float:
        """How large values are written: as large as the longest fits."""
        return round(min(12.0, (self.width - 2 * GAP - 2) / (labels.LETTER * self.longest)), 1)

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
        middle = x + self.width / 2, y + CELL / 2
        inside = Label(*middle, text, self.pixels, "middle", code=True, bold=lit, faint=not read)
        fill = ("lit" if lit else "view") if read else ""
        line = 3 if lit else 2.2 if twin else 0 if read else 1
        size = self.width - 2 * GAP, CELL - 2 * GAP
        key = "" if address is None else str(address)
        return Box(x + GAP, y + GAP, *size, fill, (inside,), more, line, twin or not read, part, key)

    def row(
        self,
        scene: Scene,
        row: Sequence[int],
        values: Sequence[Any],
        times: Mapping[int, int],
        x: float,
        y: float,
        lit: int | None = None,
    ) -> None:
        """Adds cells for the places in `row`, from `x` on and with their upper edge at `y`. `values` are
        those of the storage; `times`: how often a place is read."""
        for place in row:
            middle, n, here = x + self.width / 2, times.get(place, 0), place == lit
            how = "read once" if n == 1 else f"read {n} times" if n else "not read"
            more = f"storage[{place}] = {values[place]}, {how}"
            scene.boxes.append(
                self.box(x, y, short(values[place]), "storage", more, place, read=n > 0, lit=here)
            )
            scene.write(middle, y - 6, str(place), 9.5, "middle", bold=here, faint=not here)
            if n > 1:
                scene.write(middle, y + CELL + 6, f"×{n}", 10, "middle")
            x += self.width


def storage_values(tensor: Tensor) -> list[Any]:
    """What lies in the storage, read as the tensor's dtype."""
    tensor = tensor.detach()
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor.untyped_storage()).tolist()


def short(value: Any) -> str:
    """A value in few characters: three digits that count, whole numbers as they are up to seven."""
    if isinstance(value, bool):
        return "T" if value else "F"
    if isinstance(value, int) and len(str(value)) <= 7:
        return str(value)
    for precision in (3, 2, 1):
        text = f"{value:.{precision}g}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")
        text = text.replace("0.", ".", 1) if text.lstrip("-").startswith("0.") else text
        if len(text) <= 5:
            break
    return text
