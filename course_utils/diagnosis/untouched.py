"""A reader's model and optimizer, used and yet left as they were.

The objects stay the reader's own, so that whatever refers to them (an optimizer, a closure, a hook) still
does. What they keep is put aside, and copies stand in for it until the end.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections import Counter
from collections.abc import (
    Callable,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    MutableSequence,
    MutableSet,
)
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType, MethodType, ModuleType, NoneType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedTensorMixin
from torch.optim.optimizer import Optimizer

from course_utils import torch_private
from course_utils.diagnosis.subject import Subject, devices
from course_utils.measure.saved import parameters_behind, used_by
from course_utils.measure.storage import key, storages, tensors_in
from course_utils.stacks import is_readers

_LARGE = 2**26  # bytes: a tensor beyond that is a data set, which nobody writes to


@dataclass
class Held:
    """What stands in for a model's tensors. `size`: bytes of the copies."""

    size: int = 0
    tensors: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # the reader's, and what it showed
    attributes: list[Callable[[], None]] = field(default_factory=list)

    def reset(self) -> None:
        """The model is again as it was at first, and without gradients; the optimizer goes on."""
        for put_back in self.attributes:
            put_back()
        with torch.no_grad():
            for tensor, was in self.tensors:
                tensor.data.copy_(was)
                if tensor.is_leaf:
                    tensor.grad = None


@contextlib.contextmanager
def untouched(subject: Subject, loop: Callable[[], Any] | None = None) -> Iterator[Held]:
    """Inside, the model may be trained; afterwards it is as it was: parameters, buffers, other tensors and
    lists that its modules keep, gradients, modes, the optimizer's state and settings, random generators, the
    batch. So is what `reached` finds from `loop` and the loss function: models, optimizers, schedulers,
    lists, dictionaries, generators, tensors that are not large. What an object of a package's class keeps is
    not put back, nor where an iterator stands.
    """
    held = Held()
    back: list[Callable[[], None]] = []
    try:
        used = reached([loop, subject.loss_fn])
        given = reached([*subject.args, *subject.kwargs.values(), subject.target])
        tensors = [*parameters_behind(subject.loss_fn), *tensors_in(given), *subject.inputs]
        tensors += _hold_modules((subject.model, subject.loss_fn, *used), held, back)
        tensors += _hold_optimizers((subject.optimizer, *used), held, back)
        loose = [one for one in used if isinstance(one, Tensor)]
        loose += _hold_objects((*used, *given), back)
        theirs = {id(one) for one in tensors}
        for one in {id(one): one for one in loose if id(one) not in theirs}.values():
            _back_up(one, back)
        _hold_tensors(tensors, held, back)
        with _generators(tensors), torch.enable_grad():
            yield held
    finally:
        with contextlib.ExitStack() as stack:  # the last first, and all of them, whatever one raises
            for put_back in back:
                stack.callback(put_back)


def reached(roots: Iterable[Any]) -> list[Any]:
    """What functions of the reader's close over, name, have as defaults or are bound to, and what is in
    lists, dictionaries and objects of the reader's own classes; each once, with the roots."""
    found: list[Any] = []
    seen: set[int] = set()
    pending = list(roots)
    while pending:
        thing = pending.pop()
        if id(thing) in seen or isinstance(thing, (type, str, bytes, int, float, complex, NoneType)):
            continue
        seen.add(id(thing))
        found.append(thing)
        if isinstance(thing, FunctionType):
            pending += used_by(thing) if is_readers(thing.__code__.co_filename) else []
        elif isinstance(thing, partial):
            pending += [thing.func, thing.args, thing.keywords]
        elif isinstance(thing, MethodType):
            pending += [thing.__self__, thing.__func__]
        elif isinstance(thing, Mapping):
            pending += thing.values()
        elif isinstance(thing, (tuple, MutableSequence, MutableSet, frozenset)):
            pending += thing
        elif not isinstance(thing, (nn.Module, Optimizer, Tensor)) and _is_own(thing):
            pending += vars(thing).values()
    return found


def _hold_modules(things: Iterable[Any], held: Held, back: list[Callable[[], None]]) -> list[Tensor]:
    """Notes what the modules among them keep. Returns the tensors of it."""
    outer = [one for one in things if isinstance(one, nn.Module)]
    tensors: list[Tensor] = []
    for module in dict.fromkeys(module for one in outer for module in one.modules()):
        tensors += _tensors_kept(vars(module), set())
        _hold_containers(vars(module), held.attributes, set())
    back += held.attributes
    return tensors


def _hold_optimizers(things: Iterable[Any], held: Held, back: list[Callable[[], None]]) -> list[Tensor]:
    """The states of the optimizers among them become copies. Returns the tensors that these step and are set
    by."""
    tensors: list[Tensor] = []
    for optimizer in dict.fromkeys(one for one in things if isinstance(one, Optimizer)):
        state = optimizer.state
        _hold_containers(vars(optimizer), back, set())
        optimizer.state = copied = state.copy()
        for parameter, kept in state.items():
            copied[parameter] = torch_private.tree_map(_copied, kept)
        held.size += sum(t.nbytes for t in tensors_in(copied))
        tensors += tensors_in(optimizer.param_groups)
    return tensors


def _hold_objects(things: Iterable[Any], back: list[Callable[[], None]]) -> list[Tensor]:
    """Notes what is in the lists, dictionaries, generators and objects among them. Returns the tensors that
    are attributes."""
    tensors: list[Tensor] = []
    seen: set[int] = set()
    for one in things:
        if isinstance(one, (nn.Module, Optimizer, Tensor, ModuleType)):
            continue
        if _keeps_state(one):
            tensors += [each for each in vars(one).values() if isinstance(each, Tensor)]
            _hold_containers(vars(one), back, seen)
        else:
            _hold_containers(one, back, seen)
    return tensors


