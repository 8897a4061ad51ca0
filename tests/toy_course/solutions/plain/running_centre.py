"""A buffer is a tensor that belongs to a module and is not trained: `state_dict`, `to` and `double` find it
because `register_buffer` noted it down. What is written into it comes from the batch without its graph;
what is subtracted keeps it.
"""

import torch
from torch import Tensor, nn


class RunningCentre(nn.Module):
    """(batch, features) -> (batch, features)"""

    def __init__(self, features: int, momentum: float = 0.1):
        super().__init__()
        self.momentum = momentum
        self.register_buffer("mean", torch.zeros(features))

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x - self.mean
        mean = x.mean(dim=0)
        self.mean = (1 - self.momentum) * self.mean + self.momentum * mean.detach()
        return x - mean


# Other right answers

from course_utils.exercise import Edit


class WithLerp(nn.Module):
    def __init__(self, features: int, momentum: float = 0.1):
        super().__init__()
        self.momentum = momentum
        self.register_buffer("mean", torch.zeros(features))

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(0) if self.training else self.mean
        if self.training:
            self.mean.lerp_(mean.detach(), self.momentum)
        return x - mean


class WithBatchNorm(nn.Module):
    def __init__(self, features: int, momentum: float = 0.1):
        super().__init__()
        self.momentum = momentum
        self.mean = nn.Buffer(torch.zeros(features))

    @torch.no_grad()
    def remember(self, x: Tensor) -> None:
        nn.functional.batch_norm(x, self.mean, torch.ones_like(self.mean), None, None, True, self.momentum)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.remember(x)
            return x - x.sum(dim=0) / x.shape[0]
        return x - self.mean


also_right = [WithLerp, WithBatchNorm]

mistakes = [
    Edit(
        "plain attribute",
        'self.register_buffer("mean", torch.zeros(features))',
        "self.mean = torch.zeros(features)",
        told_by="belongs_to_the_module",
    ),
    Edit("keeps the graph", "mean.detach()", "mean", told_by="no_graph"),
    Edit(
        "momentum the other way round",
        "(1 - self.momentum) * self.mean + self.momentum *",
        "self.momentum * self.mean + (1 - self.momentum) *",
        told_by="average",
    ),
    Edit("takes out the average in training", "return x - mean", "return x - self.mean", told_by="training"),
]
