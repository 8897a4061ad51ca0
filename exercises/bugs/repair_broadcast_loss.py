"""Repair: a regression that predicts the mean

The function below fits a small network to points around a line, by the mean squared error. The loss falls a
little and stops at 1.4, which is the variance of `y`. The trained network predicts nearly the same number
for every `x`, the mean of `y`. The network is large enough, and the rate is fine. Mend it.

- The layers, the optimizer with its settings, the batches and the number of steps stay.
- The function returns the model and the loss of each step, as a Python number.

`repair_broadcast_loss(x, y, seed=0)` → `model`, `[2.54, 1.82, …]`: `x` is `(n, 1)`, `y` is `(n,)`.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import training_runs

exercise = Exercise(
    minutes=3,
    core=True,
    hints=[
        "Print the shapes of the prediction, of `y[batch]`, and of their difference.",
        "Broadcasting aligns shapes from the right. Which pairs are compared by `(32, 1)` minus `(32,)`?",
        "Take the last dimension away from the prediction, or add one to `y[batch]`.",
    ],
)


@exercise.starter
def repair_broadcast_loss(
    x: Tensor, y: Tensor, seed: int
) -> tuple[nn.Module, list[float]]:
    """(n, 1), (n,) -> the model, the loss of each step"""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(1, 16),
        nn.Tanh(),
        nn.Linear(16, 1),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    losses = []
    for _ in range(10):
        for batch in torch.randperm(len(x)).split(32):
            loss = ((model(x[batch]) - y[batch]) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return model, losses


def _loss(output, target):
    return F.mse_loss(output.reshape(-1), target)


_CASE = training_runs.Case(
    exercise,
    setup="x, y = training_runs.line(128)",
    train=training_runs.healthy(
        lambda t: nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1)), _loss, epochs=10, lr=0.2
    ),
    held=training_runs.on_held(training_runs.line(400, seed=100), _loss),
    room=2.0,
    short=("128", "136"),
)


@exercise.check(cases=[128, 41])
def pairs(repair_broadcast_loss, n):
    """The loss is the mean square of each prediction minus its own target, and no other

    `(n, 1)` and `(n,)` broadcast to `(n, n)`: every prediction minus every target. The mean square over all
    pairs is smallest where each prediction is the mean of all targets. `F.mse_loss` warns about such shapes,
    `-` does not. Expected is the mean of one square for each row of the batch, with `y` as it came; their sum
    has a gradient as many times as large.
    """
    t = _CASE.treated(repair_broadcast_loss, setup=f"x, y = training_runs.line({n})")
    for forward, rows, loss in t.batches():
        expect.equal(forward.output.numel(), len(rows), what="the number of predictions for a batch")
        output, target = forward.output.reshape(-1), t.y[rows]
        like = {
            "the mean over all pairs": ((output[:, None] - target) ** 2).mean().item(),
            "the sum of the squares, not their mean": _loss(output, target).item() * len(rows),
            "the square of the mean error": (output - target).mean().item() ** 2,
            "the mean absolute error": (output - target).abs().mean().item(),
        }
        wanted, what = _loss(output, target).item(), f"the loss of step {forward.step}"
        expect.equal(loss, wanted, what=what, rtol=1e-4, atol=1e-6, like=like)


@exercise.check
def what_stays(repair_broadcast_loss):
    """The network, the data and its batches, the optimizer and the steps stay

    A larger network or more steps bring the loss closer to the variance of `y`, and no further. In batches of
    one there is nothing to broadcast; the fault is back with the next batch of two. Each step still uses the
    gradients of its own batch alone.
    """
    _CASE.stays(repair_broadcast_loss, but=("Flatten", "Unflatten"), loss=False)


_CASE.learns(
    "The noise has a standard deviation of 0.1, so the line itself has a loss of about 0.01 on held data."
)
