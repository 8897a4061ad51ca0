"""What the instruments cost on large models: a picture for each module in it, a record for each step."""

import statistics
from functools import partial

import torch
from torch import nn

from course_utils import draw
from course_utils.measure.training import record_run
from tests.benchmarks.table import Row, seconds

MODULES, STEPS, PAIRS = 2000, 5, 15


def rows() -> list[Row]:
    return [_drawing(), _recording()]


def _drawing() -> Row:
    # Blocks of four modules, of which none is like the next: nothing is drawn once for many.
    sizes = [4 + number % 5 for number in range(MODULES // 4 + 1)]
    blocks = [
        nn.Sequential(nn.Linear(a, b), nn.ReLU(), nn.Linear(b, b))
        for a, b in zip(sizes, sizes[1:], strict=False)
    ]
    model, x = nn.Sequential(*blocks), torch.randn(2, sizes[0])
    recorded = record_run(_train, model, x, 2)
    pictures = {
        "modules": lambda: draw.modules(model),
        "hooks": lambda: draw.hooks(model, x),
        "graph": lambda: draw.graph(model(x).sum()),
        "run": lambda: draw.run([recorded], ["sick"], {}),
    }
    times = {name: 1000 * seconds(lambda c=call: c().png()) / MODULES for name, call in pictures.items()}
    slowest = max(times, key=times.__getitem__)
    what = "drawing a model of 2,000 modules, ms a module"
    return Row(what, times[slowest], 5, unit="ms", detail=f"slowest: {slowest}")


def _recording() -> Row:
    # A layer takes about 10 ms there and back. Each pair gives a ratio of its own, in the other order than
    # the pair before: what comes and goes on a machine, and what the first of two leaves behind, cancel out.
    model, x = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(8)]), torch.randn(256, 1024)
    plain = partial(_train, model, x, STEPS)
    recording = partial(record_run, _train, model, x, STEPS)
    for first in (plain, recording):
        first()
    pairs = []
    for number in range(PAIRS):
        order = (plain, recording) if number % 2 else (recording, plain)
        pairs.append({call: seconds(call) for call in order})
    cost = statistics.median(pair[recording] / pair[plain] for pair in pairs) - 1
    layer = statistics.median(pair[plain] for pair in pairs) / STEPS / len(model)
    what = "record_run on a net with 10 ms layers: cost of a step"
    return Row(what, 100 * cost, 15, unit="%", detail=f"{1000 * layer:.0f} ms a layer, {PAIRS} pairs")


def _train(model: nn.Module, x: torch.Tensor, steps: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for _ in range(steps):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
