"""In rows of 40, five of six targets are zeros. The model soon knows that a zero follows a zero, and the mean
falls with each of them: it tells how much padding there is. It also divides the gradient of the words by
six.

`ignore_index=0` leaves out the places whose target is 0, in the sum and in the number that it is divided by.
The places are known from the targets: at the last word of a sentence the input is a word and the target is a
zero. The model still computes all places; the loss no longer looks at them."""

healed = {"following.flatten()": "following.flatten(), ignore_index=0"}


# Other right answers

import torch
from torch import nn
from torch.nn import functional as F

from course_utils.exercise import Edit, Wrong


def _trains(rows, seed, loss_of, end=None):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Embedding(9, 16), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 9))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(5):
        for batch in torch.randperm(len(rows)).split(16):
            words, following = rows[batch, :-1][:, :end], rows[batch, 1:][:, :end]
            each = F.cross_entropy(model(words).mT, following, reduction="none")
            loss = loss_of(each, words != 0, following != 0)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    return model, losses


def _masked_sum(rows, seed):
    return _trains(rows, seed, lambda each, _, mask: (each * mask).sum() / mask.sum())


def _words_picked(rows, seed):
    return _trains(rows, seed, lambda each, _, mask: each[mask].mean())


def _a_weight_of_zero(rows, seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Embedding(9, 16), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 9))
    criterion = nn.CrossEntropyLoss(weight=torch.tensor([0.0] + [1.0] * 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(5):
        for batch in torch.randperm(len(rows)).split(16):
            optimizer.zero_grad()
            loss = criterion(model(rows[batch, :-1]).transpose(1, 2), rows[batch, 1:])
            loss.backward()
            losses.append(loss.item())
            optimizer.step()
    return model, losses


also_right = [_masked_sum, _words_picked, _a_weight_of_zero]


# Mistakes


def _divides_by_all(rows, seed):
    return _trains(rows, seed, lambda each, _, mask: (each * mask).mean())


def _mask_of_the_input(rows, seed):
    return _trains(rows, seed, lambda each, mask, _: each[mask].mean())


def _mean_of_the_rows(rows, seed):
    return _trains(rows, seed, lambda each, _, mask: ((each * mask).sum(1) / mask.sum(1)).mean())


def _cuts_the_rows(rows, seed):
    return _trains(rows, seed, lambda each, *_: each.mean(), end=11)


mistakes = [
    Wrong(_divides_by_all, told_by="mean_over_words"),
    Wrong(_mask_of_the_input, told_by="mean_over_words"),
    Wrong(_mean_of_the_rows, told_by="mean_over_words"),
    Wrong(_cuts_the_rows, told_by="mean_over_words"),
    Edit("ignores another word", "ignore_index=0", "ignore_index=8", told_by="mean_over_words"),
    Edit("a padding index too", "Embedding(9, 16)", "Embedding(9, 16, padding_idx=0)", told_by="what_stays"),
    Edit("a higher rate", "lr=0.1", "lr=0.3", told_by="what_stays"),
]
not_tried = {"hard numbers": "the data of the run is given", "dtypes": "so is its dtype"}
