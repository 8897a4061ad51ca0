"""Repair: a second head that spoils the first

A backbone and its first head tell three shapes apart. The function below trains a second head on the same
frozen backbone, for a camera with twice the contrast. The second head does well. But on images of its own
camera the first had a loss of 0.4, and has 2.6 now. No parameter of the backbone has changed. Mend it, so
that the first head works as before.

- The second head trains with norm and dropout, on the features that the backbone gives in use. Each step
  calls `model` on a batch.
- The layers, the optimizer with its settings, the batches and the number of steps stay.

`repair_thawed_batch_norm(backbone, x, y, seed=0)` → `model`, `[1.22, 1.26, …]`, the losses as Python numbers.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import kept, training_runs

exercise = Exercise(
    minutes=4,
    hints=[
        "A module has more than parameters: compare the backbone's `state_dict()` before and after the run.",
        "What writes to `running_mean`: the optimizer, backward or the forward? What decides if it does?",
        "The forward does, in training mode, and `train()` of a model switches all modules below it.",
    ],
)


@exercise.starter
def repair_thawed_batch_norm(backbone: nn.Module, x: Tensor, y: Tensor, seed: int):
    """A trained backbone, (n, 1, 8, 8), (n,) -> it with a new head, the losses"""
    torch.manual_seed(seed)
    backbone.requires_grad_(False)
    hidden = [nn.Linear(32, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5)]
    model = nn.Sequential(backbone, *hidden, nn.Linear(16, 3))
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(6):
        for batch in torch.randperm(len(x)).split(32):
            loss = F.cross_entropy(model(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return model, losses


_X, _Y = training_runs.shapes(300, seed=100)


def _network(t):
    hidden = nn.Linear(32, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5)
    return nn.Sequential(t.backbone.requires_grad_(False), *hidden, nn.Linear(16, 3))


_CASE = training_runs.Case(
    exercise,
    setup="""torch.manual_seed(seed)
backbone = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU())
first = nn.Sequential(backbone, nn.Linear(32, 3))
training_runs.trained(first, F.cross_entropy, *training_runs.shapes(192), epochs=4)
backbone.eval()
x, y = training_runs.shapes(192, seed=1)
x = 2 * x""",
    call="model, losses = {name}(backbone, x, y, seed)",
    train=training_runs.healthy(_network, epochs=6),
    held=training_runs.on_held((2 * _X, _Y)),
    room=2,
)


@exercise.check
def as_it_was(repair_thawed_batch_norm):
    """After the run the backbone is what it was, its buffers included

    In training mode this batch norm moves its running mean and variance towards those of each batch. They
    are buffers, written by the forward: `requires_grad_(False)` and `no_grad` don't stop that.
    """
    before = _CASE.given(None).backbone.state_dict()
    after = _CASE.treated(repair_thawed_batch_norm).backbone.state_dict()
    expect.equal(list(after), list(before), what="the names in the backbone's `state_dict()`")
    for name, value in before.items():
        expect.equal(after[name], value, what=f"`{name}` of the backbone", rtol=0.0, atol=0.0)


@exercise.check
def modes(repair_thawed_batch_norm):
    """The backbone runs in evaluation mode, the new head trains in training mode

    In training mode batch norm normalizes with the statistics of the batch at hand. Even with buffers that
    are put back later, the head would learn from features that the backbone doesn't give in use. The new head
    has a norm with statistics to learn.
    """
    t = _CASE.treated(repair_thawed_batch_norm)
    for forward in t.run.trained:
        for layer, training in kept.modes(forward).items():
            whose, mode = ("backbone", "evaluation") if "(32)" in layer else ("head", "training")
            told = f"at step {forward.step}, {layer} of the {whose} isn't in {mode} mode"
            expect.true(training == (whose == "head"), told, f"expected: in {mode} mode")


@exercise.check
def what_stays(repair_thawed_batch_norm):
    """The layers, the batches, the optimizer and the steps stay

    Without the norm in the backbone nothing moves, and the first head gets features that it has never seen.
    """
    _CASE.stays(repair_thawed_batch_norm, start=["weights", "rows"]).own_losses()


_CASE.learns(
    "Moved statistics may suit the new data as well. The price is paid by the first head.",
    "the second head is",
)
