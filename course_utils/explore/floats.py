"""The float explorer: the bits of a number to flip, and what a format makes of a model's gradients."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import ipywidgets as widgets
import torch
from torch import nn

from course_utils.draw import palette
from course_utils.draw.floats import FILLS, compose, field_of, number
from course_utils.draw.floats_axis import Shown
from course_utils.draw.formats import FORMATS, Format, format_of
from course_utils.draw.gradients import KINDS, Gradients, Loss, record
from course_utils.draw.shapes import Scene, to_svg
from course_utils.explore.controls import button, wrapped
from course_utils.explore.explorer import COLOUR, Explorer

LARGEST_SCALE = 24  # as a power of two


def floats(
    model: nn.Module | None = None,
    batch: Any = None,
    loss: Loss = None,
    *,
    format: str | torch.dtype = "float16",
    value: float = 0.1,
    scale: float = 1,
) -> FloatsExplorer:
    """An explorer of floating-point formats: bits to click, the number that they mean, its neighbours, and
    its place in the range of the format. A number that is typed is rounded to the format.

    `format`: "float32", "tf32", "bfloat16", "float16", "float8 e4m3" or "float8 e5m2", or a dtype.

    With a `model`, its gradients by layer are drawn in the same axis, times a loss `scale`: a power of two
    up to 2**24. They are recorded once, in one forward and backward of `loss(model(batch))`, or of
    `model(batch)` where that is a loss; the model, its `.grad` and its buffers stay as they were. `batch`: a
    tensor, a tuple of arguments or a dict of keyword arguments. Raises `TypeError` and `ValueError` for what
    cannot be shown.
    """
    who = "explore.floats"
    form = format_of(format, who)
    power = math.log2(scale) if isinstance(scale, (int, float)) and scale > 0 else -1
    if power not in range(LARGEST_SCALE + 1):
        most = 2**LARGEST_SCALE
        raise ValueError(f"{who}: scale is a power of two from 1 to {most}; given was {scale!r}")
    if (model is None) != (batch is None) or model is None and loss is not None:
        given = "a model alone" if model is not None else "no model"
        raise TypeError(f"{who}: gradients are those of a model on a batch; given was {given}")
    rows = {} if model is None else record(model, batch, loss, who)
    return FloatsExplorer(form, number(value, who), rows, int(power))


class FloatsExplorer(Explorer):
    """The widget. `form` is the format, `bits` the pattern that is shown, `value` what it means, `given` the
    number that was rounded to it; `rows` are the gradients by what they are of."""

    def __init__(self, form: Format, value: float, rows: dict[str, list[Gradients]], power: int = 0) -> None:
        self.form, self.rows, self.wrong = form, rows, ""
        self.given: float | None = value
        self.bits = form.encode(value)
        self.formats = widgets.ToggleButtons(
            options=[*FORMATS], value=form.name, style={"button_width": "106px"}
        )
        self.field = widgets.Text(
            description="number",
            continuous_update=False,
            layout=widgets.Layout(width="220px"),
            style={"description_width": "54px"},
        )
        self.down_button = button("◀ Next", partial(self.step, -1))
        self.up_button = button("Next ▶", partial(self.step, 1))
        self._first, self._other = widgets.Layout(margin="0 1px 0 8px"), widgets.Layout(margin="0 1px 0 0")
        for layout in (self._first, self._other):
            layout.padding, layout.flex = "0", "0 0 auto"
        self._styles = {
            field: widgets.ButtonStyle(
                button_color=palette.FILLS[fill], text_color=palette.INK, font_weight="bold"
            )
            for field, fill in FILLS.items()
        }
        self.bit_buttons = [widgets.Button() for _ in range(32)]
        for place, one in enumerate(self.bit_buttons):
            one.on_click(lambda clicked, place=place: self.flip(place))
        self.bit_row = widgets.HBox(layout=widgets.Layout(margin="4px 0 0 -8px"))
        self.legend = widgets.HTML()
        self.scale = widgets.SelectionSlider(
            options=[(f"{2**n:,}", n) for n in range(LARGEST_SCALE + 1)],
            value=power,
            description="loss ×",
            layout=widgets.Layout(width="420px"),
            style={"description_width": "44px"},
        )
        self.kind = widgets.Dropdown(
            options=[*rows], description="gradients of", layout=widgets.Layout(width="190px")
        )
        self.picture = widgets.HTML()
        super().__init__(layout=widgets.Layout(max_width="720px"))
        self.children = [
            self.formats,
            wrapped([self.field, self.down_button, self.up_button]),
            self.bit_row,
            self.legend,
            *([wrapped([self.scale, self.kind])] if rows else []),
            self.picture,
        ]
        self.formats.observe(lambda change: self.to_format(change["new"]), "value")
        self.field.observe(lambda change: self.type(change["new"]), "value")
        for control in (self.scale, self.kind):
            control.observe(lambda change: self._draw(), "value")
        self._lay_out()
        self._show()

    @property
    def value(self) -> float:
        return self.form.decode(self.bits)

    # --- what is done ------------------------------------------------------------------------------------

    def flip(self, place: int) -> None:
        """Flips a bit; they are counted from the left, the sign is 0."""
        self._set(self.bits ^ 1 << self.form.width - 1 - place)

    def step(self, by: int) -> None:
        """To the next smaller (-1) or larger (1) number, where there is one."""
        to = self.form.neighbours(self.bits)[by > 0]
        if to is not None:
            self._set(self.form.encode(to))

    def type(self, text: str) -> None:
        """Rounds the number that `text` says to the format."""
        if self._quiet:
            return
        base, power, exponent = text.replace("**", "^").replace("−", "-").partition("^")
        try:
            given = float(base) ** float(exponent) if power else float(base)
        except (ValueError, OverflowError, ZeroDivisionError):
            self.wrong = f"“{text}” is no number; type one such as 0.1, 1e-8, 2^-24, inf or nan"
            self._draw()
            return
        self._set(self.form.encode(given), given)

    def to_format(self, name: str) -> None:
        """Rounds the number that was given, or is shown, to another format."""
        given = self.value if self.given is None else self.given
        self.form = format_of(name, "explore.floats")
        self._lay_out()
        self._set(self.form.encode(given), given)

    def scene(self) -> Scene:
        """The picture of all that is shown, bits included."""
        return compose(self._shown())

    # --- after a change -----------------------------------------------------------------------------------

    def _set(self, bits: int, given: float | None = None) -> None:
        self.bits, self.given, self.wrong = bits, given, ""
        self._show()

    def _lay_out(self) -> None:
        """Offers as many bits as the format has."""
        wide = "19px" if self.form.width > 19 else "28px"
        self._first.width = self._other.width = wide
        starts = (0, 1, 1 + self.form.exponent)
        buttons = self.bit_buttons[: self.form.width]
        for place, one in enumerate(buttons):
            field = field_of(self.form, place)
            one.style, one.tooltip = self._styles[field], f"{field} bit"
            one.layout = self._first if place in starts else self._other
        self.bit_row.children = buttons
        counts = zip(FILLS.items(), (1, self.form.exponent, self.form.mantissa), strict=True)
        chips = "&emsp;".join(
            f"<span style='background:{palette.FILLS[fill]};padding:0 5px'>&nbsp;</span> {count} {field}"
            for (field, fill), count in counts
        )
        self.legend.value = f"<div style='{COLOUR};line-height:1.4'>{chips}&emsp;click a bit to flip it</div>"

    def _shown(self) -> Shown:
        rows, about = self.rows.get(self.kind.value, ()), KINDS.get(self.kind.value, "")
        return Shown(self.form, self.bits, self.given, self.wrong, rows, about, 2**self.scale.value)

    def _show(self) -> None:
        for place, one in enumerate(self.bit_buttons[: self.form.width]):
            one.description = str(self.bits >> self.form.width - 1 - place & 1)
        below, above = self.form.neighbours(self.bits)
        self.down_button.disabled, self.up_button.disabled = below is None, above is None
        with self._silent():
            self.field.value = repr(self.value if self.given is None else self.given)
        self._draw()

    def _draw(self) -> None:
        self.picture.value = to_svg(compose(self._shown(), bits=False), f"floats-{self.model_id}")
