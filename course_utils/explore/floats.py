"""The float explorer: the bits of a number to flip, and what a format makes of a model's gradients."""

from __future__ import annotations

from functools import partial
from typing import Any

import ipywidgets as widgets
from torch import nn

from course_utils.draw import palette
from course_utils.draw.floats import FILLS, compose, field_of
from course_utils.draw.floats_axis import Shown
from course_utils.draw.formats import FORMATS
from course_utils.draw.gradients import KINDS, Gradients, Loss, record
from course_utils.draw.shapes import Scene
from course_utils.explore.controls import button, dropdown, text_box, wrapped
from course_utils.explore.explorer import COLOUR, Explorer
from course_utils.wrong_use import public

LARGEST_SCALE = 24  # as a power of two


@public
def floats(model: nn.Module | None = None, batch: Any = None, loss: Loss | None = None) -> FloatsExplorer:
    """An explorer of floating-point formats: bits to click, the number that they mean, its neighbours, and
    its place in the range of the format. A number that is typed is rounded to the format.

    With a `model`, its gradients by layer are drawn in the same axis, times a loss scale. They are recorded
    once, in one forward and backward of `loss(model(batch))`; the model, its `.grad` and its buffers stay as
    they were. `batch`: a tensor, a tuple of arguments or a dict of keyword arguments. Raises `TypeError` for
    what is no module, `ValueError` where it cannot be run.
    """
    return FloatsExplorer({} if model is None else record(model, batch, loss, "explore.floats"))


class FloatsExplorer(Explorer):
    """The widget. `form` is the format, `bits` the pattern that is shown, `value` what it means, `given` the
    number that was rounded to it; `rows` are the gradients by what they are of."""

    def __init__(self, rows: dict[str, list[Gradients]]) -> None:
        self.form, self.rows, self.wrong = FORMATS["float16"], rows, ""
        self.given: float | None = 0.1
        self.bits = self.form.encode(self.given)
        self.formats = widgets.ToggleButtons(
            options=[*FORMATS], value=self.form.name, style={"button_width": "106px"}
        )
        self.field = text_box("number", label=54, continuous_update=False)
        self.down_button = button("◀ Below", partial(self.step, -1), width="88px")
        self.up_button = button("Above ▶", partial(self.step, 1), width="88px")
        self._first, self._other = widgets.Layout(margin="0 1px 0 8px"), widgets.Layout(margin="0 1px 0 0")
        for layout in (self._first, self._other):
            layout.padding, layout.flex = "0", "0 0 auto"
        self._styles = {
            field: widgets.ButtonStyle(
                button_color=palette.FILLS[fill], text_color=palette.INK, font_weight="bold"
            )
            for field, fill in FILLS.items()
        }
        self.bit_buttons = [button("", partial(self.flip, place)) for place in range(32)]
        self.bit_row = widgets.HBox(layout=widgets.Layout(margin="4px 0 0 -8px", flex_flow="row wrap"))
        self.legend = widgets.HTML()
        self.scale = widgets.SelectionSlider(
            options=[(f"{2**n:,}", n) for n in range(LARGEST_SCALE + 1)],
            description="loss ×",
            layout=widgets.Layout(width="420px"),
            style={"description_width": "44px"},
        )
        self.kind = dropdown("gradients of", [*rows], width=190, label=80)
        row = wrapped([self.field, self.down_button, self.up_button])
        gradients = [wrapped([self.scale, self.kind])] if rows else []
        controls = [self.formats, row, self.bit_row, self.legend, *gradients]
        super().__init__(*controls, follows=[self.scale, self.kind])
        self.formats.observe(lambda change: self.to_format(change["new"]), "value")
        self.field.observe(lambda change: self._quiet or self.type(change["new"]), "value")
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
        base, power, exponent = text.replace("**", "^").replace("−", "-").partition("^")
        try:
            given = float(base) ** float(exponent) if power else float(base)
        except (ValueError, OverflowError, ZeroDivisionError):
            self.wrong = f"“{text}” is no number; type one such as 0.1, 1e-8, 2^-24, inf or nan"
            self.draw()
            return
        self._set(self.form.encode(given), given)

    def to_format(self, name: str) -> None:
        """Rounds the number that was given, or is shown, to another format."""
        given = self.value if self.given is None else self.given
        self.form = FORMATS[name]
        self._lay_out()
        self._set(self.form.encode(given), given)

    def scene(self, bits: bool = False) -> Scene:
        rows, about = self.rows.get(self.kind.value, ()), KINDS.get(self.kind.value, "")
        shown = Shown(self.form, self.bits, self.given, self.wrong, rows, about, 2**self.scale.value)
        return compose(shown, bits=bits)

    def still_scene(self) -> Scene:
        return self.scene(bits=True)

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
            one.style, one.tooltip = self._styles[field], f"bit {self.form.width - 1 - place}, {field}"
            one.layout = self._first if place in starts else self._other
        self.bit_row.children = buttons
        counts = zip(FILLS.items(), (1, self.form.exponent, self.form.mantissa), strict=True)
        chips = "&emsp;".join(
            f"<span style='background:{palette.FILLS[fill]};padding:0 5px'>&nbsp;</span> {count} {field}"
            for (field, fill), count in counts
        )
        self.legend.value = f"<div style='{COLOUR};line-height:1.4'>{chips}&emsp;click a bit to flip it</div>"

    def _show(self) -> None:
        for place, one in enumerate(self.bit_buttons[: self.form.width]):
            one.description = str(self.bits >> self.form.width - 1 - place & 1)
        below, above = self.form.neighbours(self.bits)
        self.down_button.disabled, self.up_button.disabled = below is None, above is None
        with self._silent():
            self.field.value = repr(self.value if self.given is None else self.given)
        self.draw()
