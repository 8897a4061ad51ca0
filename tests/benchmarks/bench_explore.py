"""What a move of the explorer costs: from a control that is set to the picture that goes to the page."""

import statistics

import torch

from course_utils import explore
from tests.benchmarks.table import Row, seconds

TENSORS = {
    "twelve elements": torch.arange(12).reshape(3, 4),
    "four dimensions": torch.randn(4, 5, 6, 7).transpose(0, 3),
    "a million elements": torch.arange(1_000_000).reshape(1000, 1000).t(),
    "overlapping windows": torch.randn(100_000).unfold(0, 1000, 1),
}
BOUND = 100


def rows() -> list[Row]:
    lit, done = {}, {}
    for name, tensor in TENSORS.items():
        explorer = explore.strides(tensor)
        slider = explorer.index_sliders[0]
        lit[name] = _milliseconds(lambda s=slider: _move(s))
        done[name] = _milliseconds(lambda e=explorer: e.do(".t()" if e.tensor.dim() == 2 else ".mT"))
    return [
        _row("stride explorer: another element is lit", lit),
        _row("stride explorer: an operation", done),
    ]


def _move(slider) -> None:
    slider.value = 0 if slider.value else 1


def _milliseconds(call) -> float:
    return 1000 * statistics.median(seconds(call) for _ in range(20))


def _row(what: str, times: dict[str, float]) -> Row:
    slowest = max(times, key=times.__getitem__)
    return Row(what, times[slowest], BOUND, unit="ms", detail=f"slowest: {slowest}")
