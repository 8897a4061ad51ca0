"""`zero_grad` stood between backward and step: the step read zeros. With plain SGD nothing would have moved.
AdamW has weight decay, and decayed the weights though all gradients were zeros. That looked like training.

`zero_grad` may stand before backward or after the step; both give the same run, to the last bit. By default
it sets gradients to `None`, and AdamW skips a parameter whose gradient is `None`, weight decay included.
With `set_to_none=False` it writes zeros."""

healed = {
    "            loss.backward()": "            optimizer.zero_grad()\n            loss.backward()",
    "            optimizer.zero_grad(set_to_none=False)\n": "",
}


# Other right answers

import torch
from torch import nn
from torch.nn import functional as F

from course_utils.exercise import Edit, Wrong


def _trains(x, y, seed, before=lambda model: None, between=lambda model: None, after=lambda model: None):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    losses = []
    for _ in range(8):
        for batch in torch.randperm(len(x)).split(32):
            before(model)
            loss = F.cross_entropy(model(x[batch]), y[batch])
            loss.backward()
            between(model)
            optimizer.step()
            after(model)
            losses.append(loss.item())
    return model, losses


def _zeros_after_the_step(x, y, seed):
    return _trains(x, y, seed, after=lambda model: model.zero_grad(set_to_none=False))


def _gradients_by_hand(x, y, seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    losses = []
    for _ in range(8):
        for batch in torch.randperm(len(x)).split(32):
            for parameter in model.parameters():
                parameter.grad = None
            loss = nn.CrossEntropyLoss()(model(x[batch]), y[batch])
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    return model, losses


also_right = [_zeros_after_the_step, _gradients_by_hand]


# Mistakes


def _clears_none(x, y, seed):
    return _trains(x, y, seed)


def _clears_the_body_in_between(x, y, seed):
    return _trains(x, y, seed, nn.Module.zero_grad, lambda model: model[1].zero_grad())


mistakes = [
    Edit(
        "None instead of zeros",
        "optimizer.zero_grad()\n            loss.backward()",
        "loss.backward()\n            optimizer.zero_grad()",
        told_by="gradients_reach_the_step",
    ),
    Edit("forgets backward", "loss.backward()", "pass", told_by="gradients_reach_the_step"),
    Wrong(_clears_none, told_by="gradients_reach_the_step"),
    Wrong(_clears_the_body_in_between, told_by="gradients_reach_the_step"),
    Edit("no weight decay", "weight_decay=0.1", "weight_decay=0.0", told_by="what_stays"),
    Edit("a higher rate too", "lr=0.01", "lr=0.03", told_by="what_stays"),
]
not_tried = {"hard numbers": "the data of the run is given", "dtypes": "so is its dtype"}
