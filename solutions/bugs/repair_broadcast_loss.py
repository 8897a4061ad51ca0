"""The network returns a column `(32, 1)`, the targets are `(32,)`. Shapes are aligned from the right, so the
targets become a row, and the difference is `(32, 32)`: each prediction minus each target. Its mean square is
smallest where all predictions are the mean of the targets, and what is left then is their variance.

`squeeze(1)` names the dimension. A plain `squeeze()` would also take away the first dimension of a batch of
one. To print the two shapes once finds the fault in a second, and so does the warning of `F.mse_loss`."""

healed = {"model(x[batch]) - y[batch]": "model(x[batch]).squeeze(1) - y[batch]"}


# Other right answers

import torch
from torch import nn
from torch.nn import functional as F

from course_utils.exercise import Edit, Wrong


def _trains(x, y, seed, loss_of, last=()):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1), *last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    losses = []
    for _ in range(10):
        for batch in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            loss = loss_of(model(x[batch]), y[batch])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return model, losses


def _targets_in_a_column(x, y, seed):
    return _trains(x, y, seed, lambda output, target: F.mse_loss(output, target.unsqueeze(1)))


def _the_model_flattens(x, y, seed):
    return _trains(x, y, seed, F.mse_loss, last=[nn.Flatten(0)])


also_right = [_targets_in_a_column, _the_model_flattens]


# Mistakes


def _all_but_the_last_row(x, y, seed):
    return _trains(x, y, seed, lambda output, target: (output[:-1, 0] - target[1:]).square().mean())


def _means_first(x, y, seed):
    return _trains(x, y, seed, lambda output, target: (output.mean() - target.mean()) ** 2)


_LOSS = "((model(x[batch]).squeeze(1) - y[batch]) ** 2).mean()"
_WITH_A_WARNING = "nn.MSELoss()(model(x[batch]), y[batch])"

mistakes = [
    Edit("another loss function", _LOSS, _WITH_A_WARNING, told_by="pairs"),
    Edit("targets in a row", "squeeze(1) - y[batch]", "sub(y[batch][None])", told_by="pairs"),
    Edit("sums over the batch", "squeeze(1)", "sum(0)", told_by="pairs"),
    Wrong(_all_but_the_last_row, told_by="pairs"),
    Wrong(_means_first, told_by="pairs"),
    Edit("a larger network", "nn.Tanh(),", "nn.Tanh(), nn.Linear(16, 16),", told_by="what_stays"),
]
not_tried = {"hard numbers": "the data of the run is given", "dtypes": "so is its dtype"}

equivalent = {
    "line 19: `model(x[batch]).squeeze(1) - y[batch]` -> `y[batch] - model(x[batch]).squeeze(1)`": (
        "a difference is squared, so its sign makes no difference"
    )
}
