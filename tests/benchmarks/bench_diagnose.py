"""What `diagnose` finds in the sets, and what it costs for a model of 100 million parameters.

The large model is trained and diagnosed in a process of its own, whose peak of memory is asked for.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path

import psutil
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_utils.diagnosis import diagnose
from tests.benchmarks.table import Row, seconds
from tests.sets import HEALTHY, Given
from tests.sets.healthy_loops import HEALTHY_LOOPS
from tests.sets.sick import SICK
from tests.sets.sick_fourteen import FOURTEEN

ROOT = Path(__file__).parent.parent.parent
WORDS, WIDTH, LAYERS = 2000, 816, 12


def rows() -> list[Row]:
    sick = [*SICK.values(), *FOURTEEN.values()]
    healthy = [*HEALTHY.values(), *HEALTHY_LOOPS.values()]
    reports = [(one.cause, _report(one.make())) for one in sick]
    named = sum(cause in report.causes for cause, report in reports)
    accused = sum(any(fault.cause != cause for fault in report.faults) for cause, report in reports)
    alarms = sum(bool(_report(make()).faults) for make in healthy)
    # What is freed is to go back to the system, of whatever size: a peak is read off the process.
    freed = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    command = [sys.executable, "-m", __name__]
    large = json.loads(subprocess.check_output(command, cwd=ROOT, text=True, env=freed))
    size = f"{large['parameters'] / 1e6:.0f} million parameters"
    return [
        Row(
            "sick models: their cause is named",
            100 * named / len(sick),
            90,
            False,
            "%",
            f"{named} of {len(sick)}",
        ),
        Row("sick models: accused of another fault", accused, 0, unit=""),
        Row("healthy models and loops: false alarms", alarms, 0, unit="", detail=f"of {len(healthy)}"),
        Row(f"{size}: diagnose / a step", large["times"], 10, detail=f"a step: {large['step']:.1f} s"),
        Row(
            f"{size}: memory beside the copies",
            large["memory"],
            1.5,
            detail=f"of a step's {large['bytes'] / 1e6:,.0f} MB; copies {large['copied'] / 1e6:,.0f} MB",
        ),
    ]


def _report(given: Given):
    return diagnose(given.model, given.batch, given.loss_fn, given.optimizer, loop=given.loop)


def _large() -> Given:
    """A transformer that predicts the next word."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 12, 4 * WIDTH, batch_first=True, norm_first=True)
    layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
    model = nn.Sequential(nn.Embedding(WORDS, WIDTH), layers, nn.Linear(WIDTH, WORDS))
    ids = torch.randint(WORDS, (2, 65))

    def loss(scores: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(scores.flatten(0, 1), y.flatten())

    return Given(model, (ids[:, :-1], ids[:, 1:]), loss, torch.optim.AdamW(model.parameters()))


def _measured() -> dict[str, float]:
    """The large model's steps and its diagnosis: how long, and how much memory at the peak."""
    model, (x, y), loss_fn, optimizer, _ = given = _large()

    def step() -> None:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        optimizer.step()

    step()
    taken = statistics.median(seconds(step) for _ in range(3))
    highest = _peak()
    optimizer.zero_grad()
    idle = psutil.Process().memory_info().rss
    reports = []
    times = seconds(lambda: reports.append(_report(given))) / taken
    beyond = _peak() - idle - reports[0].copied
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "times": times,
        "step": taken,
        "memory": beyond / (highest - idle),
        "bytes": highest - idle,
        "copied": reports[0].copied,
    }


def _peak() -> int:
    """The most bytes of memory that this process has had."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most


if __name__ == "__main__":
    print(json.dumps(_measured()))
