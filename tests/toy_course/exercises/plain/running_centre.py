"""A module that remembers an average

Write a module that takes the mean out of its input, feature by feature. In training it subtracts the
mean of the batch, and moves its buffer `mean` towards it: `mean = (1 - momentum) * mean + momentum * batch`.
In evaluation it subtracts the buffer, and leaves it alone. The buffer starts at zero, belongs to
`state_dict()`, and follows the module to another dtype or device.

`RunningCentre(2)(torch.tensor([[1.0, 2.0], [3.0, 6.0]]))` → `[[-1, -2], [1, 2]]`
"""

import torch
from torch import Tensor, nn

from course_utils.exercise import Exercise, expect

exercise = Exercise(
    minutes=10,
    hints=[
        "`self.training` says in which mode a module is. Who sets it?",
        "A module finds its buffers by what `register_buffer` and `__setattr__` noted down.",
        "The average is a record of what was seen. Should a gradient flow into it?",
    ],
)


@exercise.starter
class RunningCentre(nn.Module):
    """(batch, features) -> (batch, features)"""

    def __init__(self, features: int, momentum: float = 0.1):
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        raise NotImplementedError


_BATCHES = "batches = [torch.randn(4 + i, 3) + torch.tensor([1.0, -2.0, 5.0]) for i in range(3)]"


@exercise.check
def training(RunningCentre):
    """In training the mean of the batch is taken out

    `self.training` is True until `eval()` is called.
    """
    setup = "centre = RunningCentre(2)\nx = torch.tensor([[1.0, 2.0], [3.0, 6.0]])"
    t = expect.given(setup, RunningCentre=RunningCentre)
    expect.equal(t.call("centre(x)"), torch.tensor([[-1.0, -2.0], [1.0, 2.0]]))


@exercise.check
def average(RunningCentre):
    """The average moves as that of `nn.BatchNorm1d` does

    It goes a share of `momentum` of the way to the mean of the batch.
    """
    setup = f"{_BATCHES}\ncentre = RunningCentre(3, momentum=0.3)\nfor x in batches:\n    centre(x)"
    t, oracle = expect.given(setup, RunningCentre=RunningCentre), nn.BatchNorm1d(3, momentum=0.3)
    for x in t.batches:
        oracle(x)
    expect.equal(t.centre.mean, oracle.running_mean, what="`centre.mean`")


@exercise.check
def default_momentum(RunningCentre):
    """A momentum that is not given is 0.1

    A default stands in the signature.
    """
    t = expect.given("centre = RunningCentre(1)", RunningCentre=RunningCentre)
    t.call("centre(torch.tensor([[4.0], [6.0]]))")
    expect.equal(t.centre.mean, torch.tensor([0.5]), what="`centre.mean`")


@exercise.check
def evaluation(RunningCentre):
    """In evaluation the average is taken out, and stays as it is

    What is seen in evaluation is not to be learnt from.
    """
    setup = f"{_BATCHES}\ncentre = RunningCentre(3, momentum=0.5)\nfor x in batches:\n    centre(x)"
    t = expect.given(f"{setup}\ncentre.eval()\nx = torch.randn(2, 3)", RunningCentre=RunningCentre)
    before = t.centre.mean.detach().clone()
    expect.equal(t.call("centre(x)").detach(), t.x - before)
    expect.equal(t.centre.mean.detach(), before, what="`centre.mean`")


@exercise.check
def belongs_to_the_module(RunningCentre):
    """The average is saved, and moves with the module

    A module finds a buffer by `register_buffer`; a plain tensor stays where it is.
    """
    t = expect.given("centre = RunningCentre(3).double()", RunningCentre=RunningCentre)
    expect.equal(sorted(t.call("centre.state_dict()")), ["mean"], what="`sorted(centre.state_dict())`")
    expect.equal(t.centre.mean, torch.zeros(3, dtype=torch.float64), what="`centre.mean`")
    expect.equal(len(list(t.centre.parameters())), 0, what="the number of parameters")


@exercise.check
def no_graph(RunningCentre):
    """The average keeps no graph alive

    A record of a tensor with a graph keeps the whole graph.
    """
    t = expect.given("centre = RunningCentre(3)", RunningCentre=RunningCentre)
    t.call("centre(torch.randn(4, 3, requires_grad=True))")
    message = "`centre.mean` requires a gradient", "expected: it is a plain record"
    expect.true(not t.centre.mean.requires_grad, *message)


@exercise.check
def gradient(RunningCentre):
    """In training the gradient goes through the mean of the batch

    The mean of the batch is a function of the batch.
    """
    setup = "x = torch.randn(4, 2, requires_grad=True)\nweights = torch.randn(4, 2)"
    t = expect.given(setup, RunningCentre=RunningCentre)
    t.run("(RunningCentre(2)(x) * weights).sum().backward()")
    expect.equal(t.x.grad, t.weights - t.weights.mean(0), what="`x.grad`")
