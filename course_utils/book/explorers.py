"""Explorers that work in the page: what each shows after each press of a button was worked out by torch when
the book was built, and the page only goes from one picture to the next."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html import escape

import torch
from torch import Tensor

from course_utils.draw import palette
from course_utils.draw.floats import FILLS, field_of
from course_utils.draw.formats import FORMATS
from course_utils.draw.shapes import to_svg
from course_utils.explore.floats import FloatsExplorer, floats
from course_utils.explore.inplace import inplace
from course_utils.explore.strides import StrideExplorer, strides

MOST_STEPS = 3  # of views, one after another
VIEWS = (".t()", "[1:]", "[:, ::2]", "[:, 1::2]", ".flip(0)", ".reshape(6, 2)", ".view(12)", ".contiguous()")
# So many bits of a wide format can be flipped: the sign, the exponent's lowest, three of the mantissa's.
BITS, LOW_EXPONENT = 8, 4


@dataclass(frozen=True)
class Button:
    """A button: its words, the state that it leads to, None where it leads nowhere now; whether it stands for
    what is shown, and its colour."""

    words: str
    to: str | None
    chosen: bool = False
    colour: str = ""


@dataclass(frozen=True)
class State:
    """What is shown: a picture as SVG, what is said above it as HTML, and rows of buttons."""

    picture: str
    said: str
    rows: list[list[Button]]


States = dict[str, State]  # by their names; the first is where a reader begins


def in_page(slug: str, source: str) -> str | None:
    """The explorer of a cell as HTML; None where the cell has none that works without a kernel."""
    for (lesson, call), made in MADE.items():
        if lesson == slug and call in source:
            return html(made(source), f"explorer-{slug}-{sum(map(ord, call))}")
    return None


def html(states: States, name: str) -> str:
    """The states as HTML: the first as it is, and all of them packed, for the page's script."""
    first = next(iter(states))
    plain = {
        key: {
            "picture": one.picture,
            "said": one.said,
            "rows": [[[b.words, b.to, b.chosen, b.colour] for b in row] for row in one.rows],
        }
        for key, one in states.items()
    }
    packed = base64.b64encode(gzip.compress(json.dumps(plain).encode(), mtime=0)).decode()
    return (
        f'<div class="explorer" id="{name}" data-first="{escape(first)}">'
        f'<div class="explorer-buttons"></div><div class="explorer-said" aria-live="polite">'
        f'{states[first].said}</div><div class="explorer-picture" tabindex="0" role="group" '
        f'aria-label="Picture">{states[first].picture}</div>'
        f'<script type="application/json" class="explorer-states">"{packed}"</script></div>'
    )


# --- views of a tensor -------------------------------------------------------------------------------------


def of_strides(x: Tensor, name: str, goal: Tensor | None = None) -> States:
    """What comes of up to `MOST_STEPS` views, one after another."""
    explorer = strides(x, goal, name)
    if goal is None:
        explorer.light(1, 2)
    states: States = {}
    _follow(explorer, states, "")
    return {explorer.code: states[explorer.code], **states}


def _follow(explorer: StrideExplorer, states: States, before: str) -> None:
    """Adds the state of the explorer, and those that can be reached from it."""
    code, steps = explorer.code, len(explorer.history.steps)
    said = explorer.line.value + explorer.message.value
    picture = to_svg(explorer.scene(), f"explorer-views-{explorer.history.name}")
    buttons = []
    for view in VIEWS if steps < MOST_STEPS else ():
        to = code + view
        if explorer.do(view):
            _follow(explorer, states, code)
            explorer.undo()
        else:
            states[to] = State(picture, explorer.message.value, [[Button("Back", code)]])
        buttons.append(Button(view, to))
    back = [Button("Undo", before or None), Button("Reset", explorer.history.name if before else None)]
    if not buttons:
        said += '<div class="explorer-more">There is more to do in the notebook; here, go back.</div>'
    states[code] = State(picture, said, [buttons, back])


# --- a write in place --------------------------------------------------------------------------------------


def of_inplace(lines: str, operation: str, x: Tensor) -> States:
    """The write at each place, in each form."""
    explorer = inplace(lines, operation, x=x)
    program = explorer.program
    start = f"{explorer.slider.value} {explorer.form.value}"
    states: States = {}
    for place in program.places:
        for form in program.forms:
            explorer.slider.value, explorer.form.value = place, form
            moves = [Button(f"after line {to}", f"{to} {form}", to == place) for to in program.places]
            forms = [Button(code, f"{place} {to}", to == form) for to, code in program.forms.items()]
            picture = to_svg(explorer.scene(), "explorer-inplace")
            states[f"{place} {form}"] = State(picture, "", [moves, forms])
    return {start: states[start], **states}


# --- the bits of a number ----------------------------------------------------------------------------------


def of_floats() -> States:
    """A number in each format, with some of its bits to flip: all of them in the formats of 8 bits."""
    explorer = floats()
    start = explorer.form.name
    names = [start, *(name for name in FORMATS if name != start)]
    return {key: one for name in names for key, one in _of_format(explorer, name)}


def _of_format(explorer: FloatsExplorer, name: str) -> Iterator[tuple[str, State]]:
    explorer.type("0.1")
    explorer.to_format(name)
    form, first = explorer.form, explorer.bits
    places = _to_flip(form.width, form.exponent)
    for flips in range(1 << len(places)):
        for place in (one for number, one in enumerate(places) if flips >> number & 1):
            explorer.flip(place)
        formats = [Button(other, _key(other, 0), other == name) for other in FORMATS]
        bits = [
            Button(
                str(explorer.bits >> form.width - 1 - place & 1),
                _key(name, flips ^ 1 << places.index(place)) if place in places else None,
                colour=palette.FILLS[FILLS[field_of(form, place)]],
            )
            for place in range(form.width)
        ]
        what = "a bit" if len(places) == form.width else "a bit that is framed; in the notebook, any"
        said = f'<div class="explorer-more">Flip {what}.</div>'
        yield _key(name, flips), State(to_svg(explorer.scene(), "explorer-floats"), said, [formats, bits])
        explorer.bits, explorer.given = first, 0.1


def _to_flip(width: int, exponent: int) -> list[int]:
    """The places of bits to flip, counted from the sign."""
    if width <= BITS:
        return [*range(width)]
    low = [*range(1 + exponent - LOW_EXPONENT, 1 + exponent)]
    return [0, *low, 1 + exponent, 2 + exponent, width - 1]


def _key(name: str, flips: int) -> str:
    return f"{name} {flips}"


# --- where they stand --------------------------------------------------------------------------------------


def _transposed(source: str) -> States:
    return of_strides(torch.arange(12).reshape(3, 4).t(), "t")


def _to_a_goal(source: str) -> States:
    x = torch.arange(12).reshape(3, 4)
    return of_strides(x, "x", x.reshape(6, 2)[:, 1].reshape(3, 2).t())


def _write(source: str) -> States:
    [lines] = re.findall(r'"""\\\n(.*?)"""', source, re.DOTALL)
    [operation] = re.findall(r'explore\.inplace\(program, "(.*?)"', source)
    return of_inplace(lines, operation, torch.tensor([1.0, 2.0], requires_grad=True))


# By lesson and call, what makes the states from the cell.
MADE: dict[tuple[str, str], Callable[[str], States]] = {
    ("01_tensors", 'explore.strides(t, name="t")'): _transposed,
    ("01_tensors", "explore.strides(x, goal="): _to_a_goal,
    ("02_autograd", "explore.inplace("): _write,
    ("09_amp", "explore.floats()"): lambda source: of_floats(),
}
