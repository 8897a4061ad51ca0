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
from course_utils.exercise.kits import runs

exercise = Exercise(
    minutes=4,
    core=True,
    hints=[
        "Print the model, and the names of its parameters. What is missing?",
        "A module registers a parameter or a module when it is assigned to an attribute. What is assigned "
        "to `self.blocks`?",
        "There is a container of torch's that holds modules in order and can be looped over like a list. "
        "Put the blocks into one.",
    ],
)


@exercise.starter
def repair_list_of_layers(x: Tensor, y: Tensor, seed: int) -> tuple[nn.Module, list[float]]:
    """(n, 1, 8, 8), (n,) -> the model, the loss of each step"""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU())
            self.blocks = [nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(4)]
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


_HELD = runs.shapes(300, seed=100)


def _healthy(t, seed):
    torch.manual_seed(seed)
    first = nn.Linear(64, 32), nn.ReLU()
    blocks = [layer for _ in range(4) for layer in (nn.Linear(32, 32), nn.Tanh())]
    model = nn.Sequential(nn.Flatten(), *first, *blocks, nn.Linear(32, 3))
    return runs.trained(model, F.cross_entropy, t.x, t.y, torch.optim.Adam, epochs=8, size=32, lr=0.005)


_CASE = runs.Case(
    exercise,
    setup="x, y = runs.shapes(192)",
    call="model, losses = repair_list_of_layers(x, y, seed)",
    train=_healthy,
    held=lambda model: F.cross_entropy(model(_HELD[0]), _HELD[1]),
)


@exercise.check
def registered(repair_list_of_layers):
    """Each layer that runs in training is known to the model, saved and trained

    A module registers the parameters and modules that are assigned to it. A Python list is neither, so
    what is inside runs and gets gradients, but `parameters()`, `state_dict()`, `to()` and `eval()` don't
    reach it. An optimizer keeps the parameters that it was given when it was made.
    """
    t = _CASE.treated(repair_list_of_layers)
    names = runs.names_of(t.model)
    registered = "expected: all layers that run are registered"
    saved = {value.data_ptr() for value in t.model.state_dict().values()}
    for number, layer in enumerate(t.run.trained[0].layers if t.run.trained else ()):
        for name, parameter in layer.module.named_parameters():
            which = f"the {name} of layer {number}, {runs.said(layer.module)},"
            expect.true(id(parameter) in names, f"{which} is not in `model.parameters()`", registered)
            expect.true(parameter.data_ptr() in saved, f"{which} is not in `model.state_dict()`", registered)
            for step, seen in enumerate(t.run.steps):
                told = f"at step {step} the optimizer does not hold {which.rstrip(',')}"
                expect.true(id(parameter) in seen.norms, told, "expected: it was given all parameters")
                told = f"at step {step} there is no gradient for {which.rstrip(',')}"
                expect.true(bool(seen.norms[id(parameter)]), told, "expected: all layers are trained")


@exercise.check
def what_stays(repair_list_of_layers):
    """The layers, their first weights, the optimizer and the number of steps stay

    Without the blocks the rest is trained in full, and is another network. So is one that runs a block four
    times. A layer draws its weights when it is made: with the same seed, layers that are made in another
    order have other weights.
    """
    _CASE.stays(repair_list_of_layers, but=("Flatten",))
    run, sick = _CASE.treated(repair_list_of_layers).run.trained[0], _CASE.sick().trained[0]
    parts = [[x for x in f.layers if not isinstance(x.module, nn.Flatten)] for f in (run, sick)]
    counts = [len({id(p) for x in part for p in x.module.parameters()}) for part in parts]
    expect.equal(*counts, what="the number of parameters (weights and biases) of the layers that run")
    told = "the first batch holds other images than in the sick run with the same seed"
    expect.true(run.input.equal(sick.input), told, "expected: the same order")
    for came, wanted in zip(*parts, strict=True):
        told = f"a {runs.said(came.module)} begins with other weights than in the sick run with the same seed"
        same = torch.allclose(came.output, wanted.output, atol=1e-5)
        expect.true(same, told, "expected: the same, from layers that are made in the same order")


@exercise.check
def learns(repair_list_of_layers):
    """After training the model is as good as a healthy run's, with three seeds

    Layers that nobody trains pass on a random mixture of what comes in. The layers around them do what they
    can with it.
    """
    _CASE.in_band(repair_list_of_layers)
