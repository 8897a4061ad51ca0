"""Sums and counts can be added up over ranks, means and variances cannot. So the sums of the channels travel,
and in the same tensor how many rows there are. The mean that comes out is that of all ranks. The squares of
what is left after subtracting it can be added up in a second collective, and digits are not lost as in the
difference of two large numbers.

What a rank puts into such a sum goes into the result of every rank. So the gradient of its part is the sum of
what all ranks send back: the backward of a sum over ranks is a sum over ranks. Uncompiled, `dist.all_reduce`
has no derivative. Autograd takes its result for the rank's own part: the values are right, torch warns but
raises nothing, and the gradient lacks the other ranks' terms.

torch has the same in `nn.SyncBatchNorm`: forward gathers mean, deviation and count of each rank in one
collective, and backward adds up two sums for each channel in another. In a group it raises, in training,
for a tensor on the CPU. The gradients of weight and bias are each rank's own share there too.
"""

import torch
import torch.distributed as dist
from torch import Tensor


class SumOverRanks(torch.autograd.Function):
    """The sum of all ranks' tensors, on every rank."""

    @staticmethod
    def forward(ctx, part: Tensor) -> Tensor:
        total = part.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        total = grad.clone()
        dist.all_reduce(total)
        return total


def sync_batch_norm(
    x: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    weight: Tensor,
    bias: Tensor,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """(n, channels), and four of shape (channels,) -> (n, channels)"""
    total, count = SumOverRanks.apply(torch.stack((x.sum(0), torch.ones_like(x).sum(0))))
    mean = total / count
    centred = x - mean
    var = SumOverRanks.apply(centred.square().sum(0)) / count
    with torch.no_grad():
        running_mean.lerp_(mean, momentum)
        running_var.lerp_(var * count / (count - 1), momentum)
    return centred / (var + eps).sqrt() * weight + bias


# Other right answers

from torch.distributed import _functional_collectives as functional

from course_utils.exercise import Edit, Wrong


class _ByHand(torch.autograd.Function):
    """The derivative by hand, as torch's own has it: one collective in forward, one in backward."""

    @staticmethod
    def forward(ctx, x, running_mean, running_var, weight, bias, momentum, eps):
        var, mean = torch.var_mean(x, 0, correction=0)
        own = torch.stack((torch.full_like(mean, len(x)), mean, var))
        parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, own)
        counts, means, variances = torch.stack(parts, 1)
        count = counts.sum(0)
        mean = (counts * means).sum(0) / count
        var = (counts * (variances + (means - mean) ** 2)).sum(0) / count
        running_mean.lerp_(mean, momentum)
        running_var.lerp_(var * count / (count - 1), momentum)
        normal = (x - mean) * (var + eps).rsqrt()
        ctx.save_for_backward(normal, weight * (var + eps).rsqrt(), count)
        return normal * weight + bias

    @staticmethod
    def backward(ctx, grad):
        normal, scale, count = ctx.saved_tensors
        own = torch.stack((grad.sum(0), (grad * normal).sum(0)))
        plain, along = SumOverRanks.apply(own) / count
        return scale * (grad - plain - normal * along), None, None, own[1], own[0], None, None


def _derivative_by_hand(x, running_mean, running_var, weight, bias, momentum=0.1, eps=1e-5):
    return _ByHand.apply(x, running_mean, running_var, weight, bias, momentum, eps)


def _two_moments(x, running_mean, running_var, weight, bias, momentum=0.1, eps=1e-5):
    """One collective: sums, sums of squares, and counts. In float64 a large mean leaves digits enough."""
    return _of_moments(x.double(), running_mean, running_var, weight, bias, momentum, eps).float()


def _of_moments(x, running_mean, running_var, weight, bias, momentum=0.1, eps=1e-5):
    total, squares, count = SumOverRanks.apply(torch.stack((x, x * x, torch.ones_like(x)), 1).sum(0))
    mean, var = total / count, squares / count - (total / count) ** 2
    running_mean.mul_(1 - momentum).add_(momentum * mean.detach())
    running_var.mul_(1 - momentum).add_(momentum * (var * count / (count - 1)).detach())
    return (x - mean) * torch.rsqrt(var + eps) * weight + bias


def _functional(x, running_mean, running_var, weight, bias, momentum=0.1, eps=1e-5):
    """torch's functional collective has the derivative."""
    total, count = _total(torch.stack((x.sum(0), torch.ones_like(x).sum(0))))
    centred = x - total / count
    var = _total(centred.square().sum(0)) / count
    with torch.no_grad():
        running_mean.lerp_(total / count, momentum)
        running_var.lerp_(var * count / (count - 1), momentum)
    return centred / (var + eps).sqrt() * weight + bias


def _total(part):
    return functional.all_reduce(part, "sum", dist.group.WORLD)


also_right = [_derivative_by_hand, _two_moments, _functional]


# Mistakes


def _mean_of_means(x, running_mean, running_var, weight, bias, momentum=0.1, eps=1e-5):
    n = dist.get_world_size()
    mean = SumOverRanks.apply(x.mean(0)) / n
    var = SumOverRanks.apply((x - mean).square().mean(0)) / n
    return (x - mean) / (var + eps).sqrt() * weight + bias


_BACKWARD = """        total = grad.clone()
        dist.all_reduce(total)
        return total

"""
_OWN, _COUNT = "(centred.square().sum(0))", "torch.ones_like(x).sum(0)"
_MEAN_OVER_RANKS = "SumOverRanks.apply({}) / dist.get_world_size()".format

mistakes = [
    Edit("the mean of the variances", _OWN, "(x.var(0, correction=0) * len(x))", told_by="equal_parts"),
    Wrong(_mean_of_means, told_by="unequal_parts"),
    Edit("biased in the running variance", "var * count / (count - 1)", "var", told_by="running_statistics"),
    Wrong(_of_moments, told_by="large_mean"),
    Edit("backward of one rank", _BACKWARD, "        return grad\n\n", told_by="gradient_of_x"),
    Edit("constant statistics", "centred = x - mean", "centred = x - mean.detach()", told_by="gradient_of_x"),
    Edit(
        "sums once more", "* weight +", f"* {_MEAN_OVER_RANKS('weight')} +", told_by="gradients_of_parameters"
    ),
    Edit("three collectives", _COUNT, _MEAN_OVER_RANKS(_COUNT), told_by="what_travels"),
]

equivalent = {
    "line 11: `part.clone()` -> `part`": "what is added up was made for it, and nobody else reads it",
    "line 17: `grad.clone()` -> `grad`": "what comes back was made for this sum alone",
}
