"""The memory behind tensors."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from course_utils import torch_private
from course_utils.wrong_use import public


@public
def same_storage(a: Tensor, b: Tensor) -> bool:
    """True for two tensors that share memory: writing to one can then show in the other.

    Compares storages, not addresses: all empty tensors have address 0 and share nothing.
    """
    keys = {key(storage) for storage in storages(a)}
    return any(key(storage) in keys for storage in storages(b))


@public
def storage_bytes(t: Tensor) -> int:
    """Returns the bytes that this tensor keeps alive: all of its storage, however little of it the tensor
    shows."""
    return sum(storage.nbytes() for storage in storages(t))


def own_bytes(t: Tensor) -> int:
    """The bytes of its elements as they are kept: a quantized weight says the shape and dtype of the float
    one, and holds others."""
    if torch_private.is_wrapper(t):
        inner, _ = t.__tensor_flatten__()
        return sum(own_bytes(getattr(t, name)) for name in inner)
    return t.nbytes


def storages(t: Tensor) -> list[torch.UntypedStorage]:
    """The storages of a tensor: one, or several (sparse, nested, wrapper subclasses), or none at all."""
    if torch_private.is_wrapper(t):
        inner, _ = t.__tensor_flatten__()
        return [storage for name in inner for storage in storages(getattr(t, name))]
    if t.layout is torch.sparse_coo:
        places, values = torch_private.sparse_indices, torch_private.sparse_values
        return [*storages(places(t.detach())), *storages(values(t.detach()))]
    try:
        return [t.untyped_storage()]
    except (RuntimeError, NotImplementedError):  # inside vmap and its kin a tensor is only a wrapper
        return []


def key(storage: torch.UntypedStorage) -> int:
    """What tells one storage from another while both are alive."""
    return torch_private.storage_key(storage)


def version(t: Tensor) -> int:
    """How often the memory of a tensor was written to, through it or another that shares it."""
    return torch_private.version(t)


def values(tensor: Tensor | None) -> Tensor | None:
    """The numbers of a tensor, a gradient say: of a sparse one those that are there."""
    if tensor is None or tensor.layout is torch.strided:
        return tensor
    if tensor.layout is torch.sparse_coo:
        return torch_private.sparse_values(tensor.coalesce())
    return tensor.values()


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in what an operator or a model is given or returns: nested in lists, tuples, dictionaries
    and dataclasses."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors_in(getattr(value, field.name, None))
