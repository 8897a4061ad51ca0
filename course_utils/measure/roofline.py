"""How many bytes and floating-point operations a second this machine reaches, and where operators stand."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from course_utils.measure.flop_formulas import formulas
from course_utils.measure.modes import Noting, packet
from course_utils.measure.storage import key, own_bytes, storages, tensors_in
from course_utils.measure.timing import sample
from course_utils.wrong_use import WrongUse, public

ELEMENTS = 8_000_000  # of the vectors that are copied: more than caches hold
SIDE = {"cpu": 1024}  # of the matrices that are multiplied; 4096 elsewhere
REPEATS = 7

# What an operator computes for each element of its result, where it is no product of matrices. A rough count:
# it only has to tell memory-bound operators from the rest.
_EACH = {"gelu": 10, "native_layer_norm": 8, "_softmax": 5, "exp": 4, "tanh": 4, "sin": 4, "erf": 8}
_PRODUCTS = ("mv", "addmv", "dot", "vdot")  # torch's own counter leaves them out


@dataclass(frozen=True)
class Roofline:
    """`bandwidth` in bytes a second, `peak` in float32 operations a second, both measured."""

    device: str
    bandwidth: float
    peak: float

    @property
    def bend(self) -> float:
        """The arithmetic intensity at which computing takes as long as moving, in operations a byte."""
        return self.peak / self.bandwidth

    def limit(self, intensity: float) -> float:
        """The most operations a second at this intensity: Williams, Waterman and Patterson (2009)."""
        return min(self.peak, intensity * self.bandwidth)

    def __str__(self) -> str:
        return (
            f"{self.device}: {self.bandwidth / 1e9:.1f} GB/s, {self.peak / 1e9:.0f} GFLOP/s, "
            f"bend at {self.bend:.1f} operations a byte"
        )


@dataclass(frozen=True)
class Point:
    """A call on the roofline: operations, bytes read and written at least, the seconds that it took."""

    flops: int
    bytes: int
    seconds: float

    @property
    def intensity(self) -> float:
        return self.flops / self.bytes

    @property
    def rate(self) -> float:
        return self.flops / self.seconds


@public
def roofline(device: str | torch.device = "cpu") -> Roofline:
    """Measures moving a large vector and multiplying large float32 matrices; takes about a second.

    A vector is moved by a copy and by a sum, which only reads. The faster of the two is the bandwidth.
    """
    device = torch.device(device)
    vector, target = torch.ones(ELEMENTS, device=device), torch.empty(ELEMENTS, device=device)
    copying, reading = (best_seconds(call) for call in ((lambda: target.copy_(vector)), vector.sum))
    bandwidth = max(2 * vector.nbytes / copying, vector.nbytes / reading)
    return Roofline(str(device), bandwidth, product_peak(device, torch.float32))


def product_peak(device: str | torch.device, dtype: torch.dtype) -> float:
    """Operations a second in the product of two large matrices of this dtype."""
    device = torch.device(device)
    side = SIDE.get(device.type, 4096)
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    return 2 * side**3 / best_seconds(lambda: a @ b)


def place(fn: Callable[[], Any]) -> Point:
    """Where a call stands: its operations and bytes counted, its time measured.

    Bytes are those of the distinct storages that each operator reads and returns. Raises `ValueError` where
    it runs no operator that computes.
    """
    flops = moved = 0

    def note(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        nonlocal flops, moved
        if not getattr(func, "is_view", False):
            flops += _flops(func, args, kwargs, out)
            moved += _bytes(tensors_in([args, kwargs, out]))

    with Noting(note):
        result = fn()
    if not flops or not list(tensors_in(result)):
        raise WrongUse(
            "wanted: a call that computes with tensors and returns one; this one counts no operation"
        )
    return Point(flops, moved, best_seconds(fn))


def best_seconds(fn: Callable[[], Any]) -> float:
    """The least of several times: what disturbs only makes it longer."""
    fn()
    return min(sample(fn, 1) for _ in range(REPEATS))


def _flops(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> int:
    formula = formulas().get(getattr(func, "overloadpacket", func))
    name = packet(func).removeprefix("aten.")
    if formula is not None:
        return formula(*args, **kwargs, out_val=out)
    if name in _PRODUCTS:
        return 2 * max(t.numel() for t in tensors_in(args))
    return _EACH.get(name, 1) * max((t.numel() for t in tensors_in(out)), default=0)


def _bytes(tensors: Iterable[Tensor]) -> int:
    """What of each storage is read or written, at least once: no more than the tensor's own elements."""
    most: dict[int, int] = {}
    for t in tensors:
        for storage in storages(t):
            most[key(storage)] = max(most.get(key(storage), 0), min(own_bytes(t), storage.nbytes()))
    return sum(most.values())
