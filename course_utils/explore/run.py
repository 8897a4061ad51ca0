"""The run explorer: a recorded training run, and a healthy one over it, step by step and layer by layer."""

from __future__ import annotations

from course_utils.draw.run import compose
from course_utils.draw.run_rows import Compared
from course_utils.draw.shapes import Scene, Small
from course_utils.explore.controls import dropdown, slider, wrapped
from course_utils.explore.explorer import Explorer
from course_utils.measure.training import Run
from course_utils.wrong_use import public


@public
def run(sick: Run, healthy: Run) -> RunExplorer:
    """An explorer of what `draw.run` draws: a slider for the step whose numbers are shown, and a choice of a
    layer whose row is higher. Raises as `draw.run`."""
    return RunExplorer(Compared([sick, healthy]))


class RunExplorer(Explorer):
    """The widget. `both` is what was compared."""

    still = Small

    def __init__(self, both: Compared) -> None:
        self.both = both
        at = both.parting.step if both.parting else both.steps - 1
        self.slider = slider("step", at, 0, both.steps - 1, width=380, label=36)
        layers = [("all alike", None), *((row.name, row.name) for row in both.layers)]
        self.layer = dropdown("layer", layers, width=300)
        controls = [self.slider, self.layer]
        super().__init__(wrapped(controls), follows=controls)
        self.draw()

    def scene(self) -> Scene:
        return compose(self.both, self.slider.value, self.layer.value)
