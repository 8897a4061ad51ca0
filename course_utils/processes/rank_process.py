"""The inside of a rank: joins the process group, runs the function, and stays.

It stays after the function has returned: a rank that leaves would break the connections of those that still
wait for it, and their report would say that instead of where they wait.
"""

import contextlib
import functools
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist

from course_utils import torch_private
from course_utils.measure import matching
from course_utils.processes import worker_process

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


def run_rank(
    function: Callable[..., Any],
    rank: int,
    world_size: int,
    args: tuple[Any, ...],
    backend: str,
    port: int,
    gpus: bool,
    around: Callable[[int], AbstractContextManager[Any]] | None = None,
) -> Any:
    """`function(rank, world_size, *args)` inside a process group of `world_size` ranks. `around` is entered
    for that with the last descriptor that this process was handed."""
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world_size),
        LOCAL_WORLD_SIZE=str(world_size),
        MASTER_ADDR="127.0.0.1",
        # Otherwise gloo looks up this machine by its name: slow, and without a network it may fail.
        GLOO_SOCKET_IFNAME=LOOPBACK,
    )
    if not gpus:
        worker_process.hide_gpus()
    elif "nccl" in backend:
        torch.cuda.set_device(rank)
    # Rank 0 was handed a socket that listens already: nobody can take its port, and nobody is too early.
    listening = {"master_listen_fd": worker_process.handed_over[0]} if rank == 0 else {}
    store = dist.TCPStore("127.0.0.1", port, world_size, rank == 0, wait_for_workers=False, **listening)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size)
    matching.watch(store, rank)
    # A wait that the reader's own line begins becomes visible on the stack: of a function in C++ nothing is,
    # and a rank that waits in one could not be told from one that sleeps.
    for kind in (torch_private.Work, torch_private.Future):
        kind.wait = _visible(kind.wait)
    with around(worker_process.handed_over[-1]) if around else contextlib.nullcontext():
        return function(rank, world_size, *args)


def _visible(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def wait(*args: Any, **kwargs: Any) -> Any:
        return plain(*args, **kwargs)

    return wait
