"""The checkpoint explorer: the bytes alive over one training step, with sliders for the segment and the
depth."""

from __future__ import annotations

import math

import torch
from torch import nn

from course_utils.draw.checkpoint_steps import Stack
from course_utils.draw.checkpoints import compose, curve_sizes
from course_utils.draw.shapes import Scene, Small
from course_utils.explore.controls import slider, wrapped
from course_utils.explore.explorer import Explorer
from course_utils.wrong_use import public

WIDE, ROWS, DEPTH, SEGMENT = 32, 64, 36, 6


@public
def checkpoints() -> CheckpointExplorer:
    """An explorer of what `draw.checkpoints` draws for a stack of layers, a Linear with a GELU each: a slider
    for the layers in a segment, 0 for no checkpoint, and one for the depth."""
    with torch.random.fork_rng(devices=()):
        layers = [nn.Sequential(nn.Linear(WIDE, WIDE), nn.GELU()) for _ in range(DEPTH)]
    return CheckpointExplorer(Stack(layers, torch.zeros(ROWS, WIDE), "explore.checkpoints"))


class CheckpointExplorer(Explorer):
    """The widget. `segment` and `depth` are the sliders."""

    still = Small

    def __init__(self, stack: Stack) -> None:
        self.stack, most = stack, len(stack.layers)
        self.segment = slider("segment", SEGMENT, 0, most, width=270)
        # Each depth is a new curve: it is recorded when the slider rests.
        self.depth = slider("depth", most, 1, most, width=270, label=40, continuous_update=False)
        super().__init__(wrapped([self.segment, self.depth]), follows=[self.segment, self.depth])
        self.draw()

    def draw(self) -> None:
        with self._silent():
            self.segment.max = self.depth.value  # takes a value beyond it along
        super().draw()

    def scene(self) -> Scene:
        depth, segment = self.depth.value, self.segment.value
        # The depth that it opens with has the whole curve, another a few sizes and those that were looked at.
        sizes = {segment, *(_few(depth) if depth < len(self.stack.layers) else (0, *curve_sizes(depth)))}
        steps = {size: self.stack.record(size, depth) for size in sorted(sizes | self.stack.recorded(depth))}
        return compose(steps, [segment], depth, over=True)


def _few(depth: int) -> set[int]:
    """The sizes that show a curve. The lowest peak is among them: a layer here keeps two tensors of its
    input's size, so the bytes go with `depth / size + 2 * size`."""
    lowest = math.sqrt(depth / 2)
    return {0, 1, math.floor(lowest), math.ceil(lowest), math.ceil(math.sqrt(depth)), depth}
