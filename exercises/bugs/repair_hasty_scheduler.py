"""Repair: a run that freezes after three batches

The function below trains with a rate of 0.5, which is to be halved after every third epoch. The loss moves
for a few batches and then stays near 0.9. A colleague's run, with the same schedule, ends at 0.25. Mend it.

- The rate is 0.5 in the first three epochs, 0.25 in the next three, and so on, for data of any size.
- The layers, the optimizer, the batches, the number of steps and what the seed decides stay.
- The function returns the model and the loss of each step, as a Python number.

`repair_hasty_scheduler(x, y, seed=0)` → `model`, `[1.09, 1.11, …]`: images `x` are `(n, 1, 8, 8)`, classes
`y` are `(n,)`.
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
        "Print `optimizer.param_groups[0]['lr']` at each of the first ten batches.",
        "`StepLR` counts its own calls of `step`. In which unit is the 3 meant, and how often is it called?",
        "One line stands one level too deep. The scheduler has to step where an epoch ends.",
    ],
)


@exercise.starter
def repair_hasty_scheduler(
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
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.5)
    losses = []
    for _ in range(8):
        for batch in torch.randperm(len(x)).split(32):
            loss = F.cross_entropy(model(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            losses.append(loss.item())
    return model, losses


def _healthy(t, seed):
    """Three epochs at each rate, each with an optimizer of its own: plain SGD keeps no state."""
    torch.manual_seed(seed)
    model = training_runs.small(t)
    for epochs, rate in ((3, 0.5), (3, 0.25), (2, 0.125)):
        training_runs.trained(model, F.cross_entropy, t.x, t.y, epochs=epochs, lr=rate)
    return model


_CASE = training_runs.Case(exercise, train=_healthy)


@exercise.check(cases=[192, 300])
def rates(repair_hasty_scheduler, n):
    """At each step the rate is that of its epoch, for data of any size

    `StepLR` counts the calls of its own `step`, not epochs. Other data have other numbers of batches, and
    the last one may be short.
    """
    t = _CASE.treated(repair_hasty_scheduler, setup=f"x, y = training_runs.shapes({n})")
    batches = -(-len(t.x) // 32)
    for step, rate in enumerate(t.run.rates):
        epoch = step // batches
        what = f"the rate at step {step}, in epoch {epoch} (from 0)"
        expect.equal(rate, 0.5 * 0.5 ** (epoch // 3), what=what, rtol=1e-6, atol=0.0)


@exercise.check
def what_stays(repair_hasty_scheduler):
    """The network, the data and its batches, the optimizer and the steps stay

    More epochs don't help a run whose rate has come down to nothing. The seed alone decides the first weights
    and the order of the batches.
    """
    _CASE.stays(repair_hasty_scheduler, free=["lr"])


_CASE.learns(
    "With plain SGD each step goes the rate times the gradient. Halved at every third batch, all rates "
    "together add up to six times the first."
)
