"""A function and its backward, side by side: the value, the true slope, and the one that backward returns."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from course_utils.draw import palette
from course_utils.draw.picture import SHARPNESS, WIDTH, Picture

POINTS = 240
MOST_STRETCHES = 2
# Two slopes part where that can be seen: a thousandth of the largest of them.
VISIBLE = 1e-3
# Stretches of one kind are one stretch where so few points agree in between: two lines that cross.
CROSSING = 3

# Sizes in pixels of the page.
TOP, PLOT, LINE, LEFT, BETWEEN, RIGHT = 44, 210, 21, 52, 60, 150
TRUE, HANDED = 4.5, 2.0  # how thick the lines of the two slopes are

WORDS = {
    "no graph": "no graph, the result has no grad_fn and nothing comes back",
    "not finite": "there is a slope, and nan or inf comes back",
    "rounding": "rounding, the value is flat between steps and a slope comes back",
    "clipping": "clipping, the value no longer changes and a slope comes back",
    "nothing": "the value changes, and nothing comes back",
    "clipped gradient": "a clipped gradient, less than twice comes back when twice as much arrives",
    "wrong": "a wrong backward, another slope comes back",
}


# --- what is drawn ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stretch:
    """From where to where the two slopes part, and the key in `WORDS` of how they do."""

    start: float
    stop: float
    why: str


@dataclass(frozen=True)
class Slopes:
    """A function of one number at evenly spaced points.

    `true` is its slope by central differences in float64, times `arriving`; `handed` is what its backward
    returns when `arriving` arrives, nan everywhere where there is no graph. `stretches`: where they part.
    """

    points: tuple[float, ...]
    values: tuple[float, ...]
    true: tuple[float, ...]
    handed: tuple[float, ...]
    arriving: float
    stretches: tuple[Stretch, ...]


def compare(
    function: Callable[[Tensor], Tensor],
    start: float = -3.0,
    stop: float = 3.0,
    *,
    arriving: float = 1.0,
    dtype: torch.dtype = torch.float64,
    points: int = POINTS,
) -> Slopes:
    """The value, the slope and the backward of `function` between `start` and `stop`.

    `function` works element by element. The value and the backward are those in `dtype`. Raises `ValueError`
    where the range is empty, nothing arrives, or the result has another shape than the input.
    """
    if not start < stop:
        raise ValueError(f"no range: it starts at {start:g} and stops at {stop:g}")
    if not arriving:
        raise ValueError("where 0 arrives, every backward returns 0")
    width = (stop - start) / points
    # The middles of equal cells: a kink or a step at a round number falls between two of them.
    xs = (start + width * (torch.arange(points, dtype=torch.float64) + 0.5)).to(dtype)
    values, handed = _handed(function, xs, arriving)
    twice = _handed(function, xs, 2 * arriving)[1]
    exact = xs.double()
    reach = 1e-6 * exact.abs().clamp(min=1)
    with torch.no_grad():
        above, below = function(exact + reach).double(), function(exact - reach).double()
    true = arriving * (above - below) / (2 * reach)
    stairs = _stairs(exact, values, true / arriving)
    found = _reasons(true, handed, twice, stairs)
    return Slopes(
        tuple(exact.tolist()),
        tuple(values.tolist()),
        tuple(true.tolist()),
        tuple((torch.full_like(true, math.nan) if handed is None else handed).tolist()),
        arriving,
        _stretches(start, width, found),
    )


def _handed(
    function: Callable[[Tensor], Tensor], xs: Tensor, arriving: float
) -> tuple[Tensor, Tensor | None]:
    """The values and what comes back, in float64; None where there is no graph."""
    with torch.enable_grad():
        leaf = xs.clone().requires_grad_()
        result = function(leaf)
        if result.shape != leaf.shape:
            size, came = tuple(leaf.shape), tuple(result.shape)
            raise ValueError(f"the function makes {came} of {size}; it has to work element by element")
        values = result.detach().double()
        if not result.requires_grad:
            return values, None
        weights = torch.full_like(result, arriving)
        (grad,) = torch.autograd.grad(result, leaf, weights, materialize_grads=True)
    return values, grad.detach().double()


def _stairs(xs: Tensor, values: Tensor, slope: Tensor) -> Tensor:
    """Which points lie on a staircase: between its steps, and beyond the last ones as far as a step goes.

    A flat that is longer than any between two steps is where the staircase has ended, half a step after the
    last one."""
    width = xs[1] - xs[0]
    rise = (values[1:] - values[:-1]).abs()
    expected = torch.maximum(slope[1:].abs(), slope[:-1].abs()) * width
    steps = ((rise > 4 * expected) & (rise > 1e-9) & rise.isfinite()).nonzero().flatten()
    on = torch.zeros(len(xs), dtype=torch.bool)
    if len(steps) == 0:
        return on
    edges = (xs[steps] + xs[steps + 1]) / 2
    longest = (edges[1:] - edges[:-1]).max().item() if len(edges) > 1 else math.inf
    first, last = edges[0].item(), edges[-1].item()
    before, after = first - xs[0].item(), xs[-1].item() - last
    low = first - (longest / 2 if before > longest + 2 * width else before)
    high = last + (longest / 2 if after > longest + 2 * width else after)
    return (xs >= low - 1e-12) & (xs <= high + 1e-12)


def _reasons(true: Tensor, handed: Tensor | None, twice: Tensor | None, stairs: Tensor) -> list[str | None]:
    """For each point how the slopes part there, None where they do not."""
    if handed is None or twice is None:
        return ["no graph"] * len(true)
    known = torch.cat([true[true.isfinite()], handed[handed.isfinite()]]).abs()
    room = VISIBLE * known.max().item() if len(known) else 0.0
    found: list[str | None] = []
    for slope, came, more, stair in zip(
        true.tolist(), handed.tolist(), twice.tolist(), stairs.tolist(), strict=True
    ):
        if not math.isfinite(slope):
            found.append(None)
        elif not math.isfinite(came):
            found.append("not finite")
        elif abs(came - slope) <= room:
            found.append(None)
        elif slope == 0:
            found.append("rounding" if stair else "clipping")
        elif came == 0:
            found.append("nothing")
        elif math.isfinite(more) and abs(more - 2 * came) > room and abs(more) < 2 * abs(came):
            found.append("clipped gradient")
        else:
            found.append("wrong")
    return found


def _stretches(start: float, width: float, found: list[str | None]) -> tuple[Stretch, ...]:
    runs: list[tuple[int, int, str]] = []
    for place, why in enumerate(found):
        if why is None:
            continue
        if runs and runs[-1][2] == why and place - runs[-1][1] <= CROSSING:
            runs[-1] = (runs[-1][0], place + 1, why)
        else:
            runs.append((place, place + 1, why))
    return tuple(Stretch(start + first * width, start + end * width, why) for first, end, why in runs)


# --- the picture -------------------------------------------------------------------------------------


def slopes(
    function: Callable[[Tensor], Tensor],
    start: float = -3.0,
    stop: float = 3.0,
    *,
    name: str = "the function",
    arriving: float = 1.0,
    dtype: torch.dtype = torch.float64,
) -> Picture:
    """A function of one number and its backward side by side: at the left the value, at the right the true
    slope and the one that backward returns. Where the two part is marked, and said in words.

    Arguments as in `compare`. With `arriving` other than 1 both slopes are multiplied by it, which is right
    for the true one, and shows whether a backward does the same.
    """
    data = compare(function, start, stop, arriving=arriving, dtype=dtype)
    lines = _in_words(data)
    bottom = 30 + LINE * len(lines) + 12
    height = TOP + PLOT + bottom
    picture = Picture(figsize=(WIDTH / 100, height / 100), dpi=100 * SHARPNESS)
    picture.description = f"{name} from {start:g} to {stop:g}. " + "; ".join(lines)
    plot = (WIDTH - LEFT - BETWEEN - RIGHT) / 2
    lefts = (LEFT, LEFT + plot + BETWEEN)
    value, slope = (
        picture.add_axes((left / WIDTH, bottom / height, plot / WIDTH, PLOT / height)) for left in lefts
    )
    for axes, title in ((value, name), (slope, _title(data))):
        _frame(axes, title, start, stop, data.stretches)
    value.plot(data.points, _broken(data), color=palette.TEXT, linewidth=2.2)
    slope.plot(data.points, data.true, color=palette.TEXT, linewidth=TRUE, solid_capstyle="butt")
    slope.plot(data.points, data.handed, color=palette.GRADIENT, linewidth=HANDED)
    _room(value, data.values)
    _room(slope, (*data.true, *data.handed))
    factor = "" if arriving == 1 else f"{arriving:.3g} × "
    _at_the_ends(slope, [(f"{factor}true slope", data.true, False), ("backward returns", data.handed, True)])
    for number, line in enumerate(lines):
        y = (bottom - 42 - LINE * number) / height
        style = {"fontsize": 10, "color": palette.TEXT, "family": palette.PROSE, "va": "center"}
        picture.text(LEFT / WIDTH, y, line, **style)
    FigureCanvasAgg(picture)
    return picture


def _title(data: Slopes) -> str:
    return "slope" if data.arriving == 1 else f"gradient, when {data.arriving:g} arrives"


def _frame(axes: Axes, title: str, start: float, stop: float, stretches: tuple[Stretch, ...]) -> None:
    axes.patch.set_visible(False)
    axes.set_xlim(start, stop)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(palette.TEXT)
    axes.tick_params(colors=palette.TEXT, labelsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.text(
        0, 1 + 30 / PLOT, title, transform=axes.transAxes, fontsize=10.5, color=palette.TEXT, weight="bold",
        family=palette.PROSE, va="center",
    )  # fmt: skip
    for letter, stretch in zip(_letters(stretches), stretches, strict=False):
        axes.axvspan(stretch.start, stretch.stop, color=palette.ODD, alpha=0.22, linewidth=0)
        for edge in (stretch.start, stretch.stop):
            if start < edge < stop:
                axes.axvline(edge, color=palette.ODD, linewidth=1, linestyle=(0, (3, 2)))
        axes.text(
            (stretch.start + stretch.stop) / 2, 1 + 9 / PLOT, letter, transform=axes.get_xaxis_transform(),
            fontsize=9.5, color=palette.TEXT, weight="bold", ha="center", va="center", family=palette.PROSE,
        )  # fmt: skip


def _letters(stretches: tuple[Stretch, ...]) -> list[str]:
    """One letter for each way in which the slopes part: stretches of one kind share it."""
    kinds = list(dict.fromkeys(stretch.why for stretch in stretches))
    return ["abcdefg"[kinds.index(stretch.why)] for stretch in stretches]


def _in_words(data: Slopes) -> list[str]:
    if not data.stretches:
        return ["the two slopes agree everywhere"]
    places: dict[str, list[str]] = {}
    for stretch in data.stretches:
        places.setdefault(stretch.why, []).append(f"{stretch.start:.3g} to {stretch.stop:.3g}")
    lines = []
    for letter, (why, where) in zip("abcdefg", places.items(), strict=False):
        shown = where if len(where) <= MOST_STRETCHES else [*where[:MOST_STRETCHES], "…"]
        lines.append(f"{letter}   {', '.join(shown)}: {WORDS[why]}")
    return lines


def _broken(data: Slopes) -> list[float]:
    """The values with a gap where they jump, so that a step is not drawn as a steep line."""
    width = data.points[1] - data.points[0]
    drawn = list(data.values)
    for place in range(1, len(drawn)):
        rise = abs(data.values[place] - data.values[place - 1])
        steepest = max(abs(data.true[place - 1]), abs(data.true[place])) / abs(data.arriving)
        if rise > 1e-9 and rise > 4 * steepest * width:
            drawn[place] = math.nan
    return drawn


def _room(axes: Axes, numbers: tuple[float, ...]) -> None:
    """Limits with air around what is drawn, and never a range so small that rounding fills it."""
    finite = [number for number in numbers if math.isfinite(number)] or [0.0]
    low, high = min(finite), max(finite)
    air = max(0.08 * (high - low), 0.02 * max(abs(low), abs(high)), 1e-12)
    if high - low < 1e-6 * max(abs(low), abs(high), 1e-6):
        air = max(abs(high), 1.0) / 2
    axes.set_ylim(low - air, high + air)


def _at_the_ends(axes: Axes, lines: list[tuple[str, tuple[float, ...], bool]]) -> None:
    """The name of each line at its right end, one above the other where they end close together."""
    low, high = axes.get_ylim()
    ends: list[tuple[float, str, bool]] = []
    for name, numbers, handed in lines:
        finite = [number for number in numbers if math.isfinite(number)]
        if finite:
            ends.append(((finite[-1] - low) / (high - low), name, handed))
    ends.sort()
    apart = 16 / PLOT
    if len(ends) == 2 and ends[1][0] - ends[0][0] < apart:
        middle = min(max((ends[0][0] + ends[1][0]) / 2, apart / 2), 1 - apart / 2)
        ends = [(middle + side * apart / 2, *end[1:]) for side, end in zip((-1, 1), ends, strict=True)]
    for height, name, handed in ends:
        # A piece of the line before its name: its colour, or what is too pale for letters.
        colour, wide = (palette.GRADIENT, HANDED) if handed else (palette.TEXT, TRUE)
        ends_at = {"transform": axes.transAxes, "clip_on": False, "scalex": False, "scaley": False}
        axes.plot([1.015, 1.07], [height] * 2, color=colour, linewidth=wide, solid_capstyle="butt", **ends_at)
        axes.text(
            1.085, height, name, transform=axes.transAxes, fontsize=9.5, color=palette.TEXT,
            ha="left", va="center", family=palette.PROSE,
        )  # fmt: skip
