"""The signal explorer: activations and gradients through the depth of a model, with its weights scaled."""

from __future__ import annotations

from typing import Any

import ipywidgets as widgets
from torch import nn

from course_utils.draw.shapes import Scene, to_svg
from course_utils.draw.signal import Kinds, Layer, compose, record, scaled_layers
from course_utils.explore.controls import button
from course_utils.explore.explorer import Explorer

LEAST, MOST = 0.25, 3.0


def signal(model: nn.Module, batch: Any, *, gain: float = 1.0, layers: Kinds = None) -> SignalExplorer:
    """An explorer of what `draw.signal` draws, with a slider for the gain: a factor on the weights of all
    Linear and Conv layers. Each move runs the model anew with scaled copies of these weights; the model
    itself stays as it is. `batch`, `layers` and what is raised as for `draw.signal`."""
    if not isinstance(gain, (int, float)) or not gain > 0:
        raise ValueError(f"explore.signal: gain is a factor above 0, such as 1.5; given was {gain!r}")
    return SignalExplorer(model, batch, gain, layers)


class SignalExplorer(Explorer):
    """The widget. `gain` is the slider, `layers` what was recorded with the gain that is shown."""

    def __init__(self, model: nn.Module, batch: Any, gain: float, kinds: Kinds) -> None:
        self.model, self.batch, self.kinds = model, batch, kinds
        self.gain = widgets.FloatSlider(
            value=gain,
            min=min(LEAST, gain),
            max=max(MOST, gain),
            step=0.05,
            description="gain",
            layout=widgets.Layout(width="420px"),
            style={"description_width": "36px"},
        )
        self.picture = widgets.HTML()
        self.redraw()
        self.gain.disabled = not scaled_layers(model)
        super().__init__(layout=widgets.Layout(max_width="720px"))
        self.children = [widgets.HBox([self.gain, button("Reset", self.reset)]), self.picture]
        self.gain.observe(lambda change: self.redraw(), "value")

    def reset(self) -> None:
        """The weights as they are."""
        self.gain.value = 1.0

    def redraw(self) -> None:
        """Runs the model as it is now. Needed by itself only after a change from another cell."""
        gain, who = self.gain.value, "explore.signal"
        self.layers: list[Layer] = record(self.model, self.batch, gain=gain, layers=self.kinds, who=who)
        self.picture.value = to_svg(self.scene(), f"signal-{self.picture.model_id}")

    def scene(self) -> Scene:
        """The picture that is shown."""
        return compose(self.layers, f", gain {self.gain.value:g}")
