"""The panels of the stride explorer: one for each operation, with a button that is labelled with its code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import ipywidgets as widgets

from course_utils.draw.layout import MOST_DIMENSIONS, Layout, bounds
from course_utils.explore import operations as on
from course_utils.explore.controls import (
    button,
    dropdown,
    fit_dimensions,
    move,
    number_box,
    slider_of,
    spread,
    wrapped,
)

if TYPE_CHECKING:
    from course_utils.explore.strides import StrideExplorer


class Panel:
    """The controls of one operation and the button that does it, labelled with its code."""

    def __init__(self, explorer: StrideExplorer, controls: Sequence[widgets.Widget]) -> None:
        self.explorer = explorer
        self.controls = list(controls)
        self.size: tuple[int, ...] = ()
        self.button = button("", self.run, width="auto")
        self.button.style.font_family = "monospace"
        self.button.button_style = "primary"
        self.box = widgets.HBox(
            [*self.controls, self.button], layout=widgets.Layout(flex_flow="row wrap", align_items="center")
        )
        for control in self.controls:
            control.observe(lambda change: self.label(), "value")

    def code(self) -> str:
        """What the button does. Raises `ValueError` where the controls say nothing that can be done."""
        raise NotImplementedError

    def fit(self, layout: Layout) -> None:
        """Sets the controls to what can be done with a tensor of this layout."""
        self.size = layout.size
        self.label()

    def label(self) -> None:
        try:
            self.button.description, self.button.disabled = self.code(), False
        except ValueError:
            self.button.description, self.button.disabled = "—", True

    def run(self) -> None:
        self.explorer.do(self.code())


class DimPanel(Panel):
    """An operation on one dimension, which a dropdown chooses."""

    def __init__(self, explorer: StrideExplorer, controls: Sequence[widgets.Widget] = ()) -> None:
        self.dim = dropdown("dim")
        self.dim.observe(lambda change: self.fit_dim(), "value")
        super().__init__(explorer, [self.dim, *controls])

    def fit(self, layout: Layout) -> None:
        self.size = layout.size
        fit_dimensions(self.dim, len(self.size))
        self.fit_dim()
        self.label()

    def fit_dim(self) -> None:
        """Sets the other controls to what the chosen dimension has."""

    def chosen(self) -> int:
        if self.dim.value is None:
            raise ValueError("no dimension")
        return self.dim.value

    def length(self) -> int:
        return self.size[self.dim.value] if self.dim.value is not None else 0


class TransposePanel(Panel):
    def __init__(self, explorer: StrideExplorer) -> None:
        self.a, self.b = dropdown("dims"), dropdown("and")
        super().__init__(explorer, [self.a, self.b])

    def fit(self, layout: Layout) -> None:
        n = len(layout.size)
        fresh = n != len(self.size) or self.a.value is None
        fit_dimensions(self.a, n)
        fit_dimensions(self.b, n)
        if fresh and n > 1:
            self.a.value, self.b.value = n - 2, n - 1
        super().fit(layout)

    def code(self) -> str:
        if self.a.value is None or self.b.value is None:
            raise ValueError("no dimension")
        return on.transpose(len(self.size), self.a.value, self.b.value)


class SlicePanel(DimPanel):
    def __init__(self, explorer: StrideExplorer) -> None:
        self.range = widgets.IntRangeSlider(
            value=(1, 2),
            min=0,
            max=2,
            layout=widgets.Layout(width="260px"),
            style={"description_width": "70px"},
        )
        self.range.description = "start:stop"
        self.step = number_box("step", 1)
        super().__init__(explorer, [self.range, self.step])

    def fit_dim(self) -> None:
        if self.range.max != self.length():
            self.range.max = self.length()
            self.range.value = (min(1, self.length()), self.length())

    def code(self) -> str:
        start, stop = self.range.value
        return on.slice_of(self.chosen(), start, stop, max(self.step.value, 1), self.length())


class SelectPanel(DimPanel):
    def __init__(self, explorer: StrideExplorer) -> None:
        self.at = number_box("at", 0)
        super().__init__(explorer, [self.at])

    def code(self) -> str:
        return on.select(self.chosen(), self.at.value)


class NarrowPanel(DimPanel):
    def __init__(self, explorer: StrideExplorer) -> None:
        self.start, self.size_ = number_box("start", 0), number_box("length", 1)
        super().__init__(explorer, [self.start, self.size_])

    def code(self) -> str:
        return on.narrow(self.chosen(), self.start.value, self.size_.value)


class FlipPanel(DimPanel):
    def code(self) -> str:
        return on.flip(self.chosen())


class ShapePanel(Panel):
    """`expand`, `reshape` or `view` to a shape that is typed."""

    def __init__(self, explorer: StrideExplorer, method: str) -> None:
        self.method = method
        self.shape = widgets.Text(
            description="shape",
            placeholder="3, -1",
            layout=widgets.Layout(width="220px"),
            style={"description_width": "50px"},
        )
        self.typed = False
        super().__init__(explorer, [self.shape])

    def fit(self, layout: Layout) -> None:
        if not self.size and not self.shape.value:
            example = (2, *layout.size) if self.method == "expand" else (-1,)
            self.shape.value = ", ".join(map(str, example))
        super().fit(layout)

    def code(self) -> str:
        return on.shaped(self.method, on.numbers(self.shape.value))


class StridedPanel(Panel):
    """Size, stride and offset as sliders: each move is an `as_strided`, and none leaves the storage."""

    def __init__(self, explorer: StrideExplorer) -> None:
        dims = range(MOST_DIMENSIONS)
        self.sizes = [slider_of(f"size[{d}]") for d in dims]
        self.strides = [slider_of(f"stride[{d}]") for d in dims]
        self.offset = slider_of("offset")
        spread([self.offset, self.offset])
        super().__init__(explorer, [])
        self.box = widgets.VBox()
        for slider in (*self.sizes, *self.strides, self.offset):
            slider.observe(self.moved, "value")

    def fit(self, layout: Layout) -> None:
        limits, n = bounds(layout), len(layout.size)
        for d in range(n):
            move(self.sizes[d], layout.size[d], limits.size[d])
            move(self.strides[d], layout.stride[d], limits.stride[d])
        move(self.offset, layout.offset, limits.offset)
        if n != len(self.size) or not self.box.children:
            rows = [self.sizes[:n], self.strides[:n], [self.offset]]
            self.box.children = [wrapped(row) for row in rows if row]
            spread(self.sizes[:n])
            spread(self.strides[:n])
        self.size = layout.size

    def code(self) -> str:
        n = len(self.size)
        size, stride = ([s.value for s in sliders[:n]] for sliders in (self.sizes, self.strides))
        return on.as_strided(size, stride, self.offset.value)

    def moved(self, change: dict) -> None:
        if not self.explorer._quiet:
            self.run()


def panels_for(explorer: StrideExplorer) -> dict[str, Panel]:
    return {
        "transpose": TransposePanel(explorer),
        "slice": SlicePanel(explorer),
        "select": SelectPanel(explorer),
        "narrow": NarrowPanel(explorer),
        "expand": ShapePanel(explorer, "expand"),
        "flip": FlipPanel(explorer),
        "reshape": ShapePanel(explorer, "reshape"),
        "view": ShapePanel(explorer, "view"),
        "as_strided": StridedPanel(explorer),
    }
