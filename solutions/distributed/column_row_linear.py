"""A hidden feature is one row of the first weight, one element of its bias, and one column of the second
weight. `activation` acts on each element, so from a feature's own row to its own column nothing of the others
is needed: what a rank has computed at the end is its summand of the result, and one sum over the ranks makes
the result. The bias of the second layer belongs to no feature. It is added behind the sum, on every rank, so
that each has the same.

Backward is the same picture from the other side. All ranks compute the same loss from the same result, so
each has the gradient of the result whole, and the sum hands it on to its summand as it is. The gradients of
the shares follow without communication. `x` went into all features, so its gradient is the sum of what the
ranks find: the identity in forward is a sum in backward. The two functions are each other's transpose.

An `all_reduce` that is called on a tensor of the graph writes into it and is not recorded; torch 2.13 warns
of that. Behind the last product, where nothing else needs the value, it comes to what `_Total` does."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F


class _Shared(torch.autograd.Function):
    """What all ranks use: the same in forward; the gradient is the sum over the ranks."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        total = grad.clone()
        dist.all_reduce(total)
        return total


class _Total(torch.autograd.Function):
    """The sum over the ranks; the gradient of a summand is that of the sum."""

    @staticmethod
    def forward(ctx, part: Tensor) -> Tensor:
        total = part.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        return grad


class ColumnRowLinear(nn.Module):
    """(..., inputs) -> (..., outputs), the same on every rank"""

    def __init__(self, first: nn.Linear, second: nn.Linear, activation: Callable[[Tensor], Tensor]):
        super().__init__()
        n, rank = dist.get_world_size(), dist.get_rank()

        def share(whole: Tensor | None, dim: int = 0) -> nn.Parameter | None:
            return None if whole is None else nn.Parameter(whole.tensor_split(n, dim)[rank].clone())

        self.first, self.second, self.activation = nn.Module(), nn.Module(), activation
        self.first.weight = share(first.weight)
        self.first.bias = share(first.bias)
        self.second.weight = share(second.weight, 1)
        self.second.bias = None if second.bias is None else nn.Parameter(second.bias.clone())

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.activation(F.linear(_Shared.apply(x), self.first.weight, self.first.bias))
        result = _Total.apply(F.linear(hidden, self.second.weight))
        return result if self.second.bias is None else result + self.second.bias


# Other right answers


class WithHooks(nn.Module):
    """No `autograd.Function`: a hook sums the gradient; what the other ranks have is added as a number."""

    def __init__(self, first, second, activation):
        super().__init__()
        n, rank = dist.get_world_size(), dist.get_rank()
        size, rest = divmod(first.out_features, n)
        begin = rank * size + min(rank, rest)
        size += rank < rest
        end, dtype = begin + size, first.weight.dtype
        self.first = nn.Linear(first.in_features, size, bias=first.bias is not None, dtype=dtype)
        self.second = nn.Linear(size, second.out_features, bias=second.bias is not None, dtype=dtype)
        with torch.no_grad():
            self.first.weight.copy_(first.weight[begin:end])
            self.second.weight.copy_(second.weight[:, begin:end])
            if first.bias is not None:
                self.first.bias.copy_(first.bias[begin:end])
            if second.bias is not None:
                self.second.bias.copy_(second.bias)
        self.act = activation

    def forward(self, x):
        if x.requires_grad and torch.is_grad_enabled():
            x = x.view_as(x)
            x.register_hook(self.summed)
        part = torch.matmul(self.act(self.first(x)), self.second.weight.t())
        of_others = (self.summed(part.detach()) - part).detach()
        out = part + of_others
        return out if self.second.bias is None else out + self.second.bias

    @staticmethod
    def summed(t):
        total = torch.empty_like(t, memory_format=torch.contiguous_format).copy_(t)
        dist.all_reduce(total)
        return total


class InPlace(nn.Module):
    """Lets `all_reduce` write into the last product."""

    class Sum(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x.clone()

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, grad):
            dist.all_reduce(grad := grad.clone(memory_format=torch.contiguous_format))
            return grad

    def __init__(self, first, second, activation):
        super().__init__()
        n, rank = dist.get_world_size(), dist.get_rank()
        mine = torch.arange(first.out_features).tensor_split(n)[rank]
        self.first, self.second = nn.ParameterDict(), nn.ParameterDict()
        self.first["weight"] = nn.Parameter(first.weight.detach()[mine])
        self.second["weight"] = nn.Parameter(second.weight.detach().index_select(1, mine))
        if first.bias is not None:
            self.first["bias"] = nn.Parameter(first.bias.detach()[mine])
        if second.bias is not None:
            self.second["bias"] = nn.Parameter(second.bias.detach().clone())
        self.activation = activation

    def forward(self, x):
        hidden = self.activation(F.linear(self.Sum.apply(x), **self.first))
        part = F.linear(hidden, self.second["weight"])
        dist.all_reduce(part)
        return part + self.second["bias"] if "bias" in self.second else part


also_right = [WithHooks, InPlace]

equivalent = {
    "line 14: `x.view_as(x)` -> `x`": "of an input that forward returns, `apply` gives a view all the same",
    "line 18: `grad.clone()` -> `grad`": "what comes back from the first product was made for this sum alone",
    "line 28: `part.clone()` -> `part`": "the last product is read by nobody else",
}


def generated(answer):
    alone = not dist.is_initialized()
    if alone:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    for bias in (True, False):
        first, second = nn.Linear(3, 4, bias), nn.Linear(4, 2, bias)
        for p in (*first.parameters(), *second.parameters()):
            p.data = torch.arange(1.0, p.numel() + 1).view(p.shape).cos()
        model = answer(first, second, nn.GELU())
        x = torch.arange(30.0).view(2, 5, 3).sin().requires_grad_()
        result = model(x)
        yield result, torch.autograd.grad(result.square().sum(), (x, *model.parameters()))
    if alone:
        dist.destroy_process_group()
