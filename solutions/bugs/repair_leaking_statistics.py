"""Mean and std are fitted to data, as weights are. Fitted to both sets, they bring something of the
validation set into training: how bright the new camera's images are. So the model has met the camera, and the
validation says less than it should. It is little here, and that is why it goes unnoticed.

The two numbers come from the training images now, and the validation images are normalized with the same
two, as an image will be in use, when it comes alone. Each set with numbers of its own would be worse: that
takes the difference between the cameras away, and reports 0.11.

The same holds for whatever else is fitted to data before training. Split first, then fit."""

healed = {
    "    images = torch.cat([x, x_val])\n": "",
    "images = (images - images.mean()) / images.std()": "mean, std = x.mean(), x.std()",
    "images[: len(x)], images[len(x) :]": "(x - mean) / std, (x_val - mean) / std",
}


# Other right answers

import torch
from torch import nn
from torch.nn import functional as F

from course_utils.exercise import Edit, Wrong


def _trains(x, y, x_val, y_val, seed, train, val):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses, val_losses = [], []
    for _ in range(8):
        for batch in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(train(x[batch])), y[batch])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        with torch.no_grad():
            val_losses.append(F.cross_entropy(model(val(x_val)), y_val).item())
    return model, losses, val_losses


def _batch_by_batch(x, y, x_val, y_val, seed):
    mean, factor = x.mean().item(), 1 / x.std().item()

    def normalized(images):
        return (images - mean) * factor

    return _trains(x, y, x_val, y_val, seed, normalized, normalized)


def _with_the_std_of_all_pixels(x, y, x_val, y_val, seed):
    var, mean = torch.var_mean(x, correction=0)

    def normalized(images):
        return images.sub(mean).div(var.sqrt())

    return _trains(x, y, x_val, y_val, seed, normalized, normalized)


also_right = [_batch_by_batch, _with_the_std_of_all_pixels]


# Mistakes


def _own(images):
    return (images - images.mean()) / images.std()


def _each_batch_by_itself(x, y, x_val, y_val, seed):
    return _trains(x, y, x_val, y_val, seed, _own, _own)


def _not_at_all(x, y, x_val, y_val, seed):
    def scaled(images):
        return images / 255

    return _trains(x, y, x_val, y_val, seed, scaled, scaled)


def _each_pixel(x, y, x_val, y_val, seed):
    def normalized(images):
        return (images - x.mean(0)) / x.std(0)

    return _trains(x, y, x_val, y_val, seed, normalized, normalized)


mistakes = [
    Edit(
        "each set by itself",
        "(x_val - mean) / std",
        "(x_val - x_val.mean()) / x_val.std()",
        told_by="same_numbers",
    ),
    Edit(
        "the mean of both",
        "mean, std = x.mean(), x.std()",
        "mean, std = torch.cat([x, x_val]).mean(), x.std()",
        told_by="blind",
    ),
    Edit(
        "the validation set for both",
        "mean, std = x.mean(), x.std()",
        "mean, std = x_val.mean(), x_val.std()",
        told_by="blind",
    ),
    Edit("validation as it is", "(x_val - mean) / std", "x_val", told_by="same_numbers"),
    Wrong(_each_batch_by_itself, told_by="same_numbers"),
    Wrong(_not_at_all, told_by="same_numbers"),
    Wrong(_each_pixel, told_by="same_numbers"),
    Edit("validates on the training images", "model(x_val), y_val", "model(x), y", told_by="same_numbers"),
]
not_tried = {"hard numbers": "the data of the run is given", "dtypes": "so is its dtype"}
