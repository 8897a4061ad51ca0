"""The loss-curve doctor: the loss of a recorded training run, the gradient of each layer, and the step at
which two runs part."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Mapping, Sequence

from course_utils.draw import folding, palette
from course_utils.draw.folding import PAGE
from course_utils.draw.labels import LETTER, counted, short_path
from course_utils.draw.picture import Picture
from course_utils.draw.run_rows import LOSS, Compared, Numbers, Row, losses_of
from course_utils.draw.shapes import WIDTH, Scene, Small, to_picture
from course_utils.draw.time_axis import round_step
from course_utils.measure.training import Run
from course_utils.wrong_use import public

Point = tuple[float, float]

# Sizes in pixels of the page.
TOP, HIGH, ROW, TALL, GAP = 42.0, 112.0, 24.0, 84.0, 8.0
RIGHT, COLUMN, SCALE = 544.0, 76.0, 44.0
CODE, SMALL, TINY = 11.0, 10.5, 9.5
LINE, LETTERS, NAME = 17.0, 104, 140.0
COLOURS, THICK = (palette.ODD, palette.RANK), (3.4, 1.6)


@public
def run(
    runs: Sequence[Run],
    names: str | Sequence[str],
    also: Mapping[str, Sequence[Numbers]],
    tall: str = "",
) -> Picture:
    """A recorded run, or two over each other: the loss at each step, the gradient norm of each layer, and
    the first step at which the two differ by more than rounding, in the picture and in words.

    Runs come from `measure.record_run`. `names`: what the two are called. `also`: more numbers by name, a
    list for each run, such as `{"val_losses": (of_the_sick, of_the_healthy)}`. The learning rate, gradients
    left over from the step before, and the graphs that are kept, are shown where two runs differ in them.
    Of more layers than have room on a page, those that tell and some between them have a row.
    `tall`: the name of one of these, of `"nodes"` (that each backward goes through) or of numbers in `also`
    that is drawn as high as the loss, with one run too.
    Raises `ValueError` for a run without a loss.
    """
    return to_picture(compose(Compared(runs, names, also, tall)), Small)


def compose(both: Compared, step: int | None = None, layer: str | None = None) -> Scene:
    """The scene of `run`: with the numbers at `step` (default: where they part, else the last), and the row
    of `layer` higher than the others."""
    told, parting = both.said(), both.parting
    lines = [part for line in told for part in textwrap.wrap(line, LETTERS)]
    large = HIGH + (TALL - ROW) * ((layer is not None) + bool(both.tall)) + LINE * (len(lines) + 1)
    room = int((PAGE - TOP - 60 - large) / (ROW + GAP)) - len(both.rows)
    layers, rest = _fitting(both, max(room, 4), layer)
    at = step if step is not None else parting.step if parting else both.steps - 1
    scene = Scene(" ".join([f"Loss and gradient norm by layer, {both.steps} steps.", *told]))
    rows, y = [], TOP
    for before, row in itertools.pairwise([both.rows[0], *both.rows, *layers]):
        if row.layer and not before.layer:
            scene.write(1, y + 9, "gradient norm by layer", SMALL, bold=True)
            y += 22
        tall = TALL if row.name == (layer if row.layer else both.tall) else ROW
        high = HIGH if row.name == LOSS else tall
        rows.append((row, y, high))
        y += high + GAP
    longest = max(LETTER * CODE * len(row.name) for row in (*both.rows, *layers))
    scales = SCALE + 12 * (longest > 94)  # letters of a long name are rounded up to pixels
    left, bottom = min(max(longest, 94.0), NAME) + scales, y - GAP
    if parting:
        x, wide = _x(parting.step, both.steps, left), min(max((RIGHT - left) / both.steps, 5.0), 12.0)
        scene.line(((x, TOP - 4), (x, bottom)), dashed=True)
        for row, top, high in rows:
            if row in parting.rows:
                scene.line(((x, top - 2), (x, top + high + 2)), wide, palette.LIT, key="lit")
    if step is not None:
        x = _x(step, both.steps, left)
        scene.line(((x, TOP - 8), (x, bottom)), 1.4, key="step")
    scene.write(1, 11, LOSS, SMALL, bold=True)
    scene.write(RIGHT + 14, 29, f"at step {at}", TINY, faint=True)
    for number, name in enumerate(both.names):
        x = RIGHT + 14 + number * COLUMN
        scene.line(((x, 11), (x + 12, 11)), THICK[number], COLOURS[number])
        scene.write(x + 16, 11, name, SMALL, bold=True)
    for row, top, high in rows:
        _row(scene, both, row, (left, top, high), at, bool(parting and row in parting.rows))
    _steps(scene, both.steps, left, RIGHT, bottom, 10)
    scene.write(RIGHT + 14, bottom + 12, "step", TINY, faint=True)
    y = bottom + 36
    if rest:
        scene.write(1, y, rest, 12)
        y += LINE
    for line in told:
        for part in textwrap.wrap(line, LETTERS):
            scene.write(1, y, part, 12, bold=line is told[0] and bool(parting))
            y += LINE
    scene.height = y - 4
    return scene


def _fitting(both: Compared, most: int, layer: str | None) -> tuple[list[Row], str]:
    """So many layers, those first that tell something, and what is said of the others."""
    telling = both.parting.rows if both.parting else ()

    def tells(place: int) -> bool:
        row = both.layers[place]
        return row.name == layer or row in telling or any(map(row.silent, range(len(row.values))))

    if len(both.layers) <= most:
        return both.layers, ""
    wanted = [tells(place) for place in range(len(both.layers))]
    if sum(wanted) > most:  # where all differ, none does
        wanted = [both.layers[place].name == layer for place in range(len(wanted))]
    shown = folding.chosen(both.layers, most, wanted.__getitem__)
    norms = [
        value
        for place in {*range(len(both.layers))} - {*shown}
        for values in both.layers[place].values
        for value in values or ()
        if math.isfinite(value)
    ]
    said = f"… and {counted(len(both.layers) - len(shown), 'layer')} more between these"
    said += f": gradient norms from {_short(min(norms))} to {_short(max(norms))}" if norms else ""
    return [both.layers[place] for place in shown], said


def _row(
    scene: Scene, both: Compared, row: Row, place: tuple[float, float, float], at: int, lit: bool
) -> None:
    """One row: its name, its scale, a line for each run, their numbers at a step."""
    left, top, high = place
    bottom, large = top + high, high > ROW
    middle = top + 6 if large else bottom - ROW / 2
    scale = _Scale(row, top, bottom)
    scene.line(((left, bottom), (RIGHT, bottom)), 0.6)
    if row.name != LOSS:
        name = short_path(row.name, int(NAME / LETTER / CODE) + 1)
        scene.write(1, middle, name, CODE, code=row.layer, bold=lit)
    for value, y in scale.ticks() if large else [(scale.high, top + 4)]:
        scene.write(left - 6, y, _short(value), TINY, "end", faint=True)
        if top <= y < bottom and large:
            scene.line(((left, y), (RIGHT, y)), 0.4)
    numbers = [math.nan if values is None or at >= len(values) else values[at] for values in row.values]
    # Two that differ are written so that it can be seen.
    digits = 6 if lit and len({_short(number) for number in numbers}) == 1 else 3
    for number, values in enumerate(row.values):
        # Of numbers that come once in an epoch, the first ones are not there yet.
        missing = values is None or at >= len(values) or (row.epochs and math.isnan(values[at]))
        said = "–" if missing else _short(numbers[number], digits)
        silent = {"missing": "no grad", "zeros": "zeros"}.get(row.silent(number), "")
        silent = "frozen" if row.frozen and row.values[number] else silent
        x = RIGHT + 14 + number * COLUMN
        scene.write(x, middle, silent or said, SMALL, bold=lit or bool(silent))
        drawn = row.points[number] if row.points else values or ()
        every = len(drawn) if row.points else both.steps
        points = [(_x(step, every, left), value) for step, value in enumerate(drawn)]
        _curve(scene, points, scale, COLOURS[number], THICK[number], f"{both.names[number]} {row.name}")


def _curve(scene: Scene, points: list[Point], scale: _Scale, colour: str, wide: float, key: str) -> None:
    """A line through what is finite."""
    for finite, group in itertools.groupby(points, key=lambda point: math.isfinite(point[1])):
        if finite:
            scene.line(tuple((x, scale.y(value)) for x, value in group), wide, colour, key=key)


class _Scale:
    """From 0, or the smallest number of a row below it, to the largest one."""

    def __init__(self, row: Row, top: float, bottom: float) -> None:
        self.top, self.bottom = top, bottom
        known = [v for values in row.values for v in values or () if math.isfinite(v)]
        self.high, self.low = max(known, default=1.0), min([*known, 0.0])
        if self.high <= self.low:
            self.high = self.low + 1

    def y(self, value: float) -> float:
        return self.bottom - (value - self.low) / (self.high - self.low) * (self.bottom - self.top)

    def ticks(self) -> list[tuple[float, float]]:
        """A few round values between the ends, and where they are."""
        step = round_step((self.high - self.low) / 3)
        values = [n * step for n in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]
        return [(value, self.y(value)) for value in values]


def _x(step: int, steps: int, left: float, right: float = RIGHT) -> float:
    return left + (step + 0.5) / max(steps, 1) * (right - left)


def _steps(scene: Scene, steps: int, left: float, right: float, y: float, most: int) -> None:
    """The numbers of steps below an axis."""
    every = round(max(round_step(steps / most), 1))
    for step in range(0, steps, every):
        x = _x(step, steps, left, right)
        scene.line(((x, y), (x, y + 4)), 0.8)
        scene.write(x, y + 12, str(step), TINY, "middle")


def _short(value: float, digits: int = 3) -> str:
    if digits == 3 and 100 <= abs(value) < 1e5:
        return f"{value:.0f}"
    said = f"{value:.{digits if abs(value) >= 1e-3 else digits - 1}g}"
    return said.replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")


@public
def curves(runs: Mapping[str, Run]) -> Picture:
    """Loss curves side by side, each with its letter: `draw.curves({"A": run, "B": other})`. Raises
    `ValueError` for a run without a loss."""
    scene = Scene(f"{len(runs)} loss curves by step: {', '.join(map(str, runs))}", height=156)
    wide, top, bottom = WIDTH / len(runs), 30.0, 132.0
    for number, (letter, run) in enumerate(runs.items()):
        values = losses_of(run, letter)
        left, right = number * wide + 36, (number + 1) * wide - 10
        scale = _Scale(Row(LOSS, (values,)), top, bottom)
        scene.write(left, 11, str(letter), 14, bold=True)
        scene.write(right, 11, "loss by step", TINY, "end", faint=True)
        for value, y in scale.ticks():
            scene.write(left - 5, y, _short(value), TINY, "end", faint=True)
            scene.line(((left, y), (right, y)), 0.4)
        scene.line(((left, bottom), (right, bottom)), 0.7)
        points = [(_x(step, len(values), left, right), value) for step, value in enumerate(values)]
        _curve(scene, points, scale, palette.ODD, 2.2, str(letter))
        _steps(scene, len(values), left, right, bottom, 4)
    return to_picture(scene, Small)
