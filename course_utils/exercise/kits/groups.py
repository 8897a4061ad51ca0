"""What exercises on files of a group look at: who writes and who reads, in an order that is the same on every
run, and what stands at a path at every moment."""

from __future__ import annotations

import contextlib
import io
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from course_utils.measure.traffic import Call, CollectiveWatch

# Seconds after which a rank that is held goes on: longer than it takes to come anywhere.
PATIENCE = 5.0
_STORAGES = (torch.UntypedStorage, torch.storage.TypedStorage)
_numbers = itertools.count()


class Files(CollectiveWatch):
    """Inside, all ranks work in the folder of rank 0, and what this rank writes with `torch.save` and reads
    with `torch.load` is counted. All ranks enter it equally often.

    Who does not wait for another rank comes too early, on every machine. Rank 0 is held before it writes,
    until no other one gets any further alone: each waits for it, has read a file or failed to, or has left.
    Or, with `slow_readers`, the others are held before they read, until rank 0 waits for them or has left.
    """

    def __init__(self, path: Path, *, slow_readers: bool = False) -> None:
        super().__init__()
        self.saves = self.loads = 0
        self._slow_readers, self._waits, self._rank = slow_readers, 0, dist.get_rank()
        plain = dist.distributed_c10d._get_default_store()
        self._store = dist.PrefixStore(f"files {next(_numbers)}", plain)
        self._folder = contextlib.chdir(common(path))

    def __enter__(self) -> Files:
        super().__enter__()
        self._folder.__enter__()
        self._save, self._load = torch.save, torch.load
        torch.save, torch.load = self._saving, self._loading
        return self

    def __exit__(self, *error: Any) -> Any:
        torch.save, torch.load = self._save, self._load
        self._tell("left")
        if self._rank == 0:
            self._until_others(left=0)  # its folder goes with it
        self._folder.__exit__(*error)
        return super().__exit__(*error)

    def launched(self, number: int, call: Call, run: Callable[[], Any]) -> Any:
        return run()

    def waits(self, number: int | None, wait: Callable[[], Any]) -> Any:
        self._waits += 1
        self._tell("waits")
        return wait()

    def _saving(self, thing: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        if not isinstance(thing, _STORAGES):  # so tensors are pickled
            if self._rank == 0 and not self._slow_readers:
                self._until_others(left=0, read=self.saves)
            self.saves += 1
        self._save(thing, f, *args, **kwargs)

    def _loading(self, f: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(f, io.BytesIO) and kwargs.get("weights_only") is False:  # so they are unpickled
            return self._load(f, *args, **kwargs)
        self.loads += 1
        if self._rank > 0 and self._slow_readers:
            self._until_others(left=0)
        try:
            return self._load(f, *args, **kwargs)
        finally:
            self._tell("read")

    def _tell(self, what: str) -> None:
        self._store.add(f"{self._rank} {what}", 1)

    def _until_others(self, **told: int) -> None:
        """Until each other rank has told one of these more often than that, or waits for something that this
        rank has not come to."""
        others, end = {*range(dist.get_world_size())} - {self._rank}, time.monotonic() + PATIENCE
        told["waits"] = self._waits
        while others and time.monotonic() < end:
            time.sleep(0.002)
            others = {
                rank
                for rank in others
                if not any(self._store.add(f"{rank} {what}", 0) > count for what, count in told.items())
            }


def common(path: Path) -> Path:
    """Rank 0's folder, on every rank."""
    found = [str(path)]
    dist.broadcast_object_list(found)
    return Path(found[0])


@contextlib.contextmanager
def at_every_moment(path: str | Path, read: Callable[[], Any]) -> Iterator[list[Any]]:
    """What `read` says of the file at `path`, before, after each call of a function in C in which it changed,
    and so on to the end, without repetitions."""
    found, last = [read()], _state_of(path)

    def look(frame: Any, event: str, function: Any) -> None:
        nonlocal last
        if event == "c_return" and (now := _state_of(path)) != last:
            last = now
            found.extend([what] if (what := read()) != found[-1] else [])

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        yield found
    finally:
        sys.setprofile(before)


def _state_of(path: str | Path) -> Any:
    try:
        about = Path(path).stat()
    except FileNotFoundError:
        return None
    return about.st_ino, about.st_size, about.st_mtime_ns
