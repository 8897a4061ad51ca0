"""The lanes explorer: what several ranks did when, to step through and to look at closely."""

from __future__ import annotations

from course_utils.draw.lanes import compose, whole
from course_utils.draw.shapes import Scene
from course_utils.explore.controls import slider
from course_utils.explore.explorer import Stepper
from course_utils.watching.lanes import Trace
from course_utils.wrong_use import public

# A window never shows less than this part of the recording.
CLOSEST = 1 / 200


@public
def lanes(recording: Trace) -> LanesExplorer:
    """An explorer of what `run_ranks(..., trace=True)` gave: steps from event to event, and a window of time
    to look at closely."""
    return LanesExplorer(recording)


class LanesExplorer(Stepper):
    """The widget. `step` is the number of the event that is shown. `window` is the time that is shown,
    (start, stop) in milliseconds."""

    def __init__(self, recording: Trace) -> None:
        self.recording, self.moments = recording, recording.moments()
        self.length = whole(recording) * 1e3
        more = {"step": self.length / 500, "readout_format": ".1f", "width": 330, "label": 26}
        self.range = slider("ms", (0.0, self.length), 0.0, self.length, **more)
        super().__init__("event", "Step ▶", "All", self.range)
        self.range.observe(lambda change: self.redraw(), "value")
        self.go(None)

    @property
    def window(self) -> tuple[float, float]:
        start, stop = self.range.value
        least = self.length * CLOSEST
        start = min(start, self.length - least)
        return start, max(stop, start + least)

    def last(self) -> int:
        return len(self.moments) - 1

    def go(self, step: int | None) -> None:
        """To event number `step`. A window that does not show it is moved there."""
        start, stop = self.window
        if step is None:
            start, stop = 0.0, self.length
        else:
            at = self.moments[max(0, min(step, self.last()))][0] * 1e3
            if not start <= at <= stop:
                width = stop - start
                start = max(0.0, min(at - width / 4, self.length - width))
                stop = start + width
        with self._silent():
            self.range.value = start, stop
        super().go(step)

    def scene(self) -> Scene:
        cursor = None if self.step is None else self.moments[self.step][0]
        start, stop = self.window
        return compose(self.recording, start / 1e3, stop / 1e3, cursor)

    def said(self) -> list[str]:
        if self.step is None:
            return self.recording.report.splitlines()
        time, rank, what = self.moments[self.step]
        lines = [f"rank {lane.rank} {lane.at(time)}" for lane in self.recording.lanes]
        return [f"{time * 1e3:.2f} ms: rank {rank}: {what}", *lines]
