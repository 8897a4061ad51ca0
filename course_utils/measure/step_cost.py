"""Where the time and the bytes of a training step go, by what they are for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch.profiler import ProfilerActivity, profile, record_function

from course_utils.measure.memory import peak_bytes
from course_utils.measure.timing import sample
from course_utils.wrong_use import public

GROUPS = ("loader", "attention", "products", "optimizer", "rest")
TIMES = 3  # of which the shortest counts, with the profiler and without
_ATTENTION = ("bmm", "baddbmm", "softmax", "masked_fill", "scaled_dot_product", "flash_attention")
_PRODUCTS = ("mm", "addmm", "linear", "mkldnn_linear")


@dataclass(frozen=True)
class StepCost:
    """Seconds of a step by group (`GROUPS`), and the most bytes at one moment. `limit`: the least seconds
    that it can take here, where that is known."""

    seconds: dict[str, float]
    peak: int
    limit: float | None = None

    @property
    def total(self) -> float:
        return sum(self.seconds.values())


@public
def step_cost(step: Callable[[], Any], limit: float | None = None) -> StepCost:
    """Times `step()`, and divides that time as torch's profiler sees it on the CPU; called eight times.

    *Attention* are the products of batches of matrices (`bmm`), softmax and mask, or the one operator for
    them, forward and backward; *products* those of `mm` and `addmm`; *optimizer* what runs in its `step` and
    `zero_grad`. *Loader* is a `DataLoader`'s `next`, and all before the first look-up of an embedding since
    the last backward. *Rest* is all else, and Python in between.
    """
    step()
    seen = min((_profiled(step) for _ in range(TIMES)), key=lambda one: sum(one.values()))
    # The profiler takes time of its own, most where operators are short.
    slower = sum(seen.values()) / min(sample(step, 1) for _ in range(TIMES))
    found = {group: seconds / slower for group, seconds in seen.items()}
    return StepCost(found, peak_bytes(step).total, limit)


def _profiled(step: Callable[[], Any]) -> dict[str, float]:
    with profile(activities=[ProfilerActivity.CPU]) as seen, record_function("the whole step"):
        step()
    return grouped(seen.events(), "the whole step")


def grouped(events: Iterable[Any], name: str) -> dict[str, float]:
    """Seconds by group, of what the profiler recorded in the event with this name."""
    events = sorted(events, key=lambda event: event.time_range.start)
    whole = next(event for event in events if event.name == name)
    found = dict.fromkeys(GROUPS, 0.0)
    loading = _loading(events, whole.time_range.start)
    found["loader"] = sum(end - start for start, end in loading)
    for event in events:
        start = event.time_range.start
        if any(first <= start < last for first, last in loading):
            continue
        group = _group(event)
        if group:
            found[group] += event.self_cpu_time_total
    found["rest"] = max(0.0, whole.time_range.elapsed_us() - sum(found.values()))
    return {group: microseconds / 1e6 for group, microseconds in found.items()}


def _loading(events: list[Any], start: float) -> list[tuple[float, float]]:
    """From where to where batches were made: up to each first look-up after a backward."""
    found, since, looked_up = [], start, False
    for event in events:
        if event.name.startswith("enumerate(DataLoader)"):
            found.append((event.time_range.start, event.time_range.end))
        elif event.name == "aten::embedding":
            if not looked_up:
                found.append((since, event.time_range.start))
            looked_up = True
        elif event.name.startswith(("autograd::engine", "Optimizer.")):
            since, looked_up = max(since, event.time_range.end), False
    return found


def _group(event: Any) -> str:
    """What an event is for: in an optimizer all is the optimizer's; what is not listed has no group."""
    above = event
    while above is not None:
        if above.name.startswith("Optimizer."):
            return "optimizer"
        above = above.cpu_parent
    name = event.name.removeprefix("aten::").lstrip("_")
    if name.startswith(_ATTENTION):
        return "attention"
    return "products" if name in _PRODUCTS else ""
