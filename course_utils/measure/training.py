"""A training run, recorded from outside: what backward was called on, what the optimizer found, which layers
ran and in which mode."""

import contextlib
import functools
import math
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from course_utils import torch_private
from course_utils.measure.modes import in_backward
from course_utils.measure.saved import nodes_behind
from course_utils.measure.storage import tensors_in, values
from course_utils.measure.uncompiled import as_said, as_written, uncompiled
from course_utils.wrong_use import public


@dataclass(eq=False)
class Layer:
    """One call of a module without children. `training`: its mode then. `input`, `output`: copies of its
    first tensor, in and out; what one layer hands to the next, both have as one copy. `weights`: before the
    first backward, copies of its parameters, by name."""

    module: nn.Module
    training: bool
    output: Tensor | None = None
    input: Tensor | None = None
    weights: dict[str, Tensor] = field(default_factory=dict)


@dataclass(eq=False)
class Forward:
    """One call of a module that no other module has called: of a model, or of a loss function.

    `input`, `output`: copies of its first tensor, in and out. `layers`: those that ran inside, in order.
    `step`: how many optimizer steps came before. `graph`: whether the output hangs on one. `trained`: whether
    a gradient came back through the output later. `kept`: whether the graph still exists when the function
    has returned; never of a module without parameters.
    """

    module: nn.Module
    training: bool
    step: int
    input: Tensor | None
    output: Tensor | None = None
    graph: bool = False
    layers: list[Layer] = field(default_factory=list)
    trained: bool = False
    kept: bool = False


@dataclass(eq=False)
class Step:
    """One optimizer step. `groups`: the settings of its groups.
    `parameters`: all that it holds. `norms`: of their gradients, by `id`; None where there was no gradient.
    `backwards`: how many calls of backward came before, since the run began."""

    optimizer: Optimizer
    groups: list[dict[str, Any]]
    parameters: list[Tensor]
    norms: dict[int, float | None]
    backwards: int


@dataclass(eq=False)
class Run:
    """What was recorded of a training run.

    `losses`: the value of each tensor that `backward` (or `torch.autograd.grad`) was called on. `nodes`: how
    many nodes the graph behind it had then. `uncleared`: at each of these calls, by `id` of the parameter,
    the norms of gradients that an optimizer step had used already and nobody had cleared; `leftovers`: all of
    them together. `grad_norms`: at each optimizer step, by the layer's name; 0 where it had no gradient.
    `missing`: likewise, whether it had none, not even zeros; `frozen`: whether it wanted none. `rates`: the
    learning rate of the first group, at each step. `scheduled`: the numbers of the steps, from 1, after which
    a scheduler of torch's was called before the next one. `graphs`: at the start of each forward, how many
    graphs of earlier forwards of models still exist; and, as the last entry, when the function has returned.
    `result`: what it returned.
    """

    result: Any = None
    losses: list[float] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)
    uncleared: list[dict[int, float]] = field(default_factory=list)
    grad_norms: dict[str, list[float]] = field(default_factory=dict)
    missing: dict[str, list[bool]] = field(default_factory=dict)
    frozen: dict[str, list[bool]] = field(default_factory=dict)
    rates: list[float] = field(default_factory=list)
    scheduled: set[int] = field(default_factory=set)
    graphs: list[int] = field(default_factory=list)
    forwards: list[Forward] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    @property
    def leftovers(self) -> list[float]:
        return [_together(norms.values()) for norms in self.uncleared]

    @property
    def trained(self) -> list[Forward]:
        """The forwards of models through which a gradient came back."""
        return [f for f in self.forwards if f.trained and _has_parameters(f)]

    @property
    def evaluated(self) -> list[Forward]:
        """The forwards of models through which none did."""
        return [f for f in self.forwards if not f.trained and _has_parameters(f)]

    def __str__(self) -> str:
        ends = f", loss {self.losses[0]:.4g} -> {self.losses[-1]:.4g}" if self.losses else ""
        return f"{len(self.steps)} steps, {len(self.forwards)} forwards{ends}"


@public
def record_run(train: Callable[..., Any], *args: Any, **kwargs: Any) -> Run:
    """Calls `train(*args, **kwargs)` and returns what its training run did.

    Layers have the names that they have in the outermost module: the model that was called. Where a run calls
    several models one after another, the layers of all but the first have the class of their model in front.
    Nothing of the recorder is left when it returns or raises. It sees modules that are called (not their
    `forward` alone), and optimizers of `torch.optim`. What `torch.compile` has compiled runs as it was
    written: a compiler leaves no layers to be seen. What is computed again inside a backward, by a checkpoint
    say, is no forward and no backward of the run. A loss that a `GradScaler` has scaled is recorded as it was
    before. Where `train` raises, the error has what was recorded until then, as `error.recorded`.
    """
    return _recorded(_Recorder(Run()), functools.partial(train, *args, **kwargs))


