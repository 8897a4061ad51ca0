"""A matplotlib figure that a notebook shows the same way everywhere.

It needs no pyplot and no backend, has no background of its own, and carries a description: what a terminal
shows, and what is compared when a notebook is validated.
"""

from __future__ import annotations

import base64
import io
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course_utils.draw import palette

# The width of a notebook's output area, in pixels of the page, and how many of the image make one of those.
WIDTH, SHARPNESS = 860, 2


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


def panels(height: float, rows: int = 1, columns: int = 1) -> tuple[Picture, list[Axes]]:
    """Plain axes side by side, on a page of notebook width and `height` inches."""
    picture = Picture(figsize=(WIDTH / 100, height), layout="constrained")
    found = list(picture.subplots(rows, columns, squeeze=False).flat)
    for axes in found:
        axes.set_facecolor("none")
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(palette.TEXT)
        axes.tick_params(which="both", colors=palette.TEXT, labelsize=8)
        for label in (axes.xaxis.label, axes.yaxis.label):
            label.set(color=palette.TEXT, fontsize=9)
    return picture, found
