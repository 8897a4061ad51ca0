"""What explorers have in common."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import Any

import ipywidgets as widgets

from course_utils.draw.picture import Picture
from course_utils.draw.shapes import Drawn, Scene, to_picture, to_svg
from course_utils.explore import on_the_page
from course_utils.explore.controls import button, slider, wrapped

COLOUR = "color:var(--jp-widgets-label-color,currentColor)"


class Explorer(widgets.VBox):
    """A widget over the picture `scene()`, which follows its controls."""

    still: type[Picture] = Drawn

    def __init__(self, *rows: widgets.Widget, follows: Sequence[widgets.Widget] = ()) -> None:
        """`rows`: what stands above the picture. `follows`: controls after which `redraw` is called."""
        self._quiet = False
        # In a narrow page it keeps its size, so that its words can be read, and is scrolled by itself.
        self.picture = widgets.HTML(layout=widgets.Layout(overflow="auto hidden"))
        page = widgets.HTML(on_the_page.HTML, layout=widgets.Layout(display="none"))
        super().__init__([*rows, self.picture, page], layout=widgets.Layout(max_width="720px"))
        self.add_class(on_the_page.CLASS)
        for control in follows:
            control.observe(lambda change: self.redraw(), "value")

    def scene(self) -> Scene:
        """The picture that is shown."""
        raise NotImplementedError

    def redraw(self) -> None:
        """Shows what the controls say, unless that is being set."""
        if not self._quiet:
            self.draw()

    def draw(self) -> None:
        self.picture.value = to_svg(self.scene(), f"{type(self).__name__}-{self.model_id}")

    def still_scene(self) -> Scene:
        """The picture that is kept where the controls aren't: with what they would say."""
        return self.scene()

    def _still(self) -> Picture:
        return to_picture(self.still_scene(), self.still, on_the_page.NOTE)

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict, dict]:
        """The widget, and beside it a picture: what is shown where no kernel answers."""
        live = super()._repr_mimebundle_(**kwargs) or {}
        data, metadata = self._still()._repr_mimebundle_()
        return {**live, **data}, metadata

    @contextmanager
    def _silent(self) -> Iterator[None]:
        """Controls that are set here do nothing."""
        self._quiet = True
        try:
            yield
        finally:
            self._quiet = False


class Stepper(Explorer):
    """An explorer with a slider and buttons through steps from `first` on; `step` is None where all of them
    are shown. What happens in a step stands above the picture."""

    first = 0

    def __init__(self, step: str, forward: str, whole: str, *others: widgets.Widget) -> None:
        """What a step, the button to the next one and the one to all of them are called; other controls."""
        self.step: int | None = None
        self.back_button = button("◀ Back", self.back)
        self.forward_button = button(forward, self.forward)
        self.whole_button = button(whole, self.leave, "64px")
        self.slider = slider(step, self.first, self.first, self.first + 1, width=260, label=40)
        self.message = widgets.HTML()
        buttons = [self.whole_button, self.back_button, self.forward_button, self.slider]
        super().__init__(wrapped([*buttons, *others]), self.message)
        self.slider.observe(lambda change: self._quiet or self.go(change["new"]), "value")

    def last(self) -> int:
        """The number of the last step."""
        raise NotImplementedError

    def said(self) -> list[str]:
        """What is said of the step, in lines."""
        raise NotImplementedError

    def forward(self) -> None:
        """To the next step."""
        self.go(self.first if self.step is None else self.step + 1)

    def back(self) -> None:
        """To the step before; before the first, to all of it."""
        self.go(None if self.step in (None, self.first) else self.step - 1)

    def leave(self) -> None:
        """Shows all of it."""
        self.go(None)

    def go(self, step: int | None) -> None:
        """To a step; None: to all of it."""
        self.step = None if step is None else max(self.first, min(step, self.last()))
        self.draw()

    def draw(self) -> None:
        super().draw()
        first, *others = self.said() or [""]
        told = f"<b>{escape(first)}</b>" + "".join(f"<div>{escape(line)}</div>" for line in others)
        # As high as most steps need, so that the picture below stays where it is.
        self.message.value = (
            f"<div style='{COLOUR};line-height:1.45;min-height:66px;margin:2px 0'>{told}</div>"
        )
        with self._silent():
            self.slider.max = max(self.last(), self.first + 1)
            self.slider.value = self.first if self.step is None else self.step
        self.back_button.disabled = self.whole_button.disabled = self.step is None
        self.forward_button.disabled = self.step is not None and self.step >= self.last()
