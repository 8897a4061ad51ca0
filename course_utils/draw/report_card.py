"""What became of a training step: time and bytes before and after, losses, and what each change brought."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from course_utils.draw import palette
from course_utils.draw.labels import bytes_said
from course_utils.draw.picture import MARGIN, WIDTH, Picture, plain
from course_utils.measure.step_cost import GROUPS, StepCost
from course_utils.wrong_use import WrongUse, public

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from course_utils.measure.timing import Ratio

HUES = (palette.FLIGHT, palette.GRADIENT, palette.VIEW, palette.SAVED, palette.STORAGE)
COLOURS = dict(zip(GROUPS, HUES, strict=True))
# Of curves: the first lies below the others.
STROKES = ((palette.STORAGE, 5.0), (palette.RANK, 1.8), (palette.ODD, 1.8), (palette.FLIGHT, 1.8))
LETTER = 0.012  # how wide a letter of a name is, as a share of the longest bar
MOST_CHANGES = 12


@dataclass(frozen=True)
class Change:
    """A change of a step, and the seconds that one took before it and after it; `noise`, by how many what it
    saved is uncertain."""

    name: str
    before: float
    after: float
    kept: bool = True
    noise: float = 0.0


@public
def report_card(
    before: StepCost,
    after: StepCost,
    changes: Sequence[Change],
    curves: Mapping[str, Sequence[float]],
    faster: Ratio | None = None,
) -> Picture:
    """One picture of a step that was made faster, to keep with `.save("card.svg")`.

    `before`, `after`: from `measure.step_cost`; the `limit` of `after` is marked. `changes`: what was tried,
    in order; without any the losses have their place. `curves`: losses by name, of runs over the same steps.
    `faster`: `measure.time_ratio(before, after)` of the two steps, timed in turns; without it the bars are
    compared. Raises `ValueError` for more than twelve changes or four curves.
    """
    if len(changes) > MOST_CHANGES or len(curves) > len(STROKES):
        raise WrongUse(f"wanted: at most {MOST_CHANGES} changes and {len(STROKES)} curves")
    below = max(2.3, 0.27 * len(changes) + 0.75)
    picture = Picture(figsize=(WIDTH / 100, 2.0 + below), layout="constrained")
    picture.get_layout_engine().set(w_pad=MARGIN / 100, h_pad=MARGIN / 100, hspace=0.06, wspace=0.03)
    grid = picture.add_gridspec(2, 1, height_ratios=(1.75, below))
    above = grid[0].subgridspec(1, 2, width_ratios=(4, 1))
    under = grid[1].subgridspec(1, 2, width_ratios=(1.15, 1)) if changes else [grid[1]]
    time, peak, *brought, losses = (plain(picture.add_subplot(at)) for at in (*above, *under))
    times = f"{faster.ratio:.1f} ± {faster.noise:.1f}" if faster else f"{before.total / after.total:.1f}"
    _draw_time(time, before, after, f"A step: {times} times as fast")
    _draw_peak(peak, before, after)
    for axes in brought:
        _draw_changes(axes, changes)
    _draw_losses(losses, curves)
    picture.description = _said(before, after, changes, curves)
    return picture


def _draw_time(axes: Axes, before: StepCost, after: StepCost, title: str) -> None:
    longest = max(before.total, after.total)
    for row, cost in enumerate((before, after)):
        left = free = 0.0
        for group in GROUPS:
            wide = 1e3 * cost.seconds.get(group, 0.0)
            how = {"left": left, "height": 0.56, "color": COLOURS[group], "edgecolor": palette.PAGE}
            axes.barh(row, wide, linewidth=0.6, **how)
            needs = 1e3 * longest * LETTER * len(group)
            if wide > needs:
                at, how = (left + wide / 2, row), {"ha": "center", "color": palette.INK}
                axes.text(*at, group, va="center_baseline", fontsize=8, **how)
            elif wide > 4e-3 * longest * 1e3 and left >= free:  # above it, where no other name stands
                axes.text(left, row - 0.3, group, va="bottom", fontsize=7.5, color=palette.TEXT)
                free = left + needs
            left += wide
        how = {"va": "center", "fontsize": 10, "color": palette.TEXT, "weight": "bold"}
        axes.annotate(f" {_ms(cost.total)}", (left, row), **how)
    if after.limit is not None:
        mark = 1e3 * after.limit
        axes.plot(mark, 1.4, marker="^", color=palette.INK, markersize=7)
        said = f"  the least here: {_ms(after.limit)}, {after.limit / after.total:.0%} of “after”"
        axes.annotate(said, (mark, 1.46), va="center", fontsize=8.5, color=palette.TEXT)
    axes.set_yticks([0, 1], ["before", "after"], fontsize=10)
    axes.set_ylim(1.7, -0.55)
    axes.set_xlim(0, 1e3 * longest * 1.13)
    axes.set_xlabel("milliseconds")
    _title(axes, title)


def _draw_peak(axes: Axes, before: StepCost, after: StepCost) -> None:
    for row, cost in enumerate((before, after)):
        axes.barh(row, cost.peak, color=palette.STORAGE, height=0.62)
        axes.text(0, row, f" {bytes_said(cost.peak)}", va="center_baseline", fontsize=9, color=palette.INK)
    axes.set_yticks([])
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    axes.set_ylim(1.7, -0.55)
    _title(axes, "Peak bytes")


def _draw_changes(axes: Axes, changes: Sequence[Change]) -> None:
    for row, change in enumerate(changes):
        saved = 1e3 * (change.before - change.after)
        colour = palette.RANK if saved > 0 else palette.ODD
        how = {"color": colour} if change.kept else {"color": "none", "edgecolor": colour, "hatch": "////"}
        noise = 1e3 * change.noise
        axes.barh(row, saved, height=0.6, xerr=noise or None, ecolor=palette.TEXT, **how)
        said = f"{abs(saved):.3g}" + f" ± {noise:.2g}" * bool(noise) + " ms"
        said += " longer" * (saved < 0) + ", not kept" * (not change.kept)
        how = {"va": "center", "fontsize": 8.5, "color": palette.TEXT}
        axes.annotate(f" {said} ", (max(saved + noise, 0), row), **how)
    axes.axvline(0, color=palette.LINE, linewidth=0.8)
    axes.set_yticks(range(len(changes)), [change.name for change in changes], fontsize=9)
    axes.set_ylim(max(len(changes), 1) - 0.4, -0.6)
    left, right = axes.get_xlim()
    axes.set_xlim(left, right + 0.42 * (right - left))
    axes.set_xlabel("milliseconds saved")
    _title(axes, "What each change brought")


def _draw_losses(axes: Axes, curves: Mapping[str, Sequence[float]]) -> None:
    ends = sorted(((losses[-1], name) for name, losses in curves.items() if len(losses)), reverse=True)
    strokes = dict(zip(curves, STROKES, strict=False))
    for name, losses in curves.items():
        colour, width = strokes[name]
        axes.plot(range(1, len(losses) + 1), losses, color=colour, linewidth=width, solid_capstyle="round")
    # Names stand below each other at the top right, where falling curves leave room, each beside its line.
    for place, (_, name) in enumerate(ends):
        colour, width = strokes[name]
        y = 0.95 - 0.1 * place
        axes.plot([0.5, 0.57], [y, y], color=colour, linewidth=width, transform=axes.transAxes)
        axes.text(0.6, y, name, transform=axes.transAxes, va="center", fontsize=9, color=palette.TEXT)
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    _title(axes, "What it learned")


def _title(axes: Axes, text: str) -> None:
    axes.set_title(text, fontsize=10.5, color=palette.TEXT, weight="bold", loc="left")


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"


def _said(
    before: StepCost, after: StepCost, changes: Sequence[Change], curves: Mapping[str, Sequence[float]]
) -> str:
    lines = [f"A step took {_ms(before.total)} and {bytes_said(before.peak)} before"]
    lines[0] += f", {_ms(after.total)} and {bytes_said(after.peak)} after."
    if after.limit is not None:
        lines.append(f"The least here is {_ms(after.limit)}.")
    brought = [f"{change.name} {1e3 * (change.before - change.after):+.3g} ms" for change in changes]
    lines += [f"Saved: {', '.join(brought)}."] if brought else []
    ends = (f"{name} {losses[-1]:.2f}" for name, losses in curves.items() if len(losses))
    lines.append(f"Last losses: {', '.join(ends)}.")
    return " ".join(lines)
