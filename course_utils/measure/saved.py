"""Bytes that a graph keeps for its backward."""

import contextlib
import functools
import gc
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from course_utils import torch_private
from course_utils.measure.storage import key, storages, tensors_in
from course_utils.measure.uncompiled import unseen_by_compiler
from course_utils.wrong_use import public

UNKNOWN = "?"


@dataclass(frozen=True)
class SavedTensor:
    """One tensor that a node of the graph holds. Tensors with the same `storage` share memory.

    `op` is the name of the node (`ExpBackward0`); `bytes` the size of the whole storage that it keeps alive.
    """

    op: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    bytes: int
    storage: int


@dataclass(frozen=True)
class Saved:
    """What a graph keeps. `total`: bytes, every storage once. `tensors`: in the order of saving."""

    total: int
    tensors: list[SavedTensor]

    def __str__(self) -> str:
        lines, seen = [], set()
        for t in self.tensors:
            size = "again" if t.storage in seen else f"{t.bytes:,}"
            seen.add(t.storage)
            lines.append(f"{t.op:<28}{str(t.shape):<20}{str(t.dtype).removeprefix('torch.'):<12}{size:>14}")
        return "\n".join([*lines, f"{'total':<60}{self.total:>14,}"])


@dataclass
class _Held:
    """What stands for a saved tensor in the graph: it lives exactly as long as the graph wants the tensor."""

    tensor: Tensor
    sequence: int


@public
def saved_bytes(fn: Callable[..., Any], *args: Any, exclude: Any = (), **kwargs: Any) -> Saved:
    """Measures the bytes kept for backward once `fn(*args, **kwargs)` has returned, while its result lives.

    Every storage counts once, whole, however many views of it are saved. Parameters do not count: they are
    there anyway. They are found in the graph, in `fn` (what it is bound to, closes over or uses as a
    global) and in the arguments; `exclude` takes further tensors, or a module, whose buffers are then left
    out too. Inputs that are saved do count.

    Seen is what goes through autograd's own saving. A tensor kept as an attribute of a `ctx`, or packed by
    hooks that `fn` sets itself, is not: `live_bytes` sees those. `torch.func.grad` and its kin refuse to
    run under such hooks and raise.
    """
    held: list[weakref.ref[_Held]] = []

    @unseen_by_compiler
    def pack(t: Tensor) -> _Held:
        with torch_private.DisableTorchFunction():
            # Without its graph: a saved output would hold the node that holds it, for ever. Not by `detach`,
            # which is an operator, and there may be someone who counts them.
            alone = t.data
        # The node that saves has the last number that was given out.
        token = _Held(alone, torch_private.next_sequence_nr() - 1)
        held.append(weakref.ref(token))
        return token

    with saved_tensors_hooks(pack, unseen_by_compiler(lambda token: token.tensor)):
        result = fn(*args, **kwargs)
    with torch_private.DisableTorchFunction():
        nodes = list(nodes_behind(result))
        inner = [node for node in nodes if not hasattr(node, "variable")]
        names = {torch_private.sequence_nr(node): node.name() for node in inner}
        if any(token.sequence not in names for token in _alive(held)):
            gc.collect()  # a graph that only waits for the collector is not kept
        leaves = [getattr(node, "variable", None) for node in nodes]
        trained = [leaf for leaf in leaves if isinstance(leaf, nn.Parameter)]
        if isinstance(exclude, nn.Module):
            exclude = [*exclude.parameters(), *exclude.buffers()]
        left_out = [*trained, *parameters_behind((fn, args, kwargs)), *tensors_in(exclude)]
        ignored = {key(storage) for t in left_out for storage in storages(t)}
        numbers: dict[int, int] = {}
        total, found = 0, []
        for token in _alive(held):
            name, t = names.get(token.sequence, UNKNOWN), token.tensor
            for storage in storages(t):
                if key(storage) in ignored:
                    continue
                if key(storage) not in numbers:
                    numbers[key(storage)] = len(numbers)
                    total += storage.nbytes()
                number = numbers[key(storage)]
                found.append(SavedTensor(name, tuple(t.shape), t.dtype, storage.nbytes(), number))
        return Saved(total, found)


def _alive(held: list[weakref.ref[_Held]]) -> list[_Held]:
    return [token for token in (ref() for ref in held) if token is not None]


def nodes_behind(result: Any) -> Iterator[Any]:
    """Every node of the graph behind a result, each once."""
    pending = [t.grad_fn for t in torch_private.tree_leaves(result) if isinstance(t, Tensor)]
    seen = set()
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        pending += [following for following, _ in node.next_functions]


def parameters_behind(root: Any) -> Iterator[nn.Parameter]:
    """The parameters that a callable and its arguments can reach without being run."""
    pending, seen = [root], set()
    while pending:
        thing = pending.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, nn.Parameter):
            yield thing
        elif isinstance(thing, nn.Module):
            yield from thing.parameters()
        elif isinstance(thing, functools.partial):
            pending += [thing.func, thing.args, thing.keywords]
        elif isinstance(thing, types.MethodType):
            pending += [thing.__self__, thing.__func__]
        elif isinstance(thing, types.FunctionType):
            if not thing.__module__ or not thing.__module__.startswith("torch"):
                pending += used_by(thing)
        elif isinstance(thing, dict):
            pending += thing.values()
        elif isinstance(thing, (list, tuple, set)):
            pending += thing
        elif callable(thing) and not isinstance(thing, type):
            pending += getattr(thing, "__dict__", {}).values()


def used_by(function: types.FunctionType) -> list[Any]:
    """What a function closes over, has as defaults or names among its globals."""
    used = [function.__defaults__, function.__kwdefaults__, getattr(function, "__wrapped__", None)]
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # not assigned yet
            used.append(cell.cell_contents)
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        used += [function.__globals__[name] for name in code.co_names if name in function.__globals__]
        codes += [const for const in code.co_consts if isinstance(const, types.CodeType)]
    return used
