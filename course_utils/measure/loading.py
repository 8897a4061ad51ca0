"""Who waits for whom: a `DataLoader` watched while it feeds a step."""

from __future__ import annotations

import copy
import functools
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Self

from torch.utils.data import DataLoader, get_worker_info

from course_utils import torch_private
from course_utils.wrong_use import WrongUse, public

Interval = tuple[float, float]  # seconds, from the start of the recording


@dataclass(frozen=True)
class Fed:
    """One batch on its way. Intervals in seconds from the start of the recording.

    `worker`: the worker that made it, -1 for the process that also trains. `fetched`: its items were read;
    `collated`: they became a batch; `waited`: the loop stood at `next`; `step`: it stepped on the batch.
    """

    worker: int
    fetched: Interval
    collated: Interval
    waited: Interval
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

    def __str__(self) -> str:
        many = "no worker" if not self.workers else f"{self.workers} worker{'s' * (self.workers > 1)}"
        waited = sum(length(batch.waited) for batch in self.batches)
        stepped = sum(length(batch.step) for batch in self.batches)
        lines = [
            f"{len(self.batches)} batches, {many}: {self.seconds:.3f} s, "
            f"{self.start_up:.3f} of them to start",
            f"the loop waited for data: {waited:.3f} s ({waited / self.seconds:.0%}), "
            f"stepped: {stepped:.3f} s ({stepped / self.seconds:.0%})",
        ]
        if self.workers:
            idle = 0.0  # between two batches of a worker
            for worker in range(self.workers):
                own = sorted((b.fetched[0], b.collated[1]) for b in self.batches if b.worker == worker)
                idle += sum(begin - end for (_, end), (begin, _) in itertools.pairwise(own))
            share = idle / (self.workers * self.seconds)
            lines.append(f"workers waited for the loop: {idle:.3f} s ({share:.0%} of their time)")
        return "\n".join(lines)


@public
def loading(
    loader: DataLoader,
    step: Callable[[Any], Any],
    batches: int | None = None,
) -> Loading:
    """Runs `step(batch)` over at most `batches` batches of `loader` (default: all) and says when each was
    fetched, collated, waited for and stepped on.

    The loader is left as it is: a copy of it, with workers of its own, is watched, and its workers have
    ended when this returns. Raises `TypeError` for anything but a `DataLoader`, and `ValueError` where there
    is no batch.
    """
    watched = copy.copy(loader)
    begun = functools.partial(_worker_begins, loader.worker_init_fn)
    vars(watched).update({torch_private.LOADER_ITERATOR: None, "worker_init_fn": begun})
    begins, made = getattr(watched, torch_private.LOADER_BEGINS), _Unwrapped(loader.num_workers)
    setattr(watched, torch_private.LOADER_BEGINS, lambda: made.over(begins()))
    start = time.monotonic()
    iterator = iter(watched)
    try:
        fed = list(_fed(iterator, made, step, batches, start))
    finally:
        made.end()
    if not fed:
        raise WrongUse("measure.loading: the loader has no batch")
    return Loading(loader.num_workers, made.there - start, fed)


def length(interval: Interval) -> float:
    """Seconds from its begin to its end."""
    return interval[1] - interval[0]


def _fed(
    iterator: Any, waiting: _Unwrapped, step: Callable[[Any], Any], batches: int | None, start: float
) -> Iterator[Fed]:
    for number in itertools.count(1) if batches is None else range(1, batches + 1):
        before = waiting.fetched
        times = [time.monotonic()]
        try:
            batch = next(iterator)
        except StopIteration:
            return
        times.append(time.monotonic())
        _look_for_one_fetch(waiting, number, waiting.fetched - before)
        made = waiting.made.popleft()
        step(batch)
        times.append(time.monotonic())
        intervals = [made.fetched, made.collated, *itertools.pairwise(times)]
        yield Fed(made.worker, *((begin - start, end - start) for begin, end in intervals))


def _look_for_one_fetch(waiting: _Unwrapped, number: int, fetches: int) -> None:
    """Raises `WrongUse` where a batch cannot be paired with the times of its making. An `__iter__` that is
    ahead by some batches can: it fetches them before it gives the first."""
    if waiting.iterator is None:
        raise WrongUse("measure.loading: this loader has an `__iter__` that doesn't use DataLoader's")
    if not waiting.made or (number > 1 and fetches > 1):
        raise WrongUse(
            f"measure.loading pairs each batch with its fetch; this loader's own `__iter__` fetched "
            f"{fetches or 'no'} batch{'es' * (fetches != 1)} before it gave its batch {number}."
        )


@dataclass
class _Made:
    """A batch with the times of its making, by the clock that all processes of a machine share."""

    batch: Any
    worker: int
    fetched: Interval
    collated: Interval

    def pin_memory(self) -> Self:
        self.batch = torch_private.pin_memory(self.batch)
        return self


class _Unwrapped:
    """A loader's iterator that gives what the loader's own `__iter__` expects, plain batches, and keeps what
    is known of them in `made`, in their order."""

    def __init__(self, workers: int) -> None:
        self.workers, self.iterator, self.there = workers, None, 0.0
        self.fetched = 0
        self.made: deque[_Made] = deque()

    def over(self, iterator: Any) -> Self:
        self.iterator, self.there = iterator, time.monotonic()
        if not self.workers:
            fetcher = torch_private.dataset_fetcher(iterator)
            fetcher.fetch = functools.partial(_timed(type(fetcher).fetch), fetcher)
        return self

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        self.made.append(next(self.iterator))
        self.fetched += 1
        return self.made[-1].batch

    def end(self) -> None:
        if self.workers and self.iterator is not None:
            torch_private.shutdown_workers(self.iterator)


def _worker_begins(init: Callable[[int], Any] | None, worker: int) -> None:
    """The loader's own `worker_init_fn`, and after it every fetcher of this worker gives a `_Made`."""
    if init is not None:
        init(worker)
    for fetcher in (torch_private.MapFetcher, torch_private.IterableFetcher):
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
