"""Repair: a deep network that learns like a shallow one

The function below trains a network with four hidden blocks. The loss stays above 0.8, where a network
without the blocks does better. Whoever loads the saved `state_dict` into a new network of this class gets
other predictions. Mend it, so that the whole network is trained, and saved by `state_dict`.

- The layers, the optimizer with its settings, the batches, the number of steps and what the seed decides
  (the first weights, the order of the data) stay.
- The function returns the model and the loss of each step, as a Python number.

`repair_list_of_layers(x, y, seed=0)` → `model`, `[1.09, 1.06, …]`: images `x` are `(n, 1, 8, 8)`, classes
`y` are `(n,)`.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import kept, training_runs

exercise = Exercise(
    minutes=4,
    core=True,
    hints=[
        "Print the model, and the names of its parameters. What is missing?",
        "A module registers a module that is assigned to an attribute. What is assigned to `self.blocks`?",
        "There is a container of torch's that holds modules and can be looped over. Put the blocks into one.",
    ],
)


@exercise.starter
def repair_list_of_layers(
    x: Tensor, y: Tensor, seed: int
) -> tuple[nn.Module, list[float]]:
    """(n, 1, 8, 8), (n,) -> the model, the loss of each step"""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU())
            self.blocks = []
            for _ in range(4):
                self.blocks.append(nn.Sequential(nn.Linear(32, 32), nn.Tanh()))
            self.last = nn.Linear(32, 3)

        def forward(self, x):
            x = self.first(x)
            for block in self.blocks:
                x = block(x)
            return self.last(x)

    torch.manual_seed(seed)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    losses = []
    for _ in range(8):
        for batch in torch.randperm(len(x)).split(32):
            loss = F.cross_entropy(model(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return model, losses


def _network(t):
    first = nn.Linear(64, 32)
    blocks = [layer for _ in range(4) for layer in (nn.Linear(32, 32), nn.Tanh())]
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), *blocks, nn.Linear(32, 3))


_CASE = training_runs.Case(exercise, train=training_runs.healthy(_network, kind=torch.optim.Adam, lr=0.005))


@exercise.check
def registered(repair_list_of_layers):
    """Each layer that runs in training is known to the model, saved and trained

    A module registers the parameters and modules assigned to it. A list is neither: what it alone holds
    runs, and `parameters()` and `state_dict()` miss it.
    """
    t = _CASE.treated(repair_list_of_layers)
    names, saved = kept.names_of(t.model), {v.data_ptr() for v in t.model.state_dict().values()}
    for number, layer in enumerate(t.run.trained[0].layers if t.run.trained else ()):
        for name, p in layer.module.named_parameters():
            which = f"the {name} of layer {number}, {kept.said(layer.module)}"
            for place, there in (("parameters", id(p) in names), ("state_dict", p.data_ptr() in saved)):
                told = f"{which}, is not in `model.{place}()`"
                expect.true(there, told, "expected: all layers that run are registered")
            for step, seen in enumerate(t.run.steps):
                told = f"at step {step} the optimizer does not hold {which}"
                expect.true(id(p) in seen.norms, told, "expected: it holds all parameters")
                told = f"at step {step} the gradient of {which}, is None or zeros"
                expect.true(bool(seen.norms[id(p)]), told, "expected: that of the batch's loss")


@exercise.check
def what_stays(repair_list_of_layers):
    """The layers, their first weights, the batches, the optimizer and the steps stay

    Without the blocks, with one four times, or with sums around them, it is another network. Layers draw
    weights as they are made.
    """
    names = kept.names_of(_CASE.treated(repair_list_of_layers).model)
    expect.equal(len(names), 12, what="the number of parameters")
    _CASE.stays(repair_list_of_layers, but=("Flatten",))


_CASE.learns(
    "Layers that nobody trains pass on a random mixture, and those around them do what they can with it."
)
