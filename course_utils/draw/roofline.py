"""Operators on the roofline of this machine, and a profile as a strip of time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from matplotlib.path import Path
from matplotlib.textpath import TextPath
from matplotlib.transforms import Bbox

from course_utils.draw import palette
from course_utils.draw.labels import counted
from course_utils.draw.picture import Picture, panels
from course_utils.measure.roofline import Point, Roofline, place
from course_utils.wrong_use import WrongUse, public

if TYPE_CHECKING:
    import torch
    from matplotlib.axes import Axes

# Where a name may stand beside its point, best first: pixels from it, and what of the name stands there.
BESIDE = (
    ((8, -4), "left", "top"),
    ((-8, -4), "right", "top"),
    ((0, -8), "center", "top"),
    ((10, 0), "left", "center"),
    ((-10, 0), "right", "center"),
    ((-8, 4), "right", "bottom"),
    ((0, 8), "center", "bottom"),
    ((8, -18), "left", "top"),
    ((8, -32), "left", "top"),
)

# Of a trace: how deep, how many events, how wide a bar is at least (as a share of all), and the width of the
# page in points of letters that high.
LANES, MOST, LEAST = 6, 400, 0.002
PAGE, LETTERS = 590, 8


@public
def roofline(roof: Roofline, calls: Mapping[str, Callable[[], Any]]) -> Picture:
    """Each call at its arithmetic intensity and the operations a second that it reached, under the roof.

    `roof`: from `measure.roofline()`; where a call reaches more, the roof is raised to it. `calls`: name to a
    function without arguments. Raises `ValueError` for a call that computes nothing.
    """
    points = {name: place(call) for name, call in calls.items()}
    roof = replace(
        roof,
        bandwidth=max(roof.bandwidth, *(p.bytes / p.seconds for p in points.values())),
        peak=max(roof.peak, *(p.rate for p in points.values())),
    )
    picture, (axes,) = panels(3.4)
    axes.set_xscale("log")
    axes.set_yscale("log")
    low = min(roof.bend / 30, *(p.intensity / 2 for p in points.values()))
    high = max(roof.bend * 30, *(p.intensity * 2 for p in points.values()))
    corners = [(i, roof.limit(i)) for i in (low, roof.bend, high)]
    axes.plot(*zip(*corners, strict=True), color=palette.TEXT)
    axes.axvline(roof.bend, color=palette.TEXT, linewidth=0.8, linestyle=(0, (3, 3)))
    for point in points.values():
        bound = point.intensity < roof.bend
        mark, colour = ("o", palette.VIEW) if bound else ("s", palette.GRADIENT)
        axes.plot(point.intensity, point.rate, mark, color=colour)
    for text, x, ha in (("memory-bound ", roof.bend, "right"), (" compute-bound", roof.bend, "left")):
        axes.annotate(
            text, (x, 0.02), xycoords=("data", "axes fraction"), color=palette.TEXT, fontsize=9, ha=ha
        )
    axes.set_xlim(low, high)
    axes.set_ylim(bottom=0.3 * min(roof.limit(low), *(p.rate for p in points.values())), top=2 * roof.peak)
    axes.set_xlabel("operations a byte")
    axes.set_ylabel("operations a second")
    axes.set_title(str(roof), color=palette.TEXT, fontsize=9.5, loc="left")
    _name(picture, axes, {name: (p.intensity, p.rate) for name, p in points.items()}, corners)
    picture.description = f"{roof}. {'; '.join(_said(name, p, roof) for name, p in points.items())}."
    return picture


def _name(
    picture: Picture,
    axes: Axes,
    points: Mapping[str, tuple[float, float]],
    corners: list[tuple[float, float]],
) -> None:
    """Each name beside its point, where it covers neither the roof nor a point nor another text."""
    picture.draw_without_rendering()  # only then it is known where things stand
    to_pixels = axes.transData.transform
    bend = to_pixels(corners[1])[0]
    lines = [Path(to_pixels(corners)), Path([(bend, axes.bbox.y0), (bend, axes.bbox.y1)])]
    taken = [Bbox.from_bounds(x - 5, y - 5, 10, 10) for x, y in to_pixels(list(points.values()))]
    taken += [text.get_window_extent() for text in axes.texts]
    for name, at in points.items():
        best = None
        for offset, ha, va in BESIDE:
            how = {"textcoords": "offset pixels", "color": palette.TEXT, "fontsize": 9}
            text = axes.annotate(name, at, offset, ha=ha, va=va, **how)
            box = text.get_window_extent()
            covers = sum(box.overlaps(other) for other in taken)
            covers += sum(line.intersects_bbox(box, filled=False) for line in lines)
            covers += not (axes.bbox.x0 <= box.x0 and box.x1 <= axes.bbox.x1)
            if best is None or covers < best[0]:
                if best is not None:
                    best[1].remove()
                best = covers, text, box
            else:
                text.remove()
            if not covers:
                break
        if best is not None:
            taken.append(best[2])


@public
def trace(profile: torch.profiler.profile) -> Picture:
    """A finished `torch.profiler.profile` as a strip: what ran when, what called what below it.

    Bars that are too narrow for their names are grey, the narrowest are left out. Raises `ValueError` where
    nothing was recorded on the CPU.
    """
    events = [e for e in profile.events() or [] if e.time_range.elapsed_us() > 0 and not e.is_async]
    if not events:
        raise WrongUse("draw.trace: the profile holds no events")
    start = min(e.time_range.start for e in events)
    whole = max(e.time_range.end for e in events) - start
    found = len(events)
    events = [e for e in events if e.time_range.elapsed_us() >= LEAST * whole]
    events = sorted(events, key=lambda e: -e.time_range.elapsed_us())[:MOST]
    deepest = 0
    picture, (axes,) = panels(0.45 + 0.33 * LANES)
    hues: dict[str, str] = {}
    for event in sorted(events, key=lambda e: e.time_range.start):
        depth = 0
        parent = event.cpu_parent
        while parent is not None:
            depth, parent = depth + 1, parent.cpu_parent
        if depth >= LANES:
            continue
        deepest = max(deepest, depth)
        left, wide = (event.time_range.start - start) / 1000, event.time_range.elapsed_us() / 1000
        text = event.name.removeprefix("aten::").rpartition(": ")[2]
        fits = wide / whole * 1000 * PAGE > _points(text) + 4
        fill = palette.STORAGE
        if fits:
            fill = hues.setdefault(text, palette.HUES[len(hues) % len(palette.HUES)])
            middle = (left + wide / 2, depth)
            axes.text(*middle, text, color=palette.INK, fontsize=LETTERS, ha="center", va="center_baseline")
        axes.barh(depth, wide, left=left, height=0.86, color=fill, linewidth=0.4, edgecolor=palette.INK)
    axes.set_xlim(0, whole / 1000)
    axes.set_ylim(deepest + 0.6, -0.6)
    axes.set_yticks([])
    axes.set_xlabel("ms")
    drawn = f"{counted(len(axes.patches), 'event')} of {found:,}"
    picture.description = f"{drawn} over {whole / 1000:.1f} ms; callers above, called below."
    return picture


def _points(text: str) -> float:
    """How wide it is."""
    return TextPath((0, 0), text, size=LETTERS).get_extents().width


def _said(name: str, point: Point, roof: Roofline) -> str:
    share = point.rate / roof.limit(point.intensity)
    bound = "memory" if point.intensity < roof.bend else "compute"
    return f"{name}: {point.intensity:.2g} operations a byte, {bound}-bound, {share:.0%} of the roof"
