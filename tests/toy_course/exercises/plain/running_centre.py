"""A module that remembers an average

Write a module that takes the mean out of its input, feature by feature. In training it subtracts the
mean of the batch, and moves its buffer `mean` towards it: `mean = (1 - momentum) * mean + momentum * batch`.
In evaluation it subtracts the buffer, and leaves it alone. The buffer starts at zero, belongs to
`state_dict()`, and follows the module to another dtype or device.

`RunningCentre(2)(torch.tensor([[1.0, 2.0], [3.0, 6.0]]))` → `[[-1, -2], [1, 2]]`
"""

import torch
from torch import Tensor, nn

from course_utils import expect
from course_utils.exercise import Exercise

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


def _batches(count=3):
    return [torch.randn(4 + i, 3) + torch.tensor([1.0, -2.0, 5.0]) for i in range(count)]


@exercise.check
def training(RunningCentre):
    """In training the mean of the batch is taken out"""
    x = torch.tensor([[1.0, 2.0], [3.0, 6.0]])
    t = expect.given("centre = RunningCentre(2)", RunningCentre=RunningCentre, x=x)
    expect.equal(t.call("centre(x)"), torch.tensor([[-1.0, -2.0], [1.0, 2.0]]))


@exercise.check
def average(RunningCentre):
    """The average moves as that of `nn.BatchNorm1d` does"""
    centre, oracle = RunningCentre(3, momentum=0.3), nn.BatchNorm1d(3, momentum=0.3)
    with expect.situation("centre = RunningCentre(3, momentum=0.3)", "for x in batches: centre(x)"):
        for x in _batches():
            centre(x)
            oracle(x)
            expect.equal(centre.mean, oracle.running_mean, what="`centre.mean`")


@exercise.check
def default_momentum(RunningCentre):
    """A momentum that is not given is 0.1"""
    t = expect.given("centre = RunningCentre(1)", RunningCentre=RunningCentre)
    t.call("centre(torch.tensor([[4.0], [6.0]]))")
    expect.equal(t.centre.mean, torch.tensor([0.5]), what="`centre.mean`")


@exercise.check
def evaluation(RunningCentre):
    """In evaluation the average is taken out, and stays as it is"""
    centre = RunningCentre(3, momentum=0.5)
    for x in _batches():
        centre(x)
    centre.eval()
    before = centre.mean.detach().clone()
    x = torch.randn(2, 3)
    with expect.situation("centre.eval()", "centre(x)"):
        expect.equal(centre(x).detach(), x - before)
        expect.equal(centre.mean.detach(), before, what="`centre.mean`")


@exercise.check
def belongs_to_the_module(RunningCentre):
    """The average is saved, and moves with the module"""
    t = expect.given("centre = RunningCentre(3).double()", RunningCentre=RunningCentre)
    expect.equal(sorted(t.call("centre.state_dict()")), ["mean"], what="`sorted(centre.state_dict())`")
    expect.equal(t.centre.mean, torch.zeros(3, dtype=torch.float64), what="`centre.mean`")
    expect.equal(len(list(t.centre.parameters())), 0, what="the number of parameters")


@exercise.check
def no_graph(RunningCentre):
    """The average keeps no graph alive"""
    centre = RunningCentre(3)
    with expect.situation("centre(x)", "x.requires_grad is True"):
        centre(torch.randn(4, 3, requires_grad=True))
        message = "`centre.mean` requires a gradient", "expected: it is a plain record"
        expect.true(not centre.mean.requires_grad, *message)


@exercise.check
def gradient(RunningCentre):
    """In training the gradient goes through the mean of the batch"""
    x = torch.randn(4, 2, requires_grad=True)
    weights = torch.randn(4, 2)
    with expect.situation("(centre(x) * weights).sum().backward()"):
        (RunningCentre(2)(x) * weights).sum().backward()
        expect.equal(x.grad, weights - weights.mean(0), what="`x.grad`")


