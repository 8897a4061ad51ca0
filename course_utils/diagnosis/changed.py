"""The same subject with something in it changed: the labels, the examples, the values of the parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from course_utils import torch_private
from course_utils.diagnosis.calls import Calls
from course_utils.diagnosis.steps import SEED, Seen
from course_utils.diagnosis.subject import TARGETS, Subject
from course_utils.measure.storage import tensors_in
from course_utils.measure.uncompiled import uncompiled


def labels(subject: Subject) -> list[Tensor]:
    """What the loss compares with, whether a loss function is given it or the model."""
    kept = subject.target
    if subject.loss_fn is None:
        kept = [value for name, value in subject.kwargs.items() if name in TARGETS]
    return list(tensors_in(kept))


def data(subject: Subject) -> list[Tensor]:
    """The tensors that the model is given, without labels."""
    return [tensor for _, tensor in named_data(subject)]


def named_data(subject: Subject) -> list[tuple[str, Tensor]]:
    """The tensors that the model is given, without labels, each with its keyword, or "" where it has none."""
    named = [("", tensor) for tensor in tensors_in(subject.args)]
    # A model that takes its batch as one dictionary has names for what is in it too.
    if len(subject.args) == 1 and isinstance(subject.args[0], dict):
        named = [(str(key), one) for key, value in subject.args[0].items() for one in tensors_in(value)]
    named += [(key, one) for key, value in subject.kwargs.items() for one in tensors_in(value)]
    return [(name, tensor) for name, tensor in named if name not in TARGETS]


def with_labels(subject: Subject, change: Callable[[Tensor], Tensor]) -> Subject:
    """The same with other labels."""
    if subject.loss_fn is not None:
        return dataclasses.replace(subject, target=each(change, subject.target))
    kwargs = {
        name: each(change, value) if name in TARGETS else value for name, value in subject.kwargs.items()
    }
    return dataclasses.replace(subject, kwargs=kwargs)


def with_data(subject: Subject, change: Callable[[Tensor], Tensor]) -> Subject:
    """The same with other tensors for the model; labels that it is given stay, by their names: a language
    model's may be the very tensor that it reads."""

    def changed(named: Mapping[str, Any]) -> dict[str, Any]:
        return {name: one if name in TARGETS else each(change, one) for name, one in named.items()}

    args = subject.args
    if len(args) == 1 and isinstance(args[0], dict):
        args = (changed(args[0]),)
    return dataclasses.replace(
        subject, args=args if args is not subject.args else each(change, args), kwargs=changed(subject.kwargs)
    )


def each(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """The same lists and dictionaries with other tensors in them."""
    return torch_private.tree_map(lambda one: change(one) if isinstance(one, Tensor) else one, value)


def disturb(subject: Subject, scale: float = 1.0) -> None:
    """Draws all parameters anew, so many times as large as they are, and none stays zero."""
    for _, parameter in subject.parameters():
        values = parameter.data
        if values.is_floating_point():
            values.copy_(torch.randn_like(values) * ((values.std(correction=0) + 0.1) * scale))


def calls_again(seen: Seen, change: Callable[[], None]) -> Calls:
    """What is called in a forward and its loss after `change`."""
    calls = Calls()
    torch.manual_seed(SEED)
    change()
    before, seen.during = seen.during, "forward"
    try:
        with uncompiled(), calls.watched(seen):
            output = seen.subject.output()
            seen.during = "loss"
            seen.subject.loss(output)
    finally:
        seen.during = before
    return calls
