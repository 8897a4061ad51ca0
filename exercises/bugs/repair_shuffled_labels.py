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
from course_utils.exercise.kits import training_runs

exercise = Exercise(
    minutes=3,
    hints=[
        "Look at one batch: draw three of its images and print their classes. Do they belong together?",
        "How often does an epoch draw a random order, and for what?",
        "Draw one permutation for each epoch, and index images and classes with it.",
    ],
)


@exercise.starter
def repair_shuffled_labels(
    x: Tensor, y: Tensor, seed: int
) -> tuple[nn.Module, list[float]]:
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


_CASE = training_runs.Case(exercise)


@exercise.check
def pairs(repair_shuffled_labels):
    """Each image is trained with its own class

    `randperm` draws anew at every call. Two orders for images and classes raise no error: the
    shapes fit. Expected is the mean of the cross-entropies of each image and its own class.
    """
    _CASE.treated(repair_shuffled_labels).own_losses()


@exercise.check
def random_order(repair_shuffled_labels):
    """Each epoch goes over all images once, in a new random order

    In a fixed order the same 32 images share a batch in every epoch. `randperm` draws new batches, and each
    image is in one of them.
    """
    t = _CASE.treated(repair_shuffled_labels)
    rows = torch.cat([rows for _, rows, _ in t.batches()])
    expect.equal(len(rows), 8 * len(t.x), what="the number of images in the run")
    before, known = torch.arange(len(t.x)), "the data"
    for number, epoch in enumerate(rows.view(8, -1)):
        expect.equal(len(epoch.unique()), len(t.x), what=f"the number of different images in epoch {number}")
        batches, others = ({frozenset(b.tolist()) for b in e.split(32)} for e in (epoch, before))
        told = f"epoch {number} has a batch of the same images as {known}"
        expect.true(not batches & others, told, "expected: all images in a new random order")
        before, known = epoch, "the last one"


@exercise.check
def what_stays(repair_shuffled_labels):
    """The network, the size of the batches, the optimizer and the steps stay

    With these pairs a larger network, or another rate, guesses as well.
    """
    _CASE.stays(repair_shuffled_labels, start=["weights"])


_CASE.learns(
    "With classes dealt out at random, anew at each epoch, there is nothing to learn, not even by heart."
)
