"""The graph explorer: the live graph behind a tensor, and a real backward to step through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

import ipywidgets as widgets
from torch import Tensor

from course_utils.draw.graph import Drawing
from course_utils.draw.graph_fold import MOST
from course_utils.draw.graph_nodes import read
from course_utils.draw.picture import Picture
from course_utils.draw.shapes import Scene, to_svg
from course_utils.explore.controls import button
from course_utils.explore.explorer import COLOUR, Explorer

# A picture that is higher than this follows the step, so that the controls stay in sight.
WINDOW = 640.0


def graph(
    *outputs: Tensor,
    params: Mapping[str, Tensor] | None = None,
    gradient: Sequence[Tensor] | Tensor | None = None,
    most: int = MOST,
    **names: Tensor,
) -> GraphExplorer:
    """An explorer of the graph behind `outputs`, tensors that require a gradient.

    Tensors given by name (`w=w`, or `params=dict(module.named_parameters())`) are called so in it. Backward
    begins with `gradient`, one for each output (default: ones). It is run when a reader first asks for a
    step, once, and leaves every `.grad` and the graph as they were; hooks on tensors run as in any backward.
    Beyond about `most` nodes parts are folded. Raises `ValueError` for a tensor that has no graph.
    """
    return GraphExplorer(outputs, params, gradient, most, names)


class GraphExplorer(Explorer):
    """The widget. `step` is the number of steps of the backward that are shown; None before one was asked
    for. It keeps the graph alive until it is closed."""

    def __init__(
        self,
        outputs: Sequence[Tensor],
        params: Mapping[str, Tensor] | None = None,
        gradient: Sequence[Tensor] | Tensor | None = None,
        most: int = MOST,
        names: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.drawing: Drawing | None = Drawing(read(outputs, params, names), most=most)
        self.gradient = gradient
        self.step: int | None = None

        self.back_button = button("◀ Back", self.back)
        self.forward_button = button("Step ▶", self.forward)
        self.graph_button = button("Graph", self.leave, width="64px")
        self.slider = widgets.IntSlider(
            min=0,
            max=1,
            description="step",
            disabled=True,
            layout=widgets.Layout(width="300px"),
            style={"description_width": "36px"},
        )
        self.saved_box = widgets.Checkbox(
            True, description="saved tensors", indent=False, layout=widgets.Layout(width="130px")
        )
        self.message = widgets.HTML()
        self.picture = widgets.HTML()
        super().__init__(layout=widgets.Layout(max_width="720px"))
        self.children = [
            widgets.HBox(
                [self.graph_button, self.back_button, self.forward_button, self.slider, self.saved_box],
                layout=widgets.Layout(flex_flow="row wrap", align_items="center"),
            ),
            self.message,
            self.picture,
        ]
        self.slider.observe(self._slid, "value")
        self.saved_box.observe(self._chosen, "value")
        self._show()

    # --- what is done ------------------------------------------------------------------------------------

    def forward(self) -> None:
        """One step on; the first time, backward is run and recorded."""
        self.go(0 if self.step is None else self.step + 1)

    def back(self) -> None:
        """One step back; before the first, the graph alone."""
        if self.step:
            self.go(self.step - 1)
        else:
            self.leave()

    def go(self, step: int) -> None:
        """To the state after so many steps of the backward."""
        drawing = self._open()
        if drawing.recording is None:
            drawing.run(self.gradient)
        self.step = max(0, min(step, drawing.last))
        self._show()

    def leave(self) -> None:
        """Shows the graph alone."""
        self.step = None
        self._show()

    def redraw(self) -> None:
        """Looks again at what is saved, and draws that. Needed by itself only after a backward or a write
        from another cell."""
        self._open().look()
        self._show()

    def scene(self) -> Scene:
        """The picture that is shown."""
        return self._open().scene(self.step)

    def close(self) -> None:
        """Lets go of the graph."""
        self.drawing = self.gradient = None
        super().close()

    def _still(self) -> Picture | None:
        return None if self.drawing is None else super()._still()

    # --- after a change -----------------------------------------------------------------------------------

    def _open(self) -> Drawing:
        if self.drawing is None:
            raise RuntimeError("this explorer was closed; the graph is no longer kept")
        return self.drawing

    def _show(self) -> None:
        drawing, scene = self._open(), self.scene()
        crop = None
        if self.step is not None and scene.height > WINDOW:
            top, bottom = drawing.around(self.step)
            # More of what comes than of what has been.
            start = max(0.0, min((top + bottom) / 2 - 0.4 * WINDOW, scene.height - WINDOW))
            crop = (start, start + WINDOW)
        self.picture.value = to_svg(scene, f"graph-{self.model_id}", crop)
        self.message.value = self._said()
        with self._silent():
            self.slider.disabled = drawing.recording is None or not drawing.last
            # In a browser the key End goes no further than to the end that a slider had when it was first
            # shown, so that one is far enough for every backward.
            self.slider.max = max(drawing.last, 1) if drawing.recording else len(drawing.graph.ops)
            self.slider.value = self.step or 0
        self.back_button.disabled = self.graph_button.disabled = self.step is None
        self.forward_button.disabled = self.step is not None and self.step >= drawing.last
        self.forward_button.description = "Backward ▶" if self.step is None else "Step ▶"
        self.forward_button.layout.width = "100px" if self.step is None else "72px"

    def _said(self) -> str:
        if self.step is None:
            return ""
        drawing = self._open()
        first, *others = drawing.tell(self.step) or [""]
        said = f"<b>{self.step} of {drawing.last}</b>&emsp;{escape(first)}"
        said += "".join(
            f"<div style='padding-left:1.6em;text-indent:-.8em'>{escape(words)}</div>" for words in others
        )
        if self.step == 0 and drawing.recording.printed:
            printed = escape(drawing.recording.printed)
            said += f"<div>Your hooks printed:</div><pre style='margin:0'>{printed}</pre>"
        # As high as most steps need, so that the picture below stays where it is.
        return f"<div style='{COLOUR};line-height:1.45;min-height:62px;margin:2px 0'>{said}</div>"

    def _slid(self, change: dict) -> None:
        if not self._quiet:
            self.go(change["new"])

    def _chosen(self, change: dict) -> None:
        drawing = self._open()
        drawing.show_saved = change["new"]
        self.redraw()
