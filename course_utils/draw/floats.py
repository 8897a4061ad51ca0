"""Floating-point formats as rows of bits; one number in a format, among its neighbours and in its range."""

from __future__ import annotations

import itertools
import math

from course_utils.draw.floats_axis import SMALL, TINY, Axis, Shown, band, layers, log2, two_to
from course_utils.draw.formats import FORMATS, Format
from course_utils.draw.labels import Label
from course_utils.draw.picture import Picture
from course_utils.draw.shapes import WIDTH, Scene, to_picture
from course_utils.wrong_use import public

# Sizes in pixels of the page.
NAME, BIT, HIGH, LINE = 98.0, 9.6, 19.0, 42.0  # of a row in the table
FILLS = {"sign": "storage", "exponent": "view", "mantissa": "rank"}


@public
def floats(value: float | None = None) -> Picture:
    """A picture of float32, tf32, bfloat16, float16, float8 e4m3 and e5m2 as rows of bits, with the largest
    number of each, the smallest normal and subnormal one, and the spacing at 1. With a `value`: the bits of
    what it becomes in each, that number, and how far it is off."""
    return to_picture(table(value))


def table(value: float | None) -> Scene:
    """The scene of `floats`."""
    heads = (
        ("largest", "smallest normal", "smallest subnormal", "spacing at 1")
        if value is None
        else ("becomes", "off by")
    )
    places = (418, 482, 550, 624) if value is None else (420, 556)
    scene, told = Scene(""), []
    _legend(scene, NAME, 8)
    for x, head in zip(places, heads, strict=True):
        for line, word in enumerate(head.split(" ", 1) if value is None else [head]):
            scene.write(x, 8 + 14 * line, word, SMALL, bold=True)
    for row, form in enumerate(FORMATS.values()):
        top = 38 + LINE * row
        bits = None if value is None else form.encode(value)
        scene.write(0, top + 7, form.name, 12.5, code=True, bold=True)
        counts = f"1 + {form.exponent} + {form.mantissa} = {form.width}"
        scene.write(0, top + 23, counts, TINY, faint=True)
        _bits(scene, form, bits, NAME, top, BIT)
        if form.dtype is None:  # it lies in 32 bits, of which the last are not read
            width = BIT * (32 - form.width)
            scene.box(NAME + BIT * form.width + 3, top, width - 4, HIGH, dashed=True, line=0.8)
        if bits is None:
            said = [f"{one:.3g}" for one in (form.largest, form.smallest_normal, form.smallest, form.eps)]
            said[0] = f"{form.largest:g}" if form.largest < 1e6 else said[0]
        else:
            now = form.decode(bits)
            said = [f"{now:.10g}", "exact" if now == value else _error(value, now)]
        scene.words += [Label(x, top + 9, one, TINY, code=True) for x, one in zip(places, said, strict=True)]
        told.append(
            f"{form.name}: " + ", ".join(f"{head} {one}" for head, one in zip(heads, said, strict=True))
        )
    scene.height = 38 + LINE * len(FORMATS)
    start = "Formats" if value is None else f"{value!r} in each format"
    scene.description = f"{start}. {'; '.join(told)}"
    return scene


def compose(shown: Shown, *, bits: bool = True) -> Scene:
    """The scene of the explorer; without the row of `bits` where there are buttons for them."""
    form, value, scene = shown.form, shown.form.decode(shown.bits), Scene("")
    top = 0.0
    if bits:
        wide = min(20.0, WIDTH / form.width)
        _bits(scene, form, shown.bits, 1, 2, wide)
        _legend(scene, 1, 34)
        top = 46.0
    kind = form.kind(shown.bits)
    also = f", {kind}" if kind in ("normal", "subnormal") else ""
    texts = [f"{form.name}: {value!r}{also}", meaning(form, shown.bits), shown.wrong or rounding(shown)]
    for place, text in enumerate(texts):
        first = place == 0
        scene.write(1, top + 12 + 20 * place, text, 14 if first else 12, bold=first, code=first)
    neighbours = _lens(scene, shown, top + 88)
    axis = Axis(form, shown.rows)
    top += 160
    band(scene, axis, shown, top)
    told = layers(scene, axis, shown, top + 66) if shown.rows else []
    scene.height = scene.height or top + 70
    scene.description = ". ".join([*texts, neighbours, *told]).replace("..", ".")
    return scene


def meaning(form: Format, bits: int) -> str:
    """How a pattern is read."""
    sign, exponent, mantissa = form.fields(bits)
    kind, plus, most = form.kind(bits), "−" if sign else "+", 1 << form.mantissa
    if kind in ("inf", "nan"):
        what = "other than 0" if form.has_inf else "all 1"
        return f"exponent bits all 1, mantissa {'0' if kind == 'inf' else what}: {kind}"
    lead, power = int(kind == "normal"), max(exponent, 1) - form.bias
    read = f"exponent {exponent}, mantissa {mantissa}"
    if kind == "zero":
        return f"{read}: {plus}0, the number that has no power of two"
    formula = f"{plus}{two_to(power)} × ({lead} + {mantissa}/{most}) = {plus}{two_to(power)} × "
    formula += f"{lead + mantissa / most:.9g}"
    return f"{read}, bias {form.bias}: {formula}"


