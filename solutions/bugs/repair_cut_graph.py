"""`.detach()`, NumPy and `torch.tensor` each end the graph: what comes back from them is a leaf, and backward
stops there. The head was trained on features that were drawn at random.

`F.normalize` computes the same with torch's operators. The length is part of the graph as well: a larger
feature makes the others shorter. To detach the length alone lets a gradient through, and a wrong one."""

healed = {
    "        array = features.detach().numpy()\n": "",
    "torch.tensor(array / np.linalg.norm(array, axis=1, keepdims=True))": "F.normalize(features, dim=1)",
}


# Other right answers

import torch
from torch import nn
from torch.nn import functional as F

from course_utils.exercise import Edit, Wrong


class _Net(nn.Module):
    def __init__(self, unit_length):
        super().__init__()
        self.body, self.unit_length = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh()), unit_length
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.unit_length(self.body(x)))


def _trains(x, y, seed, unit_length):
    torch.manual_seed(seed)
    return _fits(_Net(unit_length), x, y)


def _fits(model, x, y):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    losses = []
    for _ in range(8):
        for batch in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x[batch]), y[batch])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return model, losses


def _divides(x, y, seed):
    return _trains(x, y, seed, lambda f: f / f.norm(dim=1, keepdim=True))


def _by_the_squares(x, y, seed):
    return _trains(x, y, seed, lambda f: f * f.square().sum(1, keepdim=True).rsqrt())


def _by_a_hook_of_the_head(x, y, seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 3))
    model[3].register_forward_pre_hook(lambda _, given: (F.normalize(*given, dim=1),))
    return _fits(model, x, y)


also_right = [_divides, _by_the_squares, _by_a_hook_of_the_head]


# Mistakes


def _detaches_the_length(x, y, seed):
    return _trains(x, y, seed, lambda f: f / f.detach().norm(dim=1, keepdim=True))


def _requires_a_gradient(x, y, seed):
    return _trains(x, y, seed, lambda f: F.normalize(f.detach(), dim=1).requires_grad_())


def _no_helper(x, y, seed):
    return _trains(x, y, seed, lambda f: f)


mistakes = [
    Edit("detaches", "(features, dim=1)", "(features.detach(), dim=1)", told_by="connected"),
    Edit("takes the data", "(features, dim=1)", "(features.data, dim=1)", told_by="connected"),
    Wrong(_requires_a_gradient, told_by="connected"),
    Wrong(_detaches_the_length, told_by="right_gradient"),
    Wrong(_no_helper, told_by="what_stays"),
    Edit(
        "in training alone",
        "unit_length(self.body(x))",
        "unit_length(self.body(x)) if self.training else self.body(x)",
        told_by="what_stays",
    ),
    Edit("a higher rate", "lr=0.05", "lr=0.1", told_by="what_stays"),
]
not_tried = {"hard numbers": "the data of the run is given", "dtypes": "so is its dtype"}

equivalent = {
    "line 10: `F.normalize(features, dim=1)` -> `F.normalize(features)`": "1 is the default of `dim`",
}
