"""What travels between a client and its warm processes, and how.

A frame is a token, a kind, a length and a payload. The token is drawn for each worker, so that bytes which an
answer happens to write to the connection are never taken for a result. A payload is pickled by value where
it has to be: functions and classes of a notebook, with the source lines of theirs that exist in no file, and
those of exercises and solutions, which are loaded from their files and cannot be imported by name.
"""

import functools
import importlib
import io
import linecache
import pickle
import struct
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle

from course_utils import torch_private

TOKEN_BYTES = 16
MOST_TOLD = 4 << 20  # bytes that a call may tell before it ends
# The child says that it has begun, perhaps more than once what it knows so far, then what came out.
CALL, STARTED, PART, RESULT = b"C", b"S", b"P", b"R"
_HEADER = struct.Struct(f"!{TOKEN_BYTES}s1sQ")

Sources = dict[str, list[str]]


def frame(token: bytes, kind: bytes, payload: bytes) -> bytes:
    """A payload with its header."""
    return _HEADER.pack(token, kind, len(payload)) + payload


def frames(token: bytes, data: bytearray) -> Iterator[tuple[bytes, bytes]]:
    """Kind and payload of each frame that is whole, taken out of `data`. Raises `ValueError` for bytes that
    are no frame of this worker's, and for a part that is too large, before it has come."""
    while len(data) >= _HEADER.size:
        seen, kind, length = _HEADER.unpack_from(data)
        if seen != token:
            raise ValueError("these bytes are no frame of this worker's")
        if kind == PART and length > MOST_TOLD:
            raise ValueError("it tells too much")
        end = _HEADER.size + length
        if len(data) < end:
            return
        payload = bytes(data[_HEADER.size : end])
        del data[:end]
        yield kind, payload


def dumps(value: Any, to_cpu: bool = False) -> tuple[bytes, Sources]:
    """The value as bytes, and the lines of the code in it that is in no file. With `to_cpu` tensors of other
    devices arrive on the CPU: whoever loads them need not have the device. Raises what pickling raises."""
    file = io.BytesIO()
    pickler = _Pickler(file, to_cpu)
    pickler.dump(value)
    typed = [name for name in pickler.files if name in linecache.cache and not Path(name).exists()]
    return file.getvalue(), {name: lines for name in typed if (lines := linecache.getlines(name))}


def install_sources(sources: Sources) -> None:
    """Makes `inspect.getsource`, tracebacks and TorchScript find code that is in no file."""
    for name, lines in sources.items():
        # No modification time: `linecache.checkcache` then leaves the entry alone.
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)


class _Pickler(cloudpickle.Pickler):
    def __init__(self, file: io.BytesIO, to_cpu: bool) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.files: set[str] = set()
        self.to_cpu = to_cpu

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, types.CodeType):
            self.files.add(obj.co_filename)
        elif isinstance(obj, types.FunctionType) and _is_by_value(obj.__globals__.get("__name__")):
            self.globals_ref.setdefault(id(obj.__globals__), _Globals(obj.__globals__))
        elif isinstance(obj, _Cached) and (_is_local(obj) or _is_by_value(getattr(obj, "__module__", None))):
            return _cached, (obj.__wrapped__, obj.cache_parameters())
        elif type(obj).__module__.startswith("triton.runtime.") and type(obj).__name__ in _KERNELS:
            return importlib.import_module("triton").jit, (obj.fn,)
        elif (path := _path_of(obj)) is not None:
            return _found_at, path
        elif self.to_cpu and _is_on_a_device(obj):
            return obj.detach().cpu().requires_grad_(obj.requires_grad).__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return super().reducer_override(obj)


class _Globals:
    """The globals of a module's functions, empty at first. Where they arrive they are those of a module of
    the same name: the compiler asks for it when it goes into one of these functions."""

    def __init__(self, of: dict[str, Any]) -> None:
        self.place = of["__name__"], of.get("__file__")

    def __reduce__(self) -> tuple[Any, ...]:
        return _globals_of, self.place


def _globals_of(name: str, file: str | None) -> dict[str, Any]:
    module = sys.modules.get(name)
    if module is None:
        module = sys.modules[name] = types.ModuleType(name)
        module.__file__ = file
    return vars(module)


def _is_by_value(module: str | None) -> bool:
    return module in cloudpickle.list_registry_pickle_by_value()


# What `functools.cache` and `lru_cache` make of a function: cloudpickle knows such a thing by name alone.
_Cached = type(functools.cache(len))


def _is_local(obj: Any) -> bool:
    name = getattr(obj, "__qualname__", "<locals>")  # a `functools.partial` that is cached has none
    return "<locals>" in name or obj.__module__ == "__main__"


def _cached(function: Callable[..., Any], parameters: dict[str, Any]) -> Callable[..., Any]:
    return functools.lru_cache(**parameters)(function)


# What `triton.jit` makes of a function: which of the two, the process decides that it comes to.
_KERNELS = ("JITFunction", "InterpretedFunction")


# Generators of which a process has one. `random.seed`, `np.random.rand` and others are their methods: with a
# copy of a generator they would seed that, and draw from it.
_GENERATORS = (("random", "_inst"), ("numpy.random.mtrand", "_rand"), ("torch", "default_generator"))


def _path_of(obj: Any) -> tuple[str, ...] | None:
    """The module in which every process finds this, and the names that lead to it there: of operators, of the
    generators of a process, and of modules that are of a type of their own, such as the settings of the
    compiler. None for all else."""
    if isinstance(obj, types.ModuleType) and sys.modules.get(obj.__name__) is obj:
        return None if type(obj) is types.ModuleType else (obj.__name__,)
    for module, name in _GENERATORS:
        if getattr(sys.modules.get(module), name, None) is obj:
            return module, name
    if "torch" not in sys.modules:
        return None
    if isinstance(obj, torch_private.OpNamespace):
        return "torch.ops", obj.name
    if isinstance(obj, (torch_private.OpOverloadPacket, torch_private.OpOverload)):
        return "torch.ops", *str(obj).split(".")
    return None


def _found_at(module: str, *names: str) -> Any:
    return functools.reduce(getattr, names, importlib.import_module(module))


def _is_on_a_device(obj: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(obj, torch.Tensor) and obj.device.type not in ("cpu", "meta")
