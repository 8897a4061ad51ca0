"""Who waits for whom: a `DataLoader` watched while it feeds a step."""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.data import DataLoader, get_worker_info
from torch.utils.data._utils import fetch
from torch.utils.data._utils.pin_memory import pin_memory

FETCHERS = (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher)
Interval = tuple[float, float]  # seconds, from the start of the recording


@dataclass(frozen=True)
class Fed:
    """One batch on its way. Intervals in seconds from the start of the recording.

    `worker`: the worker that made it, -1 for the process that also trains. `fetched`: its items were read;
    `collated`: they became a batch; `waited`: the loop stood at `next`; `moved`: to the device; `step`.
    """

    worker: int
    fetched: Interval
    collated: Interval
    waited: Interval
    moved: Interval
    step: Interval

    @property
    def queued(self) -> Interval:
        """From when it was made to when it was taken: on its way, or lying in the queue."""
        return self.collated[1], max(self.waited[1], self.collated[1])


@dataclass(frozen=True)
class Loading:
    """What a loader and a step did, batch by batch, in the order in which the batches came."""

    workers: int
    start_up: float  # seconds until the iterator was there: it starts the workers
    batches: list[Fed] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """From the start to the end of the last step."""
        return self.batches[-1].step[1]

    @property
    def step_waited(self) -> float:
        """Seconds in which the loop stood still for want of a batch. Without workers it makes them itself."""
        return sum(length(batch.waited) for batch in self.batches)

    @property
    def stepped(self) -> float:
        """Seconds in steps."""
        return sum(length(batch.step) for batch in self.batches)

    @property
    def workers_waited(self) -> float:
        """Seconds in which a worker had nothing to do between two of its batches, all workers together."""
        idle = 0.0
        for worker in range(self.workers):
            own = sorted(batch.fetched[0] for batch in self.batches if batch.worker == worker)
            ends = sorted(batch.collated[1] for batch in self.batches if batch.worker == worker)
            idle += sum(begin - end for begin, end in zip(own[1:], ends[:-1], strict=True))
        return idle

    def __str__(self) -> str:
        many = "no worker" if not self.workers else f"{self.workers} worker{'s' * (self.workers > 1)}"
        lines = [
            f"{len(self.batches)} batches, {many}: {self.seconds:.3f} s, "
            f"{self.start_up:.3f} of them to start",
            f"the loop waited for data: {self.step_waited:.3f} s ({self.step_waited / self.seconds:.0%}), "
            f"stepped: {self.stepped:.3f} s ({self.stepped / self.seconds:.0%})",
        ]
        if self.workers:
            share = self.workers_waited / (self.workers * self.seconds)
            waited = f"{self.workers_waited:.3f} s ({share:.0%} of their time)"
            lines.append(f"workers waited for the loop: {waited}")
        return "\n".join(lines)


def loading(
    loader: DataLoader,
    step: Callable[[Any], Any],
    batches: int | None = None,
    device: str | torch.device = "cpu",
) -> Loading:
    """Runs `step(batch)` over at most `batches` batches of `loader` (default: all) and says when each was
    fetched, collated, waited for, moved to `device` and stepped on.

    The loader is left as it is: a copy of it, with workers of its own, is watched, and its workers have
    ended when this returns. Batches without `.to` are not moved. Raises `TypeError` for anything but a
    `DataLoader`, and `ValueError` where there is no batch.
    """
    if not isinstance(loader, DataLoader):
        raise TypeError(f"measure.loading: wanted a DataLoader; given was a {type(loader).__name__}")
    watched = copy.copy(loader)
    vars(watched).update(_iterator=None, worker_init_fn=_Watch(loader.worker_init_fn))
    start = time.monotonic()
    with _fetches_timed() if not loader.num_workers else contextlib.nullcontext():
        iterator = iter(watched)
        try:
            found = Loading(loader.num_workers, time.monotonic() - start)
            found.batches.extend(_fed(iterator, step, batches, device, start))
        finally:
            if loader.num_workers:
                iterator._shutdown_workers()
    if not found.batches:
        raise ValueError("measure.loading: the loader has no batch")
    return found


def length(interval: Interval) -> float:
    """Seconds from its begin to its end."""
    return interval[1] - interval[0]


def _fed(
    iterator: Any, step: Callable[[Any], Any], batches: int | None, device: str | torch.device, start: float
) -> Iterator[Fed]:
    count = 0
    while batches is None or count < batches:
        times = [time.monotonic()]
        try:
            made = next(iterator)
        except StopIteration:
            return
        times.append(time.monotonic())
        batch = made.batch.to(device) if hasattr(made.batch, "to") else made.batch
        times.append(time.monotonic())
        step(batch)
        times.append(time.monotonic())
        waited, moved, stepped = (
            (begin - start, end - start) for begin, end in zip(times, times[1:], strict=False)
        )
        fetched, collated = ((begin - start, end - start) for begin, end in (made.fetched, made.collated))
        yield Fed(made.worker, fetched, collated, waited, moved, stepped)
        count += 1


@dataclass
class _Made:
    """A batch with the times of its making, by the clock that all processes of a machine share."""

    batch: Any
    worker: int
    fetched: Interval
    collated: Interval

    def pin_memory(self) -> _Made:
        self.batch = pin_memory(self.batch)
        return self


class _Watch:
    """The loader's own `worker_init_fn`, and after it the times are taken in this worker, to its end."""

    def __init__(self, init: Callable[[int], Any] | None) -> None:
        self.init = init

    def __call__(self, worker: int) -> None:
        if self.init is not None:
            self.init(worker)
        _time_fetches()


@contextlib.contextmanager
def _fetches_timed() -> Iterator[None]:
    """Every fetcher of this process gives a `_Made` while this is entered."""
    originals = [fetcher.fetch for fetcher in FETCHERS]
    _time_fetches()
    try:
        yield
    finally:
        for fetcher, original in zip(FETCHERS, originals, strict=True):
            fetcher.fetch = original


def _time_fetches() -> None:
    for fetcher in FETCHERS:
        fetcher.fetch = _timed(fetcher.fetch)


def _timed(original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], _Made]:
    def timed(self: Any, index: Any) -> _Made:
        begin, own, times = time.monotonic(), self.collate_fn, []

        def collate(items: Any) -> Any:
            times.append(time.monotonic())
            return own(items)

        self.collate_fn = collate
        try:
            batch = original(self, index)
        finally:
            self.collate_fn = own
        info = get_worker_info()
        worker = -1 if info is None else info.id
        return _Made(batch, worker, (begin, times[0]), (times[0], time.monotonic()))

    return timed
