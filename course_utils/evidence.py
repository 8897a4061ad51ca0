"""What a check has seen of an answer.

Every value that reaches `expect` or `measure` is recorded here. Two answers that fail the same check
with the same evidence behave alike, and that is how a mistake is recognised. Values are kept as plain
data (tensors as their bytes), so that evidence can cross a process boundary and outlive the answer.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch

# More elements than this are sampled evenly: evidence is for telling answers apart, not for storing them.
MOST_ELEMENTS = 20_000

_recorder: ContextVar[list[tuple[str, Any]] | None] = ContextVar("recorder", default=None)


@dataclass(frozen=True)
class TensorSeen:
    """A tensor as evidence: what it is, and its elements in double precision (complex: as pairs)."""

    dtype: str
    shape: tuple[int, ...]
    device: str
    elements: bytes


@dataclass(frozen=True)
class ObjectSeen:
    """Anything that is not plain data: only its type can be compared."""

    type: str


def record(kind: str, value: Any) -> None:
    """Adds one piece of evidence where a check is being recorded; does nothing elsewhere."""
    found = _recorder.get()
    if found is not None:
        found.append((kind, snapshot(value)))


@contextlib.contextmanager
def recording() -> Iterator[list[tuple[str, Any]]]:
    """Collects the evidence of what runs inside. Recordings nest; the innermost gets the evidence."""
    found: list[tuple[str, Any]] = []
    token = _recorder.set(found)
    try:
        yield found
    finally:
        _recorder.reset(token)


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Nothing that runs inside is recorded."""
    token = _recorder.set(None)
    try:
        yield
    finally:
        _recorder.reset(token)


def is_tensor(value: Any) -> bool:
    """Whether it is a tensor. (`isinstance` believes what an object says of its own class.)"""
    return issubclass(type(value), torch.Tensor)


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without a class of the reader's: such a class may answer anything that is asked of it."""
    kind = type(tensor)
    name = kind.__module__
    if name.startswith("torch") and getattr(sys.modules.get(name), kind.__name__, None) is kind:
        return tensor
    with torch._C.DisableTorchFunctionSubclass():
        return torch.Tensor.as_subclass(tensor, torch.Tensor)


# A class that a reader derives from one of these, such as an `Enum` of words, cannot be read elsewhere.
_PLAIN: dict[type, Callable[[Any], Any]] = {
    int: int.__int__,
    float: float.__float__,
    complex: complex.__complex__,
    str: str.__str__,
    bytes: bytes.__bytes__,
}


def snapshot(value: Any) -> Any:
    """The value as plain, picklable data that later changes to it cannot reach."""
    if is_tensor(value):
        return _tensor(plain(value))
    if value is None or isinstance(value, bool):
        return value
    for kind, without_its_class in _PLAIN.items():
        if issubclass(type(value), kind):  # `isinstance` believes what it says of its own class
            return without_its_class(value)
    if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
        return str(value)
    if isinstance(value, dict):
        return {str(key): snapshot(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        items = sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value
        return [snapshot(item) for item in items]
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return _numpy(value)
    return ObjectSeen(type(value).__qualname__)


def same(a: Any, b: Any) -> bool:
    """Whether two snapshots show the same behaviour: numbers within rounding, all else equal."""
    if isinstance(a, TensorSeen) and isinstance(b, TensorSeen):
        return _same_tensor(a, b)
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return a == b or (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-6)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def _tensor(t: torch.Tensor) -> TensorSeen | ObjectSeen:
    if t.device.type == "meta":
        return TensorSeen(str(t.dtype), tuple(t.shape), "meta", b"")
    try:
        with torch.no_grad():
            flat = t.detach().to("cpu").reshape(-1)
            if flat.numel() > MOST_ELEMENTS:
                flat = flat[:: -(-flat.numel() // MOST_ELEMENTS)]
            if flat.is_complex():
                flat = torch.view_as_real(flat.to(torch.complex128)).reshape(-1)
            elements = flat.to(torch.float64).contiguous().numpy().tobytes()
    except (RuntimeError, NotImplementedError, TypeError):  # sparse, quantised, nested, fake
        return ObjectSeen(type(t).__qualname__)
    return TensorSeen(str(t.dtype), tuple(t.shape), t.device.type, elements)


def _numpy(value: Any) -> Any:
    try:
        return snapshot(torch.as_tensor(value))
    except TypeError:
        return ObjectSeen(f"numpy.{type(value).__name__}")


def _same_tensor(a: TensorSeen, b: TensorSeen) -> bool:
    if (a.dtype, a.shape, a.device) != (b.dtype, b.shape, b.device):
        return False
    if a.elements == b.elements:
        return True
    if "float" not in a.dtype and "complex" not in a.dtype:
        return False
    x = torch.frombuffer(bytearray(a.elements), dtype=torch.float64)
    y = torch.frombuffer(bytearray(b.elements), dtype=torch.float64)
    loose = "16" in a.dtype or "8" in a.dtype
    return torch.allclose(x, y, rtol=2e-2 if loose else 1e-4, atol=1e-2 if loose else 1e-6, equal_nan=True)
