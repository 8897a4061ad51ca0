"""The graph explorer: the live graph behind a tensor, and a real backward to step through."""

from __future__ import annotations

from torch import Tensor

from course_utils.draw.graph import Drawing
from course_utils.draw.shapes import Scene
from course_utils.explore.explorer import Stepper
from course_utils.wrong_use import public


@public
def graph(output: Tensor, /, **names: Tensor) -> GraphExplorer:
    """An explorer of the graph behind `output`, a tensor that requires a gradient.

    Tensors given by name, as in `w=w`, are called so in it. Backward begins with ones. It is run when a
    reader first asks for a step, once, and leaves every `.grad` and the graph as they were; hooks on tensors
    run as in any backward. Raises `ValueError` as `draw.graph`.
    """
    return GraphExplorer(Drawing(output, names))


class GraphExplorer(Stepper):
    """The widget. `step` is the number of steps of the backward that are shown. It keeps the graph alive."""

    def __init__(self, drawing: Drawing) -> None:
        self.drawing = drawing
        super().__init__("step", "Backward ▶", "Graph")
        self.go(None)

    def last(self) -> int:
        # In a browser the key End goes no further than to the end that a slider had when it was first shown,
        # so that one is far enough for every backward.
        return self.drawing.last if self.drawing.recording else len(self.drawing.graph.ops)

    def go(self, step: int | None) -> None:
        """To the state after so many steps of the backward; the first time, it is run and recorded."""
        if step is not None and not self.drawing.recording:
            self.drawing.run()
        super().go(step)
        self.forward_button.description = "Backward ▶" if step is None else "Step ▶"
        self.forward_button.layout.width = "100px" if step is None else "72px"
        self.slider.disabled = not self.drawing.recording

    def scene(self) -> Scene:
        return self.drawing.scene(self.step)

    def said(self) -> list[str]:
        if self.step is None:
            return []
        first, *others = self.drawing.tell(self.step)
        return [f"{self.step} of {self.drawing.last}: {first}", *others]
