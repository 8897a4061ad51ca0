"""The lanes explorer: what several ranks did when, to step through and to look at closely."""

from __future__ import annotations

from html import escape

import ipywidgets as widgets

from course_utils.draw.lanes import compose, whole
from course_utils.draw.shapes import Scene, to_svg
from course_utils.explore.controls import button
from course_utils.explore.explorer import COLOUR, Explorer
from course_utils.watching.lanes import Recording

# A window never shows less than this part of the recording.
CLOSEST = 1 / 200


def lanes(recording: Recording) -> LanesExplorer:
    """An explorer of what `run_ranks(..., record=True)` gave: steps from event to event, and a window of time
    to look at closely."""
    return LanesExplorer(recording)


class LanesExplorer(Explorer):
    """The widget. `step` is the number of the event that is shown, from 0; None before one was asked for.
    `window` is the time that is shown, (start, stop) in milliseconds."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.moments = recording.moments()
        self.step: int | None = None
        self.length = whole(recording) * 1e3

        self.back_button = button("◀ Back", self.back)
        self.forward_button = button("Step ▶", self.forward)
        self.all_button = button("All", self.show_all, width="52px")
        self.slider = widgets.IntSlider(
            min=0,
            max=max(len(self.moments) - 1, 1),
            description="event",
            layout=widgets.Layout(width="260px"),
            style={"description_width": "40px"},
        )
        self.range = widgets.FloatRangeSlider(
            value=(0.0, self.length),
            min=0.0,
            max=self.length,
            step=self.length / 500,
            description="ms",
            readout_format=".1f",
            layout=widgets.Layout(width="330px"),
            style={"description_width": "26px"},
        )
        self.message = widgets.HTML()
        self.picture = widgets.HTML()
        super().__init__(layout=widgets.Layout(max_width="720px"))
        row = widgets.Layout(flex_flow="row wrap", align_items="center")
        self.children = [
            widgets.HBox([self.back_button, self.forward_button, self.slider], layout=row),
            widgets.HBox([self.range, self.all_button], layout=row),
            self.message,
            self.picture,
        ]
        self.slider.observe(self._slid, "value")
        self.range.observe(self._zoomed, "value")
        self._show()

    @property
    def window(self) -> tuple[float, float]:
        start, stop = self.range.value
        least = self.length * CLOSEST
        if stop - start < least:
            start = min(start, self.length - least)
            stop = start + least
        return start, stop

    def forward(self) -> None:
        """To the next event."""
        self.go(0 if self.step is None else self.step + 1)

    def back(self) -> None:
        """To the event before."""
        self.go((self.step or 0) - 1)

    def go(self, step: int) -> None:
        """To event number `step`. A window that does not show it is moved there."""
        if not self.moments:
            return
        self.step = max(0, min(step, len(self.moments) - 1))
        at, (start, stop) = self.moments[self.step][0] * 1e3, self.window
        if not start <= at <= stop:
            width = stop - start
            start = max(0.0, min(at - width / 4, self.length - width))
            with self._silent():
                self.range.value = (start, start + width)
        self._show()

    def zoom(self, start: float, stop: float) -> None:
        """Shows the time from `start` to `stop`, in milliseconds."""
        self.range.value = (start, stop)

    def show_all(self) -> None:
        """Shows all of the time."""
        self.range.value = (0.0, self.length)

    def scene(self) -> Scene:
        """The picture that is shown."""
        cursor = None if self.step is None else self.moments[self.step][0]
        start, stop = self.window
        return compose(self.recording, start / 1e3, stop / 1e3, cursor)

    def _show(self) -> None:
        self.picture.value = to_svg(self.scene(), f"lanes-{self.model_id}")
        self.message.value = self._said()
        with self._silent():
            self.slider.value = self.step or 0
        self.back_button.disabled = not self.step
        self.forward_button.disabled = self.step is not None and self.step >= len(self.moments) - 1

    def _said(self) -> str:
        if self.step is None:
            lines = self.recording.report.splitlines()
        else:
            time, rank, what = self.moments[self.step]
            lines = [f"{time * 1e3:.2f} ms: rank {rank}: {what}"]
            lines += [f"rank {lane.rank} {lane.at(time)}" for lane in self.recording.lanes]
        first, *others = lines
        said = f"<b>{escape(first)}</b>" + "".join(f"<div>{escape(line)}</div>" for line in others)
        # As high as most events need, so that the picture below stays where it is.
        least = 22 * (1 + len(self.recording.lanes))
        return f"<div style='{COLOUR};line-height:1.45;min-height:{least}px;margin:2px 0'>{said}</div>"

    def _slid(self, change: dict) -> None:
        if not self._quiet:
            self.go(change["new"])

    def _zoomed(self, change: dict) -> None:
        if not self._quiet:
            self._show()
