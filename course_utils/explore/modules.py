"""The module explorer: a live model as a tree to unfold, with what is saved, moved, trained or shared lit."""

from __future__ import annotations

import ipywidgets as widgets
from torch import nn

from course_utils.draw.module_tree import BADGES, Node, read
from course_utils.draw.modules import compose, levels
from course_utils.draw.shapes import Scene
from course_utils.explore.controls import dropdown, slider, wrapped
from course_utils.explore.explorer import Explorer
from course_utils.wrong_use import public


@public
def modules(model: nn.Module) -> ModulesExplorer:
    """An explorer of a model as a tree of modules and tensors, as `draw.modules` draws it: choose a module,
    how many levels of it are open, and which badge is lit. Raises `TypeError` for what is no module."""
    return ModulesExplorer(read(model))


class ModulesExplorer(Explorer):
    """The widget. Its controls are `chosen` (a path), `depth` (open levels) and `lit` (a badge)."""

    def __init__(self, tree: Node) -> None:
        self.tree = tree
        inner = [node for node in tree.walk() if node.held or node.below or not node.path]
        names = [(node.path or "the model", node.path) for node in inner]
        self.chosen = dropdown("module", names, width=320, label=52)
        self.depth = slider("open levels", levels(tree), 0, max(levels(tree), 1), label=76)
        self.lit = widgets.ToggleButtons(
            options=[("nothing", ""), *((badge, badge) for badge in BADGES)],
            description="light",
            style={"button_width": "84px", "description_width": "52px"},
        )
        follows = [self.chosen, self.depth, self.lit]
        super().__init__(wrapped([self.chosen, self.depth]), self.lit, follows=follows)
        self.draw()

    def scene(self) -> Scene:
        node = next(node for node in self.tree.walk() if node.path == self.chosen.value)
        return compose(node, self.depth.value, self.lit.value)
