"""What travels between a client and its warm processes, and how.

A frame is a token, a length and a payload. The token is drawn for each worker, so that bytes which an
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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle

TOKEN_BYTES = 16
# The child says that it has begun, perhaps more than once what it knows so far, then what came out.
CALL, STARTED, PART, RESULT = b"C", b"S", b"P", b"R"

_HEADER = struct.Struct(f"!{TOKEN_BYTES}s1sQ")
HEADER_BYTES = _HEADER.size

Sources = dict[str, list[str]]


class GarbledError(Exception):
    """The bytes on a connection are not a frame of this worker."""


class _Pickler(cloudpickle.Pickler):
    def __init__(self, file: io.BytesIO, to_cpu: bool) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.files: set[str] = set()
        self.to_cpu = to_cpu

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, types.CodeType):
            self.files.add(obj.co_filename)
        elif isinstance(obj, types.FunctionType) and (name := _by_value(obj)):
            self.globals_ref.setdefault(id(obj.__globals__), _Globals(name, obj.__globals__.get("__file__")))
        elif _is_found_module(obj) and type(obj) is not types.ModuleType:
            return importlib.import_module, (obj.__name__,)  # such as the settings of the compiler
        elif isinstance(obj, _Cached) and _is_by_value(obj):
            return _cached, (obj.__wrapped__, obj.cache_parameters())
        elif (place := _place_of_generator(obj)) is not None:
            return _generator, place
        elif (torch := sys.modules.get("torch")) is None:
            pass
        elif (path := _path_of_operator(obj, torch)) is not None:
            return _operator, path
        elif self.to_cpu and isinstance(obj, torch.Tensor) and obj.device.type not in ("cpu", "meta"):
            return obj.detach().cpu().requires_grad_(obj.requires_grad).__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return super().reducer_override(obj)


@dataclass(frozen=True)
class _Globals:
    """The globals of a module's functions, empty at first. Where they arrive they are those of a module of
    the same name: the compiler asks for it when it goes into one of these functions."""

    name: str
    file: str | None

    def __reduce__(self) -> tuple[Any, ...]:
        return _globals_of, (self.name, self.file)


def _globals_of(name: str, file: str | None) -> dict[str, Any]:
    module = sys.modules.get(name)
    if module is None:
        module = sys.modules[name] = types.ModuleType(name)
        module.__file__ = file
    return vars(module)


def _by_value(function: types.FunctionType) -> str | None:
    """The name of its module, where that is one whose functions travel by value."""
    name = function.__globals__.get("__name__")
    return name if name in cloudpickle.list_registry_pickle_by_value() else None


def _is_found_module(obj: Any) -> bool:
    return isinstance(obj, types.ModuleType) and sys.modules.get(obj.__name__) is obj


# What `functools.cache` and `lru_cache` make of a function: cloudpickle knows such a thing by name alone.
_Cached = type(functools.cache(len))


def _is_by_value(obj: Any) -> bool:
    """Whether nobody who imports its module would find it."""
    of_notebook = obj.__module__ == "__main__" or "<locals>" in obj.__qualname__
    return of_notebook or obj.__module__ in cloudpickle.list_registry_pickle_by_value()


def _cached(function: Callable[..., Any], parameters: dict[str, Any]) -> Callable[..., Any]:
    return functools.lru_cache(**parameters)(function)


# Generators of which a process has one. `random.seed`, `np.random.rand` and others are their methods: with a
# copy of a generator they would seed that, and draw from it.
_GENERATORS = (("random", "_inst"), ("numpy.random.mtrand", "_rand"), ("torch", "default_generator"))


def _place_of_generator(obj: Any) -> tuple[str, str] | None:
    """The module and the name of the generator of this process that this is; None for all else."""
    for module, name in _GENERATORS:
        if getattr(sys.modules.get(module), name, None) is obj:
            return module, name
    return None


def _generator(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


def dumps(value: Any, to_cpu: bool = False) -> tuple[bytes, Sources]:
    """The value as bytes, and the lines of the code in it that is in no file. With `to_cpu` tensors of other
    devices arrive on the CPU: whoever loads them need not have the device. Raises what pickling raises."""
    file = io.BytesIO()
    pickler = _Pickler(file, to_cpu)
    pickler.dump(value)
    return file.getvalue(), _sources(pickler.files)


def install_sources(sources: Sources) -> None:
    """Makes `inspect.getsource`, tracebacks and TorchScript find code that is in no file."""
    for name, lines in sources.items():
        # No modification time: `linecache.checkcache` then leaves the entry alone.
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)


def frame(token: bytes, kind: bytes, payload: bytes = b"") -> bytes:
    """A payload with its header."""
    return _HEADER.pack(token, kind, len(payload)) + payload


def read_header(token: bytes, header: bytes) -> tuple[bytes, int]:
    """Kind and length of what follows. Raises `GarbledError` for anything but a header of this worker."""
    seen, kind, length = _HEADER.unpack(header)
    if seen != token or kind not in (CALL, STARTED, PART, RESULT):
        raise GarbledError
    return kind, length


def read_exactly(read: Callable[[int], bytes], count: int) -> bytes:
    """Reads `count` bytes; raises `EOFError` when the other end is gone before that."""
    found = bytearray()
    while len(found) < count:
        part = read(min(count - len(found), 1 << 20))
        if not part:
            raise EOFError
        found += part
    return bytes(found)


def _path_of_operator(obj: Any, torch: types.ModuleType) -> tuple[str, ...] | None:
    """The names below `torch.ops` that lead to an operator, or to a part of that tree; None for all else."""
    if obj is torch.ops:
        return ()
    if isinstance(obj, torch._ops._OpNamespace):
        return (obj.name,)
    if isinstance(obj, torch._ops.OpOverloadPacket):
        return tuple(obj._qualified_op_name.split("::"))
    if isinstance(obj, torch._ops.OpOverload):
        return *obj._schema.name.split("::"), obj._overloadname
    return None


def _operator(*path: str) -> Any:
    """What has these names below `torch.ops`, in the process that loads it."""
    import torch

    return functools.reduce(getattr, path, torch.ops)


def _sources(files: set[str]) -> Sources:
    typed = [name for name in files if name in linecache.cache and not Path(name).exists()]
    return {name: lines for name in typed if (lines := linecache.getlines(name))}
