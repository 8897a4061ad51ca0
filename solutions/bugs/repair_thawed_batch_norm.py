"""Freezing has two halves. `requires_grad_(False)` keeps gradients from the parameters. The running mean and
variance of a batch norm are buffers: the forward writes to them, whenever the layer is in training mode. On
images with twice the contrast they move, and the first head gets features on another scale.

`eval()` on the backbone stops that. It comes after `model.train()`, which switches every module below the
model. The head stays in training mode: its dropout drops and its own norm learns. In a loop that calls
`model.train()` in each epoch, the backbone is switched back each time; or it gets a `train` method that
keeps it in evaluation mode."""

healed = {"model.train()": "model.train()\n    backbone.eval()"}


# Other right answers

import copy

import torch
from torch import nn
from torch.nn import functional as F

from course_utils.exercise import Edit, Wrong


def _trains(backbone, x, y, seed, switch):
    torch.manual_seed(seed)
    layers = nn.Linear(32, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3)
    model = nn.Sequential(backbone, nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(6):
        model.train()
        switch(model)
        for batch in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x[batch]), y[batch])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return model, losses


def _its_norms_alone_in_each_epoch(backbone, x, y, seed):
    def switch(model):
        for module in model[0].modules():
            if isinstance(module, nn.BatchNorm1d):
                module.eval()

    return _trains(backbone.requires_grad_(False), x, y, seed, switch)


def _a_backbone_that_stays_in_evaluation_mode(backbone, x, y, seed):
    class Frozen(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner.requires_grad_(False).eval()

        def train(self, mode=True):
            self.training = mode
            return self

        @torch.no_grad()
        def forward(self, x):
            return self.inner(x)

    return _trains(Frozen(backbone), x, y, seed, lambda model: None)


def _a_copy_in_evaluation_mode(backbone, x, y, seed):
    return _trains(copy.deepcopy(backbone), x, y, seed, lambda model: model[0].requires_grad_(False).eval())


also_right = [
    _its_norms_alone_in_each_epoch,
    _a_backbone_that_stays_in_evaluation_mode,
    _a_copy_in_evaluation_mode,
]


# Mistakes


def _puts_the_buffers_back(backbone, x, y, seed):
    before = copy.deepcopy(backbone.state_dict())
    model, losses = _trains(backbone, x, y, seed, lambda model: None)
    backbone.load_state_dict(before)
    return model, losses


def _all_norms(backbone, x, y, seed):
    def switch(model):
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.eval()

    return _trains(backbone, x, y, seed, switch)


def _a_copy_that_moves(backbone, x, y, seed):
    return _trains(copy.deepcopy(backbone), x, y, seed, lambda model: None)


mistakes = [
    Edit(
        "eval, then train",
        "model.train()\n    backbone.eval()",
        "backbone.eval()\n    model.train()",
        told_by="as_it_was",
    ),
    Edit("thaws the parameters", "backbone.requires_grad_(False)", "pass", told_by="as_it_was"),
    Edit("the head too", "backbone.eval()", "model.eval()", told_by="modes"),
    Wrong(_puts_the_buffers_back, told_by="modes"),
    Wrong(_all_norms, told_by="modes"),
    Wrong(_a_copy_that_moves, told_by="modes"),
    Edit("no dropout", ", nn.Dropout(0.5)]", "]", told_by="what_stays"),
]
not_tried = {"hard numbers": "the data of the run is given", "dtypes": "so is its dtype"}

equivalent = {
    "line 12: `model.train()` removed": "the new layers are in training mode, the backbone is not",
}
