"""What is diagnosed: how a model is called on a batch, and where its loss comes from."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import Optimizer

from course_utils.measure.storage import tensors_in
from course_utils.measure.uncompiled import as_said
from course_utils.wrong_use import WrongUse, said

# What labels are called in a batch that is a dictionary.
TARGETS = ("labels", "label", "targets", "target", "y")


@dataclass(frozen=True)
class Subject:
    """`args`, `kwargs`: what the model is called with. `target`: what the loss is given beside its output;
    None where the loss needs none, or the model computes it."""

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    target: Any
    loss_fn: Callable[..., Any] | None
    optimizer: Optimizer | None

    def output(self, args: Any = None, kwargs: Any = None) -> Any:
        """What the model returns, for this batch or for another of its kind."""
        return self.model(
            *(self.args if args is None else args), **(self.kwargs if kwargs is None else kwargs)
        )

    def loss(self, output: Any) -> Tensor:
        """The loss that an output has. Raises `WrongUse` where there is none."""
        if self.loss_fn is None:
            return _returned_loss(output)
        return self.loss_fn(output) if self.target is None else self.loss_fn(output, self.target)

    @property
    def inputs(self) -> list[Tensor]:
        """The tensors that the model is given."""
        return [*tensors_in(self.args), *tensors_in(self.kwargs)]

    def parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The model's parameters, each once, by the names that a reader gives them."""
        for name, parameter in self.model.named_parameters():
            yield as_said(name).removeprefix("module."), parameter


def subject(
    model: nn.Module,
    batch: Any,
    loss_fn: Callable[..., Any] | None,
    optimizer: Optimizer | None,
) -> Subject:
    """Sorts a batch into what the model is given and what the loss is given.

    With a loss function a tuple's last entry is the target, and of a dictionary what is called `labels`,
    `targets` or the like; what is left goes to the model: a tensor as its only argument, a tuple as
    arguments, a dictionary by keyword. Without a loss function all of the batch goes to the model, which
    returns the loss.
    """
    if any(map(is_lazy, (*model.parameters(), *model.buffers()))):
        raise WrongUse(
            "diagnose needs a model that has been called once: some of its layers have no weights yet."
        )
    inputs, target = batch, None
    if loss_fn is not None:
        if isinstance(batch, Mapping):
            if name := next((one for one in TARGETS if one in batch), None):
                target = batch[name]
                inputs = {key: value for key, value in batch.items() if key != name}
        elif isinstance(batch, (tuple, list)) and len(batch) > 1:
            *first, target = batch
            inputs = first[0] if len(first) == 1 else tuple(first)
    if isinstance(inputs, Mapping) and _by_keyword(model, inputs):
        return Subject(model, (), dict(inputs), target, loss_fn, optimizer)
    args = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    return Subject(model, args, {}, target, loss_fn, optimizer)


def _by_keyword(model: nn.Module, inputs: Mapping[str, Any]) -> bool:
    """Whether the model's forward has parameters of these names; if not, it takes the dictionary itself."""
    wanted = inspect.signature(model.forward).parameters.values()
    return any(one.kind is one.VAR_KEYWORD or one.name in inputs for one in wanted)


def _returned_loss(output: Any) -> Tensor:
    found = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    first = next(tensors_in(output), None) if found is None else found
    if isinstance(first, Tensor) and first.numel() == 1 and first.is_floating_point():
        return first.reshape(())
    raise WrongUse(
        f"diagnose needs `loss_fn`, or a model that returns its loss; this one returned {said(output)}."
    )


def modules(subject: Subject) -> Iterator[tuple[str, nn.Module]]:
    """The modules of the model by the names that a reader gives them."""
    for path, module in subject.model.named_modules():
        yield as_said(path).removeprefix("module."), module


def devices(tensors: Iterator[Tensor]) -> list[int]:
    """The numbers of the GPUs on which these are."""
    return sorted({t.device.index or 0 for t in tensors if t.is_cuda}) if torch.cuda.is_available() else []
