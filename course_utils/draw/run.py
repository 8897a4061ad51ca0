"""The loss-curve doctor: the loss of a recorded training run, the gradient of each layer, and the step at
which two runs part."""

from __future__ import annotations

import io
import itertools
import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence

from course_utils.draw import palette
from course_utils.draw.picture import Picture
from course_utils.draw.run_rows import LOSS, Compared, Numbers, Row, numbers_of
from course_utils.draw.shapes import WIDTH, Line, Scene, to_picture
from course_utils.draw.words import LETTER, Words
from course_utils.measure.training import Run

Point = tuple[float, float]
MOST = 12  # layers
POINTS = 400  # of a line
# A row that grows so many times beyond its beginning stands on an axis of powers of ten.
GROWN = 100

# Sizes in pixels of the page.
TOP, HIGH, ROW, TALL, GAP = 42.0, 112.0, 24.0, 84.0, 8.0
RIGHT, COLUMN, SCALE = 544.0, 76.0, 44.0
CODE, SMALL, TINY = 11.0, 10.5, 9.5
LINE, LETTERS = 17.0, 104
COLOURS, THICK = (palette.ODD, palette.RANK), (3.4, 1.6)


class Small(Picture):
    """A picture of a few colours, and of at most so many bytes where that can be: a lesson has many."""

    bytes = 25_000

    def png(self) -> bytes:
        from PIL import Image

        for sharpness in (2, 1.5, 1.25):
            page, small = io.BytesIO(), io.BytesIO()
            self.savefig(page, format="png", dpi=100 * sharpness, transparent=True)
            few = Image.open(page).quantize(32, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
            few.save(small, "png", compress_level=9)
            if small.tell() <= self.bytes:
                break
        return small.getvalue()


def run(
    sick: Run,
    healthy: Run | None = None,
    *,
    names: Sequence[str] = ("sick", "healthy"),
    also: Mapping[str, Sequence[Numbers]] | None = None,
) -> Picture:
    """A recorded run, and a second one over it: the loss at each step, the gradient norm of each layer, and
    the first step at which the two differ by more than rounding, in the picture and in words.

    Runs come from `measure.record_run`. `names`: what the two are called. `also`: more numbers by name, a
    list for each run, such as `{"val_losses": (of_the_sick, of_the_healthy)}`. The learning rate, gradients
    left over from the step before, and the graphs that are kept, are shown where two runs differ in them.
    Raises `TypeError` for what is no run, `ValueError` for a run without a loss.
    """
    runs = [sick] if healthy is None else [sick, healthy]
    return to_picture(compose(Compared(runs, names, also)), Small)


def compose(both: Compared, step: int | None = None, layer: str | None = None) -> Scene:
    """The scene of `run`: with the numbers at `step` (default: where they part, else the last), and the row
    of `layer` higher than the others."""
    told, parting = both.said(), both.parting
    every = math.ceil(len(both.layers) / MOST) or 1
    shown = [row for n, row in enumerate(both.layers) if n % every == 0 or row.name == layer]
    if every > 1:
        told.append(f"{len(shown)} of {len(both.layers)} layers are shown.")
    at = step if step is not None else parting.step if parting else both.steps - 1
    scene = Scene(" ".join([f"Loss and gradient norm by layer, {both.steps} steps.", *told]))
    rows, y = [], TOP
    for before, row in itertools.pairwise([both.rows[0], *both.rows, *shown]):
        if row.layer and not before.layer:
            scene.words.append(Words(1, y + 9, "gradient norm by layer", SMALL, bold=True))
            y += 22
        high = HIGH if row.name == LOSS else TALL if row.layer and row.name == layer else ROW
        rows.append((row, y, high))
        y += high + GAP
    longest = max(LETTER * CODE * len(row.name) for row in (*both.rows, *shown))
    left, bottom = min(max(longest, 94.0), 140.0) + SCALE, y - GAP
    if parting:
        x, wide = _x(parting.step, both.steps, left), min(max((RIGHT - left) / both.steps, 5.0), 12.0)
        scene.lines.append(_straight((x, TOP - 4), (x, bottom), dash=True))
        for row, top, high in rows:
            if row in parting.rows:
                scene.lines.append(_straight((x, top - 2), (x, top + high + 2), wide, palette.LIT, "lit"))
    if step is not None:
        x = _x(step, both.steps, left)
        scene.lines.append(_straight((x, TOP - 8), (x, bottom), 1.4, key="step"))
    scene.words.append(Words(1, 11, LOSS, SMALL, bold=True))
    scene.words.append(Words(RIGHT + 14, 29, f"at step {at}", TINY, faint=True))
    for number, name in enumerate(both.names):
        x = RIGHT + 14 + number * COLUMN
        scene.lines.append(_straight((x, 11), (x + 12, 11), THICK[number], COLOURS[number]))
        scene.words.append(Words(x + 16, 11, _cut(name, 8), SMALL, bold=True))
    for row, top, high in rows:
        _row(scene, both, row, (left, top, high), at, bool(parting and row in parting.rows))
    _steps(scene, both.steps, left, RIGHT, bottom, 10)
    scene.words.append(Words(RIGHT + 14, bottom + 12, "step", TINY, faint=True))
    y = bottom + 36
    for line in told:
        for part in textwrap.wrap(line, LETTERS):
            scene.words.append(Words(1, y, part, 12, bold=line is told[0] and bool(parting)))
            y += LINE
    scene.height = y - 4
    return scene


def _row(
    scene: Scene, both: Compared, row: Row, place: tuple[float, float, float], at: int, lit: bool
) -> None:
    """One row: its name, its scale, a line for each run, their numbers at a step."""
    left, top, high = place
    bottom, large = top + high, high > ROW
    middle = top + 6 if large else bottom - ROW / 2
    scale = _Scale(row, top, bottom)
    scene.lines.append(_straight((left, bottom), (RIGHT, bottom), 0.6))
    if row.name != LOSS:
        name = _cut(row.name, int((left - SCALE) / LETTER / CODE) + 1)
        scene.words.append(Words(1, middle, name, CODE, code=row.layer, bold=lit))
    for value, y in scale.ticks() if large else [(scale.high, top + 4)]:
        scene.words.append(Words(left - 6, y, _short(value), TINY, "end", faint=True))
        if top <= y < bottom and large:
            scene.lines.append(_straight((left, y), (RIGHT, y), 0.4))
    if scale.log and not large:
        scene.words.append(Words(left - 6, bottom - 4, "log", TINY, "end", faint=True))
    numbers = [math.nan if values is None or at >= len(values) else values[at] for values in row.values]
    # Two that differ are written so that it can be seen.
    digits = 6 if lit and len({_short(number) for number in numbers}) == 1 else 3
    for number, values in enumerate(row.values):
        # Of numbers that come once in an epoch, the first ones are not there yet.
        missing = values is None or at >= len(values) or (row.epochs and math.isnan(values[at]))
        said = "–" if missing else _short(numbers[number], digits)
        said = "no grad" if row.layer and values and not any(values) else said
        x = RIGHT + 14 + number * COLUMN
        scene.words.append(Words(x, middle, said, SMALL, bold=lit or said == "no grad"))
        points = [(_x(step, both.steps, left), value) for step, value in enumerate(values or ())]
        _curve(scene, points, scale, COLOURS[number], THICK[number], f"{both.names[number]} {row.name}")


def _straight(a: Point, b: Point, wide: float = 1.0, colour: str = "", key: str = "", dash=False) -> Line:
    return Line((a, b), wide, colour, False, dash, key, smooth=False)


def _curve(scene: Scene, points: list[Point], scale: _Scale, colour: str, wide: float, key: str) -> None:
    """A line through what is finite; of very many points, the highest of each stretch."""
    every = math.ceil(len(points) / POINTS) or 1
    if every > 1:
        parts = [points[n : n + every] for n in range(0, len(points), every)]
        points = [max(part, key=lambda point: (not math.isfinite(point[1]), point[1])) for part in parts]
    for finite, group in itertools.groupby(points, key=lambda point: math.isfinite(point[1])):
        if finite:
            drawn = [(x, scale.y(value)) for x, value in group]
            if len(drawn) == 1:  # a number between two that are none
                drawn = [(drawn[0][0] + side, drawn[0][1]) for side in (-1.5, 1.5)]
            scene.lines.append(Line(tuple(drawn), wide, colour, False, key=key, smooth=False))


class _Scale:
    """From 0 to the largest number of a row; powers of ten where it grows far beyond its beginning."""

    def __init__(self, row: Row, top: float, bottom: float) -> None:
        self.top, self.bottom = top, bottom
        lists = [[v for v in values or () if math.isfinite(v)] for values in row.values]
        known = [v for values in lists for v in values]
        above = [v for v in known if v > 0]
        self.high, self.low = max(known, default=1.0), min([*known, 0.0])
        begins = max((abs(values[0]) for values in lists if values), default=0.0) or min(above, default=1.0)
        self.log = self.low == 0 and self.high > GROWN * begins
        if self.log:
            self.low = max(min(above), self.high * 1e-12)
        if self.high <= self.low:
            self.high = self.low + 1

    def y(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        if self.log:
            share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        return self.bottom - share * (self.bottom - self.top)

    def ticks(self) -> list[tuple[float, float]]:
        """A few round values between the ends, and where they are."""
        if self.log:
            first, last = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
            values = [10.0**power for power in range(first, last + 1, (last - first) // 3 + 1)]
        else:
            step = next(n for n in _round_numbers(-12) if (self.high - self.low) / n <= 3)
            values = [n * step for n in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]
        return [(value, self.y(value)) for value in values]


def _x(step: int, steps: int, left: float, right: float = RIGHT) -> float:
    return left + (step + 0.5) / max(steps, 1) * (right - left)


def _steps(scene: Scene, steps: int, left: float, right: float, y: float, most: int) -> None:
    """The numbers of steps below an axis."""
    every = round(next(n for n in _round_numbers(0) if steps / n <= most))
    for step in range(0, steps, every):
        x = _x(step, steps, left, right)
        scene.lines.append(_straight((x, y), (x, y + 4), 0.8))
        scene.words.append(Words(x, y + 12, str(step), TINY, "middle"))


def _round_numbers(start: int) -> Iterator[float]:
    return (factor * 10.0**power for power in range(start, 40) for factor in (1, 2, 5))


def _short(value: float, digits: int = 3) -> str:
    if digits == 3 and 100 <= abs(value) < 1e5:
        return f"{value:.0f}"
    said = f"{value:.{digits if abs(value) >= 1e-3 else digits - 1}g}"
    return said.replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"…{text[len(text) - most + 1 :]}"


def curves(runs: Mapping[str, Run | Numbers]) -> Picture:
    """Loss curves side by side, each with its letter: `draw.curves({"A": run, "B": other})`. A value is a
    recorded run, or a list of losses. Raises `TypeError` or `ValueError` for what is none."""
    if not isinstance(runs, Mapping):
        raise TypeError(f'draw.curves wants a dict such as {{"A": run}}; given was a {type(runs).__name__}')
    if not 1 <= len(runs) <= 6:
        raise ValueError(f"draw.curves has room for 1 to 6 runs in a row; given were {len(runs)}")
    scene = Scene(f"{len(runs)} loss curves by step: {', '.join(map(str, runs))}", height=156)
    wide, top, bottom = WIDTH / len(runs), 30.0, 132.0
    for number, (letter, run) in enumerate(runs.items()):
        values = numbers_of(run, "draw.curves", f"`{letter}`")
        left, right = number * wide + 36, (number + 1) * wide - 10
        scale = _Scale(Row(LOSS, (values,)), top, bottom)
        scene.words.append(Words(left, 11, str(letter), 14, bold=True))
        scene.words.append(Words(right, 11, "loss by step", TINY, "end", faint=True))
        for value, y in scale.ticks():
            scene.words.append(Words(left - 5, y, _short(value), TINY, "end", faint=True))
            scene.lines.append(_straight((left, y), (right, y), 0.4))
        scene.lines.append(_straight((left, bottom), (right, bottom), 0.7))
        points = [(_x(step, len(values), left, right), value) for step, value in enumerate(values)]
        _curve(scene, points, scale, palette.ODD, 2.2, str(letter))
        _steps(scene, len(values), left, right, bottom, 4)
    return to_picture(scene, Small)
