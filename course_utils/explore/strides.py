"""The stride explorer: a live tensor over its storage, with controls for what makes views of it."""

from __future__ import annotations

from html import escape

import ipywidgets as widgets
from torch import Tensor

from course_utils.draw import palette
from course_utils.draw.labels import counted
from course_utils.draw.layout import MOST_DIMENSIONS, Layout, same_storage
from course_utils.draw.shapes import Scene
from course_utils.draw.strides import compose
from course_utils.explore.controls import button, move, slider, wrapped
from course_utils.explore.explorer import COLOUR, Explorer
from course_utils.explore.goal import Goal
from course_utils.explore.history import History
from course_utils.explore.panels import panels_for
from course_utils.wrong_use import public

MONO = 'font-family:ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace'


@public
def strides(x: Tensor, goal: Tensor | None = None, name: str = "x") -> StrideExplorer:
    """An explorer of `x`, a tensor with up to four dimensions, called `name` in the code it shows.

    With a `goal` it asks for a picture and says when it is reached: a view of `x` asks for the same elements
    of the same storage, a tensor with a storage of its own for the same values, by whatever way. Raises
    `TypeError` for what has no strides and `ValueError` for what is too large.
    """
    return StrideExplorer(x, goal, name)


class StrideExplorer(Explorer):
    """The widget. `tensor` is the tensor that is shown, `code` the expression that made it, `index` the lit
    element (None where there are no elements)."""

    def __init__(self, x: Tensor, goal: Tensor | None = None, name: str = "x") -> None:
        self.history = History(x, name)
        self.goal = Goal(goal, x) if goal is not None else None
        self.index: tuple[int, ...] | None = None
        self._drawn = x

        self.line = widgets.HTML(layout=widgets.Layout(flex="1 1 auto", min_width="0"))
        self.undo_button = button("Undo", self.undo)
        self.reset_button = button("Reset", self.reset)
        self.message = widgets.HTML()
        self.index_sliders = [slider(f"index[{d}]", 0, 0, 1) for d in range(MOST_DIMENSIONS)]
        self.walk = slider("in order", 0, 0, 1, label=60)
        self.play = widgets.Play(
            interval=500, tooltip="One element after another", layout=widgets.Layout(width="130px")
        )
        widgets.link((self.play, "value"), (self.walk, "value"))
        self.panels = panels_for(self)
        self.menu = widgets.ToggleButtons(
            options=list(self.panels), style={"button_width": "auto"}, layout=widgets.Layout(width="100%")
        )
        self.panel = widgets.Box()
        self.walk_row = widgets.HBox([self.play, self.walk])
        self.index_row = wrapped([])
        top = widgets.HBox([self.line, self.undo_button, self.reset_button])
        super().__init__(top, self.menu, self.panel, self.message, self.index_row)
        for one in self.index_sliders:
            one.observe(self._index_moved, "value")
        self.walk.observe(self._walked, "value")
        self.menu.observe(lambda change: self._open(change["new"]), "value")
        self._open(self.menu.value)
        self._arrive()

    # --- what is done ------------------------------------------------------------------------------------

    @property
    def tensor(self) -> Tensor:
        return self.history.tensor

    @property
    def code(self) -> str:
        return self.history.code

    @property
    def reached(self) -> bool:
        """Whether the goal is reached; False where there is none."""
        return self.goal is not None and self.goal.judge(self.tensor).reached

    def do(self, code: str) -> bool:
        """Does what `code` says, such as `.t()[1:]`, to the tensor. Where that fails, says why, leaves
        everything as it was and returns False."""
        try:
            self.history.apply(code)
        except Exception as error:  # whatever torch says to the code is what there is to show
            self._say_failed(code, error)
            return False
        self._arrive()
        return True

    def undo(self) -> None:
        self.history.undo()
        self._arrive()

    def reset(self) -> None:
        self.history.reset()
        self.index = None
        self._arrive()

    def light(self, *index: int) -> None:
        """Lights element `index`. Raises `IndexError` where the tensor has no such element."""
        Layout.of(self.tensor).address(index)
        self.index = tuple(index)
        self._set_index_sliders()
        self.draw()

    def scene(self, title: bool = False) -> Scene:
        """The picture that is shown; with `title`, headed by the code."""
        copied = self.history.copied_at
        origin = (
            f"a new storage: {copied.code} has copied" if copied else f"the storage of {self.history.name}"
        )
        return compose(
            self.tensor,
            self.index,
            code=self.code,
            origin=origin,
            goal=self.goal.target if self.goal else None,
            goal_words=", by views alone" if self.goal and self.goal.shares else ", by any means",
            title=title,
        )

    def still_scene(self) -> Scene:
        return self.scene(title=True)

    # --- after a change -----------------------------------------------------------------------------------

    def _arrive(self) -> None:
        """Shows the tensor that the history has come to."""
        layout = Layout.of(self.tensor)
        self.index = _followed(self.index, self._lit_place(), layout)
        self._drawn = self.tensor
        with self._silent():
            for panel in self.panels.values():
                panel.fit(layout)
        self._set_index_sliders()
        self.undo_button.disabled = self.reset_button.disabled = not self.history.steps
        self.line.value = _code_line(self.history)
        self._say_arrived()
        self.draw()

    def _lit_place(self) -> int | None:
        """Where in the storage of the tensor the element lies that was lit last; None where it does not."""
        same = same_storage(self._drawn, self.tensor) and self._drawn.dtype == self.tensor.dtype
        return Layout.of(self._drawn).address(self.index) if same and self.index is not None else None

    def _set_index_sliders(self) -> None:
        size, numel = tuple(self.tensor.size()), self.tensor.numel()
        row: list[widgets.Widget] = self.index_sliders[: len(size)]
        with self._silent():
            for dim, one in enumerate(row):
                one.disabled = self.index is None
                move(one, self.index[dim] if self.index else 0, max(size[dim] - 1, 0))
            if self.index is not None and numel > 1:
                self.play.max = numel - 1
                move(self.walk, Layout.of(self.tensor).place(self.index), numel - 1)
                row = [*row, self.walk_row]
            if tuple(row) != self.index_row.children:
                self.index_row.children = row

    def _index_moved(self, change: dict) -> None:
        if not self._quiet and self.index is not None:
            self.light(*(one.value for one in self.index_sliders[: self.tensor.dim()]))

    def _walked(self, change: dict) -> None:
        if not self._quiet and self.index is not None:
            self.light(*Layout.of(self.tensor).index(change["new"]))

    def _open(self, name: str) -> None:
        self.panel.children = [self.panels[name].box]

    # --- what is said -------------------------------------------------------------------------------------

    def _say_arrived(self) -> None:
        verdict = self.goal.judge(self.tensor) if self.goal else None
        if verdict and verdict.reached:
            steps = counted(len(self.history.steps), "step")
            self.message.value = _note(f"<b>✓ Reached</b> in {steps}: {_code(self.code)}", palette.RANK)
        else:
            said = verdict.text if verdict else ""
            self.message.value = _note(escape(said), palette.SAVED) if said else ""

    def _say_failed(self, code: str, error: Exception) -> None:
        words = str(error).strip().split("\n")[0]
        said = f"<b>✗</b> {_code(self.code + code)} raises {type(error).__name__}:<br>{_code(words)}"
        reason = self.history.why_not(code)
        if reason is not None:
            said += f"<br>{escape(reason)}"
        self.message.value = _note(said, palette.ODD)


