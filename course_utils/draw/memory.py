"""The memory of a training step by category: predicted and measured, and over time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import nn

from course_utils.draw import palette
from course_utils.draw.picture import Picture, panels
from course_utils.measure.memory import CATEGORIES, Moment, Peak, snapshot_timeline
from course_utils.measure.storage import own_bytes
from course_utils.wrong_use import WrongUse, public

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {
    "parameters": palette.STORAGE,
    "gradients": palette.GRADIENT,
    "optimizer": palette.FLIGHT,
    "activations": palette.SAVED,
    "temporaries": palette.VIEW,
}
MB = 1e6
MOST = 1500  # moments that are drawn
ROOM = 0.085  # how thick a band is that a name fits into, as a share of the peak
LETTER, PLACES = 0.0085, 40  # how wide a letter is, as a share of the width; places that are tried for a name


@public
def memory(prediction: Mapping[str, Any], peak: Peak, model: nn.Module) -> Picture:
    """Two bars: the reader's prediction in MB by category, and the measured peak with the model's parameters.

    What is predicted as `...` is left out. Raises `TypeError` for a prediction that is neither a number nor
    `...`, `ValueError` for an unknown category.
    """
    for name, value in prediction.items():
        if name not in CATEGORIES:
            raise WrongUse(f"draw.memory: categories are {', '.join(CATEGORIES)}; given was {name!r}")
        if value is not ... and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise WrongUse(f"draw.memory: {name} is a number of MB or `...`; given was {value!r}")
    own = sum(own_bytes(p) for p in model.parameters()) / MB
    measured = {name: size / MB for name, size in peak.by_category.items()}
    measured["parameters"] += own
    guessed = {"parameters": own} | {k: v for k, v in prediction.items() if v is not ...}
    picture, (axes,) = panels(1.75)
    rows = {"you": guessed if len(guessed) > 1 else {}, "measured": measured}
    width = max(1.0, *(sum(row.values()) for row in rows.values()))
    for y, (who, row) in enumerate(rows.items()):
        left = 0.0
        for name in CATEGORIES:
            size = row.get(name, 0)
            axes.barh(y, size, left=left, height=0.6, color=COLOURS[name])
            if size > 0.1 * width:
                axes.text(
                    left + size / 2,
                    y,
                    f"{name}\n{size:.0f}",
                    color=palette.INK,
                    fontsize=8.5,
                    ha="center",
                    va="center",
                )
            left += size
        label = f"{who}: {left:.0f} MB, {own:.0f} of them parameters" if row else f"{who}: nothing yet"
        axes.text(0, y - 0.43, label, color=palette.TEXT, fontsize=9.5, weight="bold")
    axes.set_ylim(1.4, -0.75)
    axes.set_xlim(0, width)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("MB at the peak")
    said = ", ".join(f"{name} {size:.0f}" for name, size in measured.items())
    picture.description = f"Measured at the peak, in MB: {said}."
    return picture


@public
def memory_timeline(recorded: Peak | dict[str, Any]) -> Picture:
    """The bytes alive over a step, by category, with the peak and the line of code that was running.

    `recorded`: what `measure.peak_bytes` returned, or `torch.cuda.memory._snapshot()`. Raises `ValueError`
    where nothing was recorded.
    """
    moments = recorded.timeline if isinstance(recorded, Peak) else snapshot_timeline(recorded)
    if not moments:
        raise WrongUse("draw.memory_timeline: nothing was allocated while this was recorded")
    top = max(range(len(moments)), key=lambda i: _total(moments[i]))
    every = -(-len(moments) // MOST)
    shown = sorted({*range(0, len(moments), every), top, len(moments) - 1})
    picture, (axes,) = panels(2.9)
    named = [name for name in CATEGORIES if any(moments[i].live[name] for i in shown)]
    below = [0.0] * len(shown)
    most = _total(moments[top]) / MB
    totals = [_total(moments[i]) / MB for i in shown]
    beside: list[tuple[float, float, float]] = []
    for name in named:
        above = [b + moments[i].live[name] / MB for b, i in zip(below, shown, strict=True)]
        axes.fill_between(shown, below, above, color=COLOURS[name], linewidth=0, step="post")
        _name(axes, name, shown, below, above, totals, beside)
        below = above
    axes.plot([top, top], [0, most], color=palette.ODD, linewidth=1.2)
    line = moments[top].line or moments[top].op
    side = "left" if top < 0.6 * len(moments) else "right"
    note = f" {most:.1f} MB · {line[:60]} "
    axes.text(
        top, 1.03 * most, note, color=palette.TEXT, fontsize=9, ha=side, va="bottom", family=palette.CODE
    )
    axes.set_ylim(0, 1.2 * most)
    axes.set_xlim(0, len(moments))
    axes.set_ylabel("MB alive")
    axes.set_xlabel("allocations and releases")
    picture.description = f"Bytes alive over the step. The peak is {most:.1f} MB, in {line}."
    return picture


def _total(moment: Moment) -> int:
    return sum(moment.live.values())


def _name(
    axes: Axes,
    name: str,
    shown: list[int],
    below: list[float],
    above: list[float],
    totals: list[float],
    beside: list[tuple[float, float, float]],
) -> None:
    """The category's name where its band is thick for a while, off the line at the peak; above all bands,
    with a line to its own, where there is no room in it. `beside`: where such names stand already."""
    thick = [a - b for a, b in zip(above, below, strict=True)]
    middle = [(a + b) / 2 for a, b in zip(above, below, strict=True)]
    high, most, wide = max(thick), max(totals), shown[-1]
    top = shown[totals.index(most)]
    runs: list[list[int]] = [[]]  # the stretches in which the band stays thick, on either side of the peak
    for i, of in enumerate(thick):
        if of > 0.6 * high and abs(shown[i] - top) > 0.01 * wide:
            runs[-1].append(i)
        elif runs[-1]:
            runs.append([])
    run = max(runs, key=len)
    at = run[len(run) // 2] if run else 0
    how = {"fontsize": 9, "va": "center"}
    if run and shown[run[-1]] - shown[run[0]] > 0.06 * wide and thick[at] > ROOM * most:
        axes.text(shown[at], middle[at], name, color=palette.INK, ha="center", **how)
        return
    thicker = [i for i, of in enumerate(thick) if of > 0.6 * high]
    letters = LETTER * wide * len(name)
    spots = []  # how far from the band, which place of it, where the name begins, how high it stands
    for i in thicker[:: max(1, len(thicker) // PLACES)]:
        for left in (shown[i] + 0.01 * wide, shown[i] - 0.01 * wide - letters):
            right = left + letters
            under = [total for x, total in zip(shown, totals, strict=True) if left <= x <= right]
            height = max(under, default=0.0) + 0.09 * most
            while any(left < b and right > a and abs(height - h) < 0.1 * most for a, b, h in beside):
                height += 0.1 * most
            if left >= 0 and right <= wide:
                spots.append((height - middle[i] + (height > 0.95 * most) * most, i, left, height))
    _, at, left, height = min(spots, default=(0.0, thicker[0], 0.0, 0.9 * most))
    beside.append((left, left + letters, height))
    side, end = ("left", left) if shown[at] <= left else ("right", left + letters)
    gap = (0.004 if side == "left" else -0.004) * wide
    axes.plot([shown[at], end], [middle[at], height], color=palette.TEXT, linewidth=0.8)
    axes.text(end + gap, height, name, color=palette.TEXT, ha=side, **how)
