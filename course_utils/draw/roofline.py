"""Operators on the roofline of this machine, and a profile as a strip of time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from course_utils.draw import palette
from course_utils.draw.picture import Picture, panels
from course_utils.measure.roofline import Point, Roofline, place
from course_utils.wrong_use import WrongUse, public

if TYPE_CHECKING:
    import torch

LANES, MOST = 6, 400  # of a trace: how deep, and how many events


@public
def roofline(roof: Roofline, calls: Mapping[str, Callable[[], Any]]) -> Picture:
    """Each call at its arithmetic intensity and the operations a second that it reached, under the roof.

    `roof`: from `measure.roofline()`. `calls`: name to a function without arguments. Raises `ValueError` for
    a call that computes nothing.
    """
    points = {name: place(call) for name, call in calls.items()}
    picture, (axes,) = panels(3.4)
    axes.set_xscale("log")
    axes.set_yscale("log")
    low = min(roof.bend / 30, *(p.intensity / 2 for p in points.values()))
    high = max(roof.bend * 30, *(p.intensity * 2 for p in points.values()))
    axes.plot([low, roof.bend, high], [roof.limit(i) for i in (low, roof.bend, high)], color=palette.TEXT)
    axes.axvline(roof.bend, color=palette.TEXT, linewidth=0.8, linestyle=(0, (3, 3)))
    for name, point in points.items():
        bound = point.intensity < roof.bend
        axes.plot(
            point.intensity,
            point.rate,
            "o" if bound else "s",
            color=palette.VIEW if bound else palette.GRADIENT,
        )
        right = point.intensity > (roof.bend * high) ** 0.5
        offset, ha = ((-6, -9), "right") if right else ((6, -9), "left")
        where = (point.intensity, point.rate)
        axes.annotate(name, where, offset, textcoords="offset points", color=palette.TEXT, fontsize=9, ha=ha)
    for text, x, ha in (("memory-bound ", roof.bend, "right"), (" compute-bound", roof.bend, "left")):
        axes.annotate(
            text, (x, 0.02), xycoords=("data", "axes fraction"), color=palette.TEXT, fontsize=9, ha=ha
        )
    axes.set_xlim(low, high)
    axes.set_xlabel("operations a byte")
    axes.set_ylabel("operations a second")
    axes.set_title(str(roof), color=palette.TEXT, fontsize=9.5, loc="left")
    picture.description = f"{roof}. {'; '.join(_said(name, p, roof) for name, p in points.items())}."
    return picture


@public
def trace(profile: torch.profiler.profile) -> Picture:
    """A finished `torch.profiler.profile` as a strip: what ran when, what called what below it.

    Raises `ValueError` where nothing was recorded on the CPU.
    """
    events = [e for e in profile.events() or [] if e.time_range.elapsed_us() > 0 and not e.is_async]
    if not events:
        raise WrongUse("draw.trace: the profile holds no events")
    events = sorted(events, key=lambda e: -e.time_range.elapsed_us())[:MOST]
    start = min(e.time_range.start for e in events)
    end = max(e.time_range.end for e in events)
    lanes: dict[int, int] = {}
    picture, (axes,) = panels(0.45 + 0.33 * LANES)
    names: dict[str, str] = {}
    for event in events:
        depth = 0
        parent = event.cpu_parent
        while parent is not None:
            depth, parent = depth + 1, parent.cpu_parent
        if depth >= LANES:
            continue
        lanes[depth] = lanes.get(depth, 0) + 1
        hue = names.setdefault(event.name, palette.HUES[len(names) % len(palette.HUES)])
        left, wide = (event.time_range.start - start) / 1000, event.time_range.elapsed_us() / 1000
        axes.barh(depth, wide, left=left, height=0.86, color=hue, linewidth=0.4, edgecolor=palette.INK)
        text = event.name.removeprefix("aten::")
        if wide > 0.0085 * len(text) * (end - start) / 1000:
            axes.text(left + wide / 2, depth, text, color=palette.INK, fontsize=8, ha="center", va="center")
    axes.set_xlim(0, (end - start) / 1000)
    axes.set_ylim(max(lanes) + 0.6, -0.6)
    axes.set_yticks([])
    axes.set_xlabel("ms")
    picture.description = (
        f"{len(events)} events over {(end - start) / 1000:.1f} ms; callers above, called below."
    )
    return picture


def _said(name: str, point: Point, roof: Roofline) -> str:
    share = point.rate / roof.limit(point.intensity)
    bound = "memory" if point.intensity < roof.bend else "compute"
    return f"{name}: {point.intensity:.2g} operations a byte, {bound}-bound, {share:.0%} of the roof"