# --- parts -------------------------------------------------------------------------------------------------


def _followed(index: tuple[int, ...] | None, address: int | None, layout: Layout) -> tuple[int, ...] | None:
    """The element to light in a new layout: the one at the same place of the storage if there is one, else
    the one with the nearest index."""
    if not layout.numel:
        return None
    alike = index is not None and len(index) == len(layout.size)
    if address is not None:
        stays = alike and all(i < n for i, n in zip(index, layout.size, strict=True))
        if stays and layout.address(index) == address:
            return index
        if (found := layout.find(address)) is not None:
            return found
    if not alike:
        return tuple(n - 1 for n in layout.size)
    return tuple(min(i, n - 1) for i, n in zip(index, layout.size, strict=True))


def _code(text: str) -> str:
    return f"<span style='{MONO};overflow-wrap:anywhere'>{escape(text)}</span>"


def _code_line(history: History) -> str:
    contiguous = "contiguous" if history.tensor.is_contiguous() else "not contiguous"
    return (
        f"<div style='{COLOUR};font-size:15px;line-height:1.5'><b>{_code(history.code)}</b>"
        f"&emsp;<span style='font-size:13px'>{contiguous}</span></div>"
    )


def _note(html: str, colour: str) -> str:
    style = f"{COLOUR};border-left:4px solid {colour};padding:3px 10px;margin:4px 0;line-height:1.45"
    return f"<div style='{style}'>{html}</div>"
