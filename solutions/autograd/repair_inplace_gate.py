"""Each of the three in-place operations overwrites the result of the line before it. Ask who has kept that
result. A matrix product keeps its two factors and not its result, so the bias may be added in place. The
addition keeps no tensor, and the sigmoid keeps its own result after writing it, so that may be in place too.
The last line overwrites the result that the sigmoid has kept.

`gate * x` makes a new tensor and keeps its factors. Both are kept already, by the sigmoid and by the matrix
product: two references, one piece of memory. In place you would gain nothing: if `x` requires grad,
`gate *= x` first clones the old `gate`.
"""

healed = {"    gate *= x\n    return gate": "    return gate * x"}


# Other right answers

import torch
from torch.nn import functional as F

from course_utils.exercise import Edit, Wrong


def _nothing_in_place(x, weight, bias):
    return torch.mul(x, torch.sigmoid(torch.addmm(bias, x, weight)))


def _transposed(x, weight, bias):
    gate = F.linear(x, weight.t(), bias).sigmoid_()
    return x.mul(gate)


also_right = [_nothing_in_place, _transposed]


# Mistakes


def _contiguous_first(x, weight, bias):
    x = x.contiguous()
    return x * (x @ weight + bias).sigmoid_()


mistakes = [
    Edit(
        "the last line in place still",
        "gate.sigmoid_()\n    return gate * x",
        "gate = gate.sigmoid()\n    gate *= x\n    return gate",
        told_by="gradients",
    ),
    Edit(
        "data hides the write", "return gate * x", "gate.data.mul_(x)\n    return gate", told_by="gradients"
    ),
    Edit("the gate is a constant", "gate * x", "gate.detach() * x", told_by="gradients"),
    Edit("into an input", "return gate * x", "x.data.mul_(gate)\n    return x * 1", told_by="gradients"),
    Edit(
        "clones the gate",
        "return gate * x",
        "gate = gate.clone()\n    gate *= x\n    return gate",
        told_by="no_copies",
    ),
    Edit("keeps the sum too", "gate.sigmoid_()", "gate = 1 / (1 + (-gate).exp())", told_by="bytes_kept"),
    Edit("clones the result", "gate * x", "(gate * x).clone()", told_by="no_copies"),
    Wrong(_contiguous_first, told_by="no_copies"),
]
not_tried = {"hard numbers": "the formula is given"}
