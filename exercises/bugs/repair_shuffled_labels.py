"""Repair: a network that guesses

The function below trains a network to tell three shapes apart. The loss stays at 1.1, which is what guessing
among three classes costs, and on new images it is no better. Gradients arrive at every layer, and no rate
or size helps. With the same data a colleague has 0.2 on new images. Mend it.

- The data stays in random order: each epoch goes over all images in a new one.
- The layers, the optimizer with its settings, the size of the batches and the number of steps stay.
- The function returns the model and the loss of each step, as a Python number.

`repair_shuffled_labels(x, y, seed=0)` → `model`, `[1.11, 1.15, …]`: `x` is `(n, 1, 8, 8)`, `y` is `(n,)`.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import runs

exercise = Exercise(
    minutes=3,
    hints=[
        "Look at one batch: draw three of its images and print their classes. Do they belong together?",
        "How often does an epoch draw a random order, and for what?",
        "Draw one permutation for each epoch, and index images and classes with it.",
    ],
)


@exercise.starter
def repair_shuffled_labels(x: Tensor, y: Tensor, seed: int) -> tuple[nn.Module, list[float]]:
    """(n, 1, 8, 8), (n,) -> the model, the loss of each step"""

    def shuffled(data):
        return data[torch.randperm(len(data))]

    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(8):
        images, classes = shuffled(x), shuffled(y)
        for batch in torch.arange(len(x)).split(32):
            loss = F.cross_entropy(model(images[batch]), classes[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return model, losses


_HELD = runs.shapes(300, seed=100)


def _healthy(t, seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 3))
    return runs.trained(model, F.cross_entropy, t.x, t.y, epochs=8, size=32, lr=0.1, momentum=0.9)


_CASE = runs.Case(
    exercise,
    setup="x, y = runs.shapes(192)",
    call="model, losses = repair_shuffled_labels(x, y, seed)",
    train=_healthy,
    held=lambda model: F.cross_entropy(model(_HELD[0]), _HELD[1]),
)


@exercise.check
def pairs(repair_shuffled_labels):
    """Each image is trained with its own class

    `randperm` gives another order at every call. Nothing in a tensor says which row of another one belongs
    to its own, so two orders for images and classes raise no error: the shapes fit.
    """
    t = _CASE.treated(repair_shuffled_labels)
    for forward, loss in zip(t.run.trained, t.run.losses, strict=False):
        wanted = F.cross_entropy(forward.output, t.y[runs.rows_of(forward, t.x)]).item()
        what = f"the loss of step {forward.step}, with each image's own class,"
        expect.equal(loss, wanted, what=what, rtol=1e-4, atol=1e-5)


@exercise.check
def random_order(repair_shuffled_labels):
    """Each epoch goes over all images once, in a new random order

    In a fixed order each batch is the same in every epoch, and so is its error: the mean of 32 images is not
    the mean of all. New batches let these errors cancel out.
    """
    t = _CASE.treated(repair_shuffled_labels)
    rows = torch.cat([runs.rows_of(forward, t.x) for forward in t.run.trained])
    expect.equal(len(rows), 8 * len(t.x), what="the number of images in the run")
    epochs = rows.view(8, -1)
    for number, epoch in enumerate(epochs):
        expect.equal(len(epoch.unique()), len(t.x), what=f"the number of different images in epoch {number}")
        before = torch.arange(len(t.x)) if number == 0 else epochs[number - 1]
        batches, others = ({frozenset(b.tolist()) for b in e.split(32)} for e in (epoch, before))
        known = "the data" if number == 0 else "the last one"
        told = f"epoch {number} has a batch of the same images as {known}"
        expect.true(not batches & others, told, "expected: all images in a new random order")


@exercise.check
def what_stays(repair_shuffled_labels):
    """The network, the optimizer and the number of steps stay

    No size and no rate can learn what isn't in the data.
    """
    _CASE.stays(repair_shuffled_labels)


@exercise.check
def learns(repair_shuffled_labels):
    """After training the model is as good as a healthy run's, with three seeds

    With classes dealt out at random there is no rule to learn. In the same order every time they would be
    learned by heart; in a new one at each epoch not even that.
    """
    _CASE.in_band(repair_shuffled_labels)
