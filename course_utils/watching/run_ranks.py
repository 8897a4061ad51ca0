"""`run_ranks`: a reader's function on several real ranks, and what each of them did when.

It prints what the ranks print and returns what they return, or raises an error that says what went wrong on
which rank, and where every other rank was.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from course_utils.processes.client import once_more
from course_utils.processes.ranks import (
    CUT_OFF,
    DEADLINE,
    RankError,
    attempt,
    describe,
    kind_of,
    ranks,
)
from course_utils.processes.result import Result
from course_utils.watching import lanes
from course_utils.watching.lane_watch import watching
from course_utils.watching.lanes import Trace


def run_ranks(
    function: Callable[..., Any],
    world_size: int,
    *args: Any,
    deadline: float = DEADLINE,
    trace: bool = False,
) -> list[Any] | Trace:
    """Runs `function(rank, world_size, *args)` in `world_size` processes of one process group.

    Returns what the ranks return, in their order, tensors on the CPU. What they print is printed when all
    have ended, rank by rank. Raises `RankError` when a rank raises, dies or is not done after `deadline`
    seconds; nothing is left running then. Where all of them wait for each other just then, they are looked
    at a little longer: whether that is for ever.

    `trace`: returns a `Trace` of what each rank did when, for `draw.lanes` and `explore.lanes`, and
    raises nothing of what ranks did. `lanes.trace_from_here()` in the function leaves out what came before.
    Noting every operator makes the ranks slower.
    """
    if trace:
        recording, results = _recorded(function, world_size, args, deadline)
        _print_labelled(results)
        return recording
    results = ranks(function, world_size, *args, deadline=deadline)
    _print_labelled(results)
    if any(result.state != "returned" for result in results):
        raise RankError(describe(results, deadline), results)
    return [result.value for result in results]


def _recorded(
    function: Callable[..., Any], world_size: int, args: tuple[Any, ...], deadline: float
) -> tuple[Trace, list[Result]]:
    def once() -> tuple[Trace, list[Result]]:
        with contextlib.ExitStack() as open_files:
            # Files without a name: whatever becomes of this process, nothing of them stays.
            logs = [open_files.enter_context(tempfile.TemporaryFile()) for _ in range(world_size)]
            results, stopped = attempt(
                function, world_size, args, deadline, ("course_utils.watching.lane_watch",), logs, watching
            )
            written = []
            for log in logs:
                log.seek(0)
                written.append(log.read())
        told = [_in_one_line(result, results) for result in results]
        return lanes.read(results, written, told, describe(results, deadline), stopped), results

    return once_more(once)


def _in_one_line(result: Result, results: Sequence[Result]) -> str:
    if kind_of(result, results) == CUT_OFF:
        return "lost its connection"
    return (result.describe().splitlines() or [""])[0]


def _print_labelled(results: Sequence[Result]) -> None:
    for rank, result in enumerate(results):
        for line in result.output.splitlines():
            print(f"[rank {rank}] {line}")
        if result.output_cut:
            print(f"[rank {rank}] … and {result.output_cut} more bytes")
