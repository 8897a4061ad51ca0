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
from course_utils.exercise.kits import runs

exercise = Exercise(
    minutes=4,
    hints=[
        "Print the gradient of each parameter after the first backward. Which layers get one?",
        "A ReLU returns 0 where its input is below 0, and passes no gradient there. Count the units that are "
        "above 0 for at least one image, in both of its places. What pushes them down?",
        "The scores come from the last layer. A low start is a matter of its bias; in the other layers the "
        "same bias switches units off for all images.",
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
            scores = model(x[batch])[:, 0]
            loss = F.binary_cross_entropy_with_logits(scores, y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return model, losses


def _rare(images, kinds):
    kept = (kinds < 2) | (torch.arange(len(kinds)) % 30 == 2)
    return images[kept], (kinds[kept] == 2).float()


_HELD = _rare(*runs.shapes(3000, seed=100))


def _loss(scores, y):
    return F.binary_cross_entropy_with_logits(scores[:, 0], y)


def _healthy(t, seed):
    torch.manual_seed(seed)
    layers = nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1)
    for layer in layers[::2]:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        nn.init.constant_(layer.bias, -3.0 if layer is layers[-1] else 0.0)
    return runs.trained(
        nn.Sequential(nn.Flatten(), *layers), _loss, t.x, t.y, epochs=8, size=32, lr=0.1, momentum=0.9
    )


_CASE = runs.Case(
    exercise,
    setup="""x, kind = runs.shapes(480)
kept = (kind < 2) | (torch.arange(480) % 30 == 2)
x, y = x[kept], (kind[kept] == 2).float()""",
    call="model, losses = repair_dead_relus(x, y, seed)",
    train=_healthy,
    held=lambda model: _loss(model(_HELD[0]), _HELD[1]),
    room=2.2,
)


@exercise.check
def alive(repair_dead_relus):
    """Most units of each ReLU are above 0 for some image, and all layers get a gradient

    A ReLU has a slope of 0 below 0. A unit that is below 0 for all images returns 0 for all of them, and no
    gradient comes back through it: its weights have nothing to learn from. When a whole layer is like this,
    what comes behind it no longer depends on the image.
    """
    t = _CASE.treated(repair_dead_relus)
    for forward in t.run.trained:
        relus = [layer.output for layer in forward.layers if isinstance(layer.module, nn.ReLU)]
        for number, output in enumerate(relus, 1):
            above = (output > 0).flatten(1).any(0)
            told = f"after {forward.step} steps {int(above.sum())} of {len(above)} units of ReLU {number}"
            told += " are above 0 for any image of the batch"
            expect.true(2 * int(above.sum()) >= len(above), told, "expected: half of them at least")
    for name, norms in t.run.grad_norms.items():
        for step, norm in enumerate(norms[1:], 1):  # a last layer of zeros passes none in the first step
            expect.true(
                norm > 0, f"at step {step} the gradient of layer `{name}` is 0", "expected: it learns"
            )


@exercise.check
def first_scores(repair_dead_relus):
    """Before the first step the scores are near -3 on the average

    A bias of the last layer is added to the scores, and to nothing else. With -3 there the first answer is a
    probability of 0.05, and the first loss is small where nearly all images are of the common kind.
    """
    firsts = [_CASE.treated(repair_dead_relus, seed).run.trained[0] for seed in runs.SEEDS]
    mean = float(torch.stack([forward.output.mean() for forward in firsts]).mean())
    told = f"in the first batch, for three seeds, the scores have a mean of {mean:.3g}"
    expect.true(-4 <= mean <= -2, told, "expected: between -4 and -2")


@exercise.check
def what_stays(repair_dead_relus):
    """The layers, the loss, the optimizer and the steps stay, and all parameters are trained

    A leaky ReLU or a normalization gets a gradient through such biases. They are cures for other networks:
    here nothing is wrong with the layers, but with what they start from. Nor is it the loss: a weight for the
    rare kind makes the scores of all images higher, and -3 is a start, which training may leave.
    """
    _CASE.stays(repair_dead_relus)
    t = _CASE.treated(repair_dead_relus)
    held = {id(p) for step in t.run.steps for group in step.optimizer.param_groups for p in group["params"]}
    for name, p in t.model.named_parameters():
        expect.true(id(p) in held, f"`{name}` is in no group of the optimizer", "expected: it trains")
        expect.true(p.requires_grad, f"`{name}` does not require a gradient", "expected: it trains")
    for forward, loss in zip(t.run.trained, t.run.losses, strict=True):
        wanted = _loss(forward.output, t.y[runs.rows_of(forward, t.x)]).item()
        expect.equal(loss, wanted, what=f"the loss of step {forward.step}", rtol=1e-4, atol=1e-6)


@exercise.check
def learns(repair_dead_relus):
    """After training the model is as good as a healthy run's, with three seeds

    With dead layers one number is left to learn, the last bias. It finds the share of the rare kind, and the
    loss of a model that knows no more than this is 0.19.
    """
    _CASE.in_band(repair_dead_relus)
