"""What a move of the explorer costs: from a control that is set to the picture that goes to the page."""

import statistics

import numpy as np
import torch

from course_utils import explore
from course_utils.measure.kernel import _told
from course_utils.measure.kernel_memory import Access, Launch, Memory, Place
from course_utils.measure.training import record_run
from tests.benchmarks.table import Row, seconds

TENSORS = {
    "twelve elements": torch.arange(12).reshape(3, 4),
    "four dimensions": torch.randn(2, 3, 4, 4).transpose(0, 3),
    "overlapping windows": torch.randn(40).unfold(0, 5, 1),
}
BOUND = 100


def rows() -> list[Row]:
    lit, done = {}, {}
    for name, tensor in TENSORS.items():
        explorer = explore.strides(tensor)
        slider = explorer.index_sliders[0]
        lit[name] = _milliseconds(lambda s=slider: _move(s))
        done[name] = _milliseconds(lambda e=explorer: e.do(".t()" if e.tensor.dim() == 2 else ".mT"))
    steps, moves = _graph_times()
    bits = explore.floats()
    flips = {"float16": _milliseconds(lambda: bits.flip(0))}
    return [
        _row("stride explorer: another element is lit", lit),
        _row("stride explorer: an operation", done),
        _row("graph explorer: a step of backward", steps),
        _row("in-place explorer: the write moves", moves),
        _row("float explorer: a bit is flipped", flips),
        _row("a model's pictures: a slider moves", _model_times()),
        *_kernel_rows(),
        *_checkpoint_rows(),
    ]


def _kernel_rows() -> list[Row]:
    """64 programs that transpose 64 × 64 numbers by columns, as the interpreter would have noted them."""
    columns = np.arange(64) * 256
    place = [Place(kind, "", line) for line, kind in enumerate(("load", "store"))]
    memories = [
        Memory((name,), (64, 64), 4, start << 44, 0, np.arange(4096)) for start, name in ((1, "x"), (2, "y"))
    ]
    accesses = [
        Access(
            place[m],
            (p, 0, 0),
            memories[m].start + (columns + 4 * p, 256 * p + columns // 64)[m],
            4,
            m,
            (64,),
        )
        for p in range(64)
        for m in (0, 1)
    ]
    launch = Launch("transpose", (64, 1, 1), memories, [(0,), (1,)], accesses)
    explorer = explore.kernel(_told(launch))
    slider, chosen = explorer.slider, explorer.chosen
    times = {"a program": _milliseconds(lambda: setattr(slider, "value", 3 - slider.value))}
    explorer.leave()
    chosen.index = 1
    times["a line of all"] = _milliseconds(lambda: setattr(chosen, "index", 3 - chosen.index))
    return [_row("kernel explorer: 64 programs, 64 × 64", times)]


def _checkpoint_rows() -> list[Row]:
    explorer = explore.checkpoints()
    segment, depth = explorer.segment, explorer.depth
    seen = {"36 layers": _milliseconds(lambda: setattr(segment, "value", 10 - segment.value))}
    recorded = [1000 * seconds(lambda n=n: setattr(depth, "value", n)) for n in range(35, 28, -1)]
    return [
        _row("checkpoint explorer: a segment that was seen", seen),
        Row("checkpoint explorer: a depth that is recorded", statistics.median(recorded), 300, unit="ms"),
    ]


def _model_times() -> dict[str, float]:
    deep = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(30)])
    signal = explore.signal(deep, torch.randn(64, 64)).gain
    tree = explore.modules(torch.nn.Transformer(16, 2)).depth
    runs = [record_run(_trained, rate) for rate in (0.1, 0.2)]
    run = explore.run(*runs).slider
    scale = explore.floats(deep, torch.randn(64, 64), torch.Tensor.sum).scale
    return {
        "signal through 30 layers": _milliseconds(lambda: setattr(signal, "value", 3 - signal.value)),
        "gradients of 30 layers": _milliseconds(lambda: setattr(scale, "value", 24 - scale.value)),
        "the tree of a transformer": _milliseconds(lambda: setattr(tree, "value", 3 - tree.value)),
        "400 steps of 8 layers": _milliseconds(lambda: setattr(run, "value", 301 - run.value)),
    }


def _trained(rate: float) -> None:
    model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(8)])
    optimizer, x = torch.optim.SGD(model.parameters(), lr=rate), torch.randn(16, 8)
    for _ in range(400):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


def _graph_times() -> tuple[dict[str, float], dict[str, float]]:
    x = torch.ones(1, requires_grad=True)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, 0.0)
    outputs = {"a layer of a transformer": layer(torch.randn(3, 2, 8)).sum(), "one node": x.exp()}
    steps = {}
    for name, output in outputs.items():
        explorer = explore.graph(output)
        explorer.go(1)
        slider = explorer.slider
        steps[name] = _milliseconds(lambda s=slider: _move(s))
    writes = explore.inplace("y = x.exp()\nz = y.sin()\nloss = z.sum()", "y.add_(1)", x=x)
    slider = writes.slider
    return steps, {"three lines": _milliseconds(lambda: setattr(slider, "value", 3 - slider.value % 2))}


def _move(slider) -> None:
    slider.value = 0 if slider.value else 1


def _milliseconds(call) -> float:
    return 1000 * statistics.median(seconds(call) for _ in range(20))


def _row(what: str, times: dict[str, float]) -> Row:
    slowest = max(times, key=times.__getitem__)
    return Row(what, times[slowest], BOUND, unit="ms", detail=f"slowest: {slowest}")
