"""What has to be on the module's device is a parameter or a buffer, because these are what `module.to` moves.
Buffers are saved unless they are registered with `persistent=False`. The ramp of the forward is a buffer too:
made in each call it would need a `device`, and be made anew.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class DeviceBugs(nn.Module):
    def __init__(self, length: int, width: int, classes: int):
        super().__init__()
        self.embed = nn.Embedding(classes, width)
        self.head = nn.Linear(width, classes)
        self.register_buffer("positions", torch.linspace(-1, 1, length)[:, None], persistent=False)
        self.register_buffer("mask", torch.ones(length, length).tril().bool(), persistent=False)
        self.register_buffer("ramp", torch.arange(length) / 10, persistent=False)
        self.register_buffer("class_weights", torch.arange(1.0, classes + 1))

    def forward(self, tokens: Tensor) -> Tensor:
        time = tokens.shape[1]
        x = self.embed(tokens) + self.positions[:time]
        scores = x @ x.mT + self.ramp[:time]
        scores = scores.masked_fill(~self.mask[:time, :time], -1e9)
        return self.head(scores.softmax(-1) @ x)

    def loss(self, logits: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), target.flatten(), weight=self.class_weights)


# Other right answers

from course_utils.exercise import Edit, Wrong


class _MadeThere(DeviceBugs):
    def forward(self, tokens):
        time = tokens.shape[1]
        x = self.embed(tokens) + self.positions.narrow(0, 0, time)
        scores = x @ x.transpose(1, 2) + torch.arange(time, device=tokens.device) / 10
        scores = torch.where(self.mask[:time, :time], scores, -1e9)
        return self.head(scores.softmax(-1) @ x)


class _Computed(nn.Module):
    def __init__(self, length, width, classes):
        super().__init__()
        self.embed = nn.Embedding(classes, width)
        self.head = nn.Linear(width, classes)
        self.length, self.width = length, width
        self.class_weights = nn.Buffer(torch.arange(1.0, classes + 1))

    def forward(self, tokens):
        time = tokens.shape[1]
        where = tokens.device
        ramp = torch.linspace(-1, 1, self.length, device=where)[:time, None]
        x = self.embed(tokens) + ramp
        later = torch.ones(time, time, device=where, dtype=torch.bool).triu(1)
        scores = (x @ x.mT + torch.arange(time, device=where) / 10).masked_fill(later, -1e9)
        return self.head(scores.softmax(-1) @ x)

    def loss(self, logits, target):
        return F.cross_entropy(logits.transpose(1, 2), target, weight=self.class_weights)


also_right = [_MadeThere, _Computed]


class _MovesInForward(DeviceBugs):
    def __init__(self, length, width, classes):
        super().__init__(length, width, classes)
        positions = self.positions
        del self.positions
        self.positions = positions

    def forward(self, tokens):
        time = tokens.shape[1]
        x = self.embed(tokens) + self.positions[:time].to(tokens.device)
        scores = (x @ x.mT + self.ramp[:time]).masked_fill(~self.mask[:time, :time], -1e9)
        return self.head(scores.softmax(-1) @ x)


class _OverridesTo(_MovesInForward):
    forward = DeviceBugs.forward

    def to(self, device):
        self.positions = self.positions.to(device)
        return super().to(device)


mistakes = [
    Wrong(_OverridesTo, told_by="moves"),
    Edit(
        "a mask in an attribute",
        'self.register_buffer("mask", torch.ones(length, length).tril().bool(), persistent=False)',
        "self.mask = torch.ones(length, length).tril().bool()",
        told_by="moves",
    ),
    Wrong(_MovesInForward, told_by="no_copies"),
    Edit(
        "all are saved",
        ', persistent=False)\n        self.register_buffer("mask"',
        ')\n        self.register_buffer("mask"',
        told_by="saved",
    ),
    Edit(
        "a weight that trains",
        'self.register_buffer("class_weights", torch.arange(1.0, classes + 1))',
        "self.class_weights = nn.Parameter(torch.arange(1.0, classes + 1))",
        told_by="moves",
    ),
    Edit("other weights", "torch.arange(1.0, classes + 1)", "torch.ones(classes)", told_by="same"),
]

not_tried = {
    "hard numbers": "the starter's own",
    "dtypes": "float32, as the starter",
    "seeds": "no draw decides",
}
equivalent = {
    "line 20: `scores.masked_fill(~self.mask[:time, :time], -1000000000.0)` -> "
    "`scores.masked_fill_(~self.mask[:time, :time], -1000000000.0)`": "nobody needs the scores before",
    "line 20: `1000000000.0` -> `2000000000.0`": "softmax makes 0 of both",
}
