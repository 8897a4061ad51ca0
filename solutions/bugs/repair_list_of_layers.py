"""`nn.Module.__setattr__` registers what is assigned to an attribute, if that is a parameter or a module. For
a list it does what any Python object does. So the blocks ran with the weights that they began with:
`parameters()` doesn't yield them, the optimizer doesn't hold them, and `state_dict()` doesn't save them.
Whoever loads the file has other random blocks.

`nn.ModuleList` is a module that holds modules. It has no forward; the loop stays as it is. To give the
optimizer the missing parameters by hand would train them, and they would still not be saved or moved."""

healed = {
    "            self.blocks = []\n            for _ in range(4):\n": "",
    "                self.blocks.append(nn.Sequential(nn.Linear(32, 32), nn.Tanh()))": (
        "            blocks = [nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(4)]\n"
        "            self.blocks = nn.ModuleList(blocks)"
    ),
}


# Other right answers

import torch
from torch import nn
from torch.nn import functional as F

from course_utils.exercise import Edit, Wrong


def _trains(x, y, seed, model_of, parameters_of=lambda model: model.parameters()):
    torch.manual_seed(seed)
    model = model_of()
    optimizer = torch.optim.Adam(parameters_of(model), lr=0.005)
    losses = []
    for _ in range(8):
        for batch in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x[batch]), y[batch])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return model, losses


def _block():
    return nn.Sequential(nn.Linear(32, 32), nn.Tanh())


def _one_sequential(x, y, seed):
    def model_of():
        first = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU())
        return nn.Sequential(first, *(_block() for _ in range(4)), nn.Linear(32, 3))

    return _trains(x, y, seed, model_of)


class _Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU())
        self.blocks = [_block() for _ in range(4)]
        self.last = nn.Linear(32, 3)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


class _Registers(_Net):
    def __init__(self):
        super().__init__()
        for number, block in enumerate(self.blocks):
            self.add_module(f"block{number}", block)


def _registers_each_block(x, y, seed):
    return _trains(x, y, seed, _Registers)


also_right = [_one_sequential, _registers_each_block]


# Mistakes


def _given_to_the_optimizer(x, y, seed):
    def parameters_of(model):
        return [*model.parameters(), *(p for block in model.blocks for p in block.parameters())]

    return _trains(x, y, seed, _Net, parameters_of)


mistakes = [
    Edit("a tuple", "nn.ModuleList(blocks)", "tuple(blocks)", told_by="registered"),
    Edit(
        "part of it",
        "nn.ModuleList(blocks)",
        "blocks\n            self.one = blocks[0]",
        told_by="registered",
    ),
    Wrong(_given_to_the_optimizer, told_by="registered"),
    Edit("no blocks", "for block in self.blocks", "for block in self.blocks[:0]", told_by="what_stays"),
    Edit(
        "one block four times",
        "[nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(4)]",
        "[nn.Sequential(nn.Linear(32, 32), nn.Tanh())] * 4",
        told_by="what_stays",
    ),
    Edit(
        "the last layer is made first",
        "            blocks = [nn",
        "            self.last = nn.Linear(32, 3)\n            blocks = [nn",
        told_by="what_stays",
    ),
    Edit("fewer blocks", "range(4)", "range(2)", told_by="what_stays"),
]
not_tried = {"hard numbers": "the data of the run is given", "dtypes": "so is its dtype"}
