"""A Gantt chart of a loader: workers, queue, transfer and step on one time axis, from `measure.loading`."""

from __future__ import annotations

from course_utils.draw.picture import Picture
from course_utils.draw.shapes import Line, Scene, to_picture
from course_utils.draw.time_axis import SMALL, TINY, Axis, bar, ticks
from course_utils.draw.words import Words
from course_utils.measure.loading import Fed, Loading, length

LEFT = 72
ROW, THIN, BETWEEN = 24.0, 9.0, 7.0
# What is drawn of a batch: its part, the colour, the words in it.
KINDS = {
    "fetched": ("storage", "reads items"),
    "collated": ("view", "collates"),
    "waited": ("", "waits"),
    "moved": ("flight", "moves"),
    "step": ("rank", "step"),
}


def loading(found: Loading, start: float = 0.0, stop: float | None = None) -> Picture:
    """Who waited for whom between `start` and `stop`, in milliseconds (default: all of it).

    A row for each worker: it reads items, then collates them. Below it, thin, how long each batch was on its
    way or lay in the queue. The last row is the loop: it waits, moves the batch, steps. Raises `TypeError`
    for anything but what `measure.loading` returned, `ValueError` for an empty interval.
    """
    if not isinstance(found, Loading):
        kind = type(found).__name__
        raise TypeError(f"draw.loading: wanted what measure.loading returned; given was a {kind}")
    return to_picture(compose(found, start / 1e3, None if stop is None else stop / 1e3))


def compose(found: Loading, start: float = 0.0, stop: float | None = None) -> Scene:
    """The scene of `loading`; times in seconds."""
    stop = found.seconds if stop is None else stop
    if not start < stop:
        raise ValueError(f"draw.loading: no time to show: from {start * 1e3:g} to {stop * 1e3:g} ms")
    axis = Axis(start, stop, LEFT)
    scene = Scene("; ".join(str(found).splitlines()))
    y = 4.0
    for worker in range(found.workers):
        scene.words.append(Words(1, y + ROW / 2, f"worker {worker}", 13, bold=True))
        for number, batch in enumerate(found.batches):
            if batch.worker == worker:
                _parts(scene, axis, batch, number, y, ("fetched", "collated"))
                _queued(scene, axis, batch, number, y + ROW + 1)
        scene.words.append(Words(LEFT - 6, y + ROW + 6, "queue", 9.5, "end", faint=True))
        y += ROW + THIN + BETWEEN
    scene.words.append(Words(1, y + ROW / 2, "the loop", 13, bold=True))
    if found.workers and axis.shows(0.0, found.start_up):
        more = f"starts the workers: {found.start_up * 1e3:.1f} ms"
        scene.boxes.append(
            bar(axis, 0.0, found.start_up, y, ROW, ("starts workers", "starts"), SMALL, fill="odd", more=more)
        )
    for number, batch in enumerate(found.batches):
        own = ("waited",) if found.workers else ("fetched", "collated")
        _parts(scene, axis, batch, number, y, (*own, "moved", "step"))
    y += ROW + 6
    ticks(scene, axis, y)
    scene.height = y + 18
    y = scene.height + 12
    for line in str(found).splitlines():
        scene.words.append(Words(LEFT, y, line, SMALL + 0.5))
        y += 17
    scene.height = y - 6
    return scene


def _parts(scene: Scene, axis: Axis, batch: Fed, number: int, y: float, parts: tuple[str, ...]) -> None:
    for part in parts:
        begin, end = interval = getattr(batch, part)
        if not axis.shows(begin, end) or length(interval) < 2e-5:
            continue
        fill, name = KINDS[part]
        more = f"batch {number} {name}: from {begin * 1e3:.1f} ms, for {length(interval) * 1e3:.2f} ms"
        texts = (f"{name} {number}", str(number)) if part in ("fetched", "step") else (name,)
        how = dict(fill=fill, more=more, dashed=part == "waited", part=part, key=f"{part}.{number}")
        scene.boxes.append(bar(axis, begin, end, y, ROW, texts, TINY, **how))


def _queued(scene: Scene, axis: Axis, batch: Fed, number: int, y: float) -> None:
    begin, end = batch.queued
    if not axis.shows(begin, end):
        return
    more = f"batch {number} is on its way or in the queue for {(end - begin) * 1e3:.2f} ms"
    how = dict(fill="flight", more=more, part="queued", key=f"queued.{number}")
    scene.boxes.append(bar(axis, begin, end, y, THIN, **how))
    x = axis.x(end)
    if end <= axis.stop:
        scene.lines.append(Line(((x, y), (x, y + THIN + 2)), 0.9, arrow=False))
