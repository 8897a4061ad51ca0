"""The run explorer: a recorded training run, and a second one over it, step by step and layer by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import ipywidgets as widgets

from course_utils.draw.picture import Picture
from course_utils.draw.run import Small, compose
from course_utils.draw.run_rows import Compared, Numbers
from course_utils.draw.shapes import Scene, to_picture, to_svg
from course_utils.explore.explorer import Explorer
from course_utils.measure.training import Run


def run(
    sick: Run,
    healthy: Run | None = None,
    *,
    names: Sequence[str] = ("sick", "healthy"),
    also: Mapping[str, Sequence[Numbers]] | None = None,
) -> RunExplorer:
    """An explorer of what `draw.run` draws: a slider for the step whose numbers are shown, and a choice of a
    layer, which is drawn higher. Arguments and what is raised as for `draw.run`."""
    runs = [sick] if healthy is None else [sick, healthy]
    return RunExplorer(Compared(runs, names, also, who="explore.run"))


class RunExplorer(Explorer):
    """The widget. `both` is what was compared."""

    def __init__(self, both: Compared) -> None:
        self.both = both
        self.slider = widgets.IntSlider(
            value=both.parting.step if both.parting else both.steps - 1,
            max=both.steps - 1,
            description="step",
            layout=widgets.Layout(width="380px"),
            style={"description_width": "36px"},
        )
        self.layer = widgets.Dropdown(
            options=[("all alike", None), *((row.name, row.name) for row in both.layers)],
            description="layer",
            layout=widgets.Layout(width="300px"),
            style={"description_width": "40px"},
        )
        self.picture = widgets.HTML()
        super().__init__(layout=widgets.Layout(max_width="720px"))
        row = widgets.HBox([self.slider, self.layer], layout=widgets.Layout(flex_flow="row wrap"))
        self.children = [row, self.picture]
        for control in (self.slider, self.layer):
            control.observe(lambda change: self.redraw(), "value")
        self.redraw()

    def redraw(self) -> None:
        """Shows what the controls say."""
        self.picture.value = to_svg(self.scene(), f"run-{self.model_id}")

    def scene(self) -> Scene:
        return compose(self.both, self.slider.value, self.layer.value)

    def _still(self) -> Picture:
        return to_picture(self.scene(), Small)
