"""Repair: a run that needs more memory with every epoch

The function below trains as it should, and its curves look right. But the process grows with every step, and
more with every validation: on the real data it's killed after some hours. Mend it, so that a run of a
thousand epochs holds no more than a run of ten, beside the numbers in its two lists.

- The layers, the optimizer with its settings, the batches and the number of steps stay. So does validation
  after each epoch, on all of `x_val` at once.
- Return the model, the loss of each step, and the validation loss of each epoch, as Python numbers.

`repair_growing_history(x, y, x_val, y_val, seed=0)` → `model`, `[1.09, 1.12, …]`, `[1.03, …]`
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_utils import measure
from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import runs

exercise = Exercise(
    minutes=5,
    core=True,
    hints=[
        "Print `losses[0].grad_fn` and `val_losses[0].grad_fn`. What does a loss lead to?",
        "A tensor keeps its graph alive, and the graph keeps what was saved for backward. `backward()` frees "
        "what was saved. For which of the two losses is it called?",
        "A number has no graph: take it out of each loss with `item` before you store it. And validation "
        "needs no graph in the first place.",
    ],
)


@exercise.starter
def repair_growing_history(
    x: Tensor, y: Tensor, x_val: Tensor, y_val: Tensor, seed: int
) -> tuple[nn.Module, list[float], list[float]]:
    """Images and classes, to train and to validate -> the model, losses, validation losses"""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 32),
        nn.ReLU(),
        nn.Linear(32, 3),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses, val_losses = [], []
    for _ in range(8):
        for batch in torch.randperm(len(x)).split(32):
            loss = F.cross_entropy(model(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss)
        val_losses.append(F.cross_entropy(model(x_val), y_val))
    return model, losses, val_losses


_HELD = runs.shapes(300, seed=100)


def _healthy(t, seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 3))
    return runs.trained(model, F.cross_entropy, t.x, t.y, epochs=8, size=32, lr=0.1, momentum=0.9)


_CASE = runs.Case(
    exercise,
    setup="x, y = runs.shapes(192)\nx_val, y_val = runs.shapes(180, seed=1)",
    call="model, losses, val_losses = repair_growing_history(x, y, x_val, y_val, seed)",
    train=_healthy,
    held=lambda model: F.cross_entropy(model(_HELD[0]), _HELD[1]),
)


@exercise.check
def bytes_held(repair_growing_history):
    """After the run its model and its gradients are held, and nothing of the size of a batch

    A loss refers to its graph, and the graph to what was saved for backward: the activations of all layers.
    `backward` frees those. A validation loss that is stored with its graph keeps them, since nobody calls
    backward on it.
    """
    t = _CASE.given(repair_growing_history)
    held = measure.live_bytes(t.run, _CASE.call).held
    model = sum(p.numel() * p.element_size() for p in t.model.parameters())
    expect.at_most(
        held, 3 * model + 2048, "held after the run, parameters and gradients included", unit="bytes"
    )


@exercise.check
def graphs_gone(repair_growing_history):
    """No graph outlives its step

    `backward` frees what a graph has saved, and not the graph: its nodes live as long as a tensor refers to
    them. They are small. A list of losses keeps one graph for each step, and a sum of losses links all of
    them into one.
    """
    *begins, returned = _CASE.treated(repair_growing_history).run.graphs
    moments = [f"when forward {number} of the model begins" for number in range(len(begins))]
    for when, alive in zip([*moments, "when the function has returned"], [*begins, returned], strict=True):
        told = f"{when}, the graphs of {alive} earlier forwards still exist"
        expect.true(alive <= 2, told, "expected: at most 2, of the last losses")


@exercise.check
def what_stays(repair_growing_history):
    """The network, the training and the validation stay, and the lists hold numbers

    Validation after each epoch shows when a run stops getting better, and needs no graph. `item` gives the
    value of a loss as a Python number. On a GPU Python waits for that number; where that costs too much,
    `detach` gives a tensor without a graph, and the numbers are taken out later.
    """
    _CASE.stays(repair_growing_history)
    t = _CASE.treated(repair_growing_history)
    steps = [forward.step for forward in t.run.evaluated]
    expect.equal(len(steps), 8, what="the number of validation forwards in 8 epochs")
    expect.equal(steps, list(range(6, 49, 6)), what="the list of steps after which the model was validated")
    for forward in t.run.evaluated:
        rows = runs.rows_of(forward, t.x_val, "x_val")
        expect.equal(len(rows), len(t.x_val), what="the number of images in a validation")
    wanted = [F.cross_entropy(f.output, t.y_val).item() for f in t.run.evaluated]
    expect.equal(t.val_losses, wanted, what="`val_losses`", rtol=1e-4)


@exercise.check
def learns(repair_growing_history):
    """After training the model is as good as a healthy run's, with three seeds

    What is kept has no effect on what is learned. This one was healthy before, and stays so.
    """
    _CASE.in_band(repair_growing_history)
