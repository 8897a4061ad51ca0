"""The kernel explorer: what each program of a launch loads and stores, line by line."""

from __future__ import annotations

from course_utils.draw.kernel import compose, title
from course_utils.draw.kernel_seen import Seen
from course_utils.draw.labels import counted
from course_utils.draw.shapes import Scene
from course_utils.explore.controls import dropdown
from course_utils.explore.explorer import Stepper
from course_utils.measure.kernel import KernelTraffic
from course_utils.wrong_use import public


@public
def kernel(traffic: KernelTraffic) -> KernelExplorer:
    """An explorer of what `draw.kernel` draws: steps from program to program, and a line to look at alone."""
    return KernelExplorer(traffic)


class KernelExplorer(Stepper):
    """The widget. `step` is the number of the program that is shown; `chosen` has the line."""

    def __init__(self, traffic: KernelTraffic) -> None:
        self.seen = Seen(traffic)
        sites = [f"{one.line}: {one.kind} of {one.tensor}" for one in traffic.sites]
        self.chosen = dropdown("line", ["all", *sites], width=210, label=30)
        super().__init__("program", "Next ▶", "All", self.chosen)
        self.chosen.observe(lambda change: self.redraw(), "value")
        self.slider.style.description_width = "58px"
        self.go(None)

    @property
    def site(self) -> int | None:
        """The number of the line that is shown alone."""
        return self.chosen.index - 1 if self.chosen.index else None

    def last(self) -> int:
        return self.seen.traffic.programs - 1

    def scene(self) -> Scene:
        return compose(self.seen, self.step, self.site, titled=False)

    def still_scene(self) -> Scene:
        return compose(self.seen, self.step, self.site)

    def said(self) -> list[str]:
        site, sites = self.site, range(len(self.seen.sites))
        found = [self.seen.touched(one, self.step)[1:] for one in sites if site in (None, one)]
        sectors, fewest = map(sum, zip(*found, (0, 0), strict=True))
        index = None if self.step is None else self.seen.program(self.step)
        races = [one for one in self.seen.traffic.races if index is None or index in one.programs]
        wrong = [*races, *self.seen.outside(self.step, site)]
        more = f"; and {len(wrong) - 1:,} more" * (len(wrong) > 1)
        told = f"{counted(sectors, 'sector')} of memory, {fewest:,} at best"
        return [title(self.seen, self.step), told, *(f"{one}{more}" for one in wrong[:1])]
