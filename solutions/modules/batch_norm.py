"""Two variances of one batch, for two purposes. The normalisation divides by `n`, so that the output has mean
square 1, but for `eps`. The running variance has to speak for all data, of which the batch is a sample, and
is divided by `n - 1`. `lerp_(batch, momentum)` moves it there by a part of the way.

The statistics are buffers: saved, loaded, moved, and unknown to the optimizer. They are updated under
`no_grad`, or each would hang in the graphs of all batches before. The normalisation is no place for
`no_grad`: every row has a part in the mean and in the variance, and its gradient knows of that.

In torch `n` of 1 raises an error in training; here the unbiased variance is NaN, and stays.
"""

import torch
from torch import Tensor, nn


class BatchNorm(nn.Module):
    """(n, features) -> (n, features)"""

    def __init__(self, features: int, eps: float = 1e-5, momentum: float = 0.1):
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.weight = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))
        self.register_buffer("running_mean", torch.zeros(features))
        self.register_buffer("running_var", torch.ones(features))
        self.register_buffer("num_batches_tracked", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            var, mean = torch.var_mean(x, 0, correction=0)
            with torch.no_grad():
                self.running_mean.lerp_(mean, self.momentum)
                self.running_var.lerp_(x.var(0), self.momentum)
                self.num_batches_tracked.add_(1)
        else:
            mean, var = self.running_mean, self.running_var
        return (x - mean) / (var + self.eps).sqrt() * self.weight + self.bias


# Other right answers

from course_utils.exercise import Edit, Wrong


class _ByHand(nn.Module):
    """Sums instead of `var`, and new tensors for the buffers."""

    def __init__(self, features, eps=1e-5, momentum=0.1):
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.running_mean = nn.Buffer(torch.zeros(features))
        self.running_var = nn.Buffer(torch.ones(features))
        self.num_batches_tracked = nn.Buffer(torch.zeros((), dtype=torch.long))
        self.weight, self.bias = nn.Parameter(torch.ones(features)), nn.Parameter(torch.zeros(features))

    def forward(self, x):
        mean, var, n = self.running_mean, self.running_var, len(x)
        if self.training:
            mean = x.sum(0) / n
            var = (x - mean).pow(2).sum(0) / n
            old, new = 1 - self.momentum, self.momentum
            self.running_mean = old * self.running_mean + new * mean.detach()
            self.running_var = old * self.running_var + new * var.detach() * n / (n - 1)
            self.num_batches_tracked = self.num_batches_tracked + 1
        scale = self.weight * torch.rsqrt(var + self.eps)
        return torch.addcmul(self.bias - mean * scale, x, scale)


class _FromTheLayer(BatchNorm):
    def forward(self, x):
        if not self.training:
            return (x - self.running_mean) * (self.running_var + self.eps) ** -0.5 * self.weight + self.bias
        self.num_batches_tracked.add_(1)
        for running, batch in ((self.running_mean, x.mean(0)), (self.running_var, x.var(0, unbiased=True))):
            running.data += self.momentum * (batch.data - running)
        return torch.nn.functional.layer_norm(x.t(), (len(x),), eps=self.eps).t() * self.weight + self.bias


also_right = [_ByHand, _FromTheLayer]


# Mistakes


class _PlainAttributes(BatchNorm):
    def __init__(self, features, eps=1e-5, momentum=0.1):
        super().__init__(features, eps, momentum)
        del self.running_mean, self.running_var
        self.running_mean, self.running_var = torch.zeros(features), torch.ones(features)


mistakes = [
    Edit("unbiased in both", "correction=0", "correction=1", told_by="training"),
    Edit("eps outside of the root", "(var + self.eps).sqrt()", "(var.sqrt() + self.eps)", told_by="training"),
    Edit("biased in both", "x.var(0)", "var", told_by="running"),
    Edit(
        "a difference of squares",
        "var, mean = torch.var_mean(x, 0, correction=0)",
        "mean = x.mean(0)\n            var = (x * x).mean(0) - mean**2",
        told_by="large_mean",
    ),
    Edit("never evaluates", "if self.training", "if True", told_by="evaluation"),
    Wrong(_PlainAttributes, told_by="saved"),
    Edit(
        "constants",
        "var, mean = torch.var_mean(x,",
        "var, mean = torch.var_mean(x.detach(),",
        told_by="gradients",
    ),
    Edit(
        "statistics with a graph",
        "with torch.no_grad():\n                self.running_mean.lerp_(mean, self.momentum)",
        "if True:\n                self.running_mean = self.running_mean.lerp(mean, self.momentum)",
        told_by="gradients",
    ),
]
