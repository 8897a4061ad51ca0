"""The least time that a step needs on this machine: what was counted, at the speeds that were measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from course_utils.measure.flop_formulas import formulas
from course_utils.measure.modes import Noting
from course_utils.measure.roofline import best_seconds, product_peak, roofline
from course_utils.measure.storage import key, storages, tensors_in
from course_utils.wrong_use import WrongUse, public


@dataclass(frozen=True)
class StepLimit:
    """What a step has to do, the speeds of this machine, and the seconds that the step took.

    `flops`: operations of the matrix products, by the dtype that they read. `peaks`: operations a second in
    each. `bytes`: what was there before the step and is read in it, each storage once. `bandwidth`: bytes a
    second.
    """

    flops: dict[torch.dtype, int]
    peaks: dict[torch.dtype, float]
    bytes: int
    bandwidth: float
    seconds: float

    @property
    def computing(self) -> float:
        """Seconds for the products, each dtype at its peak."""
        return sum(number / self.peaks[dtype] for dtype, number in self.flops.items())

    @property
    def moving(self) -> float:
        """Seconds for reading from memory what was there before."""
        return self.bytes / self.bandwidth

    @property
    def least(self) -> float:
        """The least seconds for these products: computing and moving may overlap, so it is the longer one."""
        return max(self.computing, self.moving)

    @property
    def share(self) -> float:
        """The least time over the time that it took."""
        return self.least / self.seconds

    def __str__(self) -> str:
        products = " and ".join(
            f"{number / 1e9:.3g} GFLOP in {str(dtype).removeprefix('torch.')}"
            for dtype, number in self.flops.items()
        )
        return (
            f"{products}, {self.bytes / 1e6:.3g} MB: at least {1e3 * self.least:.3g} ms, "
            f"{self.share:.0%} of the {1e3 * self.seconds:.3g} ms that it took"
        )


@public
def step_limit(step: Callable[[], Any], device: str | torch.device = "cpu") -> StepLimit:
    """Compares the time of `step()` with the least that it needs here, on the threads that torch has now.

    It is called ten times: to warm up, to count, and then to time it; the best time counts. The speeds are
    measured with large matrices and vectors: a small step whose weights stay in a cache can be faster than
    "the least", and while something else runs they come out too low. Raises `ValueError` for a step without
    a matrix product.
    """
    flops: Counter[torch.dtype] = Counter()
    inside: set[int] = set()
    outside: dict[int, int] = {}

    def note(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        for t in tensors_in([args, kwargs]):
            for storage in storages(t):
                if key(storage) not in inside:
                    outside[key(storage)] = storage.nbytes()
        for t in tensors_in(out):
            inside.update({key(storage) for storage in storages(t)} - outside.keys())
        formula = formulas().get(getattr(func, "overloadpacket", func))
        if formula is not None:
            flops[next(tensors_in([args, kwargs])).dtype] += formula(*args, **kwargs, out_val=out)

    step()  # an optimizer makes its state in the first
    with Noting(note):
        step()
    if not flops:
        raise WrongUse("wanted: a step with matrix products; this one has none")
    peaks = {dtype: product_peak(device, dtype) for dtype in flops}
    bandwidth = roofline(device).bandwidth
    return StepLimit(dict(flops), peaks, sum(outside.values()), bandwidth, best_seconds(step))
