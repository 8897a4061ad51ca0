"""The module explorer: a live model as a tree to unfold, with what is saved, moved, trained or shared lit."""

from __future__ import annotations

import ipywidgets as widgets
from torch import nn

from course_utils.draw.module_tree import BADGES, Node, must_be_module, read
from course_utils.draw.modules import MOST, compose, levels, rows_of
from course_utils.draw.shapes import Scene, to_svg
from course_utils.explore.controls import slider_of, wrapped
from course_utils.explore.explorer import Explorer


def modules(model: nn.Module) -> ModulesExplorer:
    """An explorer of a model as a tree of modules and tensors, as `draw.modules` draws it: choose a module,
    how many levels of it are open, and which badge is lit. Raises `TypeError` for what is no module."""
    must_be_module(model, "explore.modules")
    return ModulesExplorer(model)


class ModulesExplorer(Explorer):
    """The widget. Its controls are `chosen` (a path), `depth` (open levels) and `lit` (a badge)."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.chosen = widgets.Dropdown(
            description="module", layout=widgets.Layout(width="320px"), style={"description_width": "52px"}
        )
        self.depth = slider_of("open levels")
        self.depth.style.description_width = "76px"
        self.lit = widgets.ToggleButtons(
            options=[("nothing", ""), *((badge, badge) for badge in BADGES)],
            description="light",
            style={"button_width": "84px", "description_width": "52px"},
        )
        self.picture = widgets.HTML()
        super().__init__(layout=widgets.Layout(max_width="720px"))
        self.children = [wrapped([self.chosen, self.depth]), self.lit, self.picture]
        self.redraw()
        self.chosen.observe(lambda change: self.pick(change["new"]), "value")
        for control in (self.depth, self.lit):
            control.observe(lambda change: self._draw(), "value")

    def redraw(self) -> None:
        """Looks at the model again. Needed by itself only after a change from another cell."""
        self.tree = read(self.model)
        paths = [node.path for node in self.tree.walk() if node.held or node.below or not node.path]
        kept = self.chosen.value if self.chosen.value in paths else ""
        with self._silent():
            self.chosen.options = [(path or "the model", path) for path in paths]
        self.pick(kept)

    def pick(self, path: str) -> None:
        """Shows the module at `path`, with as many levels open as there is room for."""
        if self._quiet:
            return
        with self._silent():
            self.chosen.value = path
            most = depth = levels(self._node())
            while depth > 1 and len(rows_of(self._node(), depth)) > MOST:
                depth -= 1
            self.depth.max = max(most, 1)
            self.depth.value = depth
        self._draw()

    def scene(self) -> Scene:
        """The picture that is shown."""
        return compose(self._node(), self.depth.value, self.lit.value)

    def _node(self) -> Node:
        return next(node for node in self.tree.walk() if node.path == self.chosen.value)

    def _draw(self) -> None:
        if not self._quiet:
            self.picture.value = to_svg(self.scene(), f"modules-{self.model_id}")
