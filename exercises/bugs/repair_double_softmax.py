"""Repair: a loss with a floor

The function below trains a small network to tell three shapes apart. Its loss falls slowly, and however long
you train, it stays above 0.55. A colleague's run, with the same data, optimizer and layers with parameters,
goes below 0.1 in as many steps. Mend it.

- The modules `Flatten`, `Linear` and `ReLU` stay, and so do the optimizer with its settings, the batches, the
  number of steps and what the seed decides.
- The function returns the model and the loss of each step, as a Python number.

`repair_double_softmax(x, y, seed=0)` → `model`, `[1.09, 1.12, …]`: images `x` are `(n, 1, 8, 8)`, classes
`y` are `(n,)`.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_utils import measure
from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import kept, training_runs

exercise = Exercise(
    minutes=4,
    core=True,
    hints=[
        "Print what the model returns, and what the loss is for `[1., 0., 0.]` with class 0. Is it zero?",
        "Look up what `CrossEntropyLoss` applies to its input, before it takes the negative log.",
        "Softmax happens once in the model and once inside the loss; keep one.",
    ],
)


@exercise.starter
def repair_double_softmax(
    x: Tensor, y: Tensor, seed: int
) -> tuple[nn.Module, list[float]]:
    """(n, 1, 8, 8), (n,) -> the model, the loss of each step"""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 32),
        nn.ReLU(),
        nn.Linear(32, 3),
        nn.Softmax(dim=1),
    )
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(8):
        for batch in torch.randperm(len(x)).split(32):
            loss = criterion(model(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return model, losses


_X, _Y = training_runs.shapes(300, seed=100)
_CASE = training_runs.Case(
    exercise,
    held=lambda model: F.cross_entropy(kept.scores(measure.record_run(model, _X).forwards[-1]), _Y),
)


@exercise.check
def one_softmax(repair_double_softmax):
    """The loss of each step is the cross-entropy of the last layer's scores

    `CrossEntropyLoss` applies log-softmax to what it gets. It can't separate numbers between 0 and 1 by
    much: for three classes its best is 0.58 for the right one, a loss of 0.55. `NLLLoss` applies no softmax:
    it wants log-probabilities.
    """
    t = _CASE.treated(repair_double_softmax)
    for forward, rows, loss in t.batches():
        scores, output = kept.scores(forward), forward.output
        like = {"the sum over the batch, not its mean": F.cross_entropy(scores, t.y[rows]).item() * len(rows)}
        if output.shape == scores.shape:
            for loss_of in (F.cross_entropy, F.nll_loss):
                like[f"`{loss_of.__name__}` of what the model returns"] = loss_of(output, t.y[rows]).item()
        wanted, what = F.cross_entropy(scores, t.y[rows]).item(), f"the loss of step {forward.step}"
        expect.equal(loss, wanted, what=what, rtol=1e-4, atol=1e-5, like=like)


@exercise.check
def what_stays(repair_double_softmax):
    """The network, the data and its batches, the optimizer and the steps stay

    A higher rate or more steps move the loss towards its floor of 0.55 sooner. The floor stays where it is.
    """
    _CASE.stays(repair_double_softmax, but=("Softmax", "LogSoftmax"), loss=False)


_CASE.learns(
    "Measured is the loss of the last layer's scores. A softmax of a softmax has small gradients, so they "
    "grow slowly."
)
