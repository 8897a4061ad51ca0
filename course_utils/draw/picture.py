"""A matplotlib figure that a notebook shows the same way everywhere.

It needs no pyplot and no backend, has no background of its own, and carries a description: what a terminal
shows, and what is compared when a notebook is validated.
"""

from __future__ import annotations

import base64
import io
from typing import Any

from matplotlib.figure import Figure

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
