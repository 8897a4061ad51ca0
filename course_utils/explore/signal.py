"""The signal explorer: activations and gradients through the depth of a model, with its weights scaled."""

from __future__ import annotations

from typing import Any

from torch import nn

from course_utils.draw.shapes import Scene
from course_utils.draw.signal import compose, record
from course_utils.explore.controls import button, slider, wrapped
from course_utils.explore.explorer import Explorer
from course_utils.wrong_use import public


@public
def signal(model: nn.Module, batch: Any) -> SignalExplorer:
    """An explorer of what each layer returns and of the gradient that arrives there: histograms of the size
    of the values, on an axis of powers of ten, with a slider for the gain: a factor on the weights of all
    Linear and Conv layers.

    A row for each call of a module with a weight of two or more dimensions. Each move runs the model forward
    and backward with scaled copies of the weights; it, its `.grad`, its buffers and the batch stay as they
    were. Backward begins with ones where the model returns a scalar, else with standard normal numbers.
    `batch`: a tensor, a tuple of arguments or a dict of keyword arguments. Raises `TypeError` for what is no
    module, `ValueError` where it cannot be run or has no such layer.
    """
    return SignalExplorer(model, batch)


class SignalExplorer(Explorer):
    """The widget. `gain` is the slider."""

    def __init__(self, model: nn.Module, batch: Any) -> None:
        self.model, self.batch = model, batch
        self.gain = slider("gain", 1.0, 0.25, 3.0, step=0.05, width=420, label=36)
        super().__init__(wrapped([self.gain, button("Reset", self.reset)]), follows=[self.gain])
        self.draw()

    def reset(self) -> None:
        """The weights as they are."""
        self.gain.value = 1.0

    def scene(self) -> Scene:
        layers = record(self.model, self.batch, self.gain.value)
        return compose(layers, f", gain {self.gain.value:g}")