def _is_own(thing: Any) -> bool:
    """Whether it is an object with attributes, of a class that the reader has written."""
    if not hasattr(thing, "__dict__") or isinstance(thing, ModuleType):
        return False
    if isinstance(thing, SimpleNamespace):
        return True
    name = type(thing).__module__
    file = getattr(sys.modules.get(name), "__file__", None)
    return is_readers(file) if file else name == "__main__"


def _keeps_state(thing: Any) -> bool:
    """Whether it is such an object, or one of torch's like a scheduler or a scaler."""
    return _is_own(thing) or (hasattr(thing, "state_dict") and hasattr(thing, "__dict__"))


def _tensors_kept(value: Any, seen: set[int]) -> Iterator[Tensor]:
    """The tensors in an attribute: in lists, dictionaries and modules, those that are not registered too."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, nn.Module):
        yield from _tensors_kept(vars(value), seen)
    elif isinstance(value, MutableMapping):
        for one in list(value.values()):
            yield from _tensors_kept(one, seen)
    elif isinstance(value, (tuple, MutableSequence, MutableSet)):
        for one in list(value):
            yield from _tensors_kept(one, seen)


def _hold_containers(value: Any, back: list[Callable[[], None]], seen: set[int]) -> None:
    """Notes what is in a dictionary, list or set, in those inside it and in generators, and how to put it
    back."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, MutableMapping):
        entries = dict(value)

        def put_back(value: Any = value, entries: dict[Any, Any] = entries) -> None:
            value.clear()
            value.update(entries)

        inside = entries.values()
    elif isinstance(value, MutableSequence):
        items = list(value)

        def put_back(value: Any = value, items: list[Any] = items) -> None:
            if isinstance(value, list):
                value[:] = items
            else:  # a deque takes no slice
                value.clear()
                value.extend(items)

        inside = items
    elif isinstance(value, MutableSet):
        members = set(value)

        def put_back(value: Any = value, members: set[Any] = members) -> None:
            value.clear()
            value |= members

        inside = ()
    elif isinstance(value, torch.Generator):
        back.append(partial(value.set_state, value.get_state()))
        return
    elif isinstance(value, random.Random):
        back.append(partial(value.setstate, value.getstate()))
        return
    elif (numpy := sys.modules.get("numpy")) and isinstance(value, numpy.random.Generator):
        back.append(partial(setattr, value.bit_generator, "state", value.bit_generator.state))
        return
    else:
        return
    back.append(put_back)
    for one in inside:
        _hold_containers(one, back, seen)


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _hold_tensors(tensors: list[Tensor], held: Held, back: list[Callable[[], None]]) -> None:
    """Each gets a copy of its memory; those that share it share the copy."""
    tensors = list(
        {id(one): one for one in tensors if not isinstance(one, UninitializedTensorMixin)}.values()
    )
    sharing = Counter(_place(one) for one in tensors)
    copies: dict[int, Tensor] = {}
    for tensor in tensors:
        was, version = tensor.data, torch_private.version(tensor)
        if sharing[place := _place(tensor)] > 1:
            if place not in copies:
                copies[place] = torch.empty(0, dtype=torch.uint8, device=was.device).set_(
                    was.untyped_storage().clone()
                )
                held.size += copies[place].nbytes
            whole = was.new_empty(0).set_(copies[place].untyped_storage())
            copy = whole.as_strided(was.size(), was.stride(), was.storage_offset())
        else:  # of a view only what it shows: behind it may lie a data set
            copy = was.clone()
            held.size += copy.nbytes
        back.append(partial(_put_back, tensor, was, version, tensor.grad if tensor.is_leaf else None))
        held.tensors.append((tensor, was))
        tensor.data = copy
        if tensor.is_leaf:
            tensor.grad = None


def _back_up(tensor: Tensor, back: list[Callable[[], None]]) -> None:
    """What is in a tensor that a loop may write to. It stays where it is: NumPy or a view may show it too."""
    plain = type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided
    if not plain or tensor.is_inference() or tensor.nbytes > _LARGE:
        return
    if any(step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape, strict=True)):
        return  # torch writes to none that has one number at several places
    was, version = tensor.detach().clone(), torch_private.version(tensor)
    grad = tensor.grad if tensor.is_leaf else None
    if grad is not None:
        tensor.grad = grad.detach().clone()

    def put_back() -> None:
        tensor.data.copy_(was)
        torch_private.set_versions((tensor,), (version,))
        if tensor.is_leaf:
            tensor.grad = grad

    back.append(put_back)


def _put_back(tensor: Tensor, was: Tensor, version: int, grad: Tensor | None) -> None:
    tensor.data = was
    torch_private.set_versions((tensor,), (version,))
    if tensor.is_leaf:
        tensor.grad = grad


def _place(tensor: Tensor) -> int:
    """What is the same for tensors that share memory; for those whose memory can't be told, their own."""
    found = storages(tensor)
    return key(found[0]) if len(found) == 1 and found[0].nbytes() else -id(tensor)


@contextlib.contextmanager
def _generators(tensors: list[Tensor]) -> Iterator[None]:
    """Random generators of torch, Python and NumPy are as they were when it ends."""
    numpy = sys.modules.get("numpy")
    python, of_numpy = random.getstate(), numpy.random.get_state() if numpy else None
    with torch.random.fork_rng(devices=devices(iter(tensors))):
        try:
            yield
        finally:
            random.setstate(python)
            if numpy:
                numpy.random.set_state(of_numpy)
