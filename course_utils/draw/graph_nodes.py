"""The graph behind a tensor as data: its nodes, how they are joined, what they keep for backward.

Nothing is changed by reading it: no hook is called, nothing is unpacked that somebody has packed, no gradient
is computed. A `Graph` holds the nodes themselves, and so keeps the graph alive; what a node has saved is read
anew each time and held by nobody.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node, get_gradient_edge

from course_utils import torch_private
from course_utils.wrong_use import WrongUse

_VERSIONS = re.compile(r"is at version (\d+); expected version (\d+)")


@dataclass(frozen=True)
class Saved:
    """A tensor that a node keeps for backward.

    `state` is "kept", "freed", "packed" (hooks keep it in their own way; looking would unpack it) or "number"
    (a Python number that took part). `version` is the one at saving, `now` the one of today. `whose` says
    which of the reader's tensors it is, or is a view of.
    """

    name: str
    state: str
    shape: tuple[int, ...] | None = None
    bytes: int | None = None
    version: int | None = None
    now: int | None = None
    whose: str = ""
    storage: tuple[int, int] | None = None  # which, and how many bytes

    @property
    def changed(self) -> bool:
        """Whether the tensor was written to in place after it was saved: backward will raise."""
        return self.state == "kept" and self.version != self.now


@dataclass
class Op:
    """A node of the graph. `edges` are its `next_functions`: for each input of the operation the number of
    the node behind it and which of that node's outputs it was, None where no gradient is asked for. `shapes`
    are those of its outputs, so those of the gradients that arrive here; `order` grows with the time at which
    it was made, and a leaf comes after all."""

    number: int
    kind: str
    edges: tuple[tuple[int, int] | None, ...]
    order: int
    node: Node = field(repr=False)
    shapes: tuple[tuple[int, ...], ...]
    labels: dict[int, str] = field(default_factory=dict)  # what the reader calls its outputs

    @property
    def leaf(self) -> bool:
        return self.kind == "AccumulateGrad"


@dataclass
class Graph:
    """All nodes that can be reached from `roots`."""

    ops: list[Op]
    roots: list[tuple[int, int]]
    outputs: list[Tensor]
    names: dict[str, Tensor]

    @property
    def leaves(self) -> list[Op]:
        return [op for op in self.ops if op.leaf]

    def saved(self, number: int) -> list[Saved]:
        """What a node keeps for backward, as it is now. Does not unpack what hooks have packed."""
        node = self.ops[number].node
        found = [_saved(node, *entry, self.names) for entry in _entries(node)]
        return [one for one in found if one is not None]


def read(outputs: Sequence[Tensor], names: Mapping[str, Tensor]) -> Graph:
    """The graph behind the outputs. Raises `ValueError` for a tensor without one."""
    for output in outputs:
        if not output.requires_grad:
            raise WrongUse("this tensor has no graph: it does not require a gradient")
    edges = [get_gradient_edge(output) for output in outputs]
    # By hand, not by recursion: a graph is as deep as the computation was long. Last in, first out: a chain
    # is walked along, so that numbers follow it.
    found: dict[Node, int] = {}
    waiting = [edge.node for edge in reversed(edges)]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found[node] = len(found)
            waiting.extend(n for n, _ in reversed(node.next_functions) if n is not None)
    ops = []
    for node, number in found.items():
        joined = tuple((found[n], slot) if n is not None else None for n, slot in node.next_functions)
        shapes = tuple(tuple(map(int, one.shape)) for one in torch_private.input_metadata(node))
        kind, order = node.name().rpartition("::")[2], torch_private.sequence_nr(node)
        ops.append(Op(number, kind, joined, order, node, shapes))
    for name, tensor in names.items():
        edge = get_gradient_edge(tensor) if tensor.requires_grad else None
        if edge and edge.node in found:
            labels = ops[found[edge.node]].labels
            # Tied tensors have one node and several names.
            labels[edge.output_nr] = f"{labels[edge.output_nr]}, {name}" if edge.output_nr in labels else name
    return Graph(ops, [(found[e.node], e.output_nr) for e in edges], list(outputs), dict(names))


# --- what is saved ------------------------------------------------------------------------------------


def _entries(node: Node) -> Iterator[tuple[str, str, int | None, Any]]:
    """What is saved under which name: the name for a reader, the attribute, the place in a tuple, and torch's
    `SavedTensor`, None where it was freed."""
    for name in dir(type(node)):
        if not name.startswith(torch_private.RAW_SAVED):
            continue
        own = isinstance(node, BackwardCFunction)
        called = "saved_tensors" if own else name.removeprefix(torch_private.RAW_SAVED)
        try:
            # What comes of this points into the node, which must be alive: `node` is.
            raw = getattr(node, name)
        except RuntimeError:
            yield called, name, None, None
            continue
        if isinstance(raw, tuple):
            yield from ((f"{called}[{place}]", name, place, one) for place, one in enumerate(raw))
        else:
            yield called, name, None, raw


def _saved(
    node: Node, called: str, name: str, place: int | None, raw: Any, names: Mapping[str, Tensor]
) -> Saved | None:
    """One saved tensor; None where nothing was saved under this name."""
    if raw is None:
        return Saved(called, "freed")
    if raw.unpack_hook is not None:
        return Saved(called, "packed")
    try:
        # Unpacking is what compares the versions.
        tensor = _unpacked(node, name, place)
        version = None if tensor is None else torch_private.version(tensor)
    except RuntimeError as error:
        if (found := _VERSIONS.search(str(error))) is None:
            return Saved(called, "freed")
        tensor, version = raw.data, int(found[2])
    if tensor is None:
        return None
    if _is_number(tensor):
        return Saved(called, "number", whose=str(tensor.item()))
    storage = tensor.untyped_storage()
    where = torch_private.storage_key(storage), storage.nbytes()
    now, whom = torch_private.version(tensor), whose(tensor, names)
    return Saved(called, "kept", tuple(tensor.shape), tensor.nbytes, version, now, whom, where)


def kept_by(node: Node) -> Iterator[tuple[str, Tensor]]:
    """The tensors that `node` keeps itself and that nobody has written to since, with their names."""
    for called, name, place, raw in _entries(node):
        if raw is None or raw.unpack_hook is not None:
            continue
        try:
            tensor = _unpacked(node, name, place)
        except RuntimeError:
            continue
        if tensor is not None and not _is_number(tensor):
            yield called, tensor


# A Python number in an operation becomes a tensor without dimensions that decides no dtype.
_SMALLER = {torch.float64: torch.float32, torch.int64: torch.int32}


def _is_number(tensor: Tensor) -> bool:
    if tensor.dim() or tensor.dtype not in _SMALLER or tensor.device.type != "cpu":
        return False
    other = torch.empty((), dtype=_SMALLER[tensor.dtype])
    return torch.result_type(tensor, other) == other.dtype


def _unpacked(node: Node, name: str, place: int | None) -> Tensor | None:
    if isinstance(node, BackwardCFunction):
        return node.saved_tensors[place]
    value = getattr(node, torch_private.SAVED + name.removeprefix(torch_private.RAW_SAVED))
    return value if place is None else value[place]


def whose(tensor: Tensor, names: Mapping[str, Tensor]) -> str:
    """Which of the named tensors this is, or is a view of; empty where none."""
    views, key = "", torch_private.storage_key
    for name, mine in names.items():
        if key(mine.untyped_storage()) != key(tensor.untyped_storage()):
            continue
        if all(
            getattr(mine, what)() == getattr(tensor, what)() for what in ("size", "stride", "storage_offset")
        ):
            return name
        views = views or f"view of {name}"
    return views