def rounding(shown: Shown) -> str:
    """What has become of the number that was given."""
    form, given, now = shown.form, shown.given, shown.form.decode(shown.bits)
    if given is None:
        return ""
    if given == now or math.isnan(given) and math.isnan(now):
        return f"{given!r} is exact in {form.name}"
    what = ""
    if not now:
        what = f": underflow, as for all up to {two_to(log2(form.vanishing))}"
    elif abs(given) > form.overflowing or math.isinf(now):
        what = f": overflow, the largest is {form.largest:.6g}"
    off = f", off by {_error(given, now)}" if math.isfinite(now - given) else ""
    return f"{given!r} becomes {now!r}{off}{what}"


def _error(given: float, now: float) -> str:
    off = now - given
    share = abs(off / given) if given and math.isfinite(off) else math.nan
    return f"{off:.3g}" + ("" if math.isnan(share) else f", {100 * share:.3g} %")


# --- bits ------------------------------------------------------------------------------------------------


def field_of(form: Format, place: int) -> str:
    """Of what a bit is a part; they are counted from the left."""
    return "sign" if not place else "exponent" if place <= form.exponent else "mantissa"


def _bits(scene: Scene, form: Format, bits: int | None, x: float, y: float, wide: float) -> None:
    for place in range(form.width):
        field = field_of(form, place)
        one = "" if bits is None else str(bits >> form.width - 1 - place & 1)
        middle = x + wide * place + wide / 2
        said = (Label(middle, y + HIGH / 2, one, 10 if wide < 12 else 12, "middle", code=True),)
        more = f"{form.name}: {field} bit"
        scene.box(
            x + wide * place, y, wide - 1, HIGH, FILLS[field], said if one else (), more, 0.6, part="bit"
        )


def _legend(scene: Scene, x: float, y: float) -> None:
    for name, fill in FILLS.items():
        scene.box(x, y - 5, 10, 10, fill, line=0.6)
        scene.write(x + 15, y, name, SMALL)
        x += 84


# --- the number among its neighbours -----------------------------------------------------------------------


def _lens(scene: Scene, shown: Shown, y: float) -> str:
    """A line of equal steps from the neighbour below to the one above; says the same in words."""
    form, now = shown.form, shown.form.decode(shown.bits)
    below, above = form.neighbours(shown.bits)
    digits = 2 + math.ceil(0.30103 * (form.mantissa + 1))
    around = [one for one in (below, now, above) if one is not None and math.isfinite(one)]
    if len(around) < 2 or not math.isfinite(now):
        words = "nan has no neighbours" if math.isnan(now) else f"next to {now} is {_near(below, above)!r}"
        scene.write(WIDTH / 2, y + 14, words, 12, "middle", faint=True)
        return words
    least, most, left, right = around[0], around[-1], 150.0, WIDTH - 150.0
    if len(around) == 2:  # inf, or the end, is drawn one step further
        least, most = (least, most + (most - least)) if below == least else (least - (most - least), most)

    def x(value: float) -> float:
        return left + (value - least) / (most - least) * (right - left)

    scene.line(((left - 40, y + 20), (right + 40, y + 20)), 1.2)
    for value, end in ((below, "end"), (now, "middle"), (above, "start")):
        at = left if end == "end" else right if end == "start" else x(now)
        if value is None:
            scene.write(at, y + 38, "none", SMALL, "middle", faint=True)
            continue
        tall = 11 if end == "middle" else 7
        scene.line(((at, y + 20 - tall), (at, y + 20 + tall)), 1.6)
        said = f"{value:.{digits}g}"
        scene.write(at, y + 40, said, 12, "middle", code=True, bold=end == "middle")
    told = [f"neighbours {_short(below, digits)} and {_short(above, digits)}"]
    for one, other in itertools.pairwise(around):
        gap = f"{two_to(log2(other - one))} = {other - one:.3g}"
        scene.write((x(one) + x(other)) / 2, y + 1, gap, SMALL, "middle")
        told.append(f"spacing {gap}")
    if shown.given is not None and least <= shown.given <= most and shown.given != now:
        at = x(shown.given)
        scene.area(
            ((at - 5, y + 10), (at + 5, y + 10), (at, y + 20)), "lit", f"given: {shown.given!r}", "given"
        )
    return ", ".join(told)


def _near(below: float | None, above: float | None) -> float | None:
    return below if above is None else above


def _short(value: float | None, digits: int) -> str:
    return "none" if value is None else f"{value:.{digits}g}"
