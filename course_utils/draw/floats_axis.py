"""The axis of a format: where numbers become 0, subnormal or too large, and gradients by layer on it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy

from course_utils.draw.formats import Format
from course_utils.draw.gradients import Gradients
from course_utils.draw.labels import Label, percent
from course_utils.draw.shapes import WIDTH, Scene

# Sizes in pixels of the page.
SMALL, TINY = 11.0, 10.5
ROW, LEFT, RIGHT = 17.0, 148.0, 502.0  # of the layers, and where their axis is
COLUMNS = ((540.0, 52.0), (606.0, 72.0), (672.0, 52.0))  # of the shares: middles and widths
LONGEST = 19  # letters of a layer's name
REGIONS = {"zero": "storage", "subnormal": "lit", "normal": "gradient", "overflow": "odd"}
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Shown:
    """What the explorer shows: a pattern in a format; the number that it was rounded from, or None; why what
    was typed is none; rows of gradients, what they are of, and the loss scale."""

    form: Format
    bits: int
    given: float | None = None
    wrong: str = ""
    rows: Sequence[Gradients] = ()
    about: str = ""
    scale: int = 1


class Axis:
    """Powers of ten between two places of the page: the format with room on both sides. It does not depend
    on the scale, so that what moves on it is the gradients."""

    def __init__(self, form: Format, rows: Sequence[Gradients]) -> None:
        self.left, self.right = (LEFT, RIGHT) if rows else (40.0, WIDTH - 12.0)
        self.low, self.high = (-14, 8) if form.exponent < 8 else (-48, 42)
        # What is closer to 0 than 99 of 100 of every layer would only make the axis longer.
        first = [float(one.sizes[len(one.sizes) // 100]) for one in rows if len(one.sizes)]
        self.low = min([self.low, *(math.floor(math.log10(one)) for one in first if one < math.inf)])
        smallest_normal = form.smallest_normal - form.smallest / 2
        self.borders = [10.0**self.low, form.vanishing, smallest_normal, form.overflowing, 10.0**self.high]

    def x(self, size: float) -> float:
        power = math.log10(size) if size else -math.inf
        power = min(max(power, self.low), self.high)
        return self.left + (power - self.low) / (self.high - self.low) * (self.right - self.left)

    def regions(self) -> list[tuple[str, float, float]]:
        """The name of each region of sizes, and where it begins and ends on the page."""
        places = [self.x(one) for one in self.borders]
        return [(name, *ends) for name, ends in zip(REGIONS, itertools.pairwise(places), strict=True)]


def _becomes(form: Format) -> str:
    return f"→ {form.beyond:g}"


def band(scene: Scene, axis: Axis, shown: Shown, y: float) -> None:
    """The regions of the axis, their borders in numbers, and the number that is shown."""
    form, now = shown.form, shown.form.decode(shown.bits)
    said = {"zero": "→ 0", "subnormal": "subnormal", "normal": "normal", "overflow": _becomes(form)}
    scene.write(1, y + 10, "|x|", 12, code=True)
    for name, start, end in axis.regions():
        words = Label((start + end) / 2, y + 10, said[name], SMALL, "middle")
        if words.width >= end - start:
            words = replace(words, text=said[name].removeprefix("→ "))
        fits = words.width < end - start
        more = f"{said[name]}: sizes of {form.name}"
        scene.box(start, y, end - start, 20, REGIONS[name], (words,) * fits, more, 0.6, part=name)
        if not fits and name == "subnormal":
            scene.write(words.x, y - 15, said[name], SMALL, "middle")
        elif not fits and name == "overflow":
            scene.write(start + 5, y - 15, said[name], SMALL)
    marks = (
        ("smallest normal", form.smallest_normal, y + 47),
        ("smallest subnormal", form.smallest, y + 61),
        ("largest", form.largest, y - 15),
    )
    places = [axis.x(size) for _, size, _ in marks]
    room = 46 * (axis.high - axis.low) / (axis.right - axis.left)
    every = next((one for one in (2, 3, 4, 5, 10, 20) if one > room), 50)
    for power in range(axis.high // every * every, axis.low, -every):
        x, text = axis.x(10.0**power), f"{10.0**power:g}" if -3 < power < 4 else f"1e{power}"
        scene.line(((x, y + 20), (x, y + 24)), 0.6)
        if all(abs(x - other) > 4 + 4 * len(text) for other in places[:2]):
            scene.write(x, y + 31, text, TINY, "middle")
    for (what, size, height), x in zip(marks, places, strict=True):
        above = height < y
        ends = ((x, y), (x, height - 5)) if above else ((x, y + 20), (x, height + 5))
        scene.line(ends, 0.8)
        text = f"{what} {size:.5g}" if above else f"{what} {two_to(log2(size))} = {size:.3g}"
        late = x > WIDTH * 0.6
        scene.write(x - 5 if late else x + 5, height, text, SMALL, "end" if late else "start")
    if not math.isnan(now):
        x = axis.x(abs(now)) if now else axis.left - 9
        corners = ((x - 6, y - 9), (x + 6, y - 9), (x, y + 1))
        scene.area(corners, "lit", f"{now!r}", "value")
    scene.write(axis.left - 9, y + 10, "0", 12, "middle", code=True)


def layers(scene: Scene, axis: Axis, shown: Shown, top: float) -> list[str]:
    """A row for each layer, below the axis; says the same in words."""
    form, rows, times = shown.form, shown.rows, f"loss × {shown.scale:,}"
    scene.write(1, top + 22, f"{shown.about}, {times}", 12.5, bold=True)
    heads = ("→ 0", "subnormal", _becomes(form))
    for (x, wide), head, name in zip(COLUMNS, heads, ("zero", "subnormal", "overflow"), strict=True):
        words = (Label(x, top + 22, head, TINY, "middle"),)
        scene.box(x - wide / 2, top + 13, wide, 18, REGIONS[name], words, line=0.6)
    bottom, told = top + 38 + ROW * len(rows), [f"{shown.about}, {times}"]
    for _, x, _ in axis.regions()[1:]:
        scene.line(((x, top + 36), (x, bottom)), 0.6, dashed=True)
    for place, row in enumerate(rows):
        y = top + 38 + ROW * (place + 1)
        shares = row.shares(form, shown.scale)
        said = [percent(one) for one in (shares.zero, shares.subnormal, shares.overflow)]
        name = row.name if len(row.name) <= LONGEST else row.name.partition(" (")[0]
        name = name if len(name) <= LONGEST else "…" + name[1 - LONGEST :]
        scene.write(1, y - 6, name, TINY, code=True)
        scene.line(((axis.left, y), (axis.right, y)), 0.5)
        for (x, _), one in zip(COLUMNS, said, strict=True):
            scene.write(x, y - 6, one, SMALL, "middle", bold=one != "0", faint=one == "0")
        also = f", {row.zeros:,} are 0" * bool(row.zeros) + f", {row.nans:,} are nan" * bool(row.nans)
        line = f"{row.name}: {said[0]} to 0, {said[1]} subnormal, {said[2]} too large"
        told.append(line + also)
        if not len(row.sizes):
            scene.write(axis.left + 6, y - 6, also.removeprefix(", "), TINY, faint=True)
        _histogram(
            scene, axis, row, shown.scale, y, f"{line}; {len(row.sizes):,} are numbers other than 0{also}"
        )
    scene.height = bottom + 4
    return told


def _histogram(scene: Scene, axis: Axis, row: Gradients, scale: int, bottom: float, more: str) -> None:
    """Bars a power of two wide, cut where a region begins; what lies off the axis is in the last bars."""
    low, high = axis.borders[0], axis.borders[-1]
    powers = [2.0**power for power in range(log2(low) + 1, log2(high) + 1)]
    edges = sorted({*powers, *axis.borders})
    places = numpy.searchsorted(row.sizes, numpy.array([0.0, *edges[1:-1], math.inf]) / scale)
    places[-1] = len(row.sizes)
    xs = [axis.x(one) for one in edges]
    counts = numpy.diff(places) / numpy.maximum(numpy.diff(xs), 0.3)
    most = counts.max() or 1.0
    for name, start, end in axis.regions():
        bars = [
            n for n in range(len(counts)) if counts[n] and start - 1e-6 <= xs[n] and xs[n + 1] <= end + 1e-6
        ]
        if not bars:
            continue
        points = [(xs[bars[0]], bottom)]
        for n in range(bars[0], bars[-1] + 1):
            top = bottom - 15 * counts[n] / most
            points += [(xs[n], top), (xs[n + 1], top)]
        points.append((points[-1][0], bottom))
        scene.area(tuple(points), REGIONS[name], more, name, row.name)


def two_to(power: int) -> str:
    """A power of two as it is written."""
    return "2" + str(power).translate(_RAISED)


def log2(size: float) -> int:
    """The largest power of two that is not larger."""
    return math.frexp(size)[1] - 1
