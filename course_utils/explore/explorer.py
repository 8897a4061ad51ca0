"""What explorers have in common."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ipywidgets as widgets

from course_utils.draw.picture import Picture
from course_utils.draw.shapes import Scene, to_picture

COLOUR = "color:var(--jp-widgets-label-color,currentColor)"


class Explorer(widgets.VBox):
    """A widget over the picture `scene()`. What its controls call does nothing while it is `_quiet`."""

    _quiet = False

    def scene(self) -> Scene:
        """The picture that is shown."""
        raise NotImplementedError

    def _still(self) -> Picture | None:
        """The picture for where no kernel answers; None where there is none any more."""
        return to_picture(self.scene())

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict, dict]:
        """The widget, and beside it a picture: what is shown where no kernel answers."""
        live = super()._repr_mimebundle_(**kwargs) or {}
        still = self._still()
        if still is None:
            return live, {}
        data, metadata = still._repr_mimebundle_()
        return {**live, **data}, metadata

    @contextmanager
    def _silent(self) -> Iterator[None]:
        """Controls that are set here do nothing."""
        was, self._quiet = self._quiet, True
        try:
            yield
        finally:
            self._quiet = was
