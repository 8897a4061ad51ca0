"""With ranks and workers there are `world_size * workers` readers. This one's number among them decides which
items are its own: every so-many-th, from its number on.

`islice` without a stop reads what it skips and nothing beyond the item that it gives. So the stream may be
endless. Cutting it into blocks would need its length.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from torch.utils.data import get_worker_info


def shard_stream(
    items: Iterable[Any], rank: int = 0, world_size: int = 1
) -> Iterator[Any]:
    info = get_worker_info()
    worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
    return islice(items, rank * workers + worker, None, world_size * workers)


# Other right answers

from course_utils.exercise import Edit, Wrong


def counts(items, rank=0, world_size=1):
    info = get_worker_info()
    workers = info.num_workers if info else 1
    own = rank + world_size * (info.id if info else 0)
    for position, item in enumerate(items):
        if position % (world_size * workers) == own:
            yield item


def first_ranks_then_workers(items, rank=0, world_size=1):
    of_this_rank = islice(items, rank, None, world_size)
    if (info := get_worker_info()) is None:
        return of_this_rank
    return islice(of_this_rank, info.id, None, info.num_workers)


also_right = [counts, first_ranks_then_workers]


# Mistakes


def cuts_blocks(items, rank=0, world_size=1):
    info = get_worker_info()
    items = list(items)
    worker, workers = (info.id, info.num_workers) if info else (0, 1)
    size = len(items) // (workers * world_size)
    start = (rank * workers + worker) * size
    return iter(items[start : start + size])


def by_value(items, rank=0, world_size=1):
    info = get_worker_info()
    worker, workers = (info.id, info.num_workers) if info else (0, 1)
    return (item for item in items if hash(item) % (world_size * workers) == rank * workers + worker)


def both_agree(items, rank=0, world_size=1):
    info = get_worker_info()
    worker, workers = (info.id, info.num_workers) if info else (0, 1)
    return (x for i, x in enumerate(items) if (i % world_size, i % workers) == (rank, worker))


mistakes = [
    Wrong(by_value, told_by="workers_share"),
    Edit("all to every worker", "(info.id, info.num_workers)", "(0, 1)", told_by="workers_share"),
    Wrong(cuts_blocks, told_by="workers_share"),
    Edit("asks always", "(0, 1) if info is None else ", "", told_by="without_workers"),
    Edit("only workers", "world_size * workers)", "workers)", told_by="ranks_share"),
    Edit("the same number twice", "rank * workers + worker", "rank + worker", told_by="ranks_share"),
    Wrong(both_agree, told_by="ranks_share"),
    Edit("lists first", "islice(items", "islice(list(items)", told_by="reads_no_further"),
]

not_tried = {
    "hard numbers": "nothing is computed",
    "dtypes": "items may be anything, and come out as they are",
    "left alone": "of a stream one can only read; how much is counted",
}
