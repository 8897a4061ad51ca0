"""Repair: one score for all images

One image in 21 is of a rare kind, and the function below trains a network to find it. Its first scores are to
be low, about -3 (1 in 20), so that no steps are spent on learning that rare is rare. They are low. But then
the loss stays at 0.19, and in the end all images have the same score. A colleague comes to 0.05 on new images
with the same layers. Mend it.

- Before the first step, the scores are near -3 on the average.
- Layers, loss, optimizer with its settings, batches and number of steps stay. All parameters train.

`repair_dead_relus(x, y, seed=0)` → `model`, `[0.16, …]`: images `x` are `(n, 1, 8, 8)`, `y` is 0. or 1.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import training_runs

exercise = Exercise(
    minutes=4,
    hints=[
        "Print the gradient of each parameter after the first backward. Which layers get one?",
        "A ReLU passes no gradient where its input is below 0. How many units are above 0 for any image?",
        "A low start is a matter of the last bias; in other layers the same bias switches units off.",
    ],
)


@exercise.starter
def repair_dead_relus(x: Tensor, y: Tensor, seed: int) -> tuple[nn.Module, list[float]]:
    """(n, 1, 8, 8), (n,) -> the model, the loss of each step"""
    torch.manual_seed(seed)
    body = [nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU()]
    model = nn.Sequential(*body, nn.Linear(32, 1))
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.constant_(layer.bias, -3.0)  # low scores at the start
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(8):
        for batch in torch.randperm(len(x)).split(32):
            scores = model(x[batch]).flatten()
            loss = F.binary_cross_entropy_with_logits(scores, y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return model, losses


def _rare(x, kind):
    kept = (kind < 2) | (torch.arange(len(kind)) % 30 == 2)
    return x[kept], (kind[kept] == 2).float()


def _loss(scores, y):
    return F.binary_cross_entropy_with_logits(scores[:, 0], y)


def _network(t):
    layers = nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1)
    for layer in layers[::2]:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        nn.init.constant_(layer.bias, -3.0 if layer is layers[-1] else 0.0)
    return nn.Sequential(nn.Flatten(), *layers)


_CASE = training_runs.Case(
    exercise,
    setup="""x, kind = training_runs.shapes(480)
kept = (kind < 2) | (torch.arange(480) % 30 == 2)
x, y = x[kept], (kind[kept] == 2).float()""",
    train=training_runs.healthy(_network, _loss),
    held=training_runs.on_held(_rare(*training_runs.shapes(3000, seed=100)), _loss),
    room=2.2,
)


@exercise.check
def first_scores(repair_dead_relus):
    """Before the first step the scores are near -3 on the average

    A bias of the last layer is added to the scores that the model returns, and to nothing else: -3 there is a
    probability of 0.05. One of a hidden layer, low or high, comes through the weights: 0 is a better start.
    """
    firsts = [_CASE.treated(repair_dead_relus, seed).run.trained[0].output for seed in training_runs.SEEDS]
    mean = float(torch.cat(firsts).mean())
    told = f"in the first batch, for three seeds, the scores have a mean of {mean:.3g}"
    expect.true(-4 <= mean <= -2, told, "expected: between -4 and -2")


@exercise.check
def what_stays(repair_dead_relus):
    """The layers, the loss, the batches, the optimizer and the steps stay; all parameters train

    A leaky ReLU or a normalization gets a gradient through such biases. But nothing is wrong with the layers,
    nor with the loss: what is wrong is where they start.
    """
    _CASE.stays(repair_dead_relus, start=()).own_losses(_loss)


@exercise.check
def alive(repair_dead_relus):
    """Most units of each ReLU are above 0 for some image, and all layers get a gradient

    A ReLU has a slope of 0 below 0. Through a unit that is below 0 for all images no gradient comes back: its
    weights don't learn. Behind a layer of such units nothing here depends on the image any more.
    """
    run = _CASE.treated(repair_dead_relus).run
    for forward in run.trained:
        relus = [layer.output for layer in forward.layers if isinstance(layer.module, nn.ReLU)]
        for number, output in enumerate(relus, 1):
            above = (output > 0).flatten(1).any(0)
            told = f"after {forward.step} steps {int(above.sum())} of {len(above)} units of ReLU {number}"
            told += " are above 0 for some image"
            expect.true(2 * int(above.sum()) >= len(above), told, "expected: half of them at least")
    for name, norms in run.grad_norms.items():
        for step, norm in enumerate(norms[1:], 1):  # a last layer of zeros passes none in the first step
            told = f"at step {step} the gradient of layer `{name}` is 0"
            expect.true(norm > 0, told, "expected: it learns")


_CASE.learns(
    "With the second hidden layer dead the last bias is all that learns here. A model that knows the share "
    "of the rare kind and no more has a loss of 0.19."
)
