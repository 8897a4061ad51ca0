"""Graphs that live on, tensors that are written to after they were saved, and errors that end a step."""

import contextlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from course_utils import torch_private
from course_utils.diagnosis.finding import Finding
from course_utils.diagnosis.module_calls import called_modules
from course_utils.diagnosis.paths import kept
from course_utils.diagnosis.steps import SEED, Seen, as_tensor, backward_again, loss_again, mark, modules
from course_utils.diagnosis.words import counted, listed
from course_utils.measure.saved import nodes_behind
from course_utils.measure.storage import key, storages, tensors_in
from course_utils.measure.uncompiled import uncompiled

_TWICE = "backward through the graph a second time"
_WRITTEN = "modified by an inplace operation"
_CALLS = 5  # more than a model keeps that keeps its last few results on purpose


def raised(seen: Seen) -> Iterator[Finding]:
    """The forward, the loss, the backward or the step ended in an error."""
    error = seen.raised
    if (
        error is None
        or _is_carried(seen)
        or _is_conflict(seen)
        or (error.during == "backward" and seen.calls.loss)
    ):
        return
    yield Finding(
        "fault",
        "raised",
        f"The {error.during} of step {error.step + 1} raised {error.message}",
        "An error ends a step where it is raised; what came before it stays done: buffers that a forward has "
        "moved, gradients that a backward has added.",
        "06_training",
        "Five steps",
        [
            *([f"in the module `{error.inside}`"] if error.inside else []),
            *([f"at {error.line}"] if error.line else []),
        ],
    )


def carried_state(seen: Seen) -> Iterator[Finding]:
    """A step's graph leads into that of the step before."""
    batch = [*seen.subject.inputs, *tensors_in(seen.subject.target)]
    if not _is_carried(seen) or any(tensor.grad_fn is not None for tensor in batch):
        return
    error = seen.raised
    told = f"the backward of step {error.step + 1} raised an error" if error else "it grows with every step"
    where = [f"kept with a graph: {listed(seen.graphs_kept)}"] if seen.graphs_kept else []
    yield Finding(
        "fault",
        "carried_state",
        f"The graph of a step leads into the graph of an earlier one: {told}.",
        "A tensor that is kept keeps the graph that made it, and ties it to the next step's. Backward frees "
        "a graph as it goes through it. `detach()` carries the numbers on without the graph.",
        "07_bugs",
        "Patient 13",
        [
            f"nodes behind each loss: {', '.join(map(str, seen.nodes))}",
            *where,
            *([error.message] if error else []),
        ],
    )


def growing_history(seen: Seen) -> Iterator[Finding]:
    """Graphs of all earlier steps exist when the steps are over, and so do those of further calls."""
    if seen.raised or len(seen.alive) < 2 or not all(seen.alive) or _is_carried(seen):
        return
    torch.manual_seed(SEED)
    tokens = []
    with uncompiled():
        for _ in range(_CALLS):
            loss = as_tensor(seen.subject.loss(seen.subject.output()))
            tokens.append([mark(node) for node in nodes_behind(loss) if not hasattr(node, "variable")])
    del loss
    alive = sum(any(token() is not None for token in call) for call in tokens)
    if alive < _CALLS:
        return
    found = [(path, tensor) for path, tensor in kept(seen.subject) if tensor.grad_fn is not None]
    single = all(tensor.numel() == 1 for _, tensor in found)
    places = sorted({path.rpartition("[")[0] or path for path, _ in found})
    yield Finding(
        "fault",
        "growing_history" if single else "hoarded_predictions",
        f"Graphs of {alive} of {_CALLS} calls still exist when the calls are over.",
        "A tensor with a `grad_fn` keeps the graph behind it, and what that has saved until a backward frees "
        "it. A list of such tensors grows by a graph at every call.",
        "08_memory",
        "Memory that nobody frees",
        [f"kept in: {listed(places)}"] if places else [],
    )


