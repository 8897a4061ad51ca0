"""Sums and counts can be added up over ranks, means and variances cannot. So the sums of the channels travel,
and in the same tensor how many elements each of them has. The mean that comes out is that of all ranks. The
squares of what is left after subtracting it can be added up in a second collective, and digits are not lost
as in the difference of two large numbers.

What a rank puts into such a sum goes into the result of every rank. So the gradient of its part is the sum of
what all ranks send back: the backward of adding up over ranks is adding up over ranks. `dist.all_reduce` has
no derivative. It writes into the tensor without telling autograd, which takes the result for the rank's own
part: the values are right, no error is raised, and the gradient lacks the other ranks' terms.

The count depends on no element. A rank without rows adds zeros and asks for no special case.

torch has the same in `nn.SyncBatchNorm`: forward gathers mean, deviation and count of each rank in one
collective, and backward adds up two sums for each channel in another. In training it raises for a tensor on
the CPU: `SyncBatchNorm expected input tensor to be on GPU`. Its running variance is the unbiased one over the
count of all ranks, as here, and the gradients of weight and bias are each rank's own share there too."""

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
    """(n, channels, ...), and four of shape (channels,) -> (n, channels, ...)"""
    rows = x.movedim(1, -1)  # now the channels are the last dimension, and broadcasting needs no help
    others = list(range(x.dim() - 1))

    total, count = SumOverRanks.apply(torch.stack((rows.sum(others), torch.ones_like(rows).sum(others))))
    mean = total / count
    centred = rows - mean
    var = SumOverRanks.apply(centred.square().sum(others)) / count

    with torch.no_grad():
        running_mean += momentum * (mean - running_mean)
        running_var += momentum * (var * count / (count - 1) - running_var)
    return (centred / (var + eps).sqrt() * weight + bias).movedim(-1, 1)


# Other right answers


class _SyncBatchNorm(torch.autograd.Function):
    """The derivative by hand, as torch's own has it: one collective in forward, one in backward."""

    @staticmethod
    def forward(ctx, x, running_mean, running_var, weight, bias, momentum, eps):
        flat = x.transpose(0, 1).flatten(1)
        var, mean = torch.var_mean(flat, 1, correction=0) if flat.size(1) else flat.new_zeros(2, len(flat))
        own = torch.stack((torch.full_like(mean, flat.size(1)), mean, var))
        parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, own)
        counts, means, variances = torch.stack(parts, 1)
        count = counts.sum(0)
        mean = (counts * means).sum(0) / count
        var = (counts * (variances + (means - mean) ** 2)).sum(0) / count
        running_mean.lerp_(mean, momentum)
        running_var.lerp_(var * count / (count - 1), momentum)
        inverse = (var + eps).rsqrt()
        normal = (flat - mean[:, None]) * inverse[:, None]
        ctx.save_for_backward(normal, weight, inverse, count)
        result = normal * weight[:, None] + bias[:, None]
        return result.unflatten(1, (len(x), *x.shape[2:])).transpose(0, 1)

    @staticmethod
    def backward(ctx, grad):
        normal, weight, inverse, count = ctx.saved_tensors
        flat = grad.transpose(0, 1).flatten(1)
        own = torch.stack((flat.sum(1), (flat * normal).sum(1)))
        both = own.clone()
        dist.all_reduce(both)
        plain, along = both / count
        of_x = (weight * inverse)[:, None] * (flat - plain[:, None] - normal * along[:, None])
        of_x = of_x.unflatten(1, (grad.size(0), *grad.shape[2:])).transpose(0, 1)
        return of_x, None, None, own[1], own[0], None, None


def derivative_by_hand(x, running_mean, running_var, weight, bias, momentum=0.1, eps=1e-5):
    return _SyncBatchNorm.apply(x, running_mean, running_var, weight, bias, momentum, eps)


def with_the_differentiable_all_reduce(
    x, running_mean, running_var, weight, bias, momentum=0.1, eps=1e-5
):  # fmt: skip
    """Takes torch's collectives that have a derivative; from 2.13 on they warn that they will move."""
    import warnings

    from torch.distributed.nn.functional import all_reduce

    dims, shape = [0, *range(2, x.dim())], [1, -1] + [1] * (x.dim() - 2)
    number = torch.full((x.size(1),), x.numel() / x.size(1), dtype=x.dtype, device=x.device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        total, number = all_reduce(torch.stack((x.sum(dims), number)))
        mean = total / number.detach()
        squares = all_reduce((x - mean.view(shape)).pow(2).sum(dims))
    var = squares / number.detach()
    running_mean.mul_(1 - momentum).add_(mean.detach(), alpha=momentum)
    running_var.mul_(1 - momentum).add_((squares / (number - 1)).detach(), alpha=momentum)
    scale = weight * torch.rsqrt(var + eps)
    return (x - mean.view(shape)) * scale.view(shape) + bias.view(shape)


def gathers_statistics(x, running_mean, running_var, weight, bias, momentum=0.1, eps=1e-5):
    """One collective that has a derivative; each rank combines the parts of all."""
    import warnings

    from torch.distributed.nn.functional import all_gather

    dims, shape = [0, *range(2, x.dim())], [1, -1] + [1] * (x.dim() - 2)
    n = x.numel() // x.size(1)
    own_mean = x.sum(dims) / max(n, 1)
    spread = (x - own_mean.view(shape)).square().sum(dims)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        parts = all_gather(torch.stack((torch.full_like(own_mean, n), own_mean, spread)))
    counts, means, spreads = torch.stack(parts).unbind(1)
    count = counts.sum(0)
    mean = (means * counts).sum(0) / count
    var = (spreads + counts * (means - mean).square()).sum(0) / count
    with torch.no_grad():
        running_mean.copy_(torch.lerp(running_mean, mean, momentum))
        running_var.copy_(torch.lerp(running_var, var * count / (count - 1), momentum))
    normal = (x - mean.view(shape)) / torch.sqrt(var + eps).view(shape)
    return normal * weight.view(shape) + bias.view(shape)


equivalent = {
    "line 11: `part.clone()` -> `part`": "what is added up was made for it, and nobody else reads it",
    "line 17: `grad.clone()` -> `grad`": "what comes back was made for this sum alone",
    "the result of `sync_batch_norm` made contiguous": "any layout will do for the result",
}


def generated(answer):
    alone = not dist.is_initialized()
    if alone:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    for shape in ((5, 2), (3, 2, 4), (2, 2, 3, 3)):
        x = torch.linspace(-4, 5, torch.Size(shape).numel()).reshape(shape).sin().requires_grad_()
        mean, var, weight, bias = torch.arange(1.0, 9.0).reshape(4, 2).clone().unbind()
        result = answer(x, mean.clone(), var.clone(), weight, bias)
        yield result, torch.autograd.grad(result.square().sum(), x)
    if alone:
        dist.destroy_process_group()


also_right = [derivative_by_hand, with_the_differentiable_all_reduce, gathers_statistics]
