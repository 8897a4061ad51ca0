"""The checkpoint explorer: the bytes alive over one training step, with sliders for the segment and the
depth."""

from __future__ import annotations

import math
from collections.abc import Callable

import ipywidgets as widgets
import torch
from torch import Tensor, nn

from course_utils.draw.checkpoint_steps import Stack
from course_utils.draw.checkpoints import compose, curve_sizes
from course_utils.draw.picture import Picture
from course_utils.draw.run import Small
from course_utils.draw.shapes import Scene, to_picture, to_svg
from course_utils.explore.controls import button, wrapped
from course_utils.explore.explorer import Explorer
from course_utils.measure.steps import StepTimeline

WIDE, ROWS, MOST = 32, 64, 200
Make = Callable[[], nn.Module]


def checkpoints(
    make: Make | None = None, batch: Tensor | None = None, *, layers: int = 36, segment: int = 6
) -> CheckpointExplorer:
    """An explorer of what `draw.checkpoints` draws, with a slider for the layers in a segment, 0 for no
    checkpoint, and one for the depth.

    `make()` returns a layer, `batch` is what the first one takes; default: a Linear with a GELU. `layers` is
    the depth at first, and at most. Of another depth the curve has a few sizes and those that were visited;
    the button records the rest. Raises as `draw.checkpoints`.
    """
    who = "explore.checkpoints"
    if isinstance(layers, bool) or not isinstance(layers, int) or not 1 <= layers <= MOST:
        raise ValueError(f"{who}: layers is the greatest depth, 1 to {MOST}; given was {layers!r}")
    if isinstance(segment, bool) or not isinstance(segment, int) or not 0 <= segment <= layers:
        raise ValueError(f"{who}: segment is a number of layers, 0 to {layers}; given was {segment!r}")
    if (make is None) != (batch is None) or isinstance(make, nn.Module) or not callable(make or _layer):
        raise TypeError(
            f"{who} wants a function that makes a layer and a batch for it, as in "
            f"explore.checkpoints(lambda: nn.Linear(8, 8), torch.randn(4, 8)); "
            f"given were {type(make).__name__} and {type(batch).__name__}"
        )
    with torch.random.fork_rng(devices=()):
        made = [(make or _layer)() for _ in range(layers)]
    stack = Stack(made, torch.zeros(ROWS, WIDE) if batch is None else batch, who)
    return CheckpointExplorer(stack, segment)


def _layer() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDE, WIDE), nn.GELU())


class CheckpointExplorer(Explorer):
    """The widget. `segment` and `depth` are the sliders, `steps` what is recorded at this depth, by segment
    size."""

    def __init__(self, stack: Stack, segment: int) -> None:
        self.stack, most = stack, len(stack.layers)
        self.steps: dict[int, StepTimeline] = {}
        self._visited: dict[int, set[int]] = {}
        self.segment = _slider("segment", segment, 0, most, "58px")
        self.depth = _slider("depth", most, 1, most, "40px")
        # Each depth is a new curve: it is recorded when the slider rests.
        self.depth.continuous_update = False
        self.picture = widgets.HTML()
        super().__init__(layout=widgets.Layout(max_width="720px"))
        self.children = [
            wrapped([self.segment, self.depth, button("All sizes", self.complete, "84px")]),
            self.picture,
        ]
        self.segment.observe(lambda change: self.redraw(), "value")
        self.depth.observe(lambda change: self._deepen(), "value")
        self.complete()

    def complete(self) -> None:
        """Records every size of the curve at this depth."""
        self._seen().update(curve_sizes(self.depth.value))
        self.redraw()

    def _seen(self) -> set[int]:
        """The sizes that are recorded at this depth; of a new one, enough to see its curve."""
        depth = self.depth.value
        root = math.sqrt(depth)
        few = (0, 1, *(min(math.ceil(root * factor), depth) for factor in (0.5, 1, 2)), depth)
        return self._visited.setdefault(depth, {*few})

    def _deepen(self) -> None:
        with self._silent():
            self.segment.max = self.depth.value  # takes a value beyond it along
        self.redraw()

    def redraw(self) -> None:
        """Shows what the sliders say; records what it has not seen."""
        if self._quiet:
            return
        self._seen().add(self.segment.value)
        depth = self.depth.value
        self.steps = {size: self.stack.record(size, depth) for size in sorted(self._seen())}
        self.picture.value = to_svg(self.scene(), f"checkpoints-{self.picture.model_id}")

    def scene(self) -> Scene:
        return compose(self.steps, [self.segment.value], self.depth.value, over=True)

    def _still(self) -> Picture:
        return to_picture(self.scene(), Small)


def _slider(description: str, value: int, least: int, most: int, wide: str) -> widgets.IntSlider:
    return widgets.IntSlider(
        value=value,
        min=least,
        max=most,
        description=description,
        layout=widgets.Layout(width="270px"),
        style={"description_width": wide},
    )
