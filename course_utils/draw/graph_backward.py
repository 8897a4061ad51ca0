"""What a real backward does, node by node: recorded with hooks on the nodes of a reader's graph.

The graph is kept, `.grad` stays as it is, and no hook is left behind. Hooks of the reader's own on tensors
run once, as in any backward, and what they print is kept; hooks that run when `.grad` is written do not run.
"""

from __future__ import annotations

import contextlib
import gc
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from course_utils.draw.graph_nodes import Graph, edge_of

FEW = 6  # so many values are kept as they are


@dataclass(frozen=True)
class Gradient:
    """What is kept of a gradient: its values where there are few, its norm where there are more."""

    shape: tuple[int, ...]
    values: tuple[Any, ...] | None = None
    norm: float | None = None

    @property
    def text(self) -> str:
        if self.values is not None:
            inner = ", ".join(map(short, self.values))
            return inner if not self.shape else f"[{inner}]" if len(self.shape) == 1 else _nested(self)
        norm = f" norm {short(self.norm)}" if self.norm is not None else ""
        return f"{self.shape}{norm}"


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
    """A node has run: what it was given, for each of its outputs, and what it has sent. `altered`: a hook
    changed what had arrived before the node was given it."""

    number: int
    given: tuple[Gradient | None, ...]
    sent: tuple[Sent, ...]
    altered: bool = False


@dataclass
class Recording:
    """A backward, step by step. Where it raised, `error` says how, and `failed` is the node that was
    running."""

    start: tuple[Sent, ...]
    steps: list[Step] = field(default_factory=list)
    error: str = ""
    failed: int | None = None
    printed: str = ""


def short(value: Any) -> str:
    """A number in few characters."""
    if isinstance(value, float):
        return f"{value:.3g}".replace("e-0", "e-").replace("e+0", "e")
    if isinstance(value, complex):
        return f"{value:.2g}"
    return str(value)


def _nested(gradient: Gradient) -> str:
    if 0 in gradient.shape:
        return f"{gradient.shape} empty"
    flat = [short(value) for value in gradient.values]
    for size in reversed(gradient.shape):
        flat = [f"[{', '.join(flat[at : at + size])}]" for at in range(0, len(flat), size)]
    return flat[0]


def describe(tensor: Tensor | None) -> Gradient | None:
    """What is kept of a gradient; nothing that keeps its memory."""
    if tensor is None:
        return None
    tensor, shape = tensor.detach(), tuple(tensor.shape)
    try:
        if tensor.numel() <= FEW:
            return Gradient(shape, tuple(tensor.to_dense().reshape(-1).tolist()))
        whole = tensor.coalesce().values() if tensor.is_sparse else tensor
        if not whole.is_complex() and whole.dtype not in (torch.float32, torch.float64):
            whole = whole.float()
        return Gradient(shape, None, float(torch.linalg.vector_norm(whole)))
    except (RuntimeError, NotImplementedError):  # no values: `meta`, and what wraps tensors
        return Gradient(shape)


def record(graph: Graph, watch: set[int], gradient: Sequence[Tensor] | Tensor | None = None) -> Recording:
    """Runs backward once, from `gradient` for each output (default: ones), and keeps what the nodes in
    `watch` were given and have sent.

    Changes neither `.grad` nor the graph. Where backward raises, the recording ends there.
    """
    if isinstance(gradient, Tensor):
        gradient = [gradient]
    try:
        starts = list(gradient) if gradient is not None else [_ones(output) for output in graph.outputs]
        recorder = _Recorder(graph, watch)
        begun = tuple(recorder.send(-1, root, start) for root, start in zip(graph.roots, starts, strict=True))
    except (RuntimeError, ValueError) as error:
        return Recording((), error=_said(error))
    recording = Recording(begun)
    leaves = [GradientEdge(op.node, 0) for op in graph.leaves]
    printed = io.StringIO()
    if not leaves:
        recording.error = "there is no leaf for a gradient to arrive at"
        return recording
    with contextlib.ExitStack() as stack:
        stack.enter_context(_retained_as_they_were(graph))
        stack.enter_context(contextlib.redirect_stdout(printed))
        recorder.listen(stack, recording)
        try:
            outputs = [one if isinstance(one, Tensor) else edge_of(one) for one in graph.outputs]
            # Where torch begins with a one by itself, it is left to: to check ours it would import much.
            if gradient is None and all(isinstance(one, Tensor) and one.numel() == 1 for one in outputs):
                starts = None
            torch.autograd.grad(outputs, leaves, starts, retain_graph=True, allow_unused=True)
        except Exception as error:  # whatever torch, or a custom backward, says is what there is to show
            recording.error, recording.failed = _said(error), recorder.running
    recording.printed = printed.getvalue()
    return recording


def _said(error: Exception) -> str:
    words = str(error).strip().partition(" Hint: ")[0].split("\n")[0]
    return f"{type(error).__name__}: {words}"


