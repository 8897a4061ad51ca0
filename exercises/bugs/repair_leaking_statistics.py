"""Repair: a validation that promises more than production keeps

The rows of `x` are measurements in order of time, and the sensors drift. The function below trains on the
first 192 rows and validates on the rest, with a loss of 0.2. In production rows arrive one by one, normalized
with numbers that were fixed in training, and on the same rows the model has 0.8. Mend it, so that
it reports what production will see.

- Features are normalized by mean and standard deviation.
- The layers, the optimizer with its settings, the batches, the number of steps and what the seed decides
  stay.
- Return the model, the loss of each step, and the validation loss after each epoch.

`repair_leaking_statistics(x, y, seed=0)` → `model`, 48 losses, 8 validation losses.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import runs

exercise = Exercise(
    minutes=4,
    hints=[
        "How would production normalize a single row? Which mean would it take?",
        "What is computed from data is a part of the model: it is learned from the training rows.",
        "Take mean and standard deviation of `x[:192]`, and apply these two to all rows.",
    ],
)


@exercise.starter
def repair_leaking_statistics(x: Tensor, y: Tensor, seed: int) -> tuple[nn.Module, list[float], list[float]]:
    """(n, 2), (n,) -> the model, the loss of each step, the validation loss after each epoch"""

    def normalized(part):
        return (part - part.mean(0)) / part.std(0)

    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    x_train, x_val = normalized(x[:192]), normalized(x[192:])
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


_SETUP = """
early, y_early = runs.two_moons(192)
late, y_late = runs.two_moons(128, seed=1)
x = torch.cat([early, late + torch.tensor([0.5, 1.0])]) * torch.tensor([20., 3.]) + 50
y = torch.cat([y_early, y_late])"""


def _normalized(x):
    return (x - x[:192].mean(0)) / x[:192].std(0)


def _healthy(t, seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
    x, y = _normalized(t.x)[:192], t.y[:192]
    return runs.trained(model, F.cross_entropy, x, y, torch.optim.Adam, epochs=8, size=32, lr=0.03)


_CASE = runs.Case(
    exercise,
    setup=_SETUP,
    call="model, losses, val_losses = repair_leaking_statistics(x, y, seed)",
    train=_healthy,
    held=lambda model: F.cross_entropy(model(_normalized(runs.two_moons(192)[0])), runs.two_moons(192)[1]),
)


def _expect_inputs(forwards, part, rows, x):
    train = x[:192]
    right = [((x - train.mean(0)) / train.std(0, correction=n))[rows] for n in (0, 1)]
    for forward in forwards:
        near = [torch.cdist(forward.input, one, p=1).min(1).values.max() < 1e-4 for one in right]
        told = f"{part}, after {forward.step} steps, the model gets rows that are normalized differently"
        expect.true(any(near), told, "expected: with mean and standard deviation of the training rows")


@exercise.check
def training_rows(repair_leaking_statistics):
    """The model trains on rows that are normalized by the training rows

    The statistics of all rows know something of those to come. A linear layer can undo another scale, so the
    loss barely shows it; what is fixed for production would still come from data that wasn't there yet.
    """
    t = _CASE.treated(repair_leaking_statistics)
    _expect_inputs(t.run.trained, "in training", slice(192), t.x)


@exercise.check
def validation_rows(repair_leaking_statistics):
    """The model validates on rows that are normalized by the training rows

    Normalized by itself, every set of rows has mean 0: a drift is subtracted before the model can suffer from
    it. A single row in production has no statistics of its own.
    """
    t = _CASE.treated(repair_leaking_statistics)
    expect.equal([f.step for f in t.run.evaluated], list(range(6, 49, 6)), what="the steps of validation")
    _expect_inputs(t.run.evaluated, "in validation", slice(192, None), t.x)
    wanted = [F.cross_entropy(f.output, t.y[192:]).item() for f in t.run.evaluated]
    expect.equal(t.val_losses, wanted, what="`val_losses`", rtol=1e-4)


@exercise.check
def what_stays(repair_leaking_statistics):
    """The network, the optimizer and the number of steps stay

    A worse number is the honest one here. What would mend the drift is other data, not another rate.
    """
    _CASE.stays(repair_leaking_statistics)


@exercise.check
def learns(repair_leaking_statistics):
    """After training the model is as good as a healthy run's, with three seeds

    It learns as it did before: the training rows were normalized by themselves already.
    """
    _CASE.in_band(repair_leaking_statistics)