def version_conflict(seen: Seen) -> Iterator[Finding]:
    """Backward needs a tensor that was written to after it had been saved."""
    error = seen.raised
    if error is None or not _is_conflict(seen):
        return
    evidence = [str(error.error).partition("; expected")[0].strip()]
    if error.step == 0:
        evidence += [one.said() for one in _written(seen) if one.counted][:3]
    yield Finding(
        "fault",
        "version_conflict",
        f"Backward of step {error.step + 1} needs a tensor that was written to after it had been saved.",
        "A node that saved a tensor notes its version. Writes in place count it up, with few exceptions, "
        "and backward raises where it finds another one than was noted.",
        "02_autograd",
        "Versions",
        evidence,
    )


def overwritten_activation(seen: Seen) -> Iterator[Finding]:
    """A tensor is written to and read later by who needed what was there: by backward, unseen by its version
    counter, or by another module."""
    if seen.raised is not None and seen.raised.step == 0:
        return
    yield from _read_later(seen)
    if seen.raised is not None:
        return
    if hidden := [one for one in _written(seen) if not one.counted]:
        yield Finding(
            "fault",
            "overwritten_activation",
            f"{counted(hidden, 'tensor')} saved for backward had other numbers when backward read them.",
            "Writes through `.data`, NumPy and storages are not counted. Where a node has saved what they "
            "change, backward computes with other numbers, without an error.",
            "02_autograd",
            "Versions",
            [one.said() for one in hidden[:3]],
        )


def _is_carried(seen: Seen) -> bool:
    error = seen.raised
    if error is not None:
        told = str(error.error)
        grew = len(set(seen.nodes)) > 1
        return error.step > 0 and error.during == "backward" and (
            _TWICE in told or (_WRITTEN in told and (grew or bool(seen.graphs_kept)))
        )  # fmt: skip
    pairs = zip(seen.nodes, seen.nodes[1:], strict=False)
    return len(seen.nodes) > 2 and all(a < b for a, b in pairs)


def _is_conflict(seen: Seen) -> bool:
    error = seen.raised
    return error is not None and _WRITTEN in str(error.error) and not _is_carried(seen)


@dataclass(eq=False)
class _Saved:
    """A tensor that a node keeps: `tensor` shares its memory and its version counter."""

    tensor: Tensor
    version: int
    sum: float
    inside: str


@dataclass(frozen=True)
class _Write:
    """A saved tensor that was not the same when backward read it. `writer`: the module that wrote to it, ""
    where none was seen. `counted`: whether its version changed."""

    shape: tuple[int, ...]
    inside: str
    writer: str
    counted: bool
    before: float
    after: float

    def said(self) -> str:
        by = f", written to by `{self.writer}`" if self.writer else ""
        where = f"in `{self.inside}`" if self.inside else "in the forward or the loss"
        return f"{self.shape}, saved {where}{by}: its sum was {self.before:.6g} and is {self.after:.6g}"


@dataclass(eq=False)
class _Recorder:
    """Notes what is saved and what modules write to."""

    inside: list[str] = field(default_factory=list)
    versions: list[dict[int, int]] = field(default_factory=list)
    writers: dict[int, list[tuple[int, str]]] = field(default_factory=dict)
    found: list[_Write] = field(default_factory=list)
    buffers: set[int] = field(default_factory=set)

    def before(self, name: str, module: nn.Module, given: list[Tensor]) -> None:
        self.inside.append(name)
        self.versions.append({id(one): torch_private.version(one) for one in given})

    def after(self, name: str, module: nn.Module, given: list[Tensor], came: list[Tensor]) -> None:
        self.inside.pop()
        for one in given:
            version = torch_private.version(one)
            if self.versions[-1].get(id(one), version) != version:
                for storage in storages(one):
                    self.writers.setdefault(key(storage), []).append((version, name))
        self.versions.pop()

    def pack(self, tensor: Tensor) -> Any:
        plain = tensor.detach()
        if not plain.is_floating_point() or any(key(one) in self.buffers for one in storages(plain)):
            return plain  # batch norm writes to its statistics as it runs, and reads them no more
        inside = self.inside[-1] if self.inside else ""
        return _Saved(plain, torch_private.version(plain), _sum(plain), inside)

    def unpack(self, saved: Any) -> Tensor:
        if not isinstance(saved, _Saved):
            return saved
        now = _sum(saved.tensor)
        if now != saved.sum and not (now != now and saved.sum != saved.sum):
            version = torch_private.version(saved.tensor)
            writers = [
                name
                for storage in storages(saved.tensor)
                for at, name in self.writers.get(key(storage), [])
                if at > saved.version
            ]
            counted = version != saved.version
            shape = tuple(saved.tensor.shape)
            self.found.append(
                _Write(shape, saved.inside, writers[0] if writers else "", counted, saved.sum, now)
            )
        return saved.tensor


