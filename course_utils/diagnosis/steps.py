"""A few real training steps, and what was seen in them."""

from __future__ import annotations

import contextlib
import gc
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from course_utils import torch_private
from course_utils.diagnosis.calls import Calls
from course_utils.diagnosis.module_calls import ModuleCall, called_modules
from course_utils.diagnosis.paths import kept
from course_utils.diagnosis.subject import Subject, modules
from course_utils.diagnosis.untouched import Held
from course_utils.measure.saved import nodes_behind
from course_utils.measure.storage import values
from course_utils.measure.training import Run, record_run
from course_utils.measure.uncompiled import uncompiled
from course_utils.stacks import raised
from course_utils.wrong_use import WrongUse, said

SEED = 0
_NUDGE = 1e-4  # what each weight moves in a step where there is no optimizer


@dataclass(eq=False)
class Error:
    """What ended the steps, or the loop. `during`: forward, loss, backward, step or loop. `inside`: the
    innermost module that was being called; "" for none. `line`: the reader's own, with its place. `step`:
    counted from 0."""

    error: Exception
    during: str
    inside: str
    line: str
    step: int

    @property
    def message(self) -> str:
        """The first line of what the error says, of a long one its first sentence, after its class."""
        first = str(self.error).strip().partition("\n")[0]
        first = first if len(first) < 200 else first.partition(". ")[0]
        return f"{type(self.error).__name__}: {first}" if first else type(self.error).__name__


@dataclass(eq=False)
class Seen:
    """What was seen of a few steps of training on one batch.

    `losses`: one number a step. `grads`: by name, the norm of a parameter's gradient at each step; None where
    there was none. `zeros`: by name, whether all of a gradient were zeros, at each step. `norms`: by name,
    the norm of a parameter before the first step. `moved`: by name, of the elements that got a gradient other
    than 0 the share whose values the first step of the optimizer changed. `leaves`: what the graph of the
    first loss ends at, and `again`: the ids of what that of the last one ends at. `module_calls`: in the
    first forward. `nodes`: of the graph of each loss; `alive`: how many of each exist when the steps are
    over. `graphs_kept`: the paths of tensors with a graph that the model or the loss function then keeps.
    `half`: whether float16 is in the graph. `raised`: what ended the steps early. `calls`: which functions
    the first forward and its loss called. `run`: the reader's own loop, as it was recorded, and
    `loop_raised`: what ended it.

    Where there is no optimizer each weight moves by 1e-4 against the sign of its gradient.
    """

    subject: Subject
    losses: list[float] = field(default_factory=list)
    grads: dict[str, list[float | None]] = field(default_factory=dict)
    zeros: dict[str, list[bool]] = field(default_factory=dict)
    norms: dict[str, float] = field(default_factory=dict)
    moved: dict[str, float] = field(default_factory=dict)
    leaves: list[Tensor] = field(default_factory=list)
    again: set[int] = field(default_factory=set)
    module_calls: list[ModuleCall] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)
    alive: list[int] = field(default_factory=list)
    graphs_kept: list[str] = field(default_factory=list)
    half: bool = False
    raised: Error | None = None
    during: str = ""
    calls: Calls = field(default_factory=Calls)
    run: Run | None = None
    loop_raised: Error | None = None

    @property
    def runs(self) -> bool:
        """Whether the model and the loss can be called on this batch."""
        error = self.raised
        return error is None or error.step > 0 or error.during not in ("forward", "loss")


class _Token:
    """Lives as long as the node of the graph that holds it."""