def _ones(output: Any) -> Tensor:
    if isinstance(output, Tensor):
        return torch.ones_like(output, requires_grad=False).detach()
    edge = edge_of(output)
    like = edge.node._input_metadata[edge.output_nr]
    return torch.ones(tuple(like.shape), dtype=like.dtype, device=like.device)


class _Recorder:
    """Hooks on nodes, and the sums of what has arrived at each."""

    def __init__(self, graph: Graph, watch: set[int]) -> None:
        self.graph, self.watch = graph, watch
        self.totals: dict[tuple[int, int], Tensor | None] = {}
        self.given: dict[int, tuple[tuple[Gradient | None, ...], bool]] = {}
        self.running: int | None = None

    def send(self, index: int, to: tuple[int, int], gradient: Tensor | None) -> Sent:
        """Notes that a gradient arrives, and what it makes together with those before it."""
        kept = describe(gradient)
        if to[0] not in self.watch:
            return Sent(index, *to, kept, kept)
        before = self.totals.get(to)
        if before is None or gradient is None:
            # Not a copy: a node must not change what it is given.
            total, shown = (gradient if before is None else before), kept
            if before is not None:
                shown = describe(before)
        else:
            with torch.no_grad():
                total = before.detach() + gradient.detach()
            shown = describe(total)
        self.totals[to] = total
        return Sent(index, *to, kept, shown)

    def listen(self, stack: contextlib.ExitStack, recording: Recording) -> None:
        for number in sorted(self.watch):
            op = self.graph.ops[number]
            node = op.node
            if op.leaf:
                # The engine hands a leaf's gradient out before its node would run; hooks of the leaf see it.
                stack.enter_context(_hooked(node.variable, self._leaf(number, recording)))
                continue
            for register, hook in (
                (node.register_prehook, self._before(number)),
                (node.register_hook, self._after(number, recording)),
            ):
                stack.callback(register(hook).remove)

    def _receive(self, number: int, given: Sequence[Tensor | None]) -> tuple[tuple, bool]:
        altered = False
        for slot, one in enumerate(given):
            total = self.totals.pop((number, slot), None)
            altered = altered or not _same(total, one)
        return tuple(describe(one) for one in given), altered

    def _before(self, number: int) -> Callable[[tuple], None]:
        def hook(given: tuple[Tensor | None, ...]) -> None:
            self.running = number
            self.given[number] = self._receive(number, given)

        return hook

    def _after(self, number: int, recording: Recording) -> Callable[[tuple, tuple], None]:
        edges = self.graph.ops[number].edges

        def hook(made: tuple[Tensor | None, ...], given: tuple[Tensor | None, ...]) -> None:
            sent = [
                self.send(index, edge, one)
                for index, (edge, one) in enumerate(zip(edges, made, strict=False))
                if edge is not None
            ]
            got, altered = self.given.pop(number, ((), False))
            recording.steps.append(Step(number, got, tuple(sent), altered))
            self.running = None

        return hook

    def _leaf(self, number: int, recording: Recording) -> Callable[[Tensor], None]:
        def hook(given: Tensor) -> None:
            got, altered = self._receive(number, (given,))
            recording.steps.append(Step(number, got, (), altered))

        return hook


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None or a is b:
        return a is b
    if a.shape != b.shape or a.layout != torch.strided or b.layout != torch.strided:
        return a.shape == b.shape
    try:
        return bool(torch.allclose(a.detach(), b.detach(), equal_nan=True))
    except (RuntimeError, NotImplementedError):
        return True


@contextlib.contextmanager
def _hooked(leaf: Tensor, hook: Callable[[Tensor], None]) -> Iterator[None]:
    """With one more hook on a leaf; afterwards its hooks are what they were, also where it had none."""
    if not leaf.requires_grad:  # switched off since: it can have no hooks
        yield
        return
    had = leaf._backward_hooks
    handle = leaf.register_hook(hook)
    try:
        yield
    finally:
        handle.remove()
        if had is None:
            leaf._backward_hooks = None


@contextlib.contextmanager
def _retained_as_they_were(graph: Graph) -> Iterator[None]:
    """Any backward writes the `.grad` of tensors that retain theirs; here they get the old one back."""
    nodes = {op.node for op in graph.ops}
    kept: list[tuple[Tensor, Tensor | None]] = []
    with torch._C.DisableTorchFunctionSubclass():
        for thing in gc.get_objects():
            if not issubclass(type(thing), Tensor):
                continue
            with contextlib.suppress(RuntimeError):  # what a transform of torch.func has left behind
                if thing.retains_grad and thing.grad_fn in nodes:
                    kept.append((thing, thing.grad))
        thing = None
    try:
        yield
    finally:
        with torch._C.DisableTorchFunctionSubclass():
            for tensor, grad in kept:
                tensor.grad = grad
