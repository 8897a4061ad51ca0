"""What a model and its loss function keep beside registered parameters, by the path to it."""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from course_utils import torch_private
from course_utils.diagnosis.subject import Subject, modules


def kept(subject: Subject) -> Iterator[tuple[str, Tensor]]:
    """The tensors in attributes, lists and dictionaries of the model's modules, each once, by a path as a
    reader writes it: `blocks[0].weight`. Registered parameters are left out; buffers are there. Then those of
    the loss function: in its attributes, and in what it closes over or uses as a global."""
    seen = {id(parameter) for parameter in subject.model.parameters()}
    seen.update(id(module) for _, module in modules(subject))
    for name, module in modules(subject):
        yield from _in_attributes(module, f"{name}." if name else "", seen)
    loss = subject.loss_fn
    if isinstance(loss, nn.Module):
        yield from _in_attributes(loss, "loss_fn.", seen | {id(one) for one in loss.parameters()})
    elif isinstance(loss, types.FunctionType):
        used = inspect.getclosurevars(loss)
        for name, value in {**used.globals, **used.nonlocals}.items():
            yield from _in(value, name, seen)


def _in_attributes(module: nn.Module, before: str, seen: set[int]) -> Iterator[tuple[str, Tensor]]:
    for name, buffer in torch_private.buffers(module).items():
        yield from _in(buffer, f"{before}{name}", seen)
    for name, value in list(vars(module).items()):
        if name not in torch_private.TABLES:
            yield from _in(value, f"{before}{name}", seen)


def _in(value: Any, path: str, seen: set[int]) -> Iterator[tuple[str, Tensor]]:
    if id(value) in seen or isinstance(value, (str, bytes, int, float, type, types.FunctionType)):
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, nn.Module):
        for name, inner in value.named_modules():
            seen.add(id(inner))
            before = f"{path}.{name}." if name else f"{path}."
            for own, parameter in torch_private.parameters(inner).items():
                yield from _in(parameter, f"{before}{own}", seen)
            yield from _in_attributes(inner, before, seen)
    elif isinstance(value, Mapping):
        for key, one in list(value.items()):
            yield from _in(one, f"{path}[{key!r}]", seen)
    elif isinstance(value, (list, tuple)):
        for number, one in enumerate(value):
            yield from _in(one, f"{path}[{number}]", seen)
    elif dataclasses.is_dataclass(value) or isinstance(value, types.SimpleNamespace):
        for name, one in vars(value).items() if hasattr(value, "__dict__") else ():
            yield from _in(one, f"{path}.{name}", seen)