def train(subject: Subject, steps: int, held: Held) -> Seen:
    """Takes the steps. To be called inside `untouched`. Whatever the model, the loss or the optimizer raises
    ends it, and is in what is returned."""
    seen = Seen(subject)
    tokens: list[list[weakref.ref[_Token]]] = []
    torch.manual_seed(SEED)
    with warnings.catch_warnings(), uncompiled():
        warnings.simplefilter("ignore")
        try:
            for _ in range(steps):
                _step(seen, held, tokens)
        except WrongUse:
            raise
        except Exception as error:  # of any kind: it is the reader's code that runs
            seen.raised = _ended(seen, error)
    if any(token() for step in tokens for token in step):
        gc.collect()  # a graph that only waits for the collector is not kept
    seen.alive = [sum(token() is not None for token in step) for step in tokens]
    seen.graphs_kept = [path for path, tensor in kept(subject) if tensor.grad_fn is not None]
    return seen


def _step(seen: Seen, held: Held, tokens: list[list[weakref.ref[_Token]]]) -> None:
    subject, first = seen.subject, not seen.losses
    for _, parameter in subject.parameters():
        parameter.grad = None
    if subject.optimizer is not None:
        subject.optimizer.zero_grad()
    seen.during = "forward"
    with contextlib.ExitStack() as stack:
        if first:
            seen.module_calls = stack.enter_context(called_modules(subject))
            stack.enter_context(seen.calls.watched(seen))
        output = subject.output()
        seen.during = "loss"
        loss = subject.loss(output)
    seen.calls.note_loss(loss)
    loss = as_tensor(loss)
    seen.losses.append(float(loss.detach().sum()))
    nodes = list(nodes_behind(loss))
    _graph(seen, nodes, first)
    del output  # as a loop of the reader's does when the next one comes
    tokens.append([mark(node) for node in nodes if not hasattr(node, "variable")])
    del nodes
    seen.during = "backward"
    if loss.requires_grad:
        _backward(subject, loss)
    for name, parameter in subject.parameters():
        grad = values(parameter.grad)
        seen.grads.setdefault(name, []).append(None if grad is None else norm(grad))
        seen.zeros.setdefault(name, []).append(grad is not None and not bool(grad.any()))
        if first:
            seen.norms[name] = norm(parameter)
    seen.during = "step"
    _move(seen)
    if first and subject.optimizer is not None:
        seen.moved = _moved(subject, held)
    seen.during = ""


def _backward(subject: Subject, loss: Tensor) -> None:
    """Leaves the graph alone that a batch brings along: it is the reader's, and a backward would free it."""
    brought = [tensor for tensor in subject.inputs if tensor.grad_fn is not None]
    if not brought:
        loss.backward()
        return
    behind = {id(leaf) for leaf in _leaves(brought)}
    if own := [leaf for leaf in _leaves(loss) if id(leaf) not in behind]:
        loss.backward(inputs=own)


def _leaves(result: Any) -> list[Tensor]:
    return [node.variable for node in nodes_behind(result) if hasattr(node, "variable")]


def as_tensor(loss: Any) -> Tensor:
    """The loss, also where it is a number, which has no graph."""
    if isinstance(loss, Tensor):
        return loss
    if isinstance(loss, (int, float)):
        return torch.tensor(float(loss))
    raise WrongUse(f"diagnose needs a loss that is one number, in a tensor; `loss_fn` returned {said(loss)}.")


def _graph(seen: Seen, nodes: list[Any], first: bool) -> None:
    leaves = [node.variable for node in nodes if hasattr(node, "variable")]
    seen.again = {id(leaf) for leaf in leaves}
    seen.nodes.append(len(nodes))
    if first:
        seen.leaves = leaves
        inner = (node for node in nodes if not hasattr(node, "variable"))
        seen.half = any(one.dtype is torch.float16 for node in inner for one in _metadata(node))


def _metadata(node: Any) -> list[Any]:
    return [one for one in torch_private.input_metadata(node) if one is not None]


def mark(node: Any) -> weakref.ref[_Token]:
    """A reference to what lives as long as a node of a graph does."""
    node.metadata[_Token] = token = _Token()
    return weakref.ref(token)


