"""Repair: a validation loss that climbs while the model gets better

The function below trains a classifier and takes the loss on a validation set after each epoch. The set is
sorted by class. The training loss falls, the validation loss climbs to 2.7; yet in production the same
model has a loss of 0.18. Mend the function, so that it reports what production will see.

- All layers stay and train as they do now. So do the optimizer, the batches and the number of steps.
- The validation set stays in its order, in batches of 30, and no graph is recorded for it.
- Return the model, the loss of each step, and the validation loss after each epoch.

`repair_forgotten_eval(x, y, x_val, y_val, seed=0)` → `model`, 48 losses, 8 validation losses.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import training_runs

exercise = Exercise(
    minutes=4,
    core=True,
    hints=[
        "Two of the layers do something else in training than in production. Which, and how do they know?",
        "Print `model.training` in training and validation. Does `torch.no_grad()` change what a layer does?",
        "Switch the model before validation. Then look at the second epoch: in which mode does it train?",
    ],
)


@exercise.starter
def repair_forgotten_eval(
    x: Tensor, y: Tensor, x_val: Tensor, y_val: Tensor, seed: int
) -> tuple[nn.Module, list[float], list[float]]:
    """Data to train and to validate -> the model, losses, validation losses"""
    torch.manual_seed(seed)
    body = [nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU()]
    model = nn.Sequential(*body, nn.Dropout(0.5), nn.Linear(32, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses, val_losses = [], []
    for _ in range(8):
        for batch in torch.randperm(len(x)).split(32):
            loss = F.cross_entropy(model(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        total = 0.0
        with torch.no_grad():
            for batch in torch.arange(len(x_val)).split(30):
                scores = model(x_val[batch])
                total += F.cross_entropy(scores, y_val[batch], reduction="sum").item()
        val_losses.append(total / len(x_val))
    return model, losses, val_losses


def _network(t):
    layers = nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 3)
    return nn.Sequential(nn.Flatten(), *layers)


_CASE = training_runs.Case(
    exercise,
    setup="""x, y = training_runs.shapes(192)
x_val, y_val = training_runs.shapes(175, seed=1)
order = y_val.argsort(stable=True)
x_val, y_val = x_val[order], y_val[order]""",
    call="model, losses, val_losses = {name}(x, y, x_val, y_val, seed)",
    train=training_runs.healthy(_network, lr=0.05, momentum=0.9),
)


@exercise.check
def modes(repair_forgotten_eval):
    """The layers train in training mode and validate in evaluation mode

    Batch norm and dropout look at their own `training`, which `train()` and `eval()` set for all modules
    below. In training mode batch norm normalizes with the statistics of the batch at hand, and of a batch of
    one class that removes much of what tells the class. `no_grad` changes no layer's mode. A mode stays
    until somebody switches it.
    """
    _CASE.treated(repair_forgotten_eval).modes()


@exercise.check
def what_stays(repair_forgotten_eval):
    """The layers, the batches, the optimizer and the steps stay; validation has no graph

    `eval()` goes on recording, so `no_grad` stays. Without batch norm and dropout this model computes the
    same in both modes, and nothing of what they do for training is left.
    """
    for forward in _CASE.stays(repair_forgotten_eval).run.evaluated:
        told = f"in validation, after {forward.step} steps, a graph is recorded for what the model returns"
        expect.true(not forward.graph, told, "expected: none")


@exercise.check
def reported(repair_forgotten_eval):
    """The validation losses are those of the model in evaluation mode

    A number from training mode is that of another model: half of its units are missing, and each image's
    result depends on its batch. Expected is the mean over all images: the last batch may be shorter.
    """
    t = _CASE.treated(repair_forgotten_eval)
    wanted = [F.cross_entropy(output, t.y_val).item() for output in t.validated(30)]
    expect.equal(t.val_losses, wanted, what="`val_losses`", rtol=1e-4)


_CASE.learns(
    "In training mode this batch norm moves its running statistics in validation too, and changes the model."
)
