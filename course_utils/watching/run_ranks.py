"""`run_ranks`: a reader's function on several real ranks, and what each of them did when.

It prints what the ranks print and returns what they return, or raises an error that says what went wrong on
which rank, and where every other rank was.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from course_utils.processes.ranks import DEADLINE, STUCK, run_group
from course_utils.processes.result import Result
from course_utils.stacks import place
from course_utils.watching import lanes
from course_utils.watching.lane_watch import watching
from course_utils.watching.lanes import Trace
from course_utils.words import CUT_OFF, causes_first


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
        found, results = _traced(function, world_size, args, deadline)
        _print_labelled(results)
        return found
    results = run_group(function, world_size, *args, deadline=deadline)
    _print_labelled(results)
    if any(result.state != "returned" for result in results):
        raise RankError(_describe(results, deadline), results)
    return [result.value for result in results]


def _traced(
    function: Callable[..., Any], world_size: int, args: tuple[Any, ...], deadline: float
) -> tuple[Trace, list[Result]]:
    with contextlib.ExitStack() as open_files:
        # Files without a name: whatever becomes of this process, nothing of them stays.
        logs = [open_files.enter_context(tempfile.TemporaryFile()) for _ in range(world_size)]
        how = {"preload": ("course_utils.watching.lane_watch",), "logs": logs, "context": watching}
        results = run_group(function, world_size, *args, deadline=deadline, **how)
        written = []
        for log in logs:
            log.seek(0)
            written.append(log.read())
    ends = sorted(_ends(results))
    told = [CUT_OFF if end == CUT_OFF else _lines(results[rank])[0] for rank, end in ends]
    return lanes.read(results, written, told, _describe(results, deadline)), results


def _print_labelled(results: Sequence[Result]) -> None:
    for rank, result in enumerate(results):
        for line in result.output.splitlines():
            print(f"[rank {rank}] {line}")
        if result.output_cut:
            print(f"[rank {rank}] … and {result.output_cut} more bytes")


def _describe(results: Sequence[Result], deadline: float = DEADLINE) -> str:
    """What became of each rank, the likely cause first. One rank, one or two lines."""
    lines = [_verdict(results, deadline)]
    for rank, end in _ends(results):
        frame = results[rank].error and results[rank].error.frame
        if end == CUT_OFF:
            lines.append(f"rank {rank} {CUT_OFF}" + (f" at {place(frame)}" if frame else ""))
            continue
        first, *more = _lines(results[rank])
        lines += [f"rank {rank} {first}", *(f"    {line}" for line in more)]
        if frame:
            lines.append(f"    at {place(frame)}, in {frame.function}")
    return "\n".join(lines)


def _ends(results: Sequence[Result]) -> list[tuple[int, str]]:
    return causes_first([(result.state, str(result.error)) for result in results])


def _lines(result: Result) -> list[str]:
    return result.describe().splitlines() or [""]


def _verdict(results: Sequence[Result], deadline: float) -> str:
    bad = [result for result in results if result.state != "returned"]
    if not bad:
        return f"all {len(results)} ranks have returned"
    of = f"{len(bad)} of {len(results)} ranks" if len(results) > 1 else "the rank"
    if all(result.state == "timed out" for result in bad):
        why = "and nothing moved any more" if bad[0].how == STUCK else f"within {deadline:g} s"
        return f"{of} did not return {why}"
    return f"{of} did not return"
