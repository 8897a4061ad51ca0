"""A few real training steps, and what was seen in them."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from course_utils import torch_private
from course_utils.diagnosis.calls import Calls
from course_utils.diagnosis.subject import Subject
from course_utils.measure.saved import nodes_behind
from course_utils.measure.training import Run, record_run
from course_utils.measure.uncompiled import as_said, uncompiled

SEED = 0


@dataclass(eq=False)
class Seen:
    """What was seen of a few steps of training on one batch.

    `output`, `loss`: of the first step, without their graphs. `losses`: one number a step. `grads`: by name,
    the norm of a parameter's gradient at each step; None where there was none. `zeros`: by name, whether all
    of a gradient were zeros, at each step. `leaves`: what the graph of the first loss ends at. `raised`: what
    ended the steps, and `during`: forward, loss, backward or step. `warned`: torch's warnings. `calls`: what
    was called in the first forward and its loss. `run`: the reader's own loop, as it was recorded, and
    `loop_raised`: what ended it.
    """

    subject: Subject
    output: Any = None
    loss: Tensor | None = None
    losses: list[float] = field(default_factory=list)
    grads: dict[str, list[float | None]] = field(default_factory=dict)
    zeros: dict[str, list[bool]] = field(default_factory=dict)
    leaves: list[Tensor] = field(default_factory=list)
    raised: Exception | None = None
    during: str = ""
    warned: list[str] = field(default_factory=list)
    calls: Calls = field(default_factory=Calls)
    run: Run | None = None
    loop_raised: Exception | None = None


def train(subject: Subject, steps: int) -> Seen:
    """Takes the steps. To be called inside `untouched`. Whatever the model, the loss or the optimizer raises
    ends it, and is in what is returned."""
    seen = Seen(subject)
    torch.manual_seed(SEED)
    with warnings.catch_warnings(record=True) as caught, uncompiled():
        warnings.simplefilter("always")
        try:
            for number in range(steps):
                _step(seen, first=number == 0)
        except Exception as error:  # of any kind: it is the reader's code that runs
            seen.raised = error
    seen.warned = [str(one.message) for one in caught]
    return seen


def _step(seen: Seen, first: bool) -> None:
    subject = seen.subject
    for _, parameter in subject.parameters():
        parameter.grad = None
    if subject.optimizer is not None:
        subject.optimizer.zero_grad()
    seen.during = "forward"
    with seen.calls.watched(seen) if first else contextlib.nullcontext():
        output = subject.output()
        seen.during = "loss"
        loss = subject.loss(output)
    seen.calls.note_loss(loss)
    seen.losses.append(float(loss.detach()))
    if first:
        seen.output, seen.loss = detached(output), loss.detach()
        seen.leaves = [node.variable for node in nodes_behind(loss) if hasattr(node, "variable")]
    seen.during = "backward"
    loss.backward()
    for name, parameter in subject.parameters():
        grad = parameter.grad
        seen.grads.setdefault(name, []).append(None if grad is None else float(grad.norm()))
        seen.zeros.setdefault(name, []).append(grad is not None and not bool(grad.any()))
    seen.during = "step"
    if subject.optimizer is not None:
        subject.optimizer.step()
    seen.during = ""


def record(seen: Seen, loop: Callable[[], Any]) -> None:
    """Calls the reader's own loop and keeps what was recorded of it. To be called inside `untouched`."""
    torch.manual_seed(SEED)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            seen.run = record_run(loop)
        except Exception as error:  # of any kind: it is the reader's code that runs
            seen.loop_raised, seen.run = error, getattr(error, "recorded", None)


def detached(output: Any) -> Any:
    """The same output with tensors that have no graph."""
    return torch_private.tree_map(lambda one: one.detach() if isinstance(one, Tensor) else one, output)


@contextlib.contextmanager
def evaluating(subject: Subject) -> Iterator[None]:
    """The model in evaluation mode, each module back in its own afterwards; no graph is made."""
    modes = [(module, module.training) for module in subject.model.modules()]
    subject.model.eval()
    try:
        with torch.no_grad(), uncompiled():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def loss_again(subject: Subject, change: Callable[[], None] = lambda: None) -> float:
    """The loss on the batch with the same random numbers as in the first step, after `change`."""
    torch.manual_seed(SEED)
    change()
    with torch.no_grad(), uncompiled():
        return float(subject.loss(subject.output()))


def modules(subject: Subject) -> Iterator[tuple[str, nn.Module]]:
    """The modules of the model by the names that a reader gives them."""
    for path, module in subject.model.named_modules():
        yield as_said(path).removeprefix("module."), module
