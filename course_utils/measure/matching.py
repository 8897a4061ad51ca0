"""Do the ranks bring to a collective, and to a message, what fits together?

gloo ends a process where the tensors of two ranks differ in size, where a message is longer than the tensor
it is received into, and where a rank is named that isn't there. Here every rank says what it brings before it
begins; the one that comes last sees what doesn't fit, and raises instead.
"""

import contextlib
import functools
import inspect
import sys
import threading
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from course_utils import stacks

# The collectives in which all ranks bring tensors of one shape and dtype, with the argument that holds them;
# those that have a rank in the middle, with the argument that names it.
BRING = dict.fromkeys(("all_reduce", "broadcast", "reduce", "all_gather", "gather"), "tensor")
BRING |= {"all_gather_into_tensor": "input_tensor", "reduce_scatter_tensor": "input"}
MIDDLE = dict.fromkeys(("broadcast", "scatter", "recv"), "src")
MIDDLE |= dict.fromkeys(("reduce", "gather", "send"), "dst")
# What all messages go through, with the arguments that name the other end.
MESSAGES = {"isend": ("dst", "group_dst"), "irecv": ("src", "group_src")}
# So long `recv` waits to hear how long the message will be.
HEARD_OF = timedelta(seconds=0.5)
_here = threading.local()


class MismatchedCollective(RuntimeError):
    """What this rank brings does not fit what another has brought."""


class MismatchedMessage(RuntimeError):
    """A message is longer than the tensor that it is received into."""


def watch(store: dist.Store, rank: int) -> None:
    """From now on the collectives and messages of this rank are compared with those of the others."""
    calls: Counter[Any] = Counter()
    failed: list[MismatchedMessage] = []

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
                if name not in MESSAGES:
                    _compare(name, given, store, rank, calls)
                elif failed:
                    raise failed[0]  # since then others wait for a message that was not sent
                else:
                    try:
                        _compare_message(name, given, store, rank, calls)
                    except MismatchedMessage as error:
                        failed.append(error)
                        raise
            _here.in_recv = name == "recv"
            try:
                return plain(*args, **kwargs)
            finally:
                _here.in_recv = False

        return compared

    for name in {*BRING, *MIDDLE, *MESSAGES}:
        both = watched(name)
        setattr(dist, name, both)
        setattr(distributed_c10d, name, both)


def _compare(name: str, given: dict[str, Any], store: dist.Store, rank: int, calls: Counter[Any]) -> None:
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


def _compare_message(
    name: str, given: dict[str, Any], store: dist.Store, rank: int, calls: Counter[Any]
) -> None:
    """Messages from one rank to another arrive in order, so the nth that is sent is the nth received. Not
    after a receive that names no rank: from where it took a message, only the backend knows."""
    group, tensor, tag = given.get("group") or dist.group.WORLD, given.get("tensor"), given.get("tag", 0)
    peer, in_group = (given.get(argument) for argument in MESSAGES[name])
    if not isinstance(group, dist.ProcessGroup) or not isinstance(tensor, torch.Tensor):
        return
    ranks = dist.get_process_group_ranks(group)
    if peer is None and isinstance(in_group, int) and in_group < len(ranks):
        peer = ranks[in_group]
    calls["from anybody", *ranks] += peer is None
    if peer not in ranks or (name == "irecv" and calls["from anybody", *ranks]):
        return
    way, (other,) = (rank, peer) if name == "isend" else (peer, rank), {*MESSAGES} - {name}
    calls[name, way, tag, *ranks] += 1
    key = f"messages/{ranks}/{way}/{tag}/{calls[name, way, tag, *ranks]}"
    try:
        if name == "irecv" and getattr(_here, "in_recv", False):
            _await(f"{key}/{other}", store)
        if not store.check([f"{key}/{other}"]):
            store.set(f"{key}/{name}", "|".join((str(tensor.nbytes), _described(tensor), _line())))
            if not store.check([f"{key}/{other}"]):
                return
        theirs, described, line = store.get(f"{key}/{other}").decode().split("|", 2)
    except dist.DistError:  # a rank is gone, which the message will say
        return
    mine, theirs = tensor.nbytes, int(theirs)
    if name == "irecv" and mine < theirs:
        told = f"{theirs} bytes come from rank {peer}, {described}, sent at {line}"
        raise MismatchedMessage(f"{told}, and this is room for {mine}, {_described(tensor)}")
    if name == "isend" and mine > theirs:
        told = f"rank {peer} has room for {theirs} bytes, {described}, at {line}"
        raise MismatchedMessage(f"{told}, and these are {mine}, {_described(tensor)}")


def _await(key: str, store: dist.Store) -> None:
    """Who waits for a message in `recv` may as well wait for what is said of it: then it is always the one
    who raises. Not for long, since a backend can be told to send without us; on a connection of its own, as
    other threads need theirs meanwhile."""
    if not hasattr(_here, "store"):
        _here.store = store.clone()
    with contextlib.suppress(dist.DistStoreError):
        _here.store.wait([key], HEARD_OF)


def _described(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {list(tensor.shape)}"


def _line() -> str:
    frame = sys._getframe(1)
    while frame is not None and not stacks.is_readers(frame.f_code.co_filename):
        frame = frame.f_back
    return stacks.place(stacks.of_frame(frame)) if frame is not None else "a line of torch's"
