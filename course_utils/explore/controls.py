"""The controls of a widget, with the sizes that they have everywhere in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ipywidgets as widgets


def _labelled(made: widgets.Widget, width: int, label: int) -> Any:
    made.layout.width, made.style.description_width = f"{width}px", f"{label}px"
    made.tooltip = made.description  # without one the page says "null" to who points at it, or listens
    return made


def slider(
    description: str, value: Any, least: Any, most: Any, *, width: int = 300, label: int = 58, **more: Any
) -> Any:
    """A slider from `least` to `most` for an int, a float or two floats, `width` pixels wide, `label` of them
    for its description."""
    kind = {int: widgets.IntSlider, float: widgets.FloatSlider, tuple: widgets.FloatRangeSlider}[type(value)]
    made = kind(value=value, min=least, max=most, description=description, **more)
    return _labelled(made, width, label)


def dropdown(
    description: str, options: Sequence[Any] = (), *, width: int = 100, label: int = 40
) -> widgets.Dropdown:
    return _labelled(widgets.Dropdown(options=options, description=description), width, label)


def number_box(description: str, value: int) -> widgets.IntText:
    return _labelled(widgets.IntText(value, description=description), 120, 50)


def text_box(description: str, *, label: int = 50, **more: Any) -> widgets.Text:
    return _labelled(widgets.Text(description=description, **more), 220, label)


def button(description: str, run: Callable[[], object], width: str = "72px") -> widgets.Button:
    made = widgets.Button(description=description, layout=widgets.Layout(width=width, flex="0 0 auto"))
    made.on_click(lambda clicked: run())
    return made


def wrapped(row: Sequence[widgets.Widget]) -> widgets.HBox:
    return widgets.HBox(row, layout=widgets.Layout(flex_flow="row wrap", align_items="center"))


def move(slider: widgets.IntSlider, value: int, most: int) -> None:
    """Moves a slider and its end; `value` is at most `most`."""
    slider.max = most  # takes a value beyond it along
    slider.value = value


def fit_dimensions(choice: widgets.Dropdown, dimensions: int) -> None:
    """Offers so many dimensions; the one that is chosen stays where it can."""
    options = tuple(range(dimensions))
    if choice.options != options:
        kept = choice.value
        choice.options = options
        if options:
            choice.value = kept if kept in options else 0
    choice.disabled = not options
