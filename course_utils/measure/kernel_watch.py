"""Watches what Triton's interpreter loads and stores. All that is private to Triton stands here.

The interpreter runs a kernel program by program on CPU tensors. What loads and stores goes through a few
methods of its builder, which are replaced while somebody watches. The kernel is given other addresses than
the real ones: each storage lies far from all others, so that who strays from a tensor meets no other one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from course_utils import torch_private
from course_utils.measure.kernel_memory import Access, Array, Launch, Memory, Place

_APART = 1 << 44  # bytes from one storage to the next, in the addresses that a kernel is given

MISSING = "Triton is not installed. It is in the extra `kernels`: pip install 'pytorch-inside-out[kernels]'"


@contextlib.contextmanager
def watching(shuffle: int | None = None) -> Iterator[list[Launch]]:
    """The launches of the block, in order. `shuffle`: programs run in an order drawn with this seed. Raises
    what `guard` raises."""
    now = guard()
    watcher = _Watcher([], None if shuffle is None else random.Random(shuffle))
    now.watchers.append(watcher)
    try:
        yield watcher.launches
    finally:
        now.watchers.remove(watcher)


@functools.cache
def guard() -> _Guard:
    """From here on what a kernel asks for outside its tensors is not carried out, in this process: a load
    there gives what a masked one gives: `other`, or NaN where none was named. A launch outside `watching`
    that strays warns.

    Raises `RuntimeError` where Triton is missing or compiles.
    """
    interpreter = _interpreter()
    from triton.runtime import autotuner

    now = _Guard(interpreter)

    def replace(owner: Any, name: str, by: Callable[..., Any]) -> None:
        original = getattr(owner, name)
        setattr(owner, name, lambda *args, **kwargs: by(original, *args, **kwargs))

    builder, executor = interpreter.InterpreterBuilder, interpreter.GridExecutor
    replace(interpreter, "_implicit_cvt", now.pointer)
    replace(executor, "__call__", now.launch)
    replace(executor, "_init_args_hst", now.arguments)
    replace(executor, "_restore_args_dev", now.results)
    replace(autotuner.Autotuner, "_bench", now.time)
    replace(builder, "set_grid_dim", now.grid)
    replace(builder, "set_grid_idx", now.program)
    replace(builder, "create_masked_load", now.load)
    replace(builder, "create_masked_store", now.store)
    replace(builder, "create_atomic_rmw", now.atomic)
    replace(builder, "create_atomic_cas", now.compare_and_swap)
    replace(builder, "create_dot", now.dot)
    return now


def interpret() -> None:
    """Makes Triton interpret kernels in this process, and what it starts, from here on. Where it was imported
    to compile them it is imported anew; who holds it from before still compiles."""
    os.environ["TRITON_INTERPRET"] = "1"  # read when it is imported, and when a kernel is defined
    if "triton" in sys.modules and not _interprets():
        _forget()
    with contextlib.suppress(ImportError):  # it is missing
        import triton.experimental.gluon  # noqa: F401  what the first launch would import


def compile_again() -> None:
    """Makes Triton compile kernels in this process, also where it was imported to interpret them; kernels
    that were made before are still interpreted."""
    os.environ.pop("TRITON_INTERPRET", None)
    if "triton" in sys.modules and _interprets():
        _forget()


def _forget() -> None:
    """The next import of Triton is its first; but its extension module loads once."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "triton"]:
        if "._C" not in name:
            del sys.modules[name]


def _interprets() -> bool:
    """Whether its own functions were made to be interpreted, when it was imported."""
    import triton
    from triton.runtime import interpreter

    return isinstance(triton.language.standard.sum, interpreter.InterpretedFunction)


def _interpreter() -> Any:
    try:
        from triton.runtime import interpreter  # here: most of the course does without it
    except ImportError:
        raise RuntimeError(MISSING) from None
    if not _interprets():
        raise RuntimeError(
            "Triton compiles kernels here, and what a compiled one loads cannot be watched. "
            "Set the environment variable TRITON_INTERPRET=1 before triton is imported."
        )
    return interpreter


@dataclass(eq=False)
class _Watcher:
    launches: list[Launch]
    random: random.Random | None


