"""The factor is a function of the step and of nothing else. `LambdaLR` counts, saves its count, and gives it
to the function, so a scheduler that loads a `state_dict` needs the same function, and an optimizer that has
loaded its own: the current rate is there.

The first case ends before `warmup`, the last begins at `total`. So both divisions are by at least 1.
"""

import math

import torch
from torch.optim.lr_scheduler import LambdaLR


def warmup_cosine(optimizer: torch.optim.Optimizer, warmup: int, total: int) -> LambdaLR:
    def factor(step: int) -> float:
        if step < warmup:
            return step / warmup
        if step >= total:
            return 0.0
        return (1 + math.cos(math.pi * (step - warmup) / (total - warmup))) / 2

    return LambdaLR(optimizer, factor)


# Other right answers

from dataclasses import dataclass

from course_utils.exercise import Edit, Wrong


@dataclass
class _Factor:
    warmup: int
    total: int

    def __call__(self, step):
        way = min(1.0, max(0, step - self.warmup) / (self.total - self.warmup))
        return (
            min(1.0, step / max(1, self.warmup) if self.warmup else 1.0) * (1 + math.cos(math.pi * way)) / 2
        )


def _an_object(optimizer, warmup, total):
    return LambdaLR(optimizer, _Factor(warmup, total))


def _one_for_each_group(optimizer, warmup, total):
    def factor(step):
        if warmup > step:
            return torch.linspace(0, 1, warmup + 1, dtype=torch.float64)[step].item()
        way = torch.tensor(min(step, total) - warmup, dtype=torch.float64) / (total - warmup)
        return (0.5 + 0.5 * torch.cos(torch.pi * way)).item()

    return LambdaLR(optimizer, [factor] * len(optimizer.param_groups))


also_right = [_an_object, _one_for_each_group]


def _counts_itself(optimizer, warmup, total):
    count = -1

    def factor(step):
        nonlocal count
        count += 1
        if count // groups < warmup:
            return count // groups / warmup
        way = min(1.0, (count // groups - warmup) / (total - warmup))
        return (1 + math.cos(math.pi * way)) / 2

    groups = len(optimizer.param_groups)
    return LambdaLR(optimizer, factor)


mistakes = [
    Edit("one step early", "return step / warmup", "return (step + 1) / warmup", told_by="rises"),
    Edit("the wave begins at step 0", "(step - warmup) / (total - warmup)", "step / total", told_by="falls"),
    Edit(
        "the wave has `total` steps",
        "(step - warmup) / (total - warmup)",
        "(step - warmup) / total",
        told_by="falls",
    ),
    Edit("goes up again", "            return 0.0\n", "            pass\n", told_by="stays"),
    Edit("no case without a warm-up", "if step < warmup", "if step <= warmup", told_by="without"),
    Edit(
        "a rate, not a factor",
        "return step / warmup",
        'return optimizer.defaults["lr"] * step / warmup',
        told_by="rises",
    ),
    Wrong(_counts_itself, told_by="resumes"),
]

equivalent = {
    "line 11: `step >= total` -> `step > total`": "at `total` the wave is 0 by itself",
    "line 13: `step - warmup` -> `warmup - step`": "the cosine of a number and of its negative are equal",
    "line 13: `total - warmup` -> `warmup - total`": "the cosine of a number and of its negative are equal",
}
not_tried = {
    "hard numbers": "steps are whole numbers",
    "dtypes": "a Python number is returned",
    "left alone": "the scheduler is to write to the optimizer",
}
