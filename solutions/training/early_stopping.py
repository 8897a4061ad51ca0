"""The first value counts unless it is NaN, also where it is infinite: nothing is kept yet. What is kept are
clones: `state_dict()` holds the living tensors, which the next step of training changes.

`load_state_dict` copies into the tensors that the model has. The parameters stay the ones that the optimizer
knows, and the clones stay as they are.
"""

import math

from torch import nn


class EarlyStopping:
    def __init__(self, patience: int, min_delta: float = 0.0):
        self.patience, self.min_delta = patience, min_delta
        self.best, self.count, self.kept = math.inf, 0, None

    def step(self, value: float, model: nn.Module) -> bool:
        first = self.kept is None and not math.isnan(value)
        if first or value < self.best - self.min_delta:
            self.best, self.count = value, 0
            self.kept = {name: t.clone() for name, t in model.state_dict().items()}
        else:
            self.count += 1
        return self.count >= self.patience

    def restore(self, model: nn.Module) -> None:
        model.load_state_dict(self.kept)


# Other right answers

import copy

import torch

from course_utils.exercise import Edit, Wrong


class _KeepsAModel:
    def __init__(self, patience, min_delta=0.0):
        self.patience, self.min_delta, self.history, self.model = patience, min_delta, [], None

    def step(self, value, model):
        values = [v for v in self.history if v is not None]
        better = value == value and (not values or values[-1] - value > self.min_delta)
        self.history.append(value if better else None)
        if better:
            self.model = None
            self.model = copy.deepcopy(model)
        return len(self.history) >= self.patience and not any(
            v is not None for v in self.history[-self.patience :]
        )

    @torch.no_grad()
    def restore(self, model):
        for mine, kept in zip(model.parameters(), self.model.parameters(), strict=True):
            mine.copy_(kept)
        for mine, kept in zip(model.buffers(), self.model.buffers(), strict=True):
            mine.copy_(kept)


class _DeepCopies(EarlyStopping):
    def step(self, value, model):
        if self.best - value > self.min_delta or (self.kept is None and value == math.inf):
            self.best, self.kept, self.count = value, copy.deepcopy(model.state_dict()), -1
        self.count += 1
        return not self.count < self.patience


also_right = [_KeepsAModel, _DeepCopies]


class _KeepsAll(EarlyStopping):
    def step(self, value, model):
        self.all = [*getattr(self, "all", []), copy.deepcopy(model.state_dict())]
        return super().step(value, model)


mistakes = [
    Wrong(_KeepsAll, told_by="memory"),
    Edit(
        "larger is better",
        "first or value < self.best - self",
        "first or value > self.best + self",
        told_by="counts",
    ),
    Edit("one too late", "self.count >= self.patience", "self.count > self.patience", told_by="counts"),
    Edit(
        "restores the last",
        "        else:\n",
        "        else:\n            self.kept = copy.deepcopy(model.state_dict())\n",
        told_by="counts",
    ),
    Edit(
        "small steps move the best",
        "            self.count += 1",
        "            self.count += 1\n            self.best = min(self.best, value)",
        told_by="small",
    ),
    Edit(
        "NaN is better",
        "value < self.best - self.min_delta",
        "not value >= self.best - self.min_delta",
        told_by="nan",
    ),
    Edit("keeps references", "t.clone()", "t", told_by="copies"),
    Edit(
        "hands out its tensors",
        "model.load_state_dict(self.kept)",
        "model.load_state_dict(self.kept, assign=True)",
        told_by="copies",
    ),
]

not_tried = {"hard numbers": "values are only compared; infinity and NaN are among them"}
