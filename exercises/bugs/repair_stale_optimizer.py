"""Repair: a new head that learns nothing

The function below takes a network with a head for ten classes, gives it a head for three, and trains all of
it. The loss falls to 0.6, since the body learns; the new head still has the weights that it began with. In
as many steps a colleague's run gets below 0.2. Mend it.

- The body and its weights, the settings of the optimizer, the batches, the number of steps and what the seed
  decides stay. One optimizer trains all layers, with the same settings.
- The function returns the model and the loss of each step, as a Python number.

`repair_stale_optimizer(model, x, y, seed=0)` → `model`, `[1.09, 1.12, …]`: images `x` are `(n, 1, 8, 8)`,
classes `y` are `(n,)`.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_utils.exercise import Exercise
from course_utils.exercise.kits import training_runs

exercise = Exercise(
    minutes=4,
    core=True,
    hints=[
        "Does the head have a gradient after backward? Does its weight change at a step? Who changes it?",
        "The optimizer keeps the tensors that it is given. Which were in the model at that moment?",
        "Compare the `id` of `model[3].weight` with those in `optimizer.param_groups[0]['params']`. The "
        "optimizer has to be made when the model is complete, or be told of the new parameters.",
    ],
)


@exercise.starter
def repair_stale_optimizer(
    model: nn.Module, x: Tensor, y: Tensor, seed: int
) -> tuple[nn.Module, list[float]]:
    """A model for ten classes, images, classes -> it with a new head, the losses"""
    torch.manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model[3] = nn.Linear(32, 3)
    losses = []
    for _ in range(8):
        for batch in torch.randperm(len(x)).split(32):
            loss = F.cross_entropy(model(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return model, losses


_CASE = training_runs.Case(
    exercise,
    setup="""x, y = training_runs.shapes(192)
torch.manual_seed(seed + 50)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))""",
    call="model, losses = {name}(model, x, y, seed)",
    train=training_runs.healthy(lambda t: nn.Sequential(*t.model[:3], nn.Linear(32, 3))),
    short=("192)", "200)\nkept = y < 2\nx, y = x[kept], y[kept]"),
)


@exercise.check
def all_reached(repair_stale_optimizer):
    """At every step the optimizer holds each parameter of the model, with its gradient

    An optimizer keeps the tensors that it was given, and doesn't know the model. A layer that is put in
    later has other tensors. They get gradients like all leaves, and no step reads them.
    """
    _CASE.treated(repair_stale_optimizer).own_gradients()


@exercise.check
def what_stays(repair_stale_optimizer):
    """The body, a new head of three, the batches, the optimizer's settings and the steps stay

    Each group has settings of its own; here all parameters train with the same. The network is the one that
    came, with its body's weights. Its head is a new `nn.Linear(32, 3)`, drawn when the seed is set, and of
    three rows whichever classes are in `y`. Rows of the old head are not new, and `out_features` is a label.
    """
    _CASE.stays(repair_stale_optimizer, gradients=False).own_losses()


_CASE.learns(
    "A random head lets gradients through, and the body adapts to it: that is why the loss falls at all."
)
