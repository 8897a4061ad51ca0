"""What a real backward does, node by node: recorded with hooks on the nodes of a reader's graph.

The graph is kept, `.grad` stays as it is, and no hook is left behind. Hooks of the reader's own on tensors
run once, as in any backward; hooks that run when `.grad` is written do not run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from course_utils.draw.graph_nodes import Graph

FEW = 6  # so many values are kept as they are


@dataclass(frozen=True)
class Gradient:
    """What is kept of a gradient: its values where there are few, its norm where there are more."""

    shape: tuple[int, ...]
    values: Any = None  # as `tolist()` gives them
    norm: float = 0.0

    @property
    def text(self) -> str:
        return f"{self.shape} norm {short(self.norm)}" if self.values is None else _nested(self.values)


@dataclass(frozen=True)
class Sent:
    """A gradient on its way to output `slot` of node `target`, from input `index` of the node that made it
    (-1 where backward begins). `total` is what has come together there, this one included."""

    index: int
    target: int
    slot: int
    gradient: Gradient | None
    total: Gradient | None


@dataclass(frozen=True)
class Step:
    """A node has run: what it was given, for each of its outputs, and what it has sent."""

    number: int
    given: tuple[Gradient | None, ...]
    sent: tuple[Sent, ...]


@dataclass
class Recording:
    """A backward, step by step. Where it raised, `error` says how, and `failed` is the node that was
    running."""

    start: tuple[Sent, ...]
    steps: list[Step] = field(default_factory=list)
    error: str = ""
    failed: int | None = None


def short(value: Any) -> str:
    """A number in few characters."""
    if isinstance(value, float):
        return f"{value:.3g}".replace("e-0", "e-").replace("e+0", "e")
    return str(value)


def _nested(values: Any) -> str:
    return f"[{', '.join(map(_nested, values))}]" if isinstance(values, list) else short(values)


def describe(tensor: Tensor | None) -> Gradient | None:
    """What is kept of a gradient; nothing that keeps its memory."""
    if tensor is None:
        return None
    tensor, shape = tensor.detach(), tuple(tensor.shape)
    if tensor.numel() <= FEW:
        return Gradient(shape, tensor.tolist())
    return Gradient(shape, None, float(torch.linalg.vector_norm(tensor.float())))


def record(graph: Graph) -> Recording:
    """Runs backward once, from ones, and keeps what every node was given and has sent.

    Changes neither `.grad` nor the graph. Where backward raises, the recording ends there.
    """
    starts = [torch.ones_like(output, requires_grad=False).detach() for output in graph.outputs]
    recorder = _Recorder(graph)
    begun = (recorder.send(-1, root, start) for root, start in zip(graph.roots, starts, strict=True))
    recording = recorder.recording = Recording(tuple(begun))
    leaves = [GradientEdge(op.node, 0) for op in graph.leaves]
    with contextlib.ExitStack() as stack:
        for tensor in (*graph.outputs, *graph.names.values()):
            if tensor.retains_grad:  # any backward writes its gradient; it gets the old one back
                stack.callback(setattr, tensor, "grad", tensor.grad)
        recorder.listen(stack)
        try:
            # Where torch begins with a one by itself, it is left to: to check ours it would import much.
            given = None if all(one.numel() == 1 for one in graph.outputs) else starts
            torch.autograd.grad(graph.outputs, leaves, given, retain_graph=True, allow_unused=True)
        except Exception as error:  # whatever torch, or a custom backward, says is what there is to show
            recording.error, recording.failed = in_one_line(error), recorder.running
    return recording


def in_one_line(error: Exception) -> str:
    """The exception's own words, without the advice after them."""
    words = str(error).strip().partition(" Hint: ")[0].split("\n")[0]
    return f"{type(error).__name__}: {words}"


class _Recorder:
    """Hooks on nodes, and the sums of what has arrived at each."""

    recording: Recording

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.totals: dict[tuple[int, int], Tensor | None] = {}
        self.given: dict[int, tuple[Gradient | None, ...]] = {}
        self.running: int | None = None

    def send(self, index: int, to: tuple[int, int], gradient: Tensor | None) -> Sent:
        """Notes that a gradient arrives, and what it makes together with those before it."""
        before = self.totals.get(to)
        if before is None or gradient is None:
            total = gradient if before is None else before  # not a copy: nobody changes what it is given
        else:
            total = before.detach() + gradient.detach()
        self.totals[to] = total
        return Sent(index, *to, describe(gradient), describe(total))

    def listen(self, stack: contextlib.ExitStack) -> None:
        for op in self.graph.ops:
            if op.leaf:
                # The engine hands a leaf's gradient out before its node would run; hooks of the leaf see it.
                handles = [op.node.variable.register_hook(self._leaf(op.number))]
            else:
                before, after = self._before(op.number), self._after(op.number)
                handles = [op.node.register_prehook(before), op.node.register_hook(after)]
            for handle in handles:
                stack.callback(handle.remove)

    def _receive(self, number: int, given: Sequence[Tensor | None]) -> tuple[Gradient | None, ...]:
        for slot in range(len(given)):
            self.totals.pop((number, slot), None)
        return tuple(map(describe, given))

    def _before(self, number: int) -> Callable[[tuple], None]:
        def hook(given: tuple[Tensor | None, ...]) -> None:
            self.running = number
            self.given[number] = self._receive(number, given)

        return hook

    def _after(self, number: int) -> Callable[[tuple, tuple], None]:
        def hook(made: tuple[Tensor | None, ...], given: tuple[Tensor | None, ...]) -> None:
            inputs = enumerate(zip(self.graph.ops[number].edges, made, strict=False))
            sent = [self.send(index, edge, one) for index, (edge, one) in inputs if edge is not None]
            self.recording.steps.append(Step(number, self.given.pop(number), tuple(sent)))
            self.running = None

        return hook

    def _leaf(self, number: int) -> Callable[[Tensor], None]:
        def hook(given: Tensor) -> None:
            self.recording.steps.append(Step(number, self._receive(number, (given,)), ()))

        return hook
