"""Do the ranks bring to a collective what fits together?

gloo ends a process where the tensors of two ranks differ in size, and where a rank is named that isn't
there. Here every rank says what it brings before it begins; the one that comes last sees what doesn't fit,
and raises instead.
"""

import functools
import inspect
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from course_utils.processes import stacks

# The collectives in which all ranks bring tensors of one shape and dtype, with the argument that holds them;
# those that have a rank in the middle, with the argument that names it.
BRING = dict.fromkeys(("all_reduce", "broadcast", "reduce", "all_gather", "gather"), "tensor")
BRING |= {"all_gather_into_tensor": "input_tensor", "reduce_scatter_tensor": "input"}
MIDDLE = dict.fromkeys(("broadcast", "scatter", "recv"), "src")
MIDDLE |= dict.fromkeys(("reduce", "gather", "send"), "dst")


class MismatchedCollective(RuntimeError):
    """What this rank brings does not fit what another has brought."""


def watch(store: dist.Store, rank: int) -> None:
    """From now on the collectives that this rank calls are compared with those of the others."""
    calls: Counter[tuple[int, ...]] = Counter()

    def watched(name: str) -> Callable[..., Any]:
        plain = getattr(distributed_c10d, name)
        signature = inspect.signature(plain)

        @functools.wraps(plain)
        def compared(*args: Any, **kwargs: Any) -> Any:
            if not torch.compiler.is_compiling():
                try:
                    given = signature.bind(*args, **kwargs).arguments
                except TypeError:
                    return plain(*args, **kwargs)  # which says so
                _compare(name, given, store, rank, calls)
            return plain(*args, **kwargs)

        return compared

    for name in {*BRING, *MIDDLE}:
        both = watched(name)
        setattr(dist, name, both)
        setattr(distributed_c10d, name, both)


def _compare(
    name: str, given: dict[str, Any], store: dist.Store, rank: int, calls: Counter[tuple[int, ...]]
) -> None:
    group = given.get("group") or dist.group.WORLD
    if not isinstance(group, dist.ProcessGroup):
        return
    ranks = dist.get_process_group_ranks(group)
    middle = given.get(MIDDLE.get(name, ""))
    if isinstance(middle, int) and middle not in ranks:
        among = f"ranks {', '.join(map(str, ranks))}" if len(ranks) > 1 else f"rank {ranks[0]} alone"
        raise ValueError(f"{name} with {MIDDLE[name]}={middle}, in a group of {among}")
    brought = given.get(BRING.get(name, ""))
    if not isinstance(brought, torch.Tensor) or rank not in ranks:
        return
    mine = _described(brought)
    calls[tuple(ranks)] += 1
    key = f"matching/{ranks}/{calls[tuple(ranks)]}"
    try:
        store.set(f"{key}/{rank}", "|".join((name, mine, _line())))
        there = [other for other in ranks if other != rank and store.check([f"{key}/{other}"])]
        said = {other: store.get(f"{key}/{other}").decode().split("|", 2) for other in there}
    except dist.DistError:  # a rank is gone, which the collective will say
        return
    for other, (theirs, tensor, line) in said.items():
        if theirs == name and tensor != mine:
            raise MismatchedCollective(f"{name} brings {mine}, and on rank {other} {tensor}, at {line}")


def _described(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {list(tensor.shape)}"


def _line() -> str:
    frame = sys._getframe(1)
    while frame is not None and not stacks.is_readers(frame.f_code.co_filename):
        frame = frame.f_back
    return stacks.place(stacks.of_frame(frame)) if frame is not None else "a line of torch's"
