"""A matplotlib figure that a notebook shows the same way everywhere.

It needs no pyplot and no backend, has no background of its own, and carries a description: what a terminal
shows, and what is compared when a notebook is validated.
"""

from __future__ import annotations

import base64
import io
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from course_utils.draw import palette

# The width of a notebook's output area, in pixels of the page, and how many of the image make one of those.
WIDTH, SHARPNESS = 860, 2
# Pixels of the page for one unit of a canvas.
UNIT = 36.0
COLUMNS = WIDTH / UNIT


class Picture(Figure):
    """A figure with a description in words."""

    description: str = ""

    def __repr__(self) -> str:
        return self.description or super().__repr__()

    def png(self) -> bytes:
        """The image, on no background."""
        page = io.BytesIO()
        self.savefig(page, format="png", dpi=100 * SHARPNESS, transparent=True, metadata={"Software": None})
        return page.getvalue()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict, dict]:
        width = round(self.get_figwidth() * 100)
        data = {"image/png": base64.b64encode(self.png()).decode(), "text/plain": repr(self)}
        return data, {"image/png": {"width": width, "alt": self.description}}


def canvas(height: float, description: str) -> tuple[Picture, Axes]:
    """An empty picture of notebook width and `height` units, and its axes: x from 0 to the width in units,
    y from 0 at the top down to `height`. When all is drawn, `trim` takes off what has stayed empty."""
    # Letters are as wide as they will be in the image: their widths are rounded to its pixels.
    picture = Picture(figsize=(WIDTH / 100, height * UNIT / 100), dpi=100 * SHARPNESS)
    picture.description = description
    axes = picture.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, COLUMNS)
    axes.set_ylim(height, 0)
    axes.set_axis_off()
    return picture, axes


def trim(picture: Picture, axes: Axes) -> None:
    """Cuts off what is empty at the right. A page that is narrower than the picture scales it down, letters
    included; so a picture is no wider than it has to be."""
    renderer = FigureCanvasAgg(picture).get_renderer()
    drawn = (*axes.texts, *axes.patches, *axes.lines)
    right = max(thing.get_window_extent(renderer).x1 for thing in drawn)
    columns = min(right / SHARPNESS / UNIT + 0.3, COLUMNS)
    picture.set_figwidth(columns * UNIT / 100)
    axes.set_xlim(0, columns)


def cell(
    axes: Axes, x: float, y: float, text: str, fill: str, *, faint: bool = False, edged: bool = False
) -> None:
    """One cell of storage or of a tensor: a box of one unit with its value. `faint`: there, but not read;
    `edged`: the one that is being spoken of."""
    box = FancyBboxPatch(
        (x + 0.06, y + 0.06),
        0.88,
        0.88,
        boxstyle="round,pad=0,rounding_size=0.12",
        facecolor="none" if faint else fill,
        edgecolor=palette.TEXT if edged or faint else fill,
        linewidth=1.8 if edged else 0.9 if faint else 1.2,
        linestyle=(0, (2, 2)) if faint else "solid",
    )
    axes.add_patch(box)
    colour = palette.TEXT if faint else palette.INK
    small = 10 if len(text) < 4 else 8
    say(axes, x + 0.5, y + 0.52, text, size=small, colour=colour, code=True, bold=edged, ha="center")


def code_width(text: str, size: float = 10) -> float:
    """How many units wide `text` is as code: a letter of that font is 0.6 of its size wide, rounded up."""
    return len(text) * 0.65 * size * 100 / 72 / UNIT


def say(
    axes: Axes,
    x: float,
    y: float,
    text: str,
    *,
    size: float = 10,
    colour: str = palette.TEXT,
    code: bool = False,
    bold: bool = False,
    ha: str = "left",
) -> None:
    """Text, its vertical middle at `y`."""
    axes.text(
        x,
        y,
        text.replace("$", r"\$"),
        fontsize=size,
        color=colour,
        family=palette.CODE if code else palette.PROSE,
        weight="bold" if bold else "normal",
        ha=ha,
        va="center",
    )
