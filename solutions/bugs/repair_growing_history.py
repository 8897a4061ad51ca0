"""A loss is a tensor with a graph. Two things can be kept with it. The nodes are small, and live as long as
something refers to the loss; backward makes no difference to them. What they saved for backward, the
activations, is large; `backward` frees it. So the list of training losses kept a few small objects a step.
The list of validation losses, on which nobody calls backward, kept the activations of the whole set each
time.

`item` takes the number, and the loss can go. `no_grad` records no graph at all: that makes validation cheaper
too, at its peak."""

healed = {
    "losses.append(loss)": "losses.append(loss.item())",
    "        val_losses.append(F.cross_entropy(model(x_val), y_val))": (
        "        with torch.no_grad():\n"
        "            val_losses.append(F.cross_entropy(model(x_val), y_val).item())"
    ),
}


# Other right answers

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_utils.exercise import Edit, Wrong


def _trains(x, y, x_val, y_val, seed, of_step, of_epoch, at_the_end):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses, val_losses = [], []
    for _ in range(8):
        for batch in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x[batch]), y[batch])
            loss.backward()
            optimizer.step()
            losses.append(of_step(loss))
        val_losses.append(of_epoch(F.cross_entropy(model(x_val), y_val)))
    return model, at_the_end(losses), at_the_end(val_losses)


def _numbers(losses):
    return [float(loss) for loss in losses]


def _detaches_and_takes_numbers_later(x, y, x_val, y_val, seed):
    return _trains(x, y, x_val, y_val, seed, Tensor.detach, Tensor.detach, _numbers)


def _floats(x, y, x_val, y_val, seed):
    def number(loss):
        return float(loss.detach())

    return _trains(x, y, x_val, y_val, seed, number, number, list)


also_right = [_detaches_and_takes_numbers_later, _floats]


# Mistakes


def _numbers_at_the_end(x, y, x_val, y_val, seed):
    def same(loss):
        return loss

    def numbers(losses):
        return [loss.item() for loss in losses]

    return _trains(x, y, x_val, y_val, seed, same, same, numbers)


def _a_sum_of_losses(x, y, x_val, y_val, seed):
    total = torch.zeros(())

    def of_step(loss):
        nonlocal total
        total = total + loss
        return loss.item()

    return _trains(x, y, x_val, y_val, seed, of_step, Tensor.item, list)


def _clones(x, y, x_val, y_val, seed):
    return _trains(x, y, x_val, y_val, seed, Tensor.clone, Tensor.clone, list)


mistakes = [
    Edit("validation only", "losses.append(loss.item())", "losses.append(loss)", told_by="graphs_gone"),
    Edit(
        "training only",
        "with torch.no_grad():\n            val_losses.append(F.cross_entropy(model(x_val), y_val).item())",
        "val_losses.append(F.cross_entropy(model(x_val), y_val))",
        told_by="bytes_held",
    ),
    Wrong(_numbers_at_the_end, told_by="graphs_gone"),
    Wrong(_clones, told_by="bytes_held"),
    Wrong(_a_sum_of_losses, told_by="graphs_gone"),
    Edit("the last steps only", "return model, losses,", "return model, losses[-100:],", told_by="losses"),
    Edit("no validation", "model(x_val), y_val", "model(x), y", told_by="what_stays"),
]
not_tried = {"hard numbers": "the data of the run is given", "dtypes": "so is its dtype"}

equivalent = {
    "line 26: `with torch.no_grad():` -> `if True:`": "the graph goes when the number has been taken",
}
