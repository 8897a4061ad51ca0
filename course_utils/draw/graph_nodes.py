"""The graph behind a tensor as data: its nodes, how they are joined, what they keep for backward.

Nothing is changed by reading it: no hook is called, nothing is unpacked that somebody has packed, no gradient
is computed. A `Graph` holds the nodes themselves, and so keeps the graph alive; what a node has saved is read
anew each time and held by nobody.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

_VERSIONS = re.compile(r"is at version (\d+); expected version (\d+)")
_RAW = "_raw_saved_"


@dataclass(frozen=True)
class Saved:
    """A tensor that a node keeps for backward.

    `state` is "kept", "freed", "packed" (hooks keep it in their own way; looking would unpack it), "number"
    (a Python number that took part) or "on ctx" (an attribute of a custom Function's context: never checked
    and never freed). `version` is the one at
    saving, `now` the one of today, both None where they cannot be known. `whose` says which of the reader's
    tensors it is, or is a view of.
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
    labels: dict[int, str] = field(default_factory=dict)  # what the reader calls its outputs
    leaf: bool = False

    @cached_property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        try:
            return tuple(tuple(int(n) for n in one.shape) for one in self.node._input_metadata)
        except (AttributeError, RuntimeError, TypeError, ValueError):  # an older torch; a nested tensor
            return ()


@dataclass
class Graph:
    """All nodes that can be reached from `roots`."""

    ops: list[Op]
    roots: list[tuple[int, int]]
    outputs: list[Any]
    names: dict[str, Tensor]

    @property
    def leaves(self) -> list[Op]:
        return [op for op in self.ops if op.leaf]

    def saved(self, number: int) -> list[Saved]:
        """What a node keeps for backward, as it is now."""
        return saved_by(self.ops[number].node, self.names)


def edge_of(output: Tensor | Node | GradientEdge) -> GradientEdge:
    """Where backward from `output` begins. Raises `TypeError` for what is no part of a graph, `ValueError`
    for a tensor without one."""
    if isinstance(output, Tensor):
        if not output.requires_grad:
            raise ValueError("this tensor has no graph: it does not require a gradient")
        return get_gradient_edge(output)
    if isinstance(output, GradientEdge):
        return output
    if isinstance(output, Node):
        return GradientEdge(output, 0)
    raise TypeError(f"a {type(output).__name__} is neither a tensor nor a node of a graph")


def read(
    outputs: Sequence[Tensor | Node | GradientEdge],
    params: Mapping[str, Tensor] | None = None,
    names: Mapping[str, Tensor] | None = None,
) -> Graph:
    """The graph behind the outputs. Raises what `edge_of` raises."""
    if not outputs:
        raise TypeError("graph() needs a tensor to start from")
    named = {**(params or {}), **(names or {})}
    for name, tensor in named.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} is a {type(tensor).__name__}, not a tensor")
    edges = [edge_of(output) for output in outputs]
    # By hand, not by recursion: a graph is as deep as the computation was long. Last in, first out: a chain
    # is walked along, so that numbers follow it.
    found: dict[Node, int] = {}
    nexts: list[tuple] = []
    waiting = [edge.node for edge in reversed(edges)]
    while waiting:
        node = waiting.pop()
        if node in found:
            continue
        found[node] = len(found)
        nexts.append(node.next_functions)
        waiting.extend(n for n, _ in reversed(nexts[-1]) if n is not None and n not in found)
    ops = []
    for (node, number), following in zip(found.items(), nexts, strict=True):
        kind = node.name().rpartition("::")[2]
        joined = tuple((found[n], slot) if n is not None else None for n, slot in following)
        leaf = kind == "AccumulateGrad"
        ops.append(Op(number, kind, joined, node._sequence_nr(), node, leaf=leaf))
    graph = Graph(ops, [(found[e.node], e.output_nr) for e in edges], list(outputs), dict(named))
    for name, tensor in named.items():
        if not tensor.requires_grad:
            continue
        edge = get_gradient_edge(tensor)
        if edge.node in found:
            labels = ops[found[edge.node]].labels
            # Tied tensors have one node and several names.
            labels[edge.output_nr] = f"{labels[edge.output_nr]}, {name}" if edge.output_nr in labels else name
    return graph


# --- what is saved ------------------------------------------------------------------------------------


