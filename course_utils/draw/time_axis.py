"""A time axis from left to right, and the bars on it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from course_utils.draw.labels import LETTER, Label
from course_utils.draw.shapes import WIDTH, Box, Scene

LEFT, RIGHT = 62, 10  # pixels of the page: the names of the rows, and what is left free
TINY, SMALL = 10.5, 11.5


class Axis:
    """From `start` to `stop`, in seconds."""

    def __init__(self, start: float, stop: float, left: float = LEFT) -> None:
        self.start, self.stop, self.left = start, stop, left
        self.scale = (WIDTH - left - RIGHT) / (stop - start)

    def x(self, time: float) -> float:
        """Where a moment is drawn; what lies outside stands at the edge."""
        return self.left + (min(max(time, self.start), self.stop) - self.start) * self.scale

    def shows(self, begin: float, end: float) -> bool:
        """Whether any of it is on the axis."""
        return end >= self.start and begin <= self.stop


def bar(
    axis: Axis,
    begin: float,
    end: float,
    y: float,
    height: float,
    texts: Sequence[str] = (),
    pixels: float = TINY,
    **how: Any,
) -> Box:
    """A box from `begin` to `end`, with the first of `texts` that fits into it."""
    left, right = axis.x(begin), axis.x(end)
    width = max(right - left, 1.0)
    text = next((text for text in texts if LETTER * pixels * len(text) + 10 <= width), "")
    words = (Label(left + width / 2, y + height / 2, text, pixels, "middle"),) if text else ()
    thin = 0.9 if texts and width >= 4 else 0.4
    return Box(left, y, width, height, words=words, line=thin, **how)


def ticks(scene: Scene, axis: Axis, y: float) -> None:
    """The axis itself, with round numbers of milliseconds."""
    right = WIDTH - RIGHT
    scene.line(((axis.left, y), (right, y)), 0.9)
    step = round_step((axis.stop - axis.start) * 1e3 / 6)
    at = math.ceil(axis.start * 1e3 / step - 1e-9) * step
    digits = max(0, -math.floor(math.log10(step)))
    while at <= axis.stop * 1e3 + 1e-9:
        x = axis.x(at / 1e3)
        scene.line(((x, y), (x, y + 4)), 0.9)
        if x < right - 26:
            scene.write(x, y + 12, f"{at:.{digits}f}", TINY, "middle")
        at += step
    scene.write(right, y + 12, "ms", TINY, "end")


def round_step(step: float) -> float:
    """The next 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(n * power for n in (1, 2, 5, 10) if n * power >= step * 0.999)
