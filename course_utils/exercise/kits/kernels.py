"""Kernels in Triton, for lesson 15: what a launch did to memory, judged from the interpreter's own accesses.

Triton is imported so that it interprets kernels where there is no GPU to compile them for. Where it is
missing there are stand-ins, so that an exercise can be read and its checks say what is missing.
"""

from __future__ import annotations

import contextlib
import linecache
import math
import os
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from course_utils import machine, measure
from course_utils.exercise import expect
from course_utils.exercise.given import Given
from course_utils.measure.kernel import KernelTraffic
from course_utils.measure.kernel_watch import interpret

if "cuda" not in machine.devices():
    interpret()
try:
    import triton
    import triton.language as tl

    if os.environ.get("TRITON_INTERPRET") == "1":
        measure.guard_kernels()
except ImportError:
    triton: Any = SimpleNamespace(jit=lambda function: function)  # type: ignore[no-redef]
    tl: Any = SimpleNamespace(constexpr=int)  # type: ignore[no-redef]

__all__ = [
    "draws",
    "inside",
    "interpreted",
    "keeps",
    "launched",
    "launched_within",
    "loaded_as_often",
    "most_loaded",
    "no_race",
    "once",
    "small_blocks",
    "stored_once",
    "times",
    "tl",
    "triton",
    "unwritten_is_nan",
]

# What a launch may need of torch, beside the kernel: memory, and other shapes of what is there.
_LAUNCHING = {
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "set_",
    "resolve_conj",
}
_LAUNCHING |= {"zeros", "zeros_like", "new_zeros", "zero_", "full", "full_like", "new_full", "fill_"}
_SHAPES = {"view", "reshape", "expand", "permute", "transpose", "t", "alias", "slice", "select", "unsqueeze"}
_SHAPES |= {"squeeze", "as_strided", "unbind", "split"}
_ALLOWED = _LAUNCHING | _SHAPES | {"detach", "copy_", "clone", "_to_copy", "lift_fresh"}
# What a profile names beside its parts.
_PARTED = ("aten::contiguous", "aten::flatten", "aten::ravel", "aten::to")


def launched(t: Given, call: str, name: str = "found", shuffle: int | None = None) -> list[KernelTraffic]:
    """The launches of a call, whose result is `name` in the example from there on. Raises `Mismatch` where
    there are none, and where operators of torch computed something."""
    with measure.operators() as ran, measure.kernels(shuffle) as launches:
        t.run(f"{name} = {call}")
    return _computed(launches, ran.names)


def launched_within(t: Given, call: str, name: str = "found") -> list[KernelTraffic]:
    """What `launched` tells, of a call of an operator of the reader's: also what runs inside it, which no
    watch of operators sees."""
    with torch.autograd.profiler.profile() as ran, measure.kernels() as launches:
        t.run(f"{name} = {call}")
    names = [event.name for event in ran.function_events]
    return _computed(launches, [one for one in names if one.startswith("aten::") and one not in _PARTED])


def _computed(launches: list[KernelTraffic], ran: list[str]) -> list[KernelTraffic]:
    expect.true(bool(launches), "no kernel was launched", "expected: a kernel of yours computes the result")
    others = [one for one in ran if _base(one) not in _ALLOWED]
    told = f"torch's own operators ran: {', '.join(dict.fromkeys(others))}"
    expect.true(not others, told, "expected: the kernel computes; torch hands out memory")
    for shape in {access.block for launch in launches for access in launch.launch.accesses}:
        told = f"a block of shape {tuple(shape)}"
        powers = all(size & (size - 1) == 0 for size in shape)
        expect.true(powers, told, "expected: powers of two; Triton compiles no others")
    return launches


def interpreted(code: str, name: str) -> dict[str, Any]:
    """What this code defines: kernels, and functions that launch them. For an isolated check, whose process
    interprets."""
    import triton  # as it is there
    import triton.language as tl

    file = f"<{name}>"
    linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
    names = {"triton": triton, "tl": tl, "__name__": name}
    exec(compile(code, file, "exec"), names)
    return names


def inside(launches: list[KernelTraffic]) -> None:
    """No program asked for an address outside the tensors."""
    for launch in launches:
        if launch.outside:
            first, count = launch.outside[0], len(launch.outside)
            told = f"{count:,} address{'es' if count > 1 else ''} outside every tensor; the first: {first}"
            raise expect.Mismatch(told, "expected: none, whatever a mask does with the value later")


def no_race(launches: list[KernelTraffic]) -> None:
    """No two programs use an element that one of them stores to."""
    for launch in launches:
        if launch.races:
            told = f"{len(launch.races):,} pairs of programs race; the first: {launch.races[0]}"
            raise expect.Mismatch(told, "expected: the result doesn't depend on which program comes first")


