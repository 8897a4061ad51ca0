"""Each prediction had a `grad_fn`, and behind it the graph of its batch with the activations of all layers.
No backward came to free them, so they stayed as long as the predictions: to the end. `model.eval()` changes
what dropout and batch norm compute. It doesn't stop the recording.

Under `no_grad` no graph is built in the first place. A `detach` at each batch does as well: the graph is
built and goes at once. A `detach` at the end of the epoch comes late; by then the graphs of all its batches
have been in memory together."""

healed = {"        predicted =": "        with torch.no_grad():\n            predicted ="}


# Other right answers

import torch
from torch import nn
from torch.nn import functional as F

from course_utils.exercise import Edit, Wrong


def _trains(x, y, x_val, seed, predict, keep=lambda kept: kept):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses, predictions = [], []
    for _ in range(6):
        for batch in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            loss = F.cross_entropy(model.train()(x[batch]), y[batch])
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        model.eval()
        batches = []
        for images in x_val.split(30):
            probabilities = predict(model, images)
            batches.append(probabilities)
        predictions.append(keep(torch.cat(batches)))
    return model, losses, torch.stack(predictions)


def _detaches_each(x, y, x_val, seed):
    def predict(model, images):
        scores = model(images)
        return scores.detach().softmax(1)

    return _trains(x, y, x_val, seed, predict)


def _inference_mode(x, y, x_val, seed):
    @torch.inference_mode()
    def predict(model, images):
        return model(images).softmax(1)

    return _trains(x, y, x_val, seed, predict)


def _numbers(x, y, x_val, seed):
    return _trains(x, y, x_val, seed, lambda model, images: torch.tensor(model(images).softmax(1).tolist()))


also_right = [_detaches_each, _inference_mode, _numbers]


# Mistakes


def _detaches_each_epoch(x, y, x_val, seed):
    return _trains(x, y, x_val, seed, lambda m, images: m(images).softmax(1), lambda kept: kept.detach())


def _clones(x, y, x_val, seed):
    return _trains(x, y, x_val, seed, lambda m, images: m(images).softmax(1).cpu().clone())


mistakes = [
    Wrong(_detaches_each_epoch, told_by="few_graphs"),
    Wrong(_clones, told_by="few_graphs"),
    Edit("in the other mode", "with torch.no_grad():", "with torch.enable_grad():", told_by="few_graphs"),
    Edit("freezes the model", "model.eval()", "model.eval().requires_grad_(False)", told_by="few_graphs"),
    Edit(
        "keeps the classes",
        "predictions.append(torch.cat(predicted))",
        "predictions.append(torch.cat(predicted).argmax(1))",
        told_by="predictions_kept",
    ),
    Edit(
        "keeps the last epoch",
        "predictions.append(torch.cat(predicted))",
        "predictions = [torch.cat(predicted)]",
        told_by="predictions_kept",
    ),
    Edit(
        "whole batches",
        "x_val.split(30)",
        "x_val[: len(x_val) // 30 * 30].split(30)",
        told_by="predictions_kept",
    ),
    Edit("no evaluation mode", "model.eval()", "model.train()", told_by="what_stays"),
]
not_tried = {"hard numbers": "the data of the run is given", "dtypes": "so is its dtype"}
