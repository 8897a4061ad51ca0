"""How long calls took: every one of them, and the percentiles."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from course_utils.draw import palette
from course_utils.draw.picture import Picture, panels
from course_utils.wrong_use import public

PERCENTS = (50, 90, 99)


@public
def latency(times: Mapping[str, Sequence[float]]) -> Picture:
    """A row for each name: every call as a dot at its time, and marks at the 50th, 90th and 99th percentile
    (nearest rank). `times`: seconds, by name.
    """
    picture, (panel,) = panels(0.72 * len(times) + 0.65)
    panel.spines["left"].set_visible(False)
    panel.set_xscale("log")
    for which in (panel.xaxis.set_major_formatter, panel.xaxis.set_minor_formatter):
        which(lambda value, _: f"{value:g}" if f"{value:.0e}"[0] in "125" else "")
    said = []
    for row, (name, seconds) in enumerate(times.items()):
        ordered = sorted(1e3 * second for second in seconds)
        # The same place for the same call on every drawing: a golden-ratio step spreads the dots.
        heights = [row + 0.36 * ((i * 0.618) % 1 - 0.5) for i in range(len(seconds))]
        panel.plot([1e3 * s for s in seconds], heights, "o", color=palette.VIEW, markersize=2.5, alpha=0.5)
        found = {percent: ordered[math.ceil(percent / 100 * len(ordered)) - 1] for percent in PERCENTS}
        for value in found.values():
            panel.plot([value] * 2, [row - 0.3, row + 0.3], color=palette.ODD, linewidth=2)
        # The outer two beside their marks, the one between them below: they may be close.
        for percent, side, above in ((50, "right", True), (90, "center", False), (99, "left", True)):
            place = found[percent], row + (-0.32 if above else 0.34)
            va = "bottom" if above else "top"
            panel.annotate(f" p{percent} ", place, ha=side, va=va, fontsize=7.5, color=palette.TEXT)
        said.append(f"{name} " + ", ".join(f"p{percent} {value:.3g} ms" for percent, value in found.items()))
    panel.set_yticks(range(len(times)), list(times), fontsize=10)
    panel.set_ylim(len(times) - 0.35, -0.6)
    panel.set_xlabel("milliseconds")
    picture.description = f"Times of calls: {'; '.join(said)}."
    return picture
