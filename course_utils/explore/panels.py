"""The panels of the stride explorer: one for each operation, with a button that is labelled with its code."""

from __future__ import annotations

import re
from html import escape
from typing import TYPE_CHECKING

import ipywidgets as widgets

from course_utils.draw.layout import MOST_DIMENSIONS, Layout, bounds
from course_utils.explore.controls import (
    button,
    dropdown,
    fit_dimensions,
    move,
    number_box,
    slider,
    text_box,
    wrapped,
)
from course_utils.explore.explorer import COLOUR
from course_utils.explore.history import STRIDED

if TYPE_CHECKING:
    from course_utils.explore.strides import StrideExplorer


class Panel:
    """The controls of one operation and the button that does it, labelled with its code; beside it stands why
    there is nothing to do."""

    def __init__(self, explorer: StrideExplorer, *controls: widgets.Widget) -> None:
        self.explorer, self.controls = explorer, controls
        self.size: tuple[int, ...] = ()
        self.button = button("", self.run, width="auto")
        self.button.style.font_family = "monospace"
        self.button.button_style = "primary"
        self.wrong = widgets.HTML()
        self.box = wrapped([*controls, self.button, self.wrong])
        for control in controls:
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
            code, wrong = self.code(), ""
        except ValueError as error:
            code, wrong = "", str(error)
        self.button.description, self.button.disabled = code or "—", bool(wrong)
        self.wrong.value = f"<span style='{COLOUR}'>{escape(wrong)}</span>" if wrong else ""

    def run(self) -> None:
        self.explorer.do(self.code())


class DimPanel(Panel):
    """An operation on one dimension, which a dropdown chooses: `template` is its code, with `dim`, `colons`
    for the dimensions before it, and a number for each of the other controls, which `numbers` names."""

    def __init__(self, explorer: StrideExplorer, template: str, **numbers: int) -> None:
        self.template, self.dim = template, dropdown("dim")
        super().__init__(explorer, self.dim, *(number_box(*number) for number in numbers.items()))

    def fit(self, layout: Layout) -> None:
        fit_dimensions(self.dim, len(layout.size))
        super().fit(layout)

    def code(self) -> str:
        if self.dim.value is None:
            raise ValueError("It has no dimension.")
        numbers = [control.value for control in self.controls[1:]]
        return self.template.format(*numbers, dim=self.dim.value, colons=":, " * self.dim.value)


class TransposePanel(Panel):
    def __init__(self, explorer: StrideExplorer) -> None:
        self.a, self.b = (dropdown(word, width=130, label=70) for word in ("swap dim", "with dim"))
        super().__init__(explorer, self.a, self.b)

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
            raise ValueError("It has no dimension.")
        a, b = self.a.value, self.b.value
        return ".t()" if len(self.size) == 2 and a != b else f".transpose({a}, {b})"


class SlicePanel(Panel):
    def __init__(self, explorer: StrideExplorer) -> None:
        self.dim, self.step = dropdown("dim"), number_box("step", 1)
        self.range = widgets.IntRangeSlider(
            value=(1, 2), min=0, max=2, description="start:stop", style={"description_width": "70px"}
        )
        self.dim.observe(lambda change: self.fit_dim(), "value")
        super().__init__(explorer, self.dim, self.range, self.step)

    def fit(self, layout: Layout) -> None:
        self.size = layout.size
        fit_dimensions(self.dim, len(self.size))
        self.fit_dim()
        self.label()

    def fit_dim(self) -> None:
        length = self.size[self.dim.value] if self.dim.value is not None else 0
        if self.range.max != length:
            self.range.max = length
            self.range.value = (min(1, length), length)

    def code(self) -> str:
        if (dim := self.dim.value) is None:
            raise ValueError("It has no dimension.")
        start, stop = self.range.value
        end = stop if stop < self.size[dim] else ""
        step = f":{self.step.value}" if self.step.value > 1 else ""
        return f"[{':, ' * dim}{start or ''}:{end}{step}]"


class ShapePanel(Panel):
    """`expand`, `reshape` or `view` to a shape that is typed: `3, -1`, `(3, -1)` or `3 -1`."""

    def __init__(self, explorer: StrideExplorer, method: str) -> None:
        self.method, self.shape = method, text_box("shape", placeholder="3, -1")
        super().__init__(explorer, self.shape)

    def fit(self, layout: Layout) -> None:
        if not self.size and not self.shape.value:
            example = (2, *layout.size) if self.method == "expand" else (-1,)
            self.shape.value = ", ".join(map(str, example))
        super().fit(layout)

    def code(self) -> str:
        words = re.sub(r"[(),]", " ", self.shape.value).split()
        shape = ", ".join(str(_whole(word)) for word in words)
        return f".{self.method}({shape or '()'})"


def _whole(word: str) -> int:
    try:
        return int(word)
    except ValueError:
        raise ValueError(f"Sizes are whole numbers, such as 3, -1; {word} is none.") from None


class StridedPanel(Panel):
    """Size, stride and offset as sliders: each move is an `as_strided`, and none leaves the storage."""

    def __init__(self, explorer: StrideExplorer) -> None:
        dims = range(MOST_DIMENSIONS)
        self.sizes = [slider(f"size[{d}]", 0, 0, 1) for d in dims]
        self.strides = [slider(f"stride[{d}]", 0, 0, 1) for d in dims]
        self.offset = slider("offset", 0, 0, 1)
        super().__init__(explorer)
        self.box = widgets.VBox()
        for one in (*self.sizes, *self.strides, self.offset):
            one.observe(lambda change: self.explorer._quiet or self.run(), "value")

    def fit(self, layout: Layout) -> None:
        limits, n = bounds(layout), len(layout.size)
        for d in range(n):
            move(self.sizes[d], layout.size[d], limits.size[d])
            move(self.strides[d], layout.stride[d], limits.stride[d])
        move(self.offset, layout.offset, limits.offset)
        if n != len(self.size) or not self.box.children:
            rows = [self.sizes[:n], self.strides[:n], [self.offset]]
            self.box.children = [wrapped(row) for row in rows if row]
        self.size = layout.size

    def code(self) -> str:
        n = len(self.size)
        size, stride = (tuple(s.value for s in sliders[:n]) for sliders in (self.sizes, self.strides))
        return f"{STRIDED}{size}, {stride}, {self.offset.value})"


def panels_for(explorer: StrideExplorer) -> dict[str, Panel]:
    return {
        "transpose": TransposePanel(explorer),
        "slice": SlicePanel(explorer),
        "select": DimPanel(explorer, "[{colons}{0}]", at=0),
        "narrow": DimPanel(explorer, ".narrow({dim}, {0}, {1})", start=0, length=1),
        "expand": ShapePanel(explorer, "expand"),
        "flip": DimPanel(explorer, ".flip({dim})"),
        "reshape": ShapePanel(explorer, "reshape"),
        "view": ShapePanel(explorer, "view"),
        "as_strided": StridedPanel(explorer),
    }
