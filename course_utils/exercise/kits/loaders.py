"""A process that takes itself for the worker of a loader."""

import contextlib
from collections.abc import Iterator

from course_utils import torch_private


@contextlib.contextmanager
def in_worker(number: int, workers: int) -> Iterator[None]:
    """What `get_worker_info` says in worker `number` of so many; of 0 workers: None, as where there is no
    loader."""
    worker = torch_private.loader_worker
    info = worker.WorkerInfo(id=number, num_workers=workers, seed=0, dataset=None) if workers else None
    before, worker._worker_info = worker._worker_info, info
    try:
        yield
    finally:
        worker._worker_info = before
