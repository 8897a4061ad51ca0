"""Layers in a row, run with a checkpoint around each few of them, and what each such step was recorded to
hold."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from course_utils.draw.model_run import must_run
from course_utils.draw.module_tree import said
from course_utils.measure.steps import StepTimeline, step_timeline


class Stack:
    """A copy of layers and a batch. What was recorded is kept: `record` runs a step once."""

    def __init__(self, model: nn.Module | Sequence[nn.Module], batch: Tensor, who: str) -> None:
        layers = [*model] if isinstance(model, (nn.Sequential, nn.ModuleList, list, tuple)) else None
        if layers is None or not all(isinstance(layer, nn.Module) for layer in layers):
            raise TypeError(f"{who} wants an nn.Sequential or a list of layers; given was {said(model)}")
        if not layers:
            raise ValueError(f"{who} wants at least one layer; given was {said(model)} without any")
        if not isinstance(batch, Tensor):
            raise TypeError(f"{who} wants a batch that is a tensor; given was {said(batch)}")
        self.who = who
        row = nn.Sequential(*layers)
        must_run(row, who)
        self.layers = copy.deepcopy(row)
        self.batch = batch.detach().clone().requires_grad_(batch.requires_grad)
        self._steps: dict[tuple[int, int], StepTimeline] = {}

    def sizes(self, segments: Sequence[int | None]) -> list[int]:
        """Segment sizes as numbers, each once. Raises `TypeError` or `ValueError` for what is none."""
        depth = len(self.layers)
        if not isinstance(segments, (list, tuple, range)):
            raise TypeError(f"{self.who}: segments is a tuple such as (None, 1, 4); given was {segments!r}")
        for size in segments:
            if size is not None and (not isinstance(size, int) or isinstance(size, bool)):
                raise TypeError(f"{self.who}: a segment is a number of layers, or None; given was {size!r}")
            if not 0 <= (size or 0) <= depth:
                raise ValueError(f"{self.who}: a segment has 0 to {depth} of the {depth} layers, not {size}")
        if not segments:
            raise ValueError(f"{self.who}: segments is empty; give at least one size, as in (None, 4)")
        return [*dict.fromkeys(size or 0 for size in segments)]

    def record(self, size: int, depth: int | None = None) -> StepTimeline:
        """A step of the first `depth` layers, `size` of them in a segment."""
        depth = len(self.layers) if depth is None else depth
        if (depth, size) not in self._steps:
            self._steps[depth, size] = self._run(size, self.layers[:depth])
        return self._steps[depth, size]

    def _run(self, size: int, layers: nn.Sequential) -> StepTimeline:
        for one in (*layers.parameters(), self.batch):
            one.grad = None
        cuda = {one.device.index for one in (*layers.parameters(), self.batch) if one.is_cuda}
        try:
            with (
                torch.random.fork_rng(devices=cuda),
                torch.inference_mode(False),
                torch.enable_grad(),
                warnings.catch_warnings(action="ignore"),
            ):
                return step_timeline(step, layers, self.batch, size)
        except Exception as error:  # whatever a layer raises is what there is to tell
            first = (str(error).strip() or "nothing more").splitlines()[0].rstrip(".")
            raise ValueError(
                f"{self.who}: a step of these layers on {said(self.batch)} raised {type(error).__name__}: "
                f"{first}. Wanted is a batch for the first layer; each takes one tensor and returns one"
            ) from error


def step(layers: nn.Sequential, x: Tensor, size: int) -> None:
    """A forward with a checkpoint around each `size` layers, 0 for none, and a backward."""
    for start in range(0, len(layers), size or len(layers)):
        part = layers[start : start + (size or len(layers))]
        x = checkpoint(part, x, use_reentrant=False) if size else part(x)
    x.square().mean().backward()
