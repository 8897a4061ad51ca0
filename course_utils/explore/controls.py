"""The controls of a widget, with the sizes that they have everywhere in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import ipywidgets as widgets


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


def slider_of(description: str) -> widgets.IntSlider:
    return widgets.IntSlider(
        min=0,
        max=1,
        description=description,
        style={"description_width": "58px"},
    )


def spread(sliders: Sequence[widgets.IntSlider]) -> None:
    """Makes sliders as wide as fits into a row; four stand in two rows."""
    width = "230px" if len(sliders) == 3 else "345px"
    for slider in sliders:
        slider.layout.width = width


def wrapped(row: Sequence[widgets.Widget]) -> widgets.HBox:
    return widgets.HBox(row, layout=widgets.Layout(flex_flow="row wrap"))


def number_box(description: str, value: int) -> widgets.IntText:
    return widgets.IntText(
        value,
        description=description,
        layout=widgets.Layout(width="120px"),
        style={"description_width": "50px"},
    )


def dropdown(description: str) -> widgets.Dropdown:
    return widgets.Dropdown(
        description=description, layout=widgets.Layout(width="100px"), style={"description_width": "40px"}
    )


def button(description: str, run: Callable[[], object], width: str = "72px") -> widgets.Button:
    made = widgets.Button(description=description, layout=widgets.Layout(width=width, flex="0 0 auto"))
    made.on_click(lambda clicked: run())
    return made
