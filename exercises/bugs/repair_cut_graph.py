"""Repair: a layer that never changes

The function below trains a network to tell three shapes apart. Between its two halves the features are
brought to length 1, by a helper from an older project. The loss falls a little, and stays above 0.9; the
first linear layer ends with the weights that it began with. Elsewhere the same network goes below 0.4 in as
many steps. Mend it.

- The features still have length 1. The layers, the optimizer with its settings, the batches, the number of
  steps and what the seed decides stay.
- The function returns the model and the loss of each step, as a Python number.

`repair_cut_graph(x, y, seed=0)` → `model`, `[1.10, 1.09, …]`: images `x` are `(n, 1, 8, 8)`, classes `y` are
`(n,)`.
"""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import training_runs

exercise = Exercise(
    minutes=4,
    hints=[
        "Print the `grad` of `model.body[1].weight`, and `features.grad_fn` before and after the helper.",
        "A NumPy array has no graph. Whatever comes back from one is a new leaf, and backward ends there.",
        "Compute the length with operators of torch, such as `features.norm(dim=1, keepdim=True)`, without "
        "`detach`, `.data`, `.numpy()` or `torch.tensor(…)` on the way.",
    ],
)


@exercise.starter
def repair_cut_graph(x: Tensor, y: Tensor, seed: int) -> tuple[nn.Module, list[float]]:
    """(n, 1, 8, 8), (n,) -> the model, the loss of each step"""

    def unit_length(features):
        array = features.detach().numpy()
        return torch.tensor(array / np.linalg.norm(array, axis=1, keepdims=True))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh())
            self.head = nn.Linear(8, 3)

        def forward(self, x):
            return self.head(unit_length(self.body(x)))

    torch.manual_seed(seed)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    losses = []
    for _ in range(8):
        for batch in torch.randperm(len(x)).split(32):
            loss = F.cross_entropy(model(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return model, losses


class _Unit(nn.Module):
    def forward(self, features):
        return F.normalize(features, dim=1)


def _network(t):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), _Unit(), nn.Linear(8, 3))


_CASE = training_runs.Case(
    exercise,
    setup="x, y = training_runs.shapes(192, noise=0.15)",
    train=training_runs.healthy(_network, kind=torch.optim.Adam, lr=0.05),
    held=training_runs.on_held(training_runs.shapes(300, seed=100, noise=0.15)),
)


@exercise.check
def connected(repair_cut_graph):
    """At each step every parameter gets a gradient

    Here torch's operators leave a node behind them. NumPy, `.data`, `.detach()`,
    `.item()` and `torch.tensor(…)` leave none, and backward ends there. A layer may keep its output for
    backward: don't write to it.
    """
    _CASE.treated(repair_cut_graph).own_gradients()


@exercise.check
def what_stays(repair_cut_graph):
    """The features have length 1; the layers, the batches, the optimizer and the steps stay

    The features of each image are divided by their own length, over `dim=1`, in training and afterwards.
    """
    forwards = _CASE.treated(repair_cut_graph).run.trained
    for layer in (layer for forward in forwards for layer in forward.layers):
        if isinstance(layer.module, nn.Linear) and layer.module.in_features == 8:
            length = layer.input.norm(dim=1)
            told = f"the head gets features with lengths between {length.min():.3g} and {length.max():.3g}"
            expect.true(length.allclose(torch.ones(1)), told, "expected: 1, the features of each image")
    _CASE.stays(repair_cut_graph, gradients=False)


@exercise.check
def right_gradient(repair_cut_graph):
    """The gradient is that of the features and of their length

    The length depends on the weights too: it belongs into the graph like the features themselves.
    """
    _CASE.first_gradients(repair_cut_graph)


_CASE.learns(
    "A head on features that were drawn at random learns something all the same: that is why the loss falls."
)