def _sum(tensor: Tensor) -> float:
    """The same for the same numbers, in their order in memory."""
    with torch.no_grad():
        wide = torch.float32 if tensor.dtype in (torch.float16, torch.bfloat16) else None
        return float(tensor.sum(dtype=wide))


def _written(seen: Seen) -> list[_Write]:
    """The saved tensors of a forward that have other numbers when backward reads them, each memory once."""
    recorder = _Recorder()
    recorder.buffers = {key(s) for b in seen.subject.model.buffers() for s in storages(b)}
    with (
        warnings.catch_warnings(),
        called_modules(seen.subject, recorder.before, recorder.after),
        saved_tensors_hooks(recorder.pack, recorder.unpack),
    ):
        warnings.simplefilter("ignore")
        backward_again(seen.subject)
    return list({(one.shape, one.inside, one.after): one for one in recorder.found}.values())


def _read_later(seen: Seen) -> Iterator[Finding]:
    """A module with `inplace=True` writes to a tensor that something else reads afterwards: if it doesn't,
    the loss is another one."""
    found = [m for _, m in modules(seen.subject) if getattr(m, "inplace", None) is True]
    writers = [m for m in found if not isinstance(m, torch.jit.ScriptModule)]
    if not writers:
        return
    as_is, with_it = _inputs(seen)
    with contextlib.ExitStack() as stack:
        for module in writers:
            module.inplace = False  # type: ignore[assignment]
            stack.callback(setattr, module, "inplace", True)
        apart, without = _inputs(seen)
    if as_is == apart or as_is != _inputs(seen)[0]:  # NaN, or a model that is never twice the same
        return
    pairs = zip(with_it, without, strict=False)
    number = next((n for n, (a, b) in enumerate(pairs) if a.sums != b.sums), len(with_it))
    reader = with_it[number] if number < len(with_it) else None
    before = [one for one in with_it[:number] if one.module in writers]
    direct = [one for one in before if reader is not None and one.places & reader.places]
    writer = ([*before, *direct] or [None])[-1]
    told = f"`{writer.name}`" if writer else "A module"
    then = f"`{reader.name}` reads it" if direct else "it is read"
    where = f": what comes to `{reader.name}` is another" if reader and not direct else ""
    yield Finding(
        "fault",
        "overwritten_activation",
        f"{told} writes over its input, and {then} afterwards{where}.",
        "A module with `inplace=True` writes its result over its input. What reads that input later gets "
        "the result instead, often without an error.",
        "07_bugs",
        "Patient 15",
        [f"with `inplace=False` the loss is {apart:.6g} instead of {as_is:.6g}"],
    )


@dataclass(frozen=True)
class _Given:
    name: str
    module: nn.Module
    sums: tuple[float, ...]
    places: frozenset[int]


def _inputs(seen: Seen) -> tuple[float, list[_Given]]:
    """The loss, and what each call of a module without modules of its own was given."""
    given: list[_Given] = []

    def before(name: str, module: nn.Module, tensors: list[Tensor]) -> None:
        if next(module.children(), None) is None:
            sums = tuple(_sum(one) for one in tensors if one.is_floating_point())
            places = frozenset(key(s) for one in tensors for s in storages(one))
            given.append(_Given(name, module, sums, places))

    with called_modules(seen.subject, before):
        return loss_again(seen.subject), given


LOOKS = [raised, carried_state]
TRIALS = [growing_history, version_conflict, overwritten_activation]
