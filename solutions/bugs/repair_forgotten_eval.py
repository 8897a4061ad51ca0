"""`eval()` sets `training = False` on the model and on every module below it, and two of the layers look at
it: dropout passes everything on, batch norm uses its running statistics and leaves them as they are.

The set is sorted, so each validation batch holds one class. Normalized by its own mean, it looks like any
other. That is why the loss climbed: the more the model relied on the mean, the more was taken away. With the
classes mixed in each batch less is taken away, and the fault is harder to see.

`train()` at the start of each epoch is the other half. Without it, all epochs but the first train without
dropout and with frozen statistics."""

healed = {
    "        for batch in torch.randperm": "        model.train()\n        for batch in torch.randperm",
    "        total = 0.0": "        model.eval()\n        total = 0.0",
}


# Other right answers

import copy

import torch
from torch import nn
from torch.nn import functional as F

from course_utils.exercise import Edit, Wrong


def _trains(x, y, x_val, y_val, seed, validate):
    torch.manual_seed(seed)
    layers = nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 3)
    model = nn.Sequential(nn.Flatten(), *layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses, val_losses = [], []
    for _ in range(8):
        for batch in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x[batch]), y[batch])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        outputs = validate(model, x_val.split(30))
        val_losses.append(F.cross_entropy(outputs, y_val).item())
    return model, losses, val_losses


def _in_a_function_that_restores_the_mode(x, y, x_val, y_val, seed):
    @torch.inference_mode()
    def validate(model, batches):
        was = model.training
        model.train(False)
        outputs = torch.cat([model(batch) for batch in batches])
        model.train(was)
        return outputs

    return _trains(x, y, x_val, y_val, seed, validate)


def _validates_a_frozen_copy(x, y, x_val, y_val, seed):
    def validate(model, batches):
        frozen = copy.deepcopy(model).eval().requires_grad_(False)
        return torch.cat([frozen(batch) for batch in batches])

    return _trains(x, y, x_val, y_val, seed, validate)


also_right = [_in_a_function_that_restores_the_mode, _validates_a_frozen_copy]


# Mistakes


def _only_dropout(x, y, x_val, y_val, seed):
    @torch.no_grad()
    def validate(model, batches):
        model[4].eval()
        outputs = torch.cat([model(batch) for batch in batches])
        model[4].train()
        return outputs

    return _trains(x, y, x_val, y_val, seed, validate)


def _in_one_batch(x, y, x_val, y_val, seed):
    @torch.no_grad()
    def validate(model, batches):
        model.eval()
        outputs = model(torch.cat(batches))
        model.train()
        return outputs

    return _trains(x, y, x_val, y_val, seed, validate)


mistakes = [
    Edit("stays in evaluation mode", "        model.train()\n", "", told_by="modes"),
    Edit("forgets to switch", "model.eval()", "pass", told_by="modes"),
    Wrong(_only_dropout, told_by="modes"),
    Wrong(_in_one_batch, told_by="reported"),
    Edit("shuffles", "torch.arange(len(x_val))", "torch.randperm(len(x_val))", told_by="reported"),
    Edit("no dropout", "nn.Dropout(0.5), ", "", told_by="what_stays"),
    Edit("gradients in validation", "torch.no_grad()", "torch.enable_grad()", told_by="what_stays"),
]
not_tried = {"hard numbers": "the data of the run is given", "dtypes": "so is its dtype"}
