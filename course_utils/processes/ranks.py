"""The same function in several real processes that can talk to each other: one `Result` for each rank."""

import math
import re
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import IO, Any

from course_utils import machine, torch_private
from course_utils.processes import tree
from course_utils.processes.client import ServerProcess
from course_utils.processes.rank_process import run_rank
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

_LOST = re.compile(r"connection (closed|reset) by peer|broken pipe", re.IGNORECASE)


def ranks(
    function: Callable[..., Any],
    world_size: int,
    *args: Any,
    deadline: float = DEADLINE,
    preload: Sequence[str] = (),
    **how: bool,
) -> list[Result]:
    """Runs `function(rank, world_size, *args)` in `world_size` processes; one `Result` for each. The backend
    is gloo, and NCCL for tensors on GPUs where every rank can have one of its own. Ranks that can only wait
    for each other are "timed out", with their position, before the deadline. Nothing is left running.
    `preload` is that of `Worker`; `how`: `plain`, that of its `begin`, and `gpus`, whether they see any.
    Raises `CannotSendError` when the function or an argument cannot be sent, `WorkersError` when no process
    could be started."""
    return run_all(function, world_size, args, deadline, preload, **how)[0]


def run_all(
    function: Callable[..., Any],
    world_size: int,
    args: tuple[Any, ...],
    deadline: float,
    preload: Sequence[str],
    logs: Sequence[IO[bytes]] = (),
    around: Callable[[int], AbstractContextManager[Any]] | None = None,
    plain: bool = False,
    gpus: bool = True,
) -> tuple[list[Result], float]:
    """`ranks`; also when those were ended that had not ended (infinite: none was). `around` is entered in
    each rank with the descriptor of its file of `logs`."""
    if world_size < 1:
        raise WrongUse(f"run_ranks needs at least one rank as `world_size`; given was {world_size}.")
    backend = "cpu:gloo,cuda:nccl" if gpus and machine.serves("cuda", world_size) else "gloo"
    stopped = math.inf

    def once(server: ServerProcess | None) -> list[Result]:
        nonlocal stopped
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
                given = function, rank, world_size, args, backend, port, gpus, around
                worker.begin(run_rank, *given, plain=plain)
            results, stopped = _await_all(workers, deadline)
            return results
        finally:
            close_all(workers)

    return tried_again(once), stopped


def lost_connection(message: str) -> bool:
    """Whether an error says that the process at the other end is gone."""
    return _LOST.search(message) is not None


def _await_all(workers: list[Worker], deadline: float) -> tuple[list[Result], float]:
    """What became of each, and when those were ended that had not ended (infinite: none was)."""
    results: dict[int, Result] = {}
    stopped, stillness, patience = math.inf, _Stillness(), deadline
    while True:
        busy = [worker for worker in workers if not worker.done]
        attend(busy, min([LOOK_EVERY, *(worker.left(patience) for worker in busy)]))
        for rank, worker in enumerate(workers):
            if rank not in results and worker.done:
                results[rank] = worker.finish()
        waiting = {rank: worker for rank, worker in enumerate(workers) if rank not in results}
        if not waiting:
            break
        late = all([worker.left(patience) <= 0 for worker in waiting.values()])
        if late or stillness.look(workers, waiting):
            # All of them say where they are before the first is ended: its end would change the others.
            positions = {rank: worker.position() for rank, worker in waiting.items()}
            if late and patience == deadline and _all_meet(positions):
                patience += LOOK_ON
                continue
            stopped = time.monotonic()
            for rank, worker in waiting.items():
                how = f"deadline of {deadline:g} s" if late else STUCK
                results[rank] = worker.give_up(positions[rank], how)
            break
    return [results[rank] for rank in range(len(workers))], stopped


class _Stillness:
    """Whether all ranks that have not ended wait for others, and nothing moves any more."""

    def __init__(self) -> None:
        self._before: Any = None
        self._spent, self._looks, self._last = 0.0, 0, time.monotonic()

    def look(self, workers: list[Worker], waiting: dict[int, Worker]) -> bool:
        """True once enough looks in a row have found the same."""
        if time.monotonic() - self._last < LOOK_EVERY:
            return False
        found = self._found(workers, waiting)
        self._looks = 0 if found is None else self._looks + 1 if found == self._before else 1
        self._before = found
        self._last = time.monotonic()
        return self._looks >= LOOKS

    def _found(self, workers: list[Worker], waiting: dict[int, Worker]) -> dict[int, Position | None] | None:
        """Where those wait that are not done; None where something moves."""
        if not all(worker.begun for worker in waiting.values()):
            return None
        # The cheap question first, and no question asked of a process that runs. Also those that are done
        # count: gloo may still be sending from them. So do processes that a rank has started and waits for.
        living = [pid for worker in workers if worker.alive for pid in tree.tree(worker.pid)]
        spent, self._spent = self._spent, tree.seconds_spent(living)
        if any(map(tree.is_running, living)) or self._spent - spent > SPENT_ON_A_LOOK:
            return None
        positions = {rank: worker.position(attempts=1) for rank, worker in waiting.items()}
        return positions if _all_meet(positions) else None


def _all_meet(positions: dict[int, Position | None]) -> bool:
    return all(at is not None and at.meets_others for at in positions.values())
