"""What several ranks did, on one time axis: read from what each of them wrote down while it ran."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from course_utils.processes.result import Result
from course_utils.wrong_use import public

# Seconds between two operators that are still drawn as one stretch, and the shortest pause that counts as
# waiting where nothing says so.
JOINED, PAUSE = 5e-4, 1e-4
# Seconds by which another thread may be late in noting that something is complete.
LATE = 5e-3
FOR_EVER = math.inf


@dataclass(frozen=True)
class Span:
    """A stretch of time in a lane, in seconds from the start of the first rank.

    `kind` is "forward", "backward", "step" or "other" for operators, "waiting" or "stuck" for none. A rank
    that was ended while it waited has a last span without an end: `end` is infinite.
    """

    kind: str
    begin: float
    end: float


@dataclass(frozen=True)
class Gradient:
    """A parameter's gradient has arrived. `bucket`: the number of the call that was launched next in this
    backward, None where none was."""

    time: float
    name: str
    bytes: int
    bucket: int | None


@dataclass(frozen=True)
class Flight:
    """A message or collective from its launch until it was complete; `end` is infinite where it never was.

    `name`, `bytes`, `peer`, `backward`: see `measure.traffic`. `number` counts this rank's calls.
    """

    number: int
    name: str
    bytes: int
    peer: int | None
    backward: bool
    begin: float
    end: float


@dataclass
class Lane:
    """One rank: what it computed and waited for, the gradients that arrived, what was under way.

    `end`: when it returned, raised or was last seen. `cut`: from when on its operators were too many to be
    noted. `state` is that of its `Result`; `told` says in words what became of it.
    """

    rank: int
    spans: list[Span] = field(default_factory=list)
    gradients: list[Gradient] = field(default_factory=list)
    flights: list[Flight] = field(default_factory=list)
    end: float = 0.0
    cut: float = FOR_EVER
    state: str = "returned"
    told: str = ""

    def waited(self) -> float:
        """Seconds that it stood still for others; infinite where it would still stand there."""
        return sum(span.end - span.begin for span in self.spans if span.kind == "waiting")

    def at(self, time: float) -> str:
        """What this rank does at that moment, in words."""
        if time > self.end and self.state != "timed out":
            return self.told
        doing = [span for span in self.spans if span.begin <= time < span.end]
        if not doing:
            words = "runs Python" if time < self.cut else "runs, not recorded"
        elif math.isinf(doing[-1].end):
            words = self.told
        else:
            words = _DOING[doing[-1].kind]
        under_way = [flight for flight in self.flights if flight.begin <= time < flight.end]
        if under_way:
            names = ", ".join(f"{flight.name} {flight.number}" for flight in under_way)
            words += f"; under way: {names}"
        return words


_DOING = {
    "forward": "computes forward",
    "backward": "computes backward",
    "step": "is in the optimizer's step",
    "other": "computes",
    "waiting": "waits",
    "stuck": "runs",
}


@dataclass
class Trace:
    """What `run_ranks(..., trace=True)` gives. `values`: what the ranks returned, None for those that did
    not; `report`: what became of each, in words; `seconds`: until the last thing that happened."""

    lanes: list[Lane]
    values: list[Any]
    report: str

    @property
    def seconds(self) -> float:
        """Until the last thing that happened on any rank."""
        return max((lane.end for lane in self.lanes), default=0.0)

    def moments(self) -> list[tuple[float, int, str]]:
        """(time, rank, what happened) of all that is worth a step: in order of time."""
        found = []
        for lane in self.lanes:
            for span in lane.spans:
                if span.kind in ("waiting", "stuck"):
                    found.append((span.begin, lane.rank, "stands still"))
                    if not math.isinf(span.end):
                        found.append((span.end, lane.rank, "goes on"))
            for span, before in zip(lane.spans, [None, *lane.spans[:-1]], strict=True):
                fresh = before is None or before.kind not in (span.kind, "waiting")
                if span.kind in ("forward", "backward", "step") and fresh:
                    found.append((span.begin, lane.rank, _DOING[span.kind]))
            for gradient in lane.gradients:
                found.append((gradient.time, lane.rank, f"the gradient of {gradient.name} has arrived"))
            for flight in lane.flights:
                found.append((flight.begin, lane.rank, f"{flight.name} {flight.number} is launched"))
                if not math.isinf(flight.end):
                    found.append((flight.end, lane.rank, f"{flight.name} {flight.number} is complete"))
            found.append((lane.end, lane.rank, lane.told))
        return sorted(found, key=lambda moment: moment[:2])  # at one time as above: the end comes last

    def __str__(self) -> str:
        return "\n".join(map(_in_words, self.lanes))

    __repr__ = __str__


@public
def trace_from_here() -> None:
    """Inside a function that `run_ranks` records: leaves out what this rank has done until now, so that
    the recording begins after the construction of a model, say. Does nothing where none is made."""
    watch = sys.modules.get("course_utils.watching.lane_watch")
    if watch is not None and watch.writing is not None:
        watch.writing.begin()


def read(
    results: Sequence[Result],
    logs: Sequence[bytes],
    told: Sequence[str],
    report: str,
) -> Trace:
    """The recording that the ranks' logs give together with what became of each of them. What others saw of
    the end of those that were stopped is no part of it."""
    stopped = min(result.stopped for result in results)
    logged = [[event for event in _events(log) if event[1] < stopped] for log in logs]
    events = [_from_the_start(each) for each in logged]
    zero = min((event[1] for each in events for event in each), default=0.0)
    lanes = [
        _lane(rank, result, each, words, zero)
        for rank, (result, each, words) in enumerate(zip(results, events, told, strict=True))
    ]
    return Trace(lanes, [result.value for result in results], report)


def _events(log: bytes) -> list[list[Any]]:
    found = []
    for line in log.decode(errors="replace").splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            break  # its rank was killed while it wrote this
    return sorted(found, key=lambda event: event[1])


def _from_the_start(events: list[list[Any]]) -> list[list[Any]]:
    """The events from the last start on, with calls counted from there."""
    starts = [i for i, event in enumerate(events) if event[0] == "start"]
    kept = events[starts[-1] :] if starts else []
    numbers = {event[2]: i for i, event in enumerate(e for e in kept if e[0] == "launch")}
    found = []
    for kind, time, *values in kept:
        if kind in ("launch", "over", "wait"):
            known = numbers.get(values[0])
            if kind == "over" and known is None:
                continue
            values = [known, *values[1:]]
        found.append([kind, time, *values])
    return found


def _lane(rank: int, result: Result, events: list[list[Any]], told: str, zero: float) -> Lane:
    lane = Lane(rank, state=result.state, told=told)
    launched: dict[int, list[Any]] = {}
    over: dict[int, float] = {}
    waiting: list[Any] | None = None
    busy: list[tuple[float, float, str]] = []  # where this thread did something, for what it did not
    for kind, time, *values in events:
        time -= zero
        # What other threads write says nothing about this one.
        if kind != "over":
            lane.end = max(lane.end, time)
        if kind == "op":
            busy.append((time, values[0] - zero, values[1]))
            lane.end = max(lane.end, values[0] - zero)
        elif kind == "gradient":
            busy.append((time, time, ""))
            lane.gradients.append(Gradient(time, *values, bucket=None))
        elif kind == "launch":
            busy.append((time, time, ""))
            launched[values[0]] = [time, *values]
        elif kind == "over":
            over[values[0]] = time
        elif kind == "wait":
            waiting = [time, values[0]]
        elif kind == "waited" and waiting is not None:
            busy.append((waiting[0], time, "waiting"))
            if values[0] and waiting[1] is not None:
                over[waiting[1]] = min(over.get(waiting[1], time), time)
            waiting = None
        else:
            busy.append((time, time, ""))
            if kind == "cut":
                lane.cut = time
    for number, (begin, _, name, size, peer, backward) in sorted(launched.items()):
        end = over.get(number, FOR_EVER)
        if result.state == "returned" and not math.isinf(end):
            end = min(end, lane.end)  # another thread notes it, perhaps a little late
        lane.flights.append(Flight(number, name, size, peer, backward, begin, end))
    # A backward is over when the next forward or the optimizer's step has begun.
    follows = [begin for begin, _, kind in busy if kind in ("forward", "step")]
    lane.gradients = _into_buckets(lane, follows)
    lane.spans = _spans(busy, lane.flights, follows)
    if result.state == "timed out":
        begin = waiting[0] if waiting else lane.end
        waits = result.position is not None and result.position.meets_others
        lane.spans.append(Span("waiting" if waits else "stuck", begin, FOR_EVER))
    return lane


def _into_buckets(lane: Lane, follows: list[float]) -> list[Gradient]:
    launches = [flight for flight in lane.flights if flight.backward]
    found = []
    for gradient in lane.gradients:
        over = _first(follows, gradient.time)
        bucket = next((f.number for f in launches if gradient.time <= f.begin < over), None)
        found.append(replace(gradient, bucket=bucket))
    return found


def _first(times: list[float], since: float) -> float:
    return min((time for time in times if time >= since), default=FOR_EVER)


def _spans(busy: list[tuple[float, float, str]], flights: list[Flight], follows: list[float]) -> list[Span]:
    """Stretches of operators of one phase, and of waiting. `DistributedDataParallel` waits where nothing can
    be noted, when a backward has launched its last bucket: there, a pause in which something that was under
    way was completed is one."""
    found: list[Span] = []
    before = -math.inf
    launches = [f.begin for f in flights if f.backward]
    for begin, end, kind in sorted(busy):
        if begin - before > PAUSE and kind != "waiting":
            over = _first(follows, begin)
            arrived = [f.end for f in flights if f.begin <= before <= f.end <= begin + LATE]
            if arrived and not any(begin <= time < over for time in launches):
                found.append(Span("waiting", before, min(begin, max(arrived))))
        if kind:
            last = found[-1] if found else None
            if last and last.kind == kind and kind != "waiting" and begin - last.end < JOINED:
                found[-1] = Span(kind, last.begin, end)
            else:
                found.append(Span(kind, begin, end))
        before = max(before, end)
    return found


def _in_words(lane: Lane) -> str:
    calls = [flight for flight in lane.flights if flight.name != "barrier"]
    early = [flight for flight in calls if flight.backward]
    words = [f"rank {lane.rank} {lane.told}"]
    if calls:
        size = sum(flight.bytes for flight in calls)
        what = "messages and collectives" if len(calls) > 1 else "message or collective"
        words.append(f"{len(calls)} {what} of {size:,} bytes")
    if early:
        words.append(f"{len(early)} of them launched inside backward")
    if not math.isinf(lane.cut):
        words.append(f"operators after {lane.cut * 1e3:.0f} ms were too many to be recorded")
    return "; ".join(words)
