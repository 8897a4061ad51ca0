"""Repair: a loss that stands still while the weights move

The function below trains a small network on three shapes with AdamW. The loss stays at 1.1, which is what
guessing among three classes costs. A colleague compared the weights before and after: all of them have moved,
so the optimizer does its work. The same data and settings give a loss below 0.1 elsewhere. Mend it.

- The layers, the optimizer with its settings, the batches, the number of steps and what the seed decides
  stay.
- The function returns the model and the loss of each step, as a Python number.

`repair_zeroed_gradients(x, y, seed=0)` → `model`, `[1.11, 1.12, …]`: images `x` are `(n, 1, 8, 8)`, classes
`y` are `(n,)`.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_utils.exercise import Exercise
from course_utils.exercise.kits import training_runs

exercise = Exercise(
    minutes=3,
    hints=[
        "By which factor does a weight change in the first step? Is it the same for large and small ones?",
        "AdamW moves weights for two reasons: gradient and decay. Print a gradient right before the step.",
        "Backward writes the gradients, the step reads them. Look at what happens in between, and move it.",
    ],
)


@exercise.starter
def repair_zeroed_gradients(
    x: Tensor, y: Tensor, seed: int
) -> tuple[nn.Module, list[float]]:
    """(n, 1, 8, 8), (n,) -> the model, the loss of each step"""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 32),
        nn.ReLU(),
        nn.Linear(32, 3),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    losses = []
    for _ in range(8):
        for batch in torch.randperm(len(x)).split(32):
            loss = F.cross_entropy(model(x[batch]), y[batch])
            loss.backward()
            losses.append(loss.item())
            optimizer.zero_grad(set_to_none=False)
            optimizer.step()
    return model, losses


_CASE = training_runs.Case(
    exercise, train=training_runs.healthy(kind=torch.optim.AdamW, lr=0.01, weight_decay=0.1)
)


@exercise.check
def gradients_reach_the_step(repair_zeroed_gradients):
    """Each step reads the gradients of its batch, and of no other

    `step` reads whatever `.grad` holds when it is called. With zeros there, this AdamW moves weights all the
    same: decay multiplies each by `1 - lr * weight_decay`. Where `.grad` is `None`, it skips the parameter.
    """
    _CASE.treated(repair_zeroed_gradients).own_gradients()


@exercise.check
def what_stays(repair_zeroed_gradients):
    """The network, the data and its batches, the optimizer and the steps stay

    Neither AdamW nor its decay keeps the loss up: with gradients the model learns.
    """
    _CASE.stays(repair_zeroed_gradients, gradients=False)


_CASE.learns("Weights that move are no sign of learning: in 48 steps decay alone takes about 5 % of each.")
