"""The in-place explorer: one write that a reader moves through a program, and what backward makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ipywidgets as widgets

from course_utils.draw.inplace import scene_of
from course_utils.draw.inplace_program import Program, Run
from course_utils.draw.shapes import Scene, to_svg
from course_utils.explore.explorer import Explorer


def inplace(lines: str | Sequence[str], operation: str, **given: Any) -> InplaceExplorer:
    """An explorer of what a write in place does to a program.

    `lines` is code, a statement each; the last gives the loss. `operation` is a write such as `y.add_(1)`,
    `given` is what the code starts from: tensors, of which copies are used, and modules. A reader moves the
    write between the lines and chooses its form; every time all of it is run, and the gradient compared with
    that of the same program out of place. Raises `ValueError` for what is no such program.
    """
    return InplaceExplorer(lines, operation, given)


class InplaceExplorer(Explorer):
    """The widget. `result` is what came of the run that is shown."""

    def __init__(self, lines: str | Sequence[str], operation: str, given: dict[str, Any]) -> None:
        self.program = Program(lines, operation, given)
        places = self.program.places
        self.slider = widgets.IntSlider(
            value=places[-1],
            min=places[0],
            max=places[-1],
            description="after line",
            disabled=len(places) == 1,
            layout=widgets.Layout(width="300px"),
            style={"description_width": "64px"},
        )
        self.form = widgets.Dropdown(
            options=[(code, form) for form, code in self.program.forms.items()],
            description="form",
            layout=widgets.Layout(width="340px"),
            style={"description_width": "40px"},
        )
        self.picture = widgets.HTML()
        super().__init__(layout=widgets.Layout(max_width="720px"))
        self.children = [
            widgets.HBox([self.slider, self.form], layout=widgets.Layout(flex_flow="row wrap")),
            self.picture,
        ]
        self.slider.observe(lambda change: self.run(), "value")
        self.form.observe(lambda change: self.run(), "value")
        self.run()

    def move(self, at: int, form: str = "tracked") -> None:
        """Puts the write after so many lines, in one of the forms "tracked", "data", "detach", "no_grad"."""
        self.form.value, self.slider.value = form, at

    def run(self) -> None:
        """Runs the program as the controls say, and shows what came of it."""
        self.result: Run = self.program.run(self.slider.value, self.form.value)
        self.picture.value = to_svg(self.scene(), f"inplace-{self.model_id}")

    def scene(self) -> Scene:
        """The picture that is shown."""
        return scene_of(self.result)
