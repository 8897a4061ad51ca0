"""A stream, shared out

`items` is any iterable, perhaps endless, and can be read only from its beginning. `world_size` processes
train; `rank` says which one this is. Each has a loader with workers of its own, equally many everywhere, or
none. Return an iterator over the share of whoever calls: this worker of this rank.

- Together the shares hold every item exactly once. Each is in the order of the stream.
- No share is more than one item longer than another.
- Whoever takes the k-th item of its share has read nothing that comes after it.

In worker 1 of 2, `list(shard_stream("abcde"))` → `["b", "d"]`, and in worker 0 `["a", "c", "e"]`
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from course_utils.exercise import Exercise, Rows, expect
from course_utils.exercise.kits.loaders import in_worker

exercise = Exercise(
    minutes=15,
    core=True,
    hints=[
        "How many readers are there in all, over ranks and workers? Each needs a number of its own.",
        "Outside a worker there is no worker info: that is one reader, with number 0. Then two numbers say "
        "who you are, and two how many there are. Make one of each pair.",
        "`itertools.islice` takes every so-many-th item of anything and reads no further than it must. Start "
        "at your own number.",
    ],
)


@exercise.starter
def shard_stream(
    items: Iterable[Any], rank: int = 0, world_size: int = 1
) -> Iterator[Any]:
    """Every item of the stream that is this reader's"""
    raise NotImplementedError


MOST = 10_000


class _Stream:
    """Endless unless `length` says otherwise; `read` counts what was taken."""

    def __init__(self, length: int = MOST) -> None:
        self.length, self.read = length, 0

    def __iter__(self) -> Iterator[int]:
        for i in range(self.length):
            if i == MOST - 1:
                raise RuntimeError("10,000 items were read")
            self.read += 1
            yield i


def _shares(shard_stream, length, workers, world_size=1):
    """The share of each worker of each rank, as lists."""
    found = []
    for rank in range(world_size):
        for number in range(max(workers, 1)):
            with in_worker(number, workers):
                found.append(list(shard_stream(_Stream(length), rank, world_size)))
    return found


def _expect_once(shares, length, who):
    """Every item once, in order in each share, shares of nearly one length."""
    given = [item for share in shares for item in share]
    said = f"with {who} the shares are {shares}"
    lost = [item for item in range(length) if item not in given]
    twice = [item for item in range(length) if given.count(item) > 1]
    found = f"in no share: {lost}; more than once: {twice}; expected: each item once"
    expect.true(sorted(given) == list(range(length)), said, found)
    expect.true(
        all(share == sorted(share) for share in shares), said, "expected: each in the order of the stream"
    )
    sizes = [len(share) for share in shares]
    expect.true(max(sizes) - min(sizes) <= 1, said, "expected: none more than one item longer than another")


@exercise.check
def workers_share(shard_stream):
    """Workers share the stream out

    Each worker gets a copy of an iterable dataset and runs `__iter__` on it. Nobody shares this one out for
    them: without more, every item comes once from each. The end of the stream may come in the middle of a
    round.
    """
    with Rows() as rows:
        for workers in (2, 3, 5):
            for length in (7, 12, 2):
                with rows.of(who := f"{workers} workers and {length} items"):
                    _expect_once(_shares(shard_stream, length, workers), length, who)
        with rows.of("2 workers and six times None"):
            shares = []
            for number in (0, 1):
                with in_worker(number, 2):
                    shares.append(list(shard_stream([None] * 6)))
            expect.equal(shares, [[None] * 3] * 2, what="the shares (places decide, not items)")


@exercise.check
def without_workers(shard_stream):
    """Without workers the loop's own process reads all of it

    With `num_workers=0` there is no worker to ask: `get_worker_info()` returns `None`.
    """
    with in_worker(0, 0):
        expect.equal(list(shard_stream(_Stream(5))), [0, 1, 2, 3, 4], what="the share of the only reader")


@exercise.check
def ranks_share(shard_stream):
    """Ranks share it too, each among its own workers

    Every rank starts workers of its own and numbers them from 0. With 2 ranks and 3 workers there are 6
    readers; the number of a worker alone doesn't tell them apart.
    """
    with Rows() as rows:
        for world_size, workers in ((2, 0), (2, 3), (2, 2)):
            with rows.of(who := f"{world_size} ranks of {workers} workers each"):
                _expect_once(_shares(shard_stream, 7, workers, world_size), 7, who)


@exercise.check
def reads_no_further(shard_stream):
    """It reads no further than the item that it gives

    A log that is still written, or a socket, may have no end, and then a list of it never gets finished.
    """
    with Rows() as rows:
        for rank, number, last in ((0, 0, 8), (0, 1, 9), (1, 1, 11)):
            with rows.of(f"worker {number} of rank {rank} (2 ranks of 2 workers each)"):
                stream = _Stream()
                with in_worker(number, 2):
                    share = iter(shard_stream(stream, rank, 2))
                    given = [next(share) for _ in range(3)]
                expect.looked()
                most = max(given) + 1
                said = f"{stream.read} items were read for {given}, expected {most}"
                expect.true(stream.read <= most, said)
                said = f"the share begins with {given}, expected: one item out of every 4"
                expect.true(most <= last + 4, said)


@exercise.check(isolated=True)
def in_a_loader(shard_stream):
    """In a real loader, epoch after epoch

    A dataset is asked for a new iterator in each epoch, in every worker.
    """

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(shard_stream(_Stream(9)))

    loader = DataLoader(Stream(), 2, num_workers=2, persistent_workers=True, multiprocessing_context="fork")
    for epoch in (1, 2):
        given = sorted(torch.cat(list(loader)).tolist())
        expect.equal(given, list(range(9)), what=f"all items of epoch {epoch}, sorted,")
