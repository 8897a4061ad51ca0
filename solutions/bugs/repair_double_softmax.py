"""`CrossEntropyLoss` is log-softmax and `NLLLoss` in one: it wants scores, and the model gave it
probabilities. A softmax of numbers between 0 and 1 stays near even: for three classes the best that
it can say is `e / (e + 2)`, 0.58, and the loss for that is 0.55. Its gradients are small from the first step
on.

The model returns scores now. Where probabilities are wanted, `softmax(dim=1)` is applied to them outside of
training; the class with the highest score has the highest probability, too. A model that
ends in `LogSoftmax` and trains with `NLLLoss` computes the same loss."""

healed = {"        nn.Softmax(dim=1),\n": ""}


# Other right answers

import torch
from torch import nn
from torch.nn import functional as F

from course_utils.exercise import Edit, Wrong


def _trains(x, y, seed, last, loss_of):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 3), *last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(8):
        for batch in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            loss = loss_of(model(x[batch]), y[batch])
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    return model, losses


def _log_softmax_and_nll(x, y, seed):
    return _trains(x, y, seed, [nn.LogSoftmax(dim=1)], nn.NLLLoss())


def _log_of_the_probabilities(x, y, seed):
    return _trains(x, y, seed, [nn.Softmax(dim=1)], lambda p, y: F.nll_loss(p.log(), y))


also_right = [_log_softmax_and_nll, _log_of_the_probabilities]


# Mistakes


def _nll_of_probabilities(x, y, seed):
    return _trains(x, y, seed, [nn.Softmax(dim=1)], nn.NLLLoss())


def _a_sigmoid_instead(x, y, seed):
    return _trains(x, y, seed, [nn.Sigmoid()], nn.CrossEntropyLoss())


mistakes = [
    Wrong(_nll_of_probabilities, told_by="one_softmax"),
    Wrong(_a_sigmoid_instead, told_by="one_softmax"),
    Edit(
        "softmax over the batch",
        "nn.Linear(32, 3),",
        "nn.Linear(32, 3), nn.Softmax(0),",
        told_by="one_softmax",
    ),
    Edit("forgets to step", "optimizer.step()", "pass", told_by="one_softmax"),
    Edit("a higher rate", "lr=0.1", "lr=0.3", told_by="what_stays"),
    Edit("more epochs", "range(8)", "range(12)", told_by="what_stays"),
]
not_tried = {"hard numbers": "the data of the run is given", "dtypes": "so is its dtype"}
