"""Repair: a loss that leaps

The function below trains a small network on two moons with plain SGD, without momentum. Its loss falls fast
at first. Then it leaps up, again and again, to 1 and more, and where it ends is a matter of luck. A smaller
rate softens the leaps; a colleague's loop, at the same rate, has none. Mend it.

- The layers, the optimizer with its settings, the batches, the number of steps and what the seed decides
  stay.
- The function returns the model and the loss of each step, as a Python number.

`repair_missing_zero_grad(x, y, seed=0)` → `model`, `[0.82, 0.51, …]`: points `x` are `(n, 2)`, classes `y`
are `(n,)`.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_utils.exercise import Exercise
from course_utils.exercise.kits import training_runs

exercise = Exercise(
    minutes=3,
    core=True,
    hints=[
        "Compare the gradient of one weight with that in a fresh copy of the model, for the same batch.",
        "Does `backward` write to `.grad`, or does it add to what is there?",
        "One line is missing: the optimizer has a method that clears the gradients.",
    ],
)


@exercise.starter
def repair_missing_zero_grad(
    x: Tensor, y: Tensor, seed: int
) -> tuple[nn.Module, list[float]]:
    """(n, 2), (n,) -> the model, the loss of each step"""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(2, 16),
        nn.Tanh(),
        nn.Linear(16, 2),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    losses = []
    for _ in range(10):
        for batch in torch.randperm(len(x)).split(32):
            loss = F.cross_entropy(model(x[batch]), y[batch])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return model, losses


def _network(t):
    return nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))


_CASE = training_runs.Case(
    exercise,
    setup="x, y = training_runs.two_moons(192)",
    train=training_runs.healthy(_network, epochs=10, lr=1.0),
    held=training_runs.on_held(training_runs.two_moons(400, seed=100)),
)


@exercise.check
def own_gradients(repair_missing_zero_grad):
    """Each step uses the gradients of its own batch alone

    `backward` adds to `.grad`. Without clearing, a step here uses the sum of all gradients so far: it runs
    past the minimum and comes back. Cleared between backward and the step, there is none left to use.
    """
    _CASE.treated(repair_missing_zero_grad).own_gradients()


@exercise.check
def what_stays(repair_missing_zero_grad):
    """The network, the data and its batches, the optimizer and the steps stay

    A smaller rate makes the leaps smaller and the training slower. The sum of old gradients remains.
    """
    _CASE.stays(repair_missing_zero_grad)


_CASE.learns(
    "A loop that adds up its gradients does learn. It ends high or low, depending on where in a swing it "
    "stops."
)
