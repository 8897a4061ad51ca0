"""`backward` adds to `.grad`, so that several losses can contribute to one step. Whoever wants the gradient
of one batch clears it first. Without that, a step uses `g₀ + g₁ + … + gₖ`: a ball without friction, that
rolls down fast, and on. Lesson 06 shows which momentum this is.

So the loop does learn, and the curve alone doesn't show the fault. The gradient that is left over from the
step before does; the card of the mended run draws it."""

healed = {"loss.backward()": "optimizer.zero_grad()\n            loss.backward()"}


# Other right answers

import torch
from torch import nn
from torch.nn import functional as F

from course_utils.exercise import Edit, Wrong


def _trains(x, y, seed, before=lambda model: None, after=lambda model: None, epoch=lambda model: None):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    losses = []
    for _ in range(10):
        epoch(model)
        for batch in torch.randperm(len(x)).split(32):
            before(model)
            loss = F.cross_entropy(model(x[batch]), y[batch])
            loss.backward()
            optimizer.step()
            after(model)
            losses.append(float(loss.detach()))
    return model, losses


def _zeros_after_the_step(x, y, seed):
    return _trains(x, y, seed, after=lambda model: model.zero_grad(set_to_none=False))


def _each_gradient_is_none(x, y, seed):
    def clear(model):
        for parameter in model.parameters():
            parameter.grad = None

    return _trains(x, y, seed, before=clear)


def _in_a_closure(x, y, seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    losses = []
    for _ in range(10):
        for batch in torch.randperm(len(x)).split(32):

            def closure(batch=batch):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x[batch]), y[batch])
                loss.backward()
                return loss

            losses.append(optimizer.step(closure).item())
    return model, losses


also_right = [_zeros_after_the_step, _each_gradient_is_none, _in_a_closure]


# Mistakes


def _once_an_epoch(x, y, seed):
    return _trains(x, y, seed, epoch=lambda model: model.zero_grad())


def _the_last_layer_alone(x, y, seed):
    return _trains(x, y, seed, before=lambda model: model[2].zero_grad())


_SWAPPED = "optimizer.zero_grad()\n            loss.backward()"

mistakes = [
    Edit("between", _SWAPPED, "loss.backward()\n            optimizer.zero_grad()", told_by="own_gradients"),
    Edit("is not called", "optimizer.zero_grad()", "optimizer.zero_grad", told_by="own_gradients"),
    Wrong(_once_an_epoch, told_by="own_gradients"),
    Wrong(_the_last_layer_alone, told_by="own_gradients"),
    Edit("a smaller rate too", "lr=1.0", "lr=0.1", told_by="what_stays"),
    Edit(
        "another optimizer",
        "SGD(model.parameters(), lr=1.0)",
        "Adam(model.parameters())",
        told_by="what_stays",
    ),
]
not_tried = {"hard numbers": "the data of the run is given", "dtypes": "so is its dtype"}
