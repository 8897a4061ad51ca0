"""The same function in several real processes that can talk to each other: one `Result` for each rank."""

import math
import re
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import IO, Any

from course_utils import machine
from course_utils.processes import tree
from course_utils.processes.client import once_more
from course_utils.processes.rank_process import run_rank
from course_utils.processes.result import Result
from course_utils.processes.stacks import Position, place
from course_utils.processes.workers import Worker, attend, close_all

DEADLINE = 30.0
# The first optimizer and the first DistributedDataParallel of a process import the compiler: better once than
# in every rank.
PRELOAD = ("torch._dynamo",)
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


class RankError(RuntimeError):
    """Some rank did not return. The message says what each of them did; `results` holds the details."""

    def __init__(self, message: str, results: list[Result]) -> None:
        super().__init__(message)
        self.results = results

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.results)

    def _render_traceback_(self) -> list[str]:
        # What IPython shows for this exception: the frames of this package tell a reader nothing.
        return f"{type(self).__name__}: {self}".splitlines()


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
    Raises `TypeError` when the function or an argument cannot be sent, `WorkersError` when no process could
    be started."""
    return once_more(lambda: attempt(function, world_size, args, deadline, preload, **how)[0])


def describe(results: Sequence[Result], deadline: float = DEADLINE) -> str:
    """What became of each rank, the likely cause first. One rank, one or two lines."""
    kinds = [kind_of(result, results) for result in results]
    lines = [_verdict(results, deadline)]
    for rank in sorted(range(len(results)), key=lambda rank: (kinds[rank], rank)):
        result, frame = results[rank], results[rank].error and results[rank].error.frame
        if kinds[rank] == CUT_OFF:
            lines.append(f"rank {rank} lost its connection" + (f" at {place(frame)}" if frame else ""))
            continue
        first, *more = result.describe().splitlines() or [""]
        lines += [f"rank {rank} {first}", *(f"    {line}" for line in more)]
        if kinds[rank] == _RAISED and frame:
            lines.append(f"    at {place(frame)}, in {frame.function}")
    return "\n".join(lines)


def attempt(
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
    """`ranks` once; also when those were ended that had not ended (infinite: none was). `around` is entered
    in each rank with the descriptor of its file of `logs`."""
    if world_size < 1:
        raise ValueError(f"world_size is {world_size}; at least one rank is needed")
    workers: list[Worker] = []
    try:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            port = listening.getsockname()[1]
            for rank in range(world_size):
                handed = [listening] * (rank == 0) + list(logs[rank : rank + 1])
                hand_over = [one.fileno() for one in handed]
                workers.append(Worker(preload=(*PRELOAD, *preload), hand_over=hand_over))
        backend = "cpu:gloo,cuda:nccl" if gpus and machine.serves("cuda", world_size) else "gloo"
        for rank, worker in enumerate(workers):
            given = function, rank, world_size, args, backend, port, gpus, around
            worker.begin(run_rank, *given, plain=plain)
        return _await_all(workers, deadline)
    finally:
        close_all(workers)


# The order in which ranks are spoken of: causes before what follows from them.
_DIED, _RAISED, _LATE, CUT_OFF, _RETURNED = range(5)


def kind_of(result: Result, results: Sequence[Result]) -> int:
    """What became of a rank, as one of the numbers above."""
    anyone_died = any(other.state == "died" for other in results)
    if anyone_died and result.state == "raised" and lost_connection(str(result.error)):
        return CUT_OFF
    return {"died": _DIED, "raised": _RAISED, "timed out": _LATE, "returned": _RETURNED}[result.state]


def lost_connection(message: str) -> bool:
    """Whether an error says that the process at the other end is gone."""
    return _LOST.search(message) is not None


def _verdict(results: Sequence[Result], deadline: float) -> str:
    bad = [result for result in results if result.state != "returned"]
    if not bad:
        return f"all {len(results)} ranks have returned"
    of = f"{len(bad)} of {len(results)} ranks" if len(results) > 1 else "the rank"
    if all(result.state == "timed out" for result in bad):
        why = "and nothing moved any more" if bad[0].how == STUCK else f"within {deadline:g} s"
        return f"{of} did not return {why}"
    return f"{of} did not return"


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
        if any(worker.begun is None for worker in waiting.values()):
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
