"""A Gantt chart of a loader: workers, queue, transfer and step on one time axis, from `measure.loading`."""

from __future__ import annotations

from course_utils.draw.picture import Picture
from course_utils.draw.shapes import Scene, to_picture
from course_utils.draw.time_axis import SMALL, TINY, Axis, bar, ticks
from course_utils.measure.loading import Fed, Loading, length
from course_utils.wrong_use import public

LEFT = 72
ROW, THIN, BETWEEN = 24.0, 9.0, 7.0
# What is drawn of a batch: its part, the colour, the words in it.
KINDS = {
    "fetched": ("storage", "reads items"),
    "collated": ("view", "collates"),
    "waited": ("", "waits"),
    "step": ("rank", "step"),
}


@public
def loading(found: Loading) -> Picture:
    """A picture of who waited for whom, from what `measure.loading` returned.

    A row for each worker: it reads items, then collates them. Below it, thin, how long each batch was on its
    way or lay in the queue. The last row is the loop: it waits, then steps.
    """
    return to_picture(compose(found))


def compose(found: Loading) -> Scene:
    """The scene of `loading`."""
    axis = Axis(0.0, found.seconds, LEFT)
    scene = Scene("; ".join(str(found).splitlines()))
    y = 4.0
    for worker in range(found.workers):
        scene.write(1, y + ROW / 2, f"worker {worker}", 13, bold=True)
        for number, batch in enumerate(found.batches):
            if batch.worker == worker:
                _parts(scene, axis, batch, number, y, ("fetched", "collated"))
                _queued(scene, axis, batch, number, y + ROW + 1)
        scene.write(LEFT - 6, y + ROW + 6, "queue", 9.5, "end", faint=True)
        y += ROW + THIN + BETWEEN
    scene.write(1, y + ROW / 2, "the loop", 13, bold=True)
    if found.workers:
        more = f"starts the workers: {found.start_up * 1e3:.1f} ms"
        scene.boxes.append(
            bar(axis, 0.0, found.start_up, y, ROW, ("starts workers", "starts"), SMALL, fill="odd", more=more)
        )
    for number, batch in enumerate(found.batches):
        own = ("waited",) if found.workers else ("fetched", "collated")
        _parts(scene, axis, batch, number, y, (*own, "step"))
    y += ROW + 6
    ticks(scene, axis, y)
    scene.height = y + 18
    y = scene.height + 12
    for line in str(found).splitlines():
        scene.write(LEFT, y, line, SMALL + 0.5)
        y += 17
    scene.height = y - 6
    return scene


def _parts(scene: Scene, axis: Axis, batch: Fed, number: int, y: float, parts: tuple[str, ...]) -> None:
    for part in parts:
        begin, end = interval = getattr(batch, part)
        if length(interval) < 2e-5:
            continue
        fill, name = KINDS[part]
        more = f"batch {number} {name}: from {begin * 1e3:.1f} ms, for {length(interval) * 1e3:.2f} ms"
        texts = (f"{name} {number}", str(number)) if part in ("fetched", "step") else (name,)
        how = dict(fill=fill, more=more, dashed=part == "waited", part=part, key=f"{part}.{number}")
        scene.boxes.append(bar(axis, begin, end, y, ROW, texts, TINY, **how))


def _queued(scene: Scene, axis: Axis, batch: Fed, number: int, y: float) -> None:
    begin, end = batch.queued
    more = f"batch {number} is on its way or in the queue for {(end - begin) * 1e3:.2f} ms"
    how = dict(fill="flight", more=more, part="queued", key=f"queued.{number}")
    scene.boxes.append(bar(axis, begin, end, y, THIN, **how))
    x = axis.x(end)
    scene.line(((x, y), (x, y + THIN + 2)), 0.9)
