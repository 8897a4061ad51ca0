"""A matplotlib figure that a notebook shows the same way everywhere.

It needs no pyplot and no backend, lies on a white page whatever the theme around it, and carries a
description: what a terminal shows, and what is compared when a notebook is validated.
"""

from __future__ import annotations

import base64
import io
import sys
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course_utils.draw import palette

# The width of a notebook's output area, in pixels of the page, and how many of the image make one of those.
WIDTH, SHARPNESS = 860, 2
MARGIN = 8  # pixels of the page between what is drawn and its edge


class Picture(Figure):
    """A figure with a description in words."""

    description: str = ""

    def __repr__(self) -> str:
        return self.description or super().__repr__()

    def png(self) -> bytes:
        """The image, on a page of its own."""
        page = io.BytesIO()
        how = {"dpi": 100 * SHARPNESS, "facecolor": palette.PAGE, "metadata": {"Software": None}}
        self.savefig(page, format="png", **how)
        return page.getvalue()

    def save(self, path: str | Path) -> None:
        """Writes it as a file, on a page of its own: `.svg`, `.png` or `.pdf`, by the name's end."""
        self.savefig(path, dpi=100 * SHARPNESS, facecolor=palette.PAGE)

    def _repr_png_(self) -> tuple[str, dict]:
        width = round(self.get_figwidth() * 100)
        return base64.b64encode(self.png()).decode(), {"width": width, "alt": self.description}

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict, dict]:
        data, how = self._repr_png_()
        return {"image/png": data, "text/plain": repr(self)}, {"image/png": how}


def panels(height: float, rows: int = 1, columns: int = 1) -> tuple[Picture, list[Axes]]:
    """Plain axes side by side, on a page of notebook width and `height` inches."""
    picture = Picture(figsize=(WIDTH / 100, height), layout="constrained")
    picture.get_layout_engine().set(w_pad=MARGIN / 100, h_pad=MARGIN / 100)
    found = list(picture.subplots(rows, columns, squeeze=False).flat)
    for axes in found:
        plain(axes)
    return picture, found


def plain(axes: Axes) -> Axes:
    """Two thin lines and small grey numbers."""
    axes.set_facecolor("none")
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(palette.LINE)
    axes.tick_params(which="both", color=palette.LINE, labelcolor=palette.TEXT, labelsize=8)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set(color=palette.TEXT, fontsize=9)
    return axes


# Once pyplot is imported, a notebook shows every figure in pyplot's way. Of ours it is told here how.
if "IPython" in sys.modules and (_shell := sys.modules["IPython"].get_ipython()):
    _shell.display_formatter.formatters["image/png"].for_type(Picture, Picture._repr_png_)
