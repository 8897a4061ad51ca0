"""Repair: a validation loss that climbs while the model gets better

The function below trains a classifier and takes the loss on a validation set after each epoch. The set is
sorted by class. The training loss falls, the validation loss climbs to 3; yet in production the same model
has a loss of 0.15. Mend the function, so that it reports what production will see.

- All layers stay and train as they do now. So do the optimizer, the batches and the number of steps.
- The validation set stays in its order, in batches of 30, and no graph is recorded for it.
- Return the model, the loss of each step, and the validation loss after each epoch.

`repair_forgotten_eval(x, y, x_val, y_val, seed=0)` → `model`, 48 losses, 8 validation losses.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import runs

exercise = Exercise(
    minutes=4,
    core=True,
    hints=[
        "Two of the layers do something else in training than in production. Which, and how do they know?",
        "Print `model.training` at the first batch of training and at the first batch of validation. "
        "`torch.no_grad()` stops the recording of a graph; does it change what a layer computes?",
        "Switch the model before validation. Then look at the second epoch: in which mode does it train?",
    ],
)


@exercise.starter
def repair_forgotten_eval(
    x: Tensor, y: Tensor, x_val: Tensor, y_val: Tensor, seed: int
) -> tuple[nn.Module, list[float], list[float]]:
    """Images and classes, to train and to validate -> the model, losses, validation losses"""
    torch.manual_seed(seed)
    body = [nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.5)]
    model = nn.Sequential(*body, nn.Linear(32, 3))
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
                total += F.cross_entropy(model(x_val[batch]), y_val[batch], reduction="sum").item()
        val_losses.append(total / len(x_val))
    return model, losses, val_losses


_HELD = runs.shapes(300, seed=100)


def _healthy(t, seed):
    torch.manual_seed(seed)
    layers = nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 3)
    model = nn.Sequential(nn.Flatten(), *layers)
    return runs.trained(model, F.cross_entropy, t.x, t.y, epochs=8, size=32, lr=0.05, momentum=0.9)


_CASE = runs.Case(
    exercise,
    setup="""x, y = runs.shapes(192)
x_val, y_val = runs.shapes(180, seed=1)
order = y_val.argsort(stable=True)
x_val, y_val = x_val[order], y_val[order]""",
    call="model, losses, val_losses = repair_forgotten_eval(x, y, x_val, y_val, seed)",
    train=_healthy,
    held=lambda model: F.cross_entropy(model(_HELD[0]), _HELD[1]),
)


@exercise.check
def modes(repair_forgotten_eval):
    """The layers train in training mode and validate in evaluation mode

    Batch norm and dropout look at their own `training`, which `train()` and `eval()` set for all modules
    below. In training mode batch norm normalizes with the statistics of the batch at hand, and of a batch of
    one class that removes what tells the class; it also goes on updating its running statistics. `no_grad`
    changes neither. A mode stays until somebody switches it back.
    """
    t = _CASE.treated(repair_forgotten_eval)
    for forward in t.run.trained + t.run.evaluated:
        when, wanted = ("training",) * 2 if forward.trained else ("validation", "evaluation")
        for layer, training in runs.modes(forward).items():
            mode = "training" if training else "evaluation"
            told = f"in {when}, after {forward.step} steps, {layer} is in {mode} mode"
            expect.true(mode == wanted, told, f"expected: in {wanted} mode")


@exercise.check
def what_stays(repair_forgotten_eval):
    """The layers and the steps stay, and validation has no graph

    Mode and graph are two switches: `eval()` goes on recording, `no_grad` changes no layer. Without batch
    norm and dropout the modes do not differ, and nothing of what they do for training is left.
    """
    _CASE.stays(repair_forgotten_eval)
    for forward in _CASE.treated(repair_forgotten_eval).run.evaluated:
        told = f"in validation, after {forward.step} steps, a graph is recorded for what the model returns"
        expect.true(not forward.graph, told, "expected: none")


@exercise.check
def reported(repair_forgotten_eval):
    """The validation losses are those of the model in evaluation mode

    What is reported is what the model computes in use. A number from training mode is that of another model:
    half of its units are missing, and each image's result depends on the batch that it came with. In
    evaluation mode no order changes it; a shuffle takes random numbers that training would have had.
    """
    t = _CASE.treated(repair_forgotten_eval)
    expect.equal(len(t.val_losses), 8, what="the number of validation losses")
    wanted = []
    for step in range(6, 49, 6):
        validated = [f for f in t.run.evaluated if f.step == step]
        rows = [runs.rows_of(f, t.x_val, "x_val") for f in validated]
        expect.equal([len(r) for r in rows], [30] * 6, what=f"the batches of validation after step {step}")
        expect.equal(torch.cat(rows), torch.arange(180), what=f"the rows of `x_val` after step {step}")
        outputs = torch.cat([f.output for f in validated])
        wanted.append(F.cross_entropy(outputs, t.y_val[torch.cat(rows)]).item())
    expect.equal(t.val_losses, wanted, what="`val_losses`", rtol=1e-4)
    t.model.eval()
    with torch.no_grad():
        last = F.cross_entropy(t.model(t.x_val), t.y_val).item()
    expect.equal(t.val_losses[-1], last, what="the last of `val_losses`", rtol=1e-3)


@exercise.check
def learns(repair_forgotten_eval):
    """After training the model is as good as a healthy run's, with three seeds

    In validation too, batch norm in training mode moves its running statistics: the model that is returned
    has been changed by data that it should only be measured on.
    """
    _CASE.in_band(repair_forgotten_eval)
