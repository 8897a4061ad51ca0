"""The same function in several real processes that can talk to each other: one `Result` for each rank.

A rank joins the process group, runs the function, and stays: one that leaves would break the connections of
those that still wait for it, and their report would say that instead of where they wait.
"""

import contextlib
import functools
import os
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import IO, Any

import torch
import torch.distributed as dist

from course_utils import machine, torch_private
from course_utils.measure import matching
from course_utils.processes import tree, worker_process
from course_utils.processes.client import ServerProcess
from course_utils.processes.result import Result
from course_utils.processes.workers import Worker, attend, close_all, tried_again
from course_utils.stacks import Position
from course_utils.wrong_use import WrongUse

DEADLINE = 30.0
# The first optimizer and the first DistributedDataParallel of a process import the compiler: better once than
# in every rank.
PRELOAD = (torch_private.DYNAMO,)
# Where all ranks that are not done wait for each other, or for one that is, nothing will happen any more.
# That much is concluded from this many looks in a row, this many seconds apart, at which nothing had moved.
LOOKS, LOOK_EVERY = 4, 0.25
# Seconds beyond the deadline in which ranks that all wait then are looked at to the end: on a busy machine
# they may have begun to wait just before it.
LOOK_ON = 4.0
# Seconds of processor time between two looks. Answering one takes less; clocks tick in hundredths.
SPENT_ON_A_LOOK = 0.025
STUCK = "nothing moved any more"
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"

Positions = dict[int, Position | None]  # of each rank


def run_group(
    function: Callable[..., Any],
    world_size: int,
    *args: Any,
    deadline: float = DEADLINE,
    preload: Sequence[str] = (),
    logs: Sequence[IO[bytes]] = (),
    context: Callable[[int], AbstractContextManager[Any]] | None = None,
    plain: bool = False,
    gpus: bool = True,
) -> list[Result]:
    """Runs `function(rank, world_size, *args)` in `world_size` processes; one `Result` for each. The backend
    is gloo, and NCCL for tensors on GPUs where every rank can have one of its own. Ranks that can only wait
    for each other are "timed out", with their position, before the deadline. Nothing is left running.
    `preload` is that of `Worker`, `plain` that of its `begin`; `gpus`: whether they see any. `context` is
    entered in each rank with the descriptor of its file of `logs`. Raises `CannotSendError` when the function
    or an argument cannot be sent, `WorkersError` when no process could be started."""
    if world_size < 1:
        raise WrongUse(f"run_ranks needs at least one rank as `world_size`; given was {world_size}.")
    backend = "cpu:gloo,cuda:nccl" if gpus and machine.serves("cuda", world_size) else "gloo"

    def once(server: ServerProcess | None) -> list[Result]:
        workers: list[Worker] = []
        for log in logs:
            log.seek(0)
            log.truncate()
        try:
            with socket.create_server(("127.0.0.1", 0)) as listening:
                port = listening.getsockname()[1]
                for rank in range(world_size):
                    handed = [listening] * (rank == 0) + list(logs[rank : rank + 1])
                    hand_over = [one.fileno() for one in handed]
                    workers.append(Worker((*PRELOAD, *preload), hand_over, server))
            for rank, worker in enumerate(workers):
                call = run_rank, function, rank, world_size, args, backend, port, gpus, context
                worker.begin(*call, plain=plain)
            return _await_all(workers, deadline)
        finally:
            close_all(workers)

    return tried_again(once)


def _await_all(workers: list[Worker], deadline: float) -> list[Result]:
    """What became of each."""
    results: dict[int, Result] = {}
    stillness, patience = _Stillness(), deadline
    while waiting := {rank: worker for rank, worker in enumerate(workers) if rank not in results}:
        left = max([worker.left(patience) for worker in waiting.values()])
        if attend([*waiting.values()], min(LOOK_EVERY, left)):
            results |= {rank: worker.finish() for rank, worker in waiting.items() if worker.done}
            continue
        late = left <= 0
        if not late and not stillness.look(workers, waiting):
            continue
        # All of them say where they are before the first is ended: its end would change the others.
        positions = {rank: worker.position() for rank, worker in waiting.items()}
        if late and patience == deadline and _all_meet(positions):
            patience += LOOK_ON
            continue
        how = f"deadline of {deadline:g} s" if late else STUCK
        results |= {rank: worker.give_up(positions[rank], how) for rank, worker in waiting.items()}
    return [results[rank] for rank in range(len(workers))]


class _Stillness:
    """Whether all ranks that have not ended wait for others, and nothing moves any more."""

    def __init__(self) -> None:
        self._found: Positions | None = None
        self._looks, self._spent = 0, 0.0

    def look(self, workers: list[Worker], waiting: dict[int, Worker]) -> bool:
        """True once enough looks in a row have found the same."""
        before, self._found = self._found, self._positions(workers, waiting)
        self._looks = 0 if self._found is None else self._looks + 1 if self._found == before else 1
        return self._looks >= LOOKS

    def _positions(self, workers: list[Worker], waiting: dict[int, Worker]) -> Positions | None:
        """Where those wait that are not done; None where something moves."""
        if not all(worker.begun for worker in waiting.values()):
            return None
        # The cheap question first, and no question asked of a process that runs. Also those that are done
        # count: gloo may still be sending from them. So do processes that a rank has started and waits for.
        living = [pid for worker in workers if not worker.gone for pid in tree.tree(worker.pid)]
        spent, self._spent = self._spent, tree.seconds_spent(living)
        if any(map(tree.is_running, living)) or self._spent - spent > SPENT_ON_A_LOOK:
            return None
        positions = {rank: worker.position(attempts=1) for rank, worker in waiting.items()}
        return positions if _all_meet(positions) else None


def _all_meet(positions: Positions) -> bool:
    return all(at is not None and at.meets_others for at in positions.values())


def run_rank(
    function: Callable[..., Any],
    rank: int,
    world_size: int,
    args: tuple[Any, ...],
    backend: str,
    port: int,
    gpus: bool,
    context: Callable[[int], AbstractContextManager[Any]] | None,
) -> Any:
    """The inside of a rank: `function(rank, world_size, *args)` in a process group of `world_size` ranks.
    `context` is entered for that with the last descriptor that this process was handed."""
    for where in ("", "LOCAL_"):
        os.environ |= {f"{where}RANK": str(rank), f"{where}WORLD_SIZE": str(world_size)}
    # Otherwise gloo looks up this machine by its name: slow, and without a network it may fail.
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": LOOPBACK}
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
    with context(worker_process.handed_over[-1]) if context else contextlib.nullcontext():
        return function(rank, world_size, *args)


def _visible(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def wait(*args: Any, **kwargs: Any) -> Any:
        return plain(*args, **kwargs)

    return wait
