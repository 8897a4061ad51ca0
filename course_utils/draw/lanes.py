"""Swim lanes: several ranks on one time axis, from a recording of `run_ranks(..., trace=True)`."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

from course_utils.draw.labels import bytes_said, counted
from course_utils.draw.picture import Picture
from course_utils.draw.shapes import Box, Scene, to_picture
from course_utils.draw.time_axis import LEFT, SMALL, TINY, Axis, bar, ticks
from course_utils.watching.lanes import Flight, Lane, Span, Trace
from course_utils.wrong_use import public

# Sizes in pixels of the page.
COMPUTE, FILLING, FLIGHT, GAP, BETWEEN = 24.0, 20.0, 17.0, 4.0, 14.0
FILLS = {"forward": "rank", "other": "rank", "backward": "gradient", "step": "storage"}  # of what ended
NAMES = {"other": "computes", "waiting": "waits", "stuck": "never returns"}
# How much longer than all that has happened the picture is where something never ends.
OPEN = 1.3


@public
def lanes(recording: Trace) -> Picture:
    """A picture of what each rank did when, in milliseconds from the first rank's start.

    For each rank: a row of what it computed and where it waited; a row of buckets that fill as gradients
    arrive; rows of messages and collectives from launch to completion. What never ended runs to the edge.
    """
    return to_picture(compose(recording, 0.0, whole(recording)))


def whole(recording: Trace) -> float:
    """Seconds that a picture of all of it has to show."""
    hangs = any(math.isinf(span.end) for lane in recording.lanes for span in lane.spans)
    return max(recording.seconds * (OPEN if hangs else 1.02), 1e-4)


def compose(recording: Trace, start: float, stop: float, cursor: float | None = None) -> Scene:
    """The scene of `lanes` between two times in seconds. `cursor`: a moment with a line through all lanes."""
    axis = Axis(start, stop)
    told = "; ".join(str(recording).splitlines())
    scene = Scene(f"{counted(len(recording.lanes), 'rank')} on one time axis: {told}")
    y = 6.0
    for lane in recording.lanes:
        y = _lane(scene, axis, lane, y) + BETWEEN
    ticks(scene, axis, y - BETWEEN + 4)
    scene.height = y + 14
    if cursor is not None and start <= cursor <= stop:
        x = axis.x(cursor)
        scene.line(((x, 0.0), (x, y - 8)), 1.6, key="cursor")
    return scene


def _lane(scene: Scene, axis: Axis, lane: Lane, y: float) -> float:
    """Draws one rank from `y` on; returns where it ends."""
    scene.write(1, y + COMPUTE / 2, f"rank {lane.rank}", 13, bold=True)
    for number, span in enumerate(lane.spans):
        if axis.shows(span.begin, span.end):
            scene.boxes.append(_span(axis, lane, span, number, y))
    if lane.state == "returned" and axis.shows(lane.end, lane.end):
        x = axis.x(lane.end)
        scene.line(((x, y - 3), (x, y + COMPUTE + 3)), 2.4, key=f"{lane.rank}.end")
    y += COMPUTE + GAP
    if lane.gradients:
        scene.write(1, y + FILLING / 2, "buckets", TINY, faint=True)
        _buckets(scene, axis, lane, y)
        y += FILLING + 2
    rows = _in_rows(axis, lane.flights)
    if rows:
        scene.write(1, y + FLIGHT / 2, "in flight", TINY, faint=True)
    for row in rows:
        scene.boxes += [_flight(axis, lane, flight, y) for flight in row]
        y += FLIGHT + 1
    told = [lane.told] if lane.state != "returned" else []
    if not math.isinf(lane.cut):
        told.append(
            f"ran more operators than are recorded: those after {lane.cut * 1e3:.0f} ms are not drawn"
        )
    for one in told:
        for line in textwrap.wrap(f"rank {lane.rank} {one}", 96):
            scene.write(LEFT, y + 11, line, SMALL + 0.5, bold=True)
            y += 17
    return y


def _span(axis: Axis, lane: Lane, span: Span, number: int, y: float) -> Box:
    for_ever = math.isinf(span.end)
    name = NAMES.get(span.kind, span.kind)
    if span.kind == "waiting" and for_ever:
        name = "waits for ever"
    fill = "odd" if for_ever else FILLS.get(span.kind, "")
    ended = "never ended" if for_ever else f"{(span.end - span.begin) * 1e3:.2f} ms"
    more = f"rank {lane.rank}, {name}: from {span.begin * 1e3:.2f} ms, {ended}"
    key = f"{lane.rank}.{number}"
    how = dict(fill=fill, more=more, dashed=span.kind == "waiting", part=span.kind, key=key)
    return bar(axis, span.begin, span.end, y, COMPUTE, (name,), SMALL, **how)


def _buckets(scene: Scene, axis: Axis, lane: Lane, y: float) -> None:
    """Each bucket as stairs: a step up for each gradient, by its bytes, as high as the row when launched."""
    launched = {flight.number: flight for flight in lane.flights}
    for gradient in lane.gradients:
        inside = [g for g in lane.gradients if g.bucket == gradient.bucket]
        place = inside.index(gradient) + 1
        if gradient.bucket is None:
            end, height, said = gradient.time, FILLING / 2, "and nothing sends it"
        else:
            flight = launched[gradient.bucket]
            end = inside[place].time if place < len(inside) else flight.begin
            held, total = sum(g.bytes for g in inside[:place]), sum(g.bytes for g in inside)
            height = max(FILLING * held / max(total, 1), 1.5)
            said = f"{held:,} of {total:,} bytes of {flight.name} {flight.number}"
        if axis.shows(gradient.time, end):
            more = f"rank {lane.rank}: the gradient of {gradient.name} has arrived, {said}"
            key = f"{lane.rank}.{gradient.bucket}.{gradient.name}"
            how = dict(fill="gradient", more=more, dashed=gradient.bucket is None, part="bucket", key=key)
            scene.boxes.append(bar(axis, gradient.time, end, y + FILLING - height, height, **how))


def _in_rows(axis: Axis, flights: Sequence[Flight]) -> list[list[Flight]]:
    """Flights that overlap in different rows, as few as possible."""
    rows: list[list[Flight]] = []
    for flight in sorted(flights, key=lambda f: (f.begin, f.number)):
        if not axis.shows(flight.begin, flight.end):
            continue
        for row in rows:
            if axis.x(row[-1].end) + 1 <= axis.x(flight.begin):
                row.append(flight)
                break
        else:
            rows.append([flight])
    return rows


def _flight(axis: Axis, lane: Lane, flight: Flight, y: float) -> Box:
    full = f"{flight.name} {flight.number}"
    if flight.peer is not None:
        full = f"{flight.name} {'to' if flight.name == 'send' else 'from'} {flight.peer}"
    texts = (f"{full} · {bytes_said(flight.bytes)}", full, str(flight.number))
    ended = "never complete"
    if not math.isinf(flight.end):
        ended = f"complete after {(flight.end - flight.begin) * 1e3:.2f} ms"
    at = f"at {flight.begin * 1e3:.2f} ms" + (", inside backward" if flight.backward else "")
    more = f"rank {lane.rank}: {full}, {flight.bytes:,} bytes, launched {at}, {ended}"
    key = f"{lane.rank}.{flight.number}"
    how = dict(fill="flight", more=more, dashed=math.isinf(flight.end), part="flight", key=key)
    return bar(axis, flight.begin, flight.end, y, FLIGHT, texts, **how)
