"""Assigning a Module to an attribute of `self` registers it: its parameters are listed, moved, saved and
trained with those of the unit, under its name. For that `super().__init__()` has to come first, as it makes
the dicts that things are registered in.

Values and gates are both linear in `x`, so one layer of twice the width computes them in one product. `chunk`
along the last dimension cuts the result into two views. To cut the weights instead, once and for all in
`__init__`, would save nothing, and the pieces would go stale with the first `load_state_dict(assign=True)`.

torch orders the halves in this way too: `F.glu` of what the layer returns is the same."""

from torch import Tensor, nn


class GatedLinearUnit(nn.Module):
    """(..., inputs) -> (..., outputs)"""

    def __init__(self, inputs: int, outputs: int, bias: bool = True):
        super().__init__()
        self.linear = nn.Linear(inputs, 2 * outputs, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.linear(x).chunk(2, dim=-1)
        return value * gate.sigmoid()


# Other right answers

import torch
from torch.nn import functional as F

from course_utils.exercise import Edit, Wrong


class _Sliced(nn.Module):
    def __init__(self, inputs, outputs, bias=True):
        super().__init__()
        self.outputs = outputs
        self.add_module("linear", nn.Linear(inputs, outputs * 2, bias))
        self.gate = nn.Sigmoid()

    def forward(self, x):
        both = F.linear(x, self.linear.weight, self.linear.bias)
        return both[..., : self.outputs] * self.gate(both[..., self.outputs :])


class _Unflattened(nn.Module):
    def __init__(self, inputs, outputs, bias=True):
        super().__init__()
        self.linear = nn.Linear(inputs, 2 * outputs, bias)

    def forward(self, x):
        value, gate = self.linear(x).unflatten(-1, (2, -1)).unbind(-2)
        return value / (1 + torch.exp(-gate))


also_right = [_Sliced, _Unflattened]


# Mistakes


class _TwoProducts(nn.Module):
    def __init__(self, inputs, outputs, bias=True):
        super().__init__()
        self.linear = nn.Linear(inputs, 2 * outputs, bias)

    def forward(self, x):
        halves = self.linear.weight.chunk(2)
        biases = (None, None) if self.linear.bias is None else self.linear.bias.chunk(2)
        value, gate = (F.linear(x, w, b) for w, b in zip(halves, biases, strict=True))
        return value * gate.sigmoid()


class _PiecesKept(nn.Module):
    def __init__(self, inputs, outputs, bias=True):
        super().__init__()
        self.linear = nn.Linear(inputs, 2 * outputs, bias)
        self.weight = [self.linear.weight, self.linear.bias]

    def forward(self, x):
        value, gate = F.linear(x, *self.weight).chunk(2, dim=-1)
        return value * gate.sigmoid()


mistakes = [
    Edit("gates then values", "value, gate =", "gate, value =", told_by="values_then_gates"),
    Edit("in turns", ".chunk(2, dim=-1)", ".unflatten(-1, (-1, 2)).unbind(-1)", told_by="values_then_gates"),
    Edit("the second dimension", "dim=-1", "dim=-1 if x.dim() < 3 else 1", told_by="leading_dimensions"),
    Edit("ignores `bias`", "bias=bias)", "bias=True)", told_by="registered"),
    Wrong(_PiecesKept, told_by="present_parameters"),
    Edit("detaches the gate", "gate.sigmoid()", "gate.detach().sigmoid()", told_by="values_then_gates"),
    Wrong(_TwoProducts, told_by="one_product"),
    Edit(
        "ready made",
        "value * gate.sigmoid()",
        "nn.functional.glu(self.linear(x))",
        told_by="one_product",
    ),
]

not_tried = {"seeds": "no draw decides"}