def norm(tensor: Tensor) -> float:
    """The length of a tensor, of 16 bits too; 0 for one without numbers of a floating-point type."""
    if isinstance(tensor, nn.parameter.UninitializedTensorMixin) or not tensor.is_floating_point():
        return 0.0
    plain = tensor.detach()
    wide = torch.float64 if plain.dtype is torch.float64 else torch.float32
    return float(torch.linalg.vector_norm(plain, dtype=wide))


def _move(seen: Seen) -> None:
    optimizer = seen.subject.optimizer
    if isinstance(optimizer, torch.optim.LBFGS):
        optimizer.step(lambda: _again(seen.subject))
    elif optimizer is not None:
        optimizer.step()
    else:
        with torch.no_grad():
            for _, parameter in seen.subject.parameters():
                if parameter.grad is not None and parameter.grad.layout is torch.strided:
                    parameter.sub_(parameter.grad.sign(), alpha=_NUDGE)


def _again(subject: Subject) -> Tensor:
    """The loss with fresh gradients, for an optimizer that asks for it several times a step."""
    with torch.enable_grad():
        subject.model.zero_grad()
        loss = subject.loss(subject.output())
        _backward(subject, loss)
    return loss


def _moved(subject: Subject, held: Held) -> dict[str, float]:
    was = {id(tensor): before for tensor, before in held.tensors}
    shares = {}
    for name, parameter in subject.parameters():
        grad = parameter.grad
        if grad is None or grad.layout is not torch.strided or id(parameter) not in was:
            continue
        came = grad != 0
        if count := int(came.sum()):
            changed = came & (parameter.detach() != was[id(parameter)])
            shares[name] = int(changed.sum()) / count
    return shares


def _ended(seen: Seen, error: Exception) -> Error:
    """What is known of an error, which then holds no frame, and so none of the tensors in it."""
    names = {id(module): name or type(module).__name__ for name, module in modules(seen.subject)}
    inside, trace = "", error.__traceback__
    while trace is not None:
        inside = names.get(id(trace.tb_frame.f_locals.get("self")), inside)
        trace = trace.tb_next
    frame = raised(error).frame
    line = f"{frame.source.strip()}  (line {frame.line} of {frame.file})" if frame else ""
    found: BaseException | None = error
    while found is not None:
        found.__traceback__, found = None, found.__context__
    step = len(seen.losses) - (seen.during in ("backward", "step"))
    return Error(error, seen.during, inside, line, step)


def record(seen: Seen, loop: Callable[[], Any]) -> None:
    """Calls the reader's own loop and keeps what was recorded of it. To be called inside `untouched`."""
    torch.manual_seed(SEED)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            seen.run = record_run(loop)
        except Exception as error:  # of any kind: it is the reader's code that runs
            seen.run = getattr(error, "recorded", None)
            seen.during = "loop"
            seen.loop_raised = _ended(seen, error)
            seen.during = ""


@contextlib.contextmanager
def evaluating(subject: Subject) -> Iterator[None]:
    """The model in evaluation mode, each module back in its own afterwards. Graphs are made: a forward may
    compute gradients itself."""
    modes = [(module, module.training) for module in subject.model.modules()]
    subject.model.eval()
    try:
        with uncompiled():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def loss_again(subject: Subject, change: Callable[[], None] = lambda: None) -> float:
    """The loss on the batch with the same random numbers as in the first step, after `change`."""
    torch.manual_seed(SEED)
    change()
    torch.manual_seed(SEED)
    with uncompiled(), warnings.catch_warnings():  # with graphs: a forward may compute gradients itself
        warnings.simplefilter("ignore")
        return float(as_tensor(subject.loss(subject.output())).detach())


def backward_again(subject: Subject, scale: float = 1.0) -> Tensor:
    """The loss after a backward of so many times it, with the same random numbers as in the first step."""
    torch.manual_seed(SEED)
    with uncompiled():
        loss = as_tensor(subject.loss(subject.output()))
        if loss.requires_grad:
            _backward(subject, loss * scale)
    return loss.detach()
