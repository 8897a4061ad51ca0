"""Mean and standard deviation are learned from data, like weights, and belong to the model. Production has
those of the training rows. The validation rows were normalized by themselves, and that took away the drift
which production has to live with: the old number was for another machine.

The honest number is worse, and useful: it says that the sensors have to be calibrated, or that the model
needs newer data. In a pipeline the two numbers are saved with the weights, as buffers for example."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def repair_leaking_statistics(x: Tensor, y: Tensor, seed: int) -> tuple[nn.Module, list[float], list[float]]:
    """(n, 2), (n,) -> the model, the loss of each step, the validation loss after each epoch"""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    mean, std = x[:192].mean(0), x[:192].std(0)
    x = (x - mean) / std
    x_train, x_val = x[:192], x[192:]
    y_train, y_val = y[:192], y[192:]
    losses, val_losses = [], []
    for _ in range(8):
        for batch in torch.randperm(len(x_train)).split(32):
            loss = F.cross_entropy(model(x_train[batch]), y_train[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        with torch.no_grad():
            val_losses.append(F.cross_entropy(model(x_val), y_val).item())
    return model, losses, val_losses


# Other right answers

from course_utils.exercise import Edit, Wrong


def _trains(y, seed, x_train, x_val):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    losses, val_losses = [], []
    for _ in range(8):
        for batch in torch.randperm(192).split(32):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x_train[batch]), y[batch])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        with torch.no_grad():
            val_losses.append(F.cross_entropy(model(x_val), y[192:]).item())
    return model, losses, val_losses


def _each_part(x, y, seed):
    train, rest = x[:192], x[192:]
    std, mean = torch.std_mean(train, dim=0, keepdim=True)
    return _trains(y, seed, (train - mean) / std, (rest - mean) / std)


def _biased(x, y, seed):
    train = x[:192]
    x = (x - train.mean(0)) / train.var(0, correction=0).sqrt()
    return _trains(y, seed, x[:192], x[192:])


also_right = [_each_part, _biased]


# Mistakes


def _by_itself(x):
    return (x - x.mean(0)) / x.std(0)


def _validation_as_it_is(x, y, seed):
    return _trains(y, seed, _by_itself(x[:192]), x[192:])


def _own_mean(x, y, seed):
    return _trains(y, seed, _by_itself(x[:192]), (x[192:] - x[192:].mean(0)) / x[:192].std(0))


mistakes = [
    Edit("by all rows", "x[:192].mean(0), x[:192].std(0)", "x.mean(0), x.std(0)", told_by="training_rows"),
    Edit("one number for all features", "x[:192].mean(0)", "x[:192].mean()", told_by="training_rows"),
    Wrong(_own_mean, told_by="validation_rows"),
    Wrong(_validation_as_it_is, told_by="validation_rows"),
    Edit("fewer epochs", "range(8)", "range(6)", told_by="validation_rows"),
    Edit("a higher rate", "lr=0.03", "lr=0.1", told_by="what_stays"),
]

equivalent = {
    "line 14: `y[:192]` -> `y[:]`": "the batches are numbers of training rows",
    "line 14: `192` -> `193`": "the batches are numbers of training rows",
    "line 23: `with torch.no_grad():` -> `if True:`": "a graph in validation is another patient's fault",
}