def saved_by(node: Node, names: Mapping[str, Tensor]) -> list[Saved]:
    """What `node` keeps for backward. Does not unpack what hooks have packed."""
    found = []
    custom = isinstance(node, BackwardCFunction)
    for name in _raw_names(type(node)):
        called = "saved_tensors" if custom else name.removeprefix(_RAW)
        try:
            # What comes of this points into the node, which must be alive: `node` is.
            raw = getattr(node, name)
        except (RuntimeError, AttributeError) as error:
            if "already been freed" in str(error):
                found.append(Saved(called, "freed"))
            continue
        several = isinstance(raw, tuple)
        for place, one in enumerate(raw if several else (raw,)):
            shown = f"{called}[{place}]" if several else called
            saved = _saved(node, name, place if several else None, one, shown, names)
            if saved is not None:
                found.append(saved)
    for name, value in vars(node).items() if custom else ():
        for place, one in enumerate(value if isinstance(value, (tuple, list)) else (value,)):
            if isinstance(one, Tensor):
                shown = f"{name}[{place}]" if isinstance(value, (tuple, list)) else name
                found.append(_described(one, shown, "on ctx", None, names))
    return found


_NAMES: dict[type, tuple[str, ...]] = {}


def _raw_names(kind: type) -> tuple[str, ...]:
    if kind not in _NAMES:
        _NAMES[kind] = tuple(name for name in dir(kind) if name.startswith(_RAW))
    return _NAMES[kind]


def _saved(
    node: Node, name: str, place: int | None, raw: Any, shown: str, names: Mapping[str, Tensor]
) -> Saved | None:
    """One saved tensor; None where nothing was saved under this name."""
    if getattr(raw, "unpack_hook", None) is not None:
        return Saved(shown, "packed")
    try:
        # Unpacking is what compares the versions.
        tensor = _unpacked(node, name, place, raw)
    except RuntimeError as error:
        said = str(error)
        if "already been freed" in said:
            return Saved(shown, "freed")
        version = _VERSIONS.search(said)
        data = getattr(raw, "data", None)
        if version and data is not None:
            return _described(data, shown, "kept", int(version[2]), names)
        if version:
            return Saved(shown, "kept", version=int(version[2]), now=int(version[1]))
        return Saved(shown, "packed")
    if tensor is None:
        return None
    if _is_number(tensor):
        return Saved(shown, "number", whose=str(tensor.item()))
    version = None if tensor.is_inference() else tensor._version
    return _described(tensor, shown, "kept", version, names)


def kept_by(node: Node) -> Iterator[tuple[str, Tensor]]:
    """The tensors that `node` keeps itself and that nobody has written to since, with their names."""
    for name in _raw_names(type(node)):
        try:
            raw = getattr(node, name)
        except (RuntimeError, AttributeError):
            continue
        called = "saved_tensors" if isinstance(node, BackwardCFunction) else name.removeprefix(_RAW)
        several = isinstance(raw, tuple)
        for place, one in enumerate(raw if several else (raw,)):
            if getattr(one, "unpack_hook", None) is not None:
                continue
            try:
                tensor = _unpacked(node, name, place if several else None, one)
            except RuntimeError:
                continue
            if tensor is not None and not _is_number(tensor):
                yield f"{called}[{place}]" if several else called, tensor


# A Python number in an operation becomes a tensor without dimensions that decides no dtype.
_SMALLER = {torch.float64: torch.float32, torch.int64: torch.int32, torch.complex128: torch.complex64}


def _is_number(tensor: Tensor) -> bool:
    if tensor.dim() or tensor.dtype not in _SMALLER or tensor.device.type != "cpu":
        return False
    other = torch.empty((), dtype=_SMALLER[tensor.dtype])
    return torch.result_type(tensor, other) == other.dtype


def _unpacked(node: Node, name: str, place: int | None, raw: Any) -> Tensor | None:
    if isinstance(node, BackwardCFunction):
        return node.saved_tensors[place]
    value = getattr(node, name.removeprefix("_raw"))
    return value if place is None else value[place]


def _described(
    tensor: Tensor, name: str, state: str, version: int | None, names: Mapping[str, Tensor]
) -> Saved:
    now = None if tensor.is_inference() else tensor._version
    amount = tensor.numel() * tensor.element_size()
    where = _storage(tensor)
    return Saved(name, state, tuple(tensor.shape), amount, version, now, whose(tensor, names), where)


def _storage(tensor: Tensor) -> tuple[int, int] | None:
    try:
        storage = tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # sparse tensors have several, others none
        return None
    return storage._cdata, storage.nbytes()


def whose(tensor: Tensor, names: Mapping[str, Tensor]) -> str:
    """Which of the named tensors this is, or is a view of; empty where none."""
    views, which = "", _storage(tensor)
    for name, mine in names.items():
        if mine.layout != torch.strided or which is None:
            if mine is tensor:
                return name
            continue
        if mine.untyped_storage()._cdata != which[0]:
            continue
        same = (mine.shape, mine.stride(), mine.storage_offset()) == (
            tensor.shape,
            tensor.stride(),
            tensor.storage_offset(),
        )
        if same:
            return name
        views = views or f"view of {name}"
    return views
