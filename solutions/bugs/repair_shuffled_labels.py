"""`shuffled` draws an order of its own at each call, so images and classes were dealt out separately: each
epoch trained with other random classes. One order for both keeps the pairs together.

`TensorDataset` with `DataLoader(shuffle=True)` does the same: it shuffles indices, and an index fetches image
and class together."""

healed = {
    "\n    def shuffled(data):\n        return data[torch.randperm(len(data))]\n\n": "",
    "images, classes = shuffled(x), shuffled(y)": (
        "order = torch.randperm(len(x))\n        images, classes = x[order], y[order]"
    ),
}


# Other right answers

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from course_utils.exercise import Edit, Wrong


def _trains(x, y, seed, epoch):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(8):
        for images, classes in epoch(x, y):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), classes)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return model, losses


def _a_loader(x, y, seed):
    return _trains(x, y, seed, lambda x, y: DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True))


def _batches_of_indices(x, y, seed):
    return _trains(x, y, seed, lambda x, y: ((x[i], y[i]) for i in torch.randperm(len(x)).split(32)))


also_right = [_a_loader, _batches_of_indices]


# Mistakes


def _as_it_lies(x, y, seed):
    return _trains(x, y, seed, lambda x, y: zip(x.split(32), y.split(32), strict=True))


def _one_order_for_all(x, y, seed):
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    return _trains(x, y, seed, lambda x, y: ((x[i], y[i]) for i in order.split(32)))


def _with_replacement(x, y, seed):
    def epoch(x, y):
        for _ in range(6):
            rows = torch.randint(len(x), (32,))
            yield x[rows], y[rows]

    return _trains(x, y, seed, epoch)


mistakes = [
    Edit("the classes as they lie", "x[order], y[order]", "x[order], y", told_by="pairs"),
    Edit("the order twice", "y[order]", "y[order][order]", told_by="pairs"),
    Wrong(_as_it_lies, told_by="random_order"),
    Wrong(_one_order_for_all, told_by="random_order"),
    Wrong(_with_replacement, told_by="random_order"),
    Edit("a lower rate", "lr=0.1", "lr=0.02", told_by="what_stays"),
]
not_tried = {"hard numbers": "the data of the run is given", "dtypes": "so is its dtype"}