def record_losses(train: Callable[..., Any], *args: Any, **kwargs: Any) -> Run:
    """As `record_run`, in half of the time: losses and steps, nothing of layers, graphs or gradients."""
    return _recorded(_Recorder(Run(), layers=False), functools.partial(train, *args, **kwargs))


def _recorded(recorder: "_Recorder", train: Callable[[], Any]) -> Run:
    run = recorder.run
    try:
        with recorder.open():
            run.result = train()
    except Exception as error:
        error.recorded = run  # type: ignore[attr-defined]
        error.add_note(f"Until then: {run}. It is in the error's `recorded`.")
        raise
    finally:
        recorder.ended()
    return run


class _Token:
    """Lives as long as the node of the graph that holds it."""


class _Recorder:
    def __init__(self, run: Run, layers: bool = True) -> None:
        self.run, self.layers = run, layers
        self.open_calls: list[tuple[Forward | Layer | None, Tensor | None]] = []
        self.models: list[nn.Module] = []
        self.used: dict[int, Tensor] = {}  # parameters whose gradient a step has used, and nobody cleared
        self.tokens: list[tuple[weakref.ref[_Token], Forward]] = []
        self.scaled: dict[int, tuple[weakref.ref[Tensor], Tensor]] = {}  # by `id`: itself, and what it was
        self.copied = _Copies()  # of the forward that is running

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            handles = [register_optimizer_step_post_hook(self.step)]
            if self.layers:
                handles.append(register_module_forward_pre_hook(self.entered))
                handles.append(register_module_forward_hook(self.left, always_call=True))
            for handle in handles:
                stack.callback(handle.remove)
            for name in ("backward", "grad"):
                plain = getattr(torch.autograd, name)
                setattr(torch.autograd, name, self.noting(plain, adds=name == "backward"))
                stack.callback(setattr, torch.autograd, name, plain)
            scale = torch.amp.GradScaler.scale
            torch.amp.GradScaler.scale = self.unscaled(scale)  # type: ignore[method-assign]
            stack.callback(setattr, torch.amp.GradScaler, "scale", scale)
            for kind in _schedulers(LRScheduler):
                stack.callback(setattr, kind, "step", kind.step)
                kind.step = self.scheduling(kind.step)  # type: ignore[method-assign]
            stack.enter_context(uncompiled())
            yield

    def noting(self, plain: Callable[..., Any], adds: bool) -> Callable[..., Any]:
        @functools.wraps(plain)
        def called(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            self.backward(tensors, adds)
            return plain(tensors, *args, **kwargs)

        return called

    def scheduling(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def called(*args: Any, **kwargs: Any) -> Any:
            if self.run.steps:  # one that is made calls its own `step`, as a rule before any other step
                self.run.scheduled.add(len(self.run.steps))
            return plain(*args, **kwargs)

        return called

    def unscaled(self, scale: Callable[..., Any]) -> Callable[..., Any]:
        """The method of a scaler, which notes what the tensors that it returns were."""

        @functools.wraps(scale)
        def called(scaler: Any, outputs: Any) -> Any:
            found = scale(scaler, outputs)
            for was, one in zip(tensors_in(outputs), tensors_in(found), strict=True):
                self.scaled[id(one)] = weakref.ref(one), was.detach()
            return found

        return called

    def plain(self, tensor: Tensor) -> Tensor:
        """What it was before a scaler scaled it."""
        itself, was = self.scaled.pop(id(tensor), (None, tensor))
        return was if itself is None or itself() is tensor else tensor

    def entered(self, module: nn.Module, args: Any) -> None:
        if in_backward():
            return
        call: Forward | Layer | None = None
        module = as_written(module)
        if not self.open_calls:
            steps = len(self.run.steps)
            self.copied = _Copies()
            call = Forward(module, module.training, steps, self.copied.first(args))
            self.run.forwards.append(call)
            self.run.graphs.append(self.graphs_alive())
            if module not in self.models and _any(module.parameters()):
                self.models.append(module)
        if not _any(module.children()):
            layer = Layer(module, module.training, input=self.copied.first(args))
            if not self.run.losses:
                layer.weights = {name: p.detach().clone() for name, p in module.named_parameters()}
            self.run.forwards[-1].layers.append(layer)
            call = call or layer
        self.open_calls.append((call, next(tensors_in(args), None)))

    def left(self, module: nn.Module, args: Any, output: Any) -> None:
        if in_backward():
            return
        call, came = self.open_calls.pop() if self.open_calls else (None, None)
        if call is None:
            return
        call.output = self.copied.first(output)
        if isinstance(call, Layer):
            if next(tensors_in(args), None) is not came:  # a hook of its own has put another in its place
                call.input = self.copied.first(args)
            return
        if call.layers and call.layers[-1].module is module:
            call.layers[-1].output = call.output
        for tensor in tensors_in(output):
            if tensor.grad_fn is not None:
                call.graph = True
                tensor.register_hook(functools.partial(_came_back, call))
                if _has_parameters(call):
                    tensor.grad_fn.metadata[_Token] = token = _Token()
                    self.tokens.append((weakref.ref(token), call))
                break

    def graphs_alive(self) -> int:
        self.tokens = [(token, forward) for token, forward in self.tokens if token() is not None]
        return len(self.tokens)

    def ended(self) -> None:
        """What can only be said when the function has returned."""
        self.run.graphs.append(self.graphs_alive())
        for _, forward in self.tokens:
            forward.kept = True

    def backward(self, tensors: Any, adds: bool) -> None:
        if in_backward():
            return
        with torch.no_grad():
            self.run.losses.append(sum(float(self.plain(t).sum()) for t in tensors_in(tensors)))
            if not self.layers:
                return
            left = {one: norm for one, p in self.used.items() if (norm := _norm(p))}
        self.used = {one: self.used[one] for one in left}
        self.run.uncleared.append(left if adds else {})
        self.run.nodes.append(sum(1 for _ in nodes_behind(tensors)))

    def step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        # After the step: a closure computes the gradients inside it. No optimizer of torch's writes to them.
        groups = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        norms = {id(p): _norm(p) for p in parameters} if self.layers else {}
        self.run.steps.append(Step(optimizer, groups, parameters, norms, len(self.run.losses)))
        if not self.layers:
            return
        self.run.rates.append(float(groups[0]["lr"]))
        self.used |= {id(p): p for p in parameters}
        for number, model in enumerate(self.models):
            before = f"{type(model).__name__}." if number else ""
            for name, layer in model.named_modules():
                if own := [p for p in torch_private.parameters(layer).values() if p is not None]:
                    known = [norms[id(p)] if id(p) in norms else _norm(p) for p in own]
                    called = before + (as_said(name) or type(layer).__name__)
                    self.run.grad_norms.setdefault(called, []).append(_together(known))
                    self.run.missing.setdefault(called, []).append(all(norm is None for norm in known))
                    self.run.frozen.setdefault(called, []).append(not any(p.requires_grad for p in own))


def _schedulers(base: type[LRScheduler]) -> Iterator[type[LRScheduler]]:
    """The classes of schedulers that have a `step` of their own, each once."""
    found, pending = set(), [base]
    while pending:
        kind = pending.pop()
        if kind not in found and "step" in vars(kind):
            yield kind
        found.add(kind)
        pending += kind.__subclasses__()


def _came_back(forward: Forward, grad: Tensor) -> None:
    forward.trained = True


def _any(things: Iterator[Any]) -> bool:
    return any(True for _ in things)  # a tensor may be neither true nor false


def _has_parameters(forward: Forward) -> bool:
    return any(_any(layer.module.parameters()) for layer in forward.layers)


class _Copies:
    """Of the tensors in one forward. A copy takes longer than anything else here: memory that stays has to
    be fetched from the system. So what one layer returns and the next is given is copied once."""

    def __init__(self) -> None:
        self.made: dict[int, tuple[weakref.ref[Tensor], int, Tensor]] = {}

    def first(self, value: Any) -> Tensor | None:
        """A copy of the first tensor in it."""
        tensor = next(tensors_in(value), None)
        if tensor is None:
            return None
        # A write through `.data` in between isn't counted, and so isn't seen.
        version = -1 if tensor.is_inference() else torch_private.version(tensor)
        itself, before, copy = self.made.get(id(tensor), (None, -1, None))
        if copy is None or itself() is not tensor or not 0 <= before == version:
            copy = tensor.detach().clone()
            self.made[id(tensor)] = weakref.ref(tensor), version, copy
        return copy


def _norm(p: Tensor) -> float | None:
    grad = None if p.grad is None else values(p.grad.detach())
    return None if grad is None else float(torch.linalg.vector_norm(grad))


def _together(norms: Iterable[float | None]) -> float:
    return math.hypot(*(norm for norm in norms if norm is not None))
