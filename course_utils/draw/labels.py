"""Text at a place, measured in pixels of the page: in an SVG and in a figure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from course_utils.draw import palette

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LETTER = 0.61  # how wide a letter of code is, by its height
_SIDES = {"start": "left", "middle": "center", "end": "right"}


@dataclass(frozen=True)
class Label:
    """Text whose middle is at height `y`; `anchor` is "start", "middle" or "end"."""

    x: float
    y: float
    text: str
    pixels: float = 12.5
    anchor: str = "start"
    code: bool = False
    bold: bool = False
    faint: bool = False

    @property
    def width(self) -> float:
        return LETTER * self.pixels * len(self.text)


# The part of an SVG's style that text needs. Text has the colour of the labels beside it. Where widgets have
# a background of their own, whatever the theme around them (VS Code), that one can be read, and the colour
# of the page cannot.
STYLE = """
#{id}{{color:var(--jp-widgets-label-color,currentColor);width:{width:g}px;max-width:none;height:auto;display:block}}
#{id} text{{fill:currentColor;font-family:system-ui,sans-serif;dominant-baseline:central;white-space:pre}}
#{id} .code{{font-family:ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace}}
#{id} .faint{{opacity:.78}}
"""


def to_svg(words: Label) -> str:
    """As a `<text>`."""
    names = [name for name in ("code", "faint") if getattr(words, name)]
    extra = f' class="{" ".join(names)}"' if names else ""
    extra += ' font-weight="bold"' if words.bold else ""
    extra += f' text-anchor="{words.anchor}"' if words.anchor != "start" else ""
    return (
        f'<text x="{words.x:.1f}" y="{words.y:.1f}" font-size="{words.pixels:g}"{extra}>'
        f"{escape(words.text)}</text>"
    )


def say(axes: Axes, words: Label, colour: str = palette.TEXT) -> None:
    """Writes into a figure whose axes count pixels, 100 to an inch."""
    # One pixel of the page is 0.72 points. These fonts are wider than those of a page; a dollar sign would
    # begin a formula.
    axes.text(
        words.x,
        words.y,
        words.text.replace("$", r"\$"),
        fontsize=0.72 * words.pixels * (0.97 if words.code else 0.92),
        va="center_baseline",
        ha=_SIDES[words.anchor],
        color=colour,
        family=palette.CODE if words.code else palette.PROSE,
        weight="bold" if words.bold else "normal",
    )


def in_a_figure(text: str, pixels: float) -> float:
    """How wide prose is in a figure, where letters are rounded up to pixels."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(family=palette.PROSE, size=pixels)
    return 1.05 * 0.92 * text_to_path.get_text_width_height_descent(text, font, False)[0]


def counted(number: int, what: str) -> str:
    """A number of things, as in "1 module" and "2 modules"."""
    return f"{number:,} {what}{'s' * (number != 1)}"


def bytes_said(count: int) -> str:
    """A number of bytes, as in "512 B", "20 kB", "1.23 MB"."""
    for unit, size in (("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} B"


def percent(share: float) -> str:
    """A share as in "0", "<1 %", "12 %", "all"."""
    if not share or share == 1:
        return "all" if share else "0"
    return "<1 %" if share < 0.01 else f"{math.floor(100 * share)} %"


def short_path(path: str, letters: int) -> str:
    """At most so many letters of a module's path. The last name and all numbers stay as long as they can,
    since they tell layers of a deep model apart; of the other names the first two letters do."""
    if len(path) <= letters:
        return path
    *others, last = path.split(".")
    short = ".".join([*(name if name.isdigit() else name[:2] for name in others), last])
    return short if len(short) <= letters else "…" + short[1 - letters :]


def cut(text: str, letters: int) -> str:
    """At most so many letters of it."""
    return text if len(text) <= letters else text[: letters - 1] + "…"
