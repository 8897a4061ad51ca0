"""The kernel explorer: what each program of a launch loads and stores, line by line."""

from __future__ import annotations

from course_utils.draw.kernel import compose, title
from course_utils.draw.kernel_seen import Seen
from course_utils.draw.shapes import Scene
from course_utils.explore.controls import dropdown
from course_utils.explore.explorer import Stepper
from course_utils.measure.kernel import KernelTraffic
from course_utils.wrong_use import public

TOLD = 2  # of what went wrong


@public
def kernel(traffic: KernelTraffic) -> KernelExplorer:
    """An explorer of what `draw.kernel` draws: steps from program to program, and a line to look at alone."""
    return KernelExplorer(traffic)


class KernelExplorer(Stepper):
    """The widget. `step` is the number of the program that is shown; `chosen` has that of the line."""

    def __init__(self, traffic: KernelTraffic) -> None:
        self.seen = Seen(traffic)
        sites = [(f"{s.line}: {s.kind} of {s.tensor}", number) for number, s in enumerate(traffic.sites)]
        self.chosen = dropdown("line", [("all", None), *sites], width=210, label=30)
        super().__init__("program", "Next ▶", "All", self.chosen)
        self.chosen.observe(lambda change: self.redraw(), "value")
        self.go(None)

    def last(self) -> int:
        return self.seen.traffic.programs - 1

    def scene(self) -> Scene:
        return compose(self.seen, self.step, self.chosen.value)

    def said(self) -> list[str]:
        wrong = self.seen.outside(self.step, self.chosen.value)
        more = [f"and {len(wrong) - TOLD:,} more outside their tensors"] * (len(wrong) > TOLD)
        return [title(self.seen, self.step), *map(str, wrong[:TOLD]), *more]
