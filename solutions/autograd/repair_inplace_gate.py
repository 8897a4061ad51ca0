"""Each of the three in-place operations overwrites the result of the line before it. What decides is who has
kept that result. The product of matrices keeps its two factors and not its result, and addition keeps
nothing: so the bias may be added in place. Nor did the addition keep its result, and a sigmoid keeps its own,
after it was written: that may be in place as well. The last line overwrites what the sigmoid has kept.

`gate * x` makes a new tensor and keeps its factors. Both are kept already, by the sigmoid and by the product
of matrices, and a tensor that is kept twice takes up memory once. Nothing would have been gained in place:
where the other factor requires a gradient, `gate *= x` first has to clone the old `gate`."""

from torch import Tensor


def repair_inplace_gate(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(n, d), (d, d), (d,) -> (n, d)"""
    gate = x @ weight
    gate += bias
    gate.sigmoid_()
    return gate * x


# Other right answers


def _nothing_in_place(x, weight, bias):
    import torch

    return torch.mul(x, torch.sigmoid(torch.addmm(bias, x, weight)))


def _transposed(x, weight, bias):
    from torch.nn import functional as F

    gate = F.linear(x, weight.t(), bias).sigmoid_()
    return x.mul(gate)


def _in_a_batch(x, weight, bias):
    import torch

    gate = torch.baddbmm(bias, x[None], weight[None])[0]
    return gate.sigmoid() * x


also_right = [_nothing_in_place, _transposed, _in_a_batch]
