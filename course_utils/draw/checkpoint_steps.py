"""Layers in a row, run with a checkpoint around each few of them, and what each such step was recorded to
hold."""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from course_utils.measure.steps import StepTimeline, step_timeline
from course_utils.wrong_use import said


class Stack:
    """A copy of layers and a batch. What was recorded is kept: `record` runs a step once."""

    def __init__(self, model: nn.Module | Sequence[nn.Module], batch: Tensor, who: str) -> None:
        self.who = who
        self.layers = copy.deepcopy(nn.Sequential(*model))
        self.batch = batch.detach().clone()
        self._steps: dict[tuple[int, int], StepTimeline] = {}

    def record(self, size: int, depth: int) -> StepTimeline:
        """A step of the first `depth` layers, `size` of them in a segment. Raises `ValueError` where the
        layers cannot be run."""
        if (depth, size) not in self._steps:
            self._steps[depth, size] = self._run(size, self.layers[:depth])
        return self._steps[depth, size]

    def recorded(self, depth: int) -> set[int]:
        """The sizes of segments that were recorded at this depth."""
        return {size for deep, size in self._steps if deep == depth}

    def _run(self, size: int, layers: nn.Sequential) -> StepTimeline:
        layers.zero_grad()
        cuda = {one.device.index for one in layers.parameters() if one.is_cuda}
        try:
            with (
                _one_thread(),
                torch.random.fork_rng(devices=cuda),
                torch.enable_grad(),
                warnings.catch_warnings(action="ignore"),
            ):
                return step_timeline(step, layers, self.batch, size)
        except Exception as error:  # whatever a layer raises is what there is to tell
            raise ValueError(
                f"{self.who}: a step of these layers on {said(self.batch)} raised "
                f"{type(error).__name__}: {error}"
            ) from error


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Layers as small as those that are drawn wait longer for a second thread than they save by it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def step(layers: nn.Sequential, x: Tensor, size: int) -> None:
    """A forward with a checkpoint around each `size` layers, 0 for none, and a backward."""
    for start in range(0, len(layers), size or len(layers)):
        part = layers[start : start + (size or len(layers))]
        x = checkpoint(part, x, use_reentrant=False) if size else part(x)
    x.square().mean().backward()
