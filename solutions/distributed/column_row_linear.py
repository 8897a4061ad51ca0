"""A hidden feature is one row of the first weight, one element of its bias, and one column of the second
weight. From a feature's own row to its own column nothing of the others is needed: what a rank has computed
at the end is its summand of the result, and one sum over the ranks makes the result. The bias of the second
layer belongs to no feature. It is added behind the sum, on every rank, so that each has the same.

Backward is the same picture from the other side. All ranks compute the same loss from the same result, so
each has the gradient of the result whole, and the sum hands it on to its summand as it is. The gradients of
the shares follow without communication. `x` went into all features, so its gradient is the sum of what the
ranks find: the identity in forward is a sum in backward. The two functions are each other's transpose.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F


class _Shared(torch.autograd.Function):
    """What all ranks use: the same in forward; the gradient is the sum over the ranks."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x

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
    """(n, inputs) -> (n, outputs), the same on every rank"""

    def __init__(self, first: nn.Linear, second: nn.Linear, activation: Callable[[Tensor], Tensor]):
        super().__init__()
        n, rank = dist.get_world_size(), dist.get_rank()
        self.first, self.second, self.activation = nn.Module(), nn.Module(), activation
        self.first.weight = nn.Parameter(first.weight.chunk(n)[rank].clone())
        self.first.bias = nn.Parameter(first.bias.chunk(n)[rank].clone())
        self.second.weight = nn.Parameter(second.weight.chunk(n, 1)[rank].clone())
        self.second.bias = nn.Parameter(second.bias.clone())

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.activation(F.linear(_Shared.apply(x), self.first.weight, self.first.bias))
        return _Total.apply(F.linear(hidden, self.second.weight)) + self.second.bias


# Other right answers

import copy

from torch.distributed import _functional_collectives as functional

from course_utils.exercise import Edit, Wrong


class WithAHook(ColumnRowLinear):
    """A hook sums the gradient; what the other ranks have is added as a number."""

    def forward(self, x):
        x = x.view_as(x)
        if x.requires_grad:
            x.register_hook(self.summed)
        hidden = self.activation(x @ self.first.weight.mT + self.first.bias)
        part = hidden @ self.second.weight.mT
        return part + (self.summed(part.detach()) - part).detach() + self.second.bias

    @staticmethod
    def summed(t):
        total = t.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total


class OfIndices(ColumnRowLinear):
    """Indexing with a tensor copies."""

    def __init__(self, first, second, activation):
        nn.Module.__init__(self)
        mine = torch.arange(first.out_features).chunk(dist.get_world_size())[dist.get_rank()]
        own = {"weight": first.weight.detach()[mine], "bias": first.bias.detach()[mine]}
        self.first, self.second = nn.ParameterDict(own), nn.Linear(len(mine), second.out_features)
        with torch.no_grad():
            self.second.weight.copy_(second.weight[:, mine])
            self.second.bias.copy_(second.bias)
        self.activation = activation

    def forward(self, x):
        part = self.activation(F.linear(_Shared.apply(x), **self.first)) @ self.second.weight.t()
        return _Total.apply(part).add(self.second.bias)


class Functional(ColumnRowLinear):
    """torch's functional collective, without its derivative."""

    def forward(self, x):
        hidden = self.activation(F.linear(_Shared.apply(x), self.first.weight, self.first.bias))
        return _FunctionalTotal.apply(F.linear(hidden, self.second.weight)) + self.second.bias


class _FunctionalTotal(torch.autograd.Function):
    @staticmethod
    def forward(ctx, part):
        return functional.all_reduce(part, "sum", dist.group.WORLD)

    @staticmethod
    def backward(ctx, grad):
        return grad


also_right = [WithAHook, OfIndices, Functional]


# Mistakes


_INIT = "        super().__init__()\n"
_HIDDEN, _HOOK = "hidden = self.activation(F.linear(", "x.register_hook(_Total.apply)\n        "
_OUT = "F.linear(hidden, self.second.weight)) + self.second.bias"
_BIASED = "F.linear(hidden, self.second.weight, self.second.bias{}))"


class EveryNth(ColumnRowLinear):
    """The features of a rank aren't neighbours."""

    def __init__(self, first, second, activation):
        pair = copy.deepcopy(first), copy.deepcopy(second)
        order = torch.arange(first.out_features).view(-1, dist.get_world_size()).t().flatten()
        pair[0].weight.data, pair[0].bias.data = first.weight.data[order], first.bias.data[order]
        pair[1].weight.data = second.weight.data[:, order]
        super().__init__(*pair, activation)


mistakes = [
    Wrong(EveryNth, told_by="shares"),
    Edit("every rank adds the bias", _OUT, _BIASED.format(""), told_by="values"),
    Edit(
        "views of the whole",
        "first.weight.chunk(n)[rank].clone()",
        "first.weight.chunk(n)[rank]",
        told_by="kept",
    ),
    Edit("keeps the pair", _INIT, f"{_INIT}        self.pair = [first, second]\n", told_by="kept"),
    Edit(
        "a share of the bias", _OUT, _BIASED.format(" / dist.get_world_size()"), told_by="gradients_of_shares"
    ),
    Edit(
        "sums once more",
        "        return grad\n",
        "        return _Total.apply(grad)\n",
        told_by="gradients_of_shares",
    ),
    Edit("no sum in backward", "_Shared.apply(x)", "x", told_by="gradient_of_x"),
    Edit("a hook on x", f"{_HIDDEN}_Shared.apply(x)", f"{_HOOK}{_HIDDEN}x", told_by="gradient_of_x"),
]
not_tried = {"hard numbers": "two products", "dtypes": "the pair is float32", "seeds": "none decides"}

equivalent = {
    "line 18: `grad.clone()` -> `grad`": "what comes back from the first product was made for this sum alone",
    "line 28: `part.clone()` -> `part`": "the last product is read by nobody else",
}
