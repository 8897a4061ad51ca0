"""An optimizer is given tensors, not a model. `model[3] = nn.Linear(32, 3)` puts two new tensors into the
model; the optimizer goes on with the two old ones, which get no gradient any more and are skipped without a
word. So the optimizer is made last, when the model is complete.

The body learned all along, and adapts to whatever random head it has. Nothing fails, which is why this is
found late. One line tells: the ids of `model.parameters()` that are missing among those in the groups."""

healed = {
    "    model[3] = nn.Linear(32, 3)\n": "",
    "    optimizer =": "    model[3] = nn.Linear(32, 3)\n    optimizer =",
}


# Other right answers

import torch
from torch import nn
from torch.nn import functional as F

from course_utils.exercise import Edit, Wrong


def _trains(model, x, y, seed, optimizer_of, head_of=lambda old: nn.Linear(32, 3)):
    torch.manual_seed(seed)
    old = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model[3] = head_of(model[3])
    optimizer, losses = optimizer_of(model, old), []
    for _ in range(8):
        for batch in torch.randperm(len(x)).split(32):
            loss = F.cross_entropy(model(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return model, losses


def _a_group_for_the_head(model, x, y, seed):
    def optimizer_of(model, optimizer):
        optimizer.add_param_group({"params": model[3].parameters()})
        return optimizer

    return _trains(model, x, y, seed, optimizer_of)


def _another_sequence(model, x, y, seed):
    torch.manual_seed(seed)
    model = nn.Sequential(*model[:3], nn.Linear(32, 3))
    optimizer, losses = torch.optim.SGD([{"params": p} for p in model.parameters()], lr=0.1, momentum=0.9), []
    for _ in range(8):
        for batch in torch.randperm(len(x)).split(32):
            model.zero_grad()
            loss = F.cross_entropy(model(x[batch]), y[batch])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return model, losses


also_right = [_a_group_for_the_head, _another_sequence]


# Mistakes


def _the_old_layer_is_cut(model, x, y, seed):
    def head_of(old):
        old.weight.data, old.bias.data = old.weight.data[:3], old.bias.data[:3]
        old.out_features = 3
        return old

    return _trains(model, x, y, seed, lambda model, optimizer: optimizer, head_of)


def _a_group_with_another_rate(model, x, y, seed):
    def optimizer_of(model, optimizer):
        optimizer.add_param_group({"params": model[3].parameters(), "lr": 0.01})
        return optimizer

    return _trains(model, x, y, seed, optimizer_of)


def _a_group_for_the_weight(model, x, y, seed):
    def optimizer_of(model, optimizer):
        optimizer.add_param_group({"params": [model[3].weight]})
        return optimizer

    return _trains(model, x, y, seed, optimizer_of)


def _loads_the_state(model, x, y, seed):
    def optimizer_of(model, optimizer):
        optimizer.load_state_dict(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9).state_dict())
        return optimizer

    return _trains(model, x, y, seed, optimizer_of)


mistakes = [
    Edit("the head alone", "SGD(model.parameters()", "SGD(model[3].parameters()", told_by="all_reached"),
    Edit("the body alone", "SGD(model.parameters()", "SGD(model[1].parameters()", told_by="all_reached"),
    Wrong(_a_group_for_the_weight, told_by="all_reached"),
    Wrong(_loads_the_state, told_by="all_reached"),
    Wrong(_a_group_with_another_rate, told_by="what_stays"),
    Edit(
        "ten rows, called three",
        "model[3] = nn.Linear(32, 3)",
        "model[3].out_features = 3",
        told_by="what_stays",
    ),
    Wrong(_the_old_layer_is_cut, told_by="what_stays"),
]
not_tried = {"hard numbers": "the data of the run is given", "dtypes": "so is its dtype"}