@exercise.mistake
class PlainAttribute(nn.Module):
    """`self.mean = torch.zeros(...)` is an attribute and no more: the module neither saves it nor moves it.
    `register_buffer` makes it the module's own."""

    def __init__(self, features, momentum=0.1):
        super().__init__()
        self.momentum = momentum
        self.mean = torch.zeros(features)

    def forward(self, x):
        if not self.training:
            return x - self.mean
        mean = x.mean(0)
        self.mean = (1 - self.momentum) * self.mean + self.momentum * mean.detach()
        return x - mean


@PlainAttribute.variant
class KeptInAttribute(nn.Module):
    def __init__(self, features, momentum=0.1):
        super().__init__()
        self.rate = momentum
        setattr(self, "mean", torch.tensor([0.0] * features))  # noqa: B010

    def forward(self, x):
        centre = self.mean
        if self.training:
            centre = x.sum(0) / len(x)
            with torch.no_grad():
                self.mean.add_(self.rate * (centre - self.mean))
        return x - centre


@exercise.mistake
class MomentumOfTheOld(nn.Module):
    """Momentum is the share of the *new* batch here, as in `nn.BatchNorm1d`. You gave it to the old
    average."""

    def __init__(self, features, momentum=0.1):
        super().__init__()
        self.momentum = momentum
        self.register_buffer("mean", torch.zeros(features))

    def forward(self, x):
        if not self.training:
            return x - self.mean
        mean = x.mean(0)
        self.mean = self.momentum * self.mean + (1 - self.momentum) * mean.detach()
        return x - mean


@MomentumOfTheOld.variant
class LerpsTheOtherWay(nn.Module):
    def __init__(self, features, momentum=0.1):
        super().__init__()
        self.keep = momentum
        self.register_buffer("mean", torch.zeros(features))

    def forward(self, x):
        mean = x.mean(0) if self.training else self.mean
        if self.training:
            with torch.no_grad():
                self.mean.lerp_(mean, 1 - self.keep)
        return x - mean


@exercise.mistake
class MovesInEvaluation(nn.Module):
    """Your average also moves in evaluation: what a model answers would depend on what it was asked
    before."""

    def __init__(self, features, momentum=0.1):
        super().__init__()
        self.momentum = momentum
        self.register_buffer("mean", torch.zeros(features))

    def forward(self, x):
        old, mean = self.mean, x.mean(0)
        self.mean = (1 - self.momentum) * old + self.momentum * mean.detach()
        return x - (mean if self.training else old)


@exercise.mistake
class KeepsTheGraph(nn.Module):
    """The average is computed with a graph, so every batch ever seen stays in memory behind it."""

    def __init__(self, features, momentum=0.1):
        super().__init__()
        self.momentum = momentum
        self.register_buffer("mean", torch.zeros(features))

    def forward(self, x):
        if not self.training:
            return x - self.mean
        mean = x.mean(0)
        self.mean = (1 - self.momentum) * self.mean + self.momentum * mean
        return x - mean


@exercise.mistake
class ConstantMean(nn.Module):
    """The mean of the batch depends on every row, so part of each row's gradient goes through it. You cut it
    off."""

    def __init__(self, features, momentum=0.1):
        super().__init__()
        self.momentum = momentum
        self.register_buffer("mean", torch.zeros(features))

    def forward(self, x):
        mean = x.detach().mean(0) if self.training else self.mean
        if self.training:
            self.mean.lerp_(mean, self.momentum)
        return x - mean


@ConstantMean.variant
class MeanWithoutGrad(nn.Module):
    def __init__(self, features, momentum=0.1):
        super().__init__()
        self.momentum = momentum
        self.register_buffer("mean", torch.zeros(features))

    @torch.no_grad()
    def update(self, mean):
        self.mean.mul_(1 - self.momentum).add_(mean, alpha=self.momentum)

    def forward(self, x):
        if not self.training:
            return x - self.mean
        with torch.no_grad():
            mean = x.mean(dim=0, keepdim=True)
        self.update(mean[0])
        return x - mean
