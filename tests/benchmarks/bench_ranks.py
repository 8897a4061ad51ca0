"""Two ranks to their first all_reduce, and to the end of a DDP step: warm processes against `spawn`."""

import os
import statistics
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

from course_utils.processes.ranks import run_group
from tests.benchmarks.table import Row, seconds


def all_reduce(rank: int, world_size: int) -> float:
    x = torch.full((4,), float(rank + 1))
    dist.all_reduce(x)
    return x[0].item()


def ddp_step(rank: int, world_size: int) -> float:
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 2))
    model(torch.ones(3, 4)).sum().backward()
    return model.module.weight.grad.sum().item()


def _spawned(rank: int, world_size: int, store: str, step: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
    globals()[step](rank, world_size)
    dist.barrier()  # a rank that leaves early can bring the other down
    dist.destroy_process_group()
    os._exit(0)  # now and then a thread of gloo's aborts a process whose interpreter comes to its end


def _spawn(step: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_spawned, (2, str(Path(folder) / "store"), step), nprocs=2)


def _warm(step: str) -> None:
    results = run_group(globals()[step], 2, deadline=60)
    assert [result.state for result in results] == ["returned", "returned"], results


def rows() -> list[Row]:
    found = []
    for step, words in (("all_reduce", "the first all_reduce"), ("ddp_step", "the end of a DDP step")):
        for _ in range(2):
            _warm(step)
        times = [(seconds(lambda s=step: _spawn(s)), seconds(lambda s=step: _warm(s))) for _ in range(5)]
        spawn, warm = (statistics.median(column) for column in zip(*times, strict=True))
        detail = f"{spawn:.2f} s, {1000 * warm:.0f} ms"
        found.append(
            Row(f"two ranks to {words}: spawn / warm", spawn / warm, 15, at_most=False, detail=detail)
        )
    return found
