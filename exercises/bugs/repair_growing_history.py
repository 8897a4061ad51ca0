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
from course_utils.exercise.kits import training_runs

exercise = Exercise(
    minutes=5,
    core=True,
    hints=[
        "Print `losses[0].grad_fn` and `val_losses[0].grad_fn`. What does a loss lead to?",
        "A graph keeps what was saved for backward until `backward()` frees it. For which loss is it called?",
        "A number has no graph: take it out of each loss with `item`. And validation needs no graph at all.",
    ],
)


@exercise.starter
def repair_growing_history(
    x: Tensor, y: Tensor, x_val: Tensor, y_val: Tensor, seed: int
) -> tuple[nn.Module, list[float], list[float]]:
    """Data to train and to validate -> the model, losses, validation losses"""
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


_CASE = training_runs.Case(
    exercise,
    setup="x, y = training_runs.shapes(192)\nx_val, y_val = training_runs.shapes(180, seed=1)",
    call="model, losses, val_losses = {name}(x, y, x_val, y_val, seed)",
    short=("192", "424"),  # more than a hundred steps: all of them are returned
)


@exercise.check
def bytes_held(repair_growing_history):
    """After the run its model and its gradients are held, and nothing of the size of a batch

    A loss refers to its graph, and the graph to what was saved for backward: activations of the layers.
    `backward` frees those. A validation loss with a graph keeps them, since nobody calls backward on it.
    """
    t = _CASE.given(repair_growing_history)
    held = measure.live_bytes(t.run, _CASE.call).held
    most = 3 * sum(p.numel() * p.element_size() for p in t.model.parameters()) + 2048
    expect.at_most(held, most, "held after the run, parameters and gradients included", unit="bytes")


@exercise.check
def graphs_gone(repair_growing_history):
    """No graph outlives its step

    By default `backward` frees what a graph has saved, and not the graph: its nodes live as long as something
    refers to them. A list of losses keeps one graph for each step, and a sum of losses links them into one.
    """
    _CASE.treated(repair_growing_history).few_graphs(during=2, after=2)


@exercise.check
def what_stays(repair_growing_history):
    """Network, data, training and validation stay, and `val_losses` holds numbers

    `item` gives the value of a loss as a Python number. On a GPU Python waits for it; where that costs too
    much, `detach` gives a tensor without a graph, and the numbers are taken out later.
    """
    t = _CASE.stays(repair_growing_history)
    wanted = [F.cross_entropy(output, t.y_val).item() for output in t.validated(180, in_order=False)]
    expect.equal(t.val_losses, wanted, what="`val_losses`", rtol=1e-4)


_CASE.learns("What is kept has no effect on what is learned. This one was healthy before, and stays so.")