class _Guard:
    def __init__(self, interpreter: Any) -> None:
        self.interpreter = interpreter
        self.int1 = interpreter.tl.int1
        self.triton = str(Path(interpreter.__file__).parents[1])
        self.watchers: list[_Watcher] = []
        self.now = Launch("")
        self.order: dict[tuple[int, ...], tuple[int, ...]] = {}
        self.storages: list[int] = []

    def launch(self, original: Any, executor: Any, *args: Any, **kwargs: Any) -> Any:
        self.now = Launch(executor.fn.__name__)
        for watcher in self.watchers:
            watcher.launches.append(self.now)
        try:
            return original(executor, *args, **kwargs)
        finally:
            strays = sum(len(access.addresses) for access in self.now.accesses if access.memory is None)
            if strays and not self.watchers:
                told = f"{self.now.name} asked for {strays} addresses outside its tensors: not carried out"
                warnings.warn(f"{told}. measure.kernel(...) says where.", stacklevel=3)
            self.now, self.order = Launch(""), {}
            self.storages.clear()

    def arguments(self, original: Any, executor: Any, args: Any, kwargs: Any) -> Any:
        """Gives what is on the CPU as it is. (Triton leaves a storage that it copies, or would have copied,
        in a reference cycle, where it lives on until garbage is collected.)"""
        tensors = _tensors(executor, args, kwargs)
        on_host = args, kwargs
        if not all(tensor.is_cpu for _, tensor in tensors):
            on_host = original(executor, args, kwargs)
            tensors = _tensors(executor, *on_host)
        for name, tensor in tensors:
            self.remember(name, tensor)
        return on_host

    def results(self, original: Any, executor: Any, args: Any, on_host: Any, *others: Any) -> None:
        if on_host is not args:
            original(executor, args, on_host, *others)

    def time(self, original: Any, tuner: Any, *args: Any, **kwargs: Any) -> Any:
        """How long a configuration of `triton.autotune` takes, which tells nothing here: the first is taken,
        unless whoever wrote the kernel times it in a way of their own."""
        return original(tuner, *args, **kwargs) if getattr(tuner, torch_private.OWN_TIMER) else [0.0] * 3

    def remember(self, name: str, tensor: Tensor) -> None:
        offsets = np.zeros(tuple(tensor.shape), dtype=np.int64)
        for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
            steps = np.arange(size, dtype=np.int64) * stride
            offsets = offsets + steps.reshape([-1 if d == dim else 1 for d in range(tensor.dim())])
        start, shape, itemsize = self.given(tensor), tuple(tensor.shape), tensor.element_size()
        new = Memory((name,), shape, itemsize, start, tensor.data_ptr(), offsets.ravel())
        memories = self.now.memories
        for i, old in enumerate(memories):
            if (old.start, old.itemsize, old.shape) == (new.start, new.itemsize, new.shape):
                memories[i] = dataclasses.replace(old, names=(*old.names, name))
                return
        met = [one for one in self.now.together if any(new.overlaps(memories[i]) for i in one)]
        others = [one for one in self.now.together if one not in met]
        self.now.together = sorted([*others, (*sorted(sum(met, ())), len(memories))])
        memories.append(new)

    def given(self, tensor: Any) -> int:
        """The address that the kernel is given for the tensor's first element."""
        real = tensor.untyped_storage().data_ptr()
        if real not in self.storages:
            self.storages.append(real)
        return (self.storages.index(real) + 1) * _APART + tensor.data_ptr() - real

    def pointer(self, original: Any, value: Any) -> Any:
        made = original(value)
        if hasattr(value, "data_ptr"):
            tensor = _unwrapped(value)
            made.handle.data = np.array([self.given(tensor)], dtype=np.uint64)
        return made

    def grid(self, original: Any, builder: Any, *sizes: int) -> None:
        self.now.grid = sizes  # type: ignore[assignment]
        programs = list(np.ndindex(*sizes))
        shuffled = programs[:]
        if self.watchers and (drawn := self.watchers[-1].random) is not None:
            drawn.shuffle(shuffled)
        self.order = dict(zip(programs, shuffled, strict=True))
        original(builder, *sizes)

    def program(self, original: Any, builder: Any, *index: int) -> None:
        original(builder, *self.order[index])

    def load(
        self, original: Any, builder: Any, pointers: Any, mask: Any, other: Any, *others: Any, **how: Any
    ) -> Any:
        if other is None:
            other = self.undefined(pointers)
            if not np.all(mask.data):
                self.now.loose.add(self.place("load"))
        return original(builder, *self.seen("load", builder, pointers, mask), other, *others, **how)

    def undefined(self, pointers: Any) -> Any:
        """What a masked load without `other` gives: a GPU, anything; here NaN, or the largest number."""
        kind = pointers.get_element_ty()
        size = max(1, kind.primitive_bitwidth // 8)
        if kind.name in ("fp16", "fp32", "fp64"):
            dtype, value = np.dtype(f"f{size}"), np.nan
        elif kind.name == "int1":
            dtype, value = np.dtype(bool), True
        else:  # narrower floats are held as integers: all bits set is NaN for most of them
            dtype = np.dtype(f"{'i' if kind.name.startswith('int') else 'u'}{size}")
            value = np.iinfo(dtype).max
        return self.interpreter.TensorHandle(np.full(pointers.data.shape, value, dtype=dtype), kind)

    def store(self, original: Any, builder: Any, pointers: Any, value: Any, mask: Any, *others: Any) -> Any:
        pointers, mask = self.seen("store", builder, pointers, mask, value)
        return original(builder, pointers, value, mask, *others)

    def atomic(
        self, original: Any, builder: Any, op: Any, pointers: Any, value: Any, mask: Any, *others: Any
    ) -> Any:
        pointers, mask = self.seen("atomic", builder, pointers, mask)
        return original(builder, op, pointers, value, mask, *others)

    def compare_and_swap(
        self, original: Any, builder: Any, pointers: Any, old: Any, new: Any, *others: Any
    ) -> Any:
        every = self.interpreter.TensorHandle(np.ones(pointers.data.shape, dtype=bool), self.int1)
        pointers, mask = self.seen("atomic", builder, pointers, every)
        # It takes no mask.
        return original(builder, pointers, old, new, *others) if mask.data.all() else old

    def dot(
        self, original: Any, builder: Any, a: Any, b: Any, total: Any, precision: Any, *others: Any
    ) -> Any:
        if a.dtype.scalar.is_fp32() and precision.name == "TF32":
            self.now.rounds.add(self.place("dot"))
        return original(builder, a, b, total, precision, *others)

    def seen(self, kind: str, builder: Any, pointers: Any, mask: Any, value: Any = None) -> tuple[Any, Any]:
        """Notes what is asked for, and gives the real pointers and a mask without what lies outside."""
        asked = np.asarray(pointers.data)
        live = np.broadcast_to(np.asarray(mask.data, dtype=bool), asked.shape)
        itemsize = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        lanes = asked[live].astype(np.int64)
        real = np.zeros(len(lanes), dtype=np.uint64)
        place, program = self.place(kind), tuple(map(int, builder.grid_idx))
        left = np.ones(len(lanes), dtype=bool)
        masked = [asked[~live].astype(np.int64)]  # until they are noted

        def note(memory: int | None, which: Array) -> None:
            found = lanes[which]
            addresses, differ = _once(found), found[:0]
            if kind == "store" and len(addresses) < len(found):
                differ = _differing(found, np.broadcast_to(value.data, asked.shape)[live][which])
            rest = masked.pop() if masked else lanes[:0]
            access = Access(place, program, addresses, itemsize, memory, asked.shape, differ, rest)
            self.now.accesses.append(access)

        for numbers in self.now.together:
            inside = left & self.held(numbers, lanes, itemsize)
            if inside.any():
                if self.watchers:
                    note(numbers[0], inside)
                memory = self.now.memories[numbers[0]]  # in one storage with the others
                real[inside] = (lanes[inside] - memory.start + memory.real).astype(np.uint64)
                left &= ~inside
            if not left.any():
                break
        if left.any():
            note(None, left)
        carried_out, where = live.copy(), np.zeros(asked.shape, dtype=np.uint64)
        carried_out[live], where[live] = ~left, real
        handle = self.interpreter.TensorHandle
        return handle(where, pointers.dtype), handle(carried_out, self.int1)

    def held(self, numbers: tuple[int, ...], addresses: Array, itemsize: int) -> Array:
        """Which of these one of the memories holds."""
        each = [self.now.memories[number].holds(addresses, itemsize) for number in numbers]
        return functools.reduce(np.logical_or, each)

    def place(self, kind: str) -> Place:
        frame = sys._getframe(1)
        while frame.f_code.co_filename.startswith((self.triton, __file__)) and frame.f_back is not None:
            frame = frame.f_back
        return Place(kind, frame.f_code.co_filename, frame.f_lineno)


def _once(addresses: Array) -> Array:
    """In order, each once; most come so."""
    return addresses if (addresses[1:] > addresses[:-1]).all() else np.unique(addresses)


def _differing(addresses: Array, values: Array) -> Array:
    """To which of them different values are brought, bit by bit: NaN is NaN."""
    bits = values.view(f"u{values.itemsize}")
    found, first = np.unique(addresses, return_inverse=True)
    one = np.empty(len(found), dtype=bits.dtype)
    one[first] = bits
    return found[np.unique(first[one[first] != bits])]


def _tensors(executor: Any, args: Any, kwargs: Any) -> list[tuple[str, Tensor]]:
    """Those that a kernel is given, by the names of its parameters."""
    named = dict(zip(executor.arg_names, args, strict=False)) | kwargs
    return [(n, _unwrapped(part)) for name, value in named.items() for n, part in _parts(name, value)]


def _unwrapped(value: Any) -> Any:
    """The tensor of a `triton.reinterpret`."""
    return value if isinstance(value, Tensor) else value.base


def _parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The tensors in one argument."""
    if isinstance(value, tuple):
        for i, part in enumerate(value):
            yield from _parts(f"{name}[{i}]", part)
    elif hasattr(value, "data_ptr"):
        yield name, value
    elif hasattr(value, "block_shape") and hasattr(value, "base"):  # a tensor descriptor
        yield name, value.base