def once(t: Given, launches: list[KernelTraffic], loaded: list[str], stored: list[str]) -> None:
    """Over all launches each element of these tensors of the example is loaded, or stored, exactly once."""
    for names, kind in ((loaded, "load"), (stored, "store")):
        for name in names:
            tensor: Tensor = getattr(t, name)
            counts = sum(getattr(one, f"{kind}s").sum() for one in _of(launches, tensor))
            least = min((int(getattr(one, f"{kind}s").min()) for one in _of(launches, tensor)), default=0)
            past = "loaded" if kind == "load" else "stored"
            told = f"`{name}` has {tensor.numel():,} elements, and {int(counts):,} were {past}"
            expect.true(counts == tensor.numel() and least == 1, told, f"expected: each is {past} once")


def times(launches: list[KernelTraffic], tensor: Tensor, *kinds: str) -> Tensor:
    """How often accesses of these kinds ask for each element of a tensor, over all launches, also where a
    kernel was given a view of it."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    counts = torch.zeros(span, dtype=torch.int64)
    for launch in (one.launch for one in launches):
        for access in launch.accesses:
            if access.memory is not None and access.place.kind in kinds:
                memory = launch.memories[access.memory]
                away = np.unique(access.addresses) - memory.start + memory.real - tensor.data_ptr()
                element = away // tensor.element_size()
                counts[element[(element >= 0) & (element < span)]] += 1
    return counts.as_strided(tensor.shape, tensor.stride())


def loaded_as_often(
    t: Given, launches: list[KernelTraffic], name: str, expected: Tensor, because: str
) -> None:
    """Each element of this tensor of the example is loaded as often as it is expected to be."""
    tensor: Tensor = getattr(t, name)
    counts = times(launches, tensor, "load")
    for place in (counts != expected).nonzero().tolist()[:1]:
        came, right = int(counts[tuple(place)]), int(expected[tuple(place)])
        told = f"`{name}{place}` was loaded {came:,} time{'s' * (came != 1)}, expected {right:,}: {because}"
        size = tensor.element_size()
        total, least = int(counts.sum()) * size, int(expected.sum()) * size
        raise expect.Mismatch(told, f"in all {total:,} bytes of `{name}` were loaded, expected {least:,}")


def stored_once(t: Given, launches: list[KernelTraffic], name: str = "found") -> None:
    """Each element of this tensor of the example is stored once; an atomic operation stores, too."""
    counts = times(launches, getattr(t, name), "store", "atomic")
    for place in (counts != 1).nonzero().tolist()[:1]:
        came = int(counts[tuple(place)])
        told = f"element `{place}` of the result was stored {came:,} time{'s' * (came != 1)}"
        raise expect.Mismatch(told, "expected: each is stored once")


@contextlib.contextmanager
def unwritten_is_nan() -> Iterator[None]:
    """What `torch.empty` hands out inside holds NaN, or the largest integer, not what lay there before."""
    before = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warns)


def small_blocks(launches: list[KernelTraffic], most: int = 1024) -> None:
    """No access is to a block of more elements than this, masked ones counted."""
    for launch in launches:
        largest = max((access.block for access in launch.launch.accesses), key=math.prod, default=())
        told = f"a block of shape {tuple(largest)} has {math.prod(largest):,} elements"
        expect.true(math.prod(largest) <= most, told, f"expected: at most {most:,}, masked ones counted")


def keeps(t: Given, call: str, *, limit: int = 0) -> None:
    """At most `limit` bytes are made by `call` and kept for backward. Triton's interpreter leaves the
    storages that it was given in reference cycles, which are collected before anything is counted."""
    # The result of the answer counts as well when it is kept: what is returned is another tensor.
    t.run(f"import gc\n\ndef forward():\n    y = {call} * 1\n    gc.collect()\n    return y")
    t.call("forward()")
    live = measure.live_bytes(t.forward)
    expect.at_most(live.held - live.result, limit, "made in `forward()` and kept for backward", unit="bytes")
    expect.at_most(live.left, 0, "still there when the result of `forward()` is gone", unit="bytes")


@triton.jit
def _draw(out, seed, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.rand(seed, i), mask=i < n)


def draws(seed: int, like: Tensor) -> Tensor:
    """`tl.rand(seed, i)` for each element `i` of a tensor, in one row."""
    out = torch.empty(like.numel(), device=like.device)
    _draw[(triton.cdiv(len(out), 1024),)](out, seed, len(out), BLOCK=1024)
    return out


def most_loaded(launches: list[KernelTraffic], tensor: Tensor) -> int:
    """How many elements of this tensor the program loads that loads most of them, in one launch."""
    counts: Counter[Any] = Counter()
    for number, launch in enumerate(launches):
        memories = launch.launch.memories
        those = {i for i, memory in enumerate(memories) if memory.real == tensor.data_ptr()}
        for access in launch.launch.accesses:
            if access.memory in those and access.place.kind == "load":
                counts[number, access.program] += len(set(access.addresses.tolist()))
    return max(counts.values(), default=0)


def _of(launches: list[KernelTraffic], tensor: Tensor) -> list[Any]:
    return [found for launch in launches if (found := launch.of(tensor)) is not None]


def _base(operator: str) -> str:
    return operator.split("::")[-1].removeprefix("aten.").split(".")[0]
