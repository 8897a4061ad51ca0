"""Repair: a loss that becomes NaN

The function below trains a network on photos. Between its two layers the features of each photo are brought
to a mean of 0 and a std of 1. One photo was taken with the cover on: it's all zeros, and so are its features,
which the code keeps from being divided by 0. In the first epoch the loss becomes NaN. Mend it where the NaN
is born.

- Features of a dark photo stay zeros; those of others, even if faint, get a mean of 0 and a std of 1, to 1%.
- All photos train. Layers, loss, optimizer with its settings, batches, steps and what the seed decides stay.

`repair_nan_loss(x, y, seed=0)` → `model`, `[1.20, 1.14, …]`: `x` is `(n, 1, 8, 8)`.
"""

import re
import warnings

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_utils import measure
from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import training_runs

exercise = Exercise(
    minutes=6,
    hints=[
        "What is NaN first: a loss, a gradient or a weight? Print the three at each step.",
        "Run it in `torch.autograd.detect_anomaly()`. Which line made the node that it names? Compute by "
        "hand what this node sends back for features that are all 0.",
        "`where` picks a value, and backward goes through the other branch too. So choose earlier: let the "
        "root and the division get a number that is safe, such as 1, wherever the variance is 0.",
    ],
)


@exercise.starter
def repair_nan_loss(x: Tensor, y: Tensor, seed: int) -> tuple[nn.Module, list[float]]:
    """(n, 1, 8, 8), (n,) -> the model, the loss of each step"""

    class Scaled(nn.Module):
        def forward(self, h):
            h = h - h.mean(dim=1, keepdim=True)
            std = h.square().mean(dim=1, keepdim=True).sqrt()
            return torch.where(std == 0, 0.0, h / std)

    torch.manual_seed(seed)
    first = nn.Linear(64, 32, bias=False)
    model = nn.Sequential(nn.Flatten(), first, Scaled(), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(8):
        for batch in torch.randperm(len(x)).split(32):
            loss = F.cross_entropy(model(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return model, losses


class _Scaled(nn.Module):
    def forward(self, h):
        return F.layer_norm(h, h.shape[1:], eps=1e-10)


def _network(t):
    layers = nn.Linear(64, 32, bias=False), _Scaled(), nn.ReLU(), nn.Linear(32, 3)
    return nn.Sequential(nn.Flatten(), *layers)


_SAID = {
    (32, 64): "first layer's weight",
    (3, 32): "last layer's weight",
    (3,): "last layer's bias",
}
_COMPARED = 12  # steps: two epochs, each with the dark photo in one of its batches
_CASE = training_runs.Case(
    exercise,
    setup="x, y = training_runs.shapes(192)\nx[100] = 0\nx[101] /= 12",
    train=training_runs.healthy(_network),
)


@exercise.check
def no_nan_inside(repair_nan_loss):
    """NaN is born neither in a forward nor in a backward

    `where` gives the branch that isn't taken a gradient of 0, and backward goes on through it: 0 times the
    slope there. The slope of a root, or of a division by 0, is infinite at 0, and 0 times infinity is NaN.
    What comes later can hide a NaN, with everything that was added to it; a sum with NaN in it is lost. In a
    forward 0 / 0 is NaN, and NaN times 0 as well.
    """
    t = _CASE.treated(repair_nan_loss)
    for number, (loss, step) in enumerate(zip(t.run.losses, t.run.steps, strict=False)):
        told = f"the loss of step {number} is NaN, and no gradient before it"
        expect.true(loss == loss, told, "expected: a number")
        if any(norm != norm for norm in step.norms.values()):
            break
    try:
        with warnings.catch_warnings(action="ignore"), torch.autograd.set_detect_anomaly(True):
            _CASE.treated(repair_nan_loss)
    except RuntimeError as error:
        if not (found := re.search(r"Function '(\w+)' returned nan values", str(error))):
            raise
        told = f"in a backward the node `{found[1]}` returns NaN"
        raise expect.Mismatch(told, "expected: numbers from every node, in all steps") from None


@exercise.check
def what_stays(repair_nan_loss):
    """All photos train, and the loss, the layers, the batches, the optimizer and the steps stay

    To leave out the photo heals this data set, until the next dark one comes. A batch that is skipped, or a
    gradient that is cleared for one photo, costs the others in it their part. A dark photo has a loss like
    any other, and the bias of the last layer learns from it. A weight that scales the features changes their
    std.
    """
    t = _CASE.stays(repair_nan_loss, but=("LayerNorm",), start=("weights", "rows"), gradients=False)
    held = len(list(t.model.parameters()))
    expect.equal(held, len(_SAID), what="the number of parameters of the returned model")
    for forward, rows, loss in t.batches():
        if forward.output.isfinite().all():
            wanted = F.cross_entropy(forward.output, t.y[rows]).item()
            what = f"the loss of step {forward.step}, the mean over {len(rows)} photos,"
            expect.equal(loss, wanted, what=what, rtol=1e-4, atol=1e-6)


@exercise.check
def features(repair_nan_loss):
    """Features of a dark photo are zeros, all others have a mean of 0 and a std of 1

    How much a number below the root changes a std depends on the std: of a bright photo hardly, of a faint
    one a lot. The std of the code to mend divides by the number of features; `torch.std` divides by one less,
    unless it gets `correction=0`. A dark photo may come in use as well.
    """
    t = _CASE.treated(repair_nan_loss)
    after = measure.record_run(t.model.eval(), t.x).forwards[-1]
    for forward in [*t.run.trained, after]:
        first, relu = (
            next(layer for layer in forward.layers if isinstance(layer.module, kind))
            for kind in (nn.Linear, nn.ReLU)
        )
        came = first.output.double()
        std, mean = torch.std_mean(came, dim=1, correction=0, keepdim=True)
        wanted = ((came - mean) / std.where(std > 0, 1)).float()
        which = "after training" if forward is after else f"at step {forward.step}"
        told = f"{which} the first layer returns NaN"
        expect.true(came.isfinite().all().item(), told, "expected: numbers")
        expect.equal(relu.input, wanted, what=f"what the ReLU gets {which}", rtol=1e-2, atol=3e-3)


@exercise.check
def right_gradient(repair_nan_loss):
    """Each step finds the gradient of its loss, through the features, their mean and their std

    Mean and std depend on the weights as the features do, so both belong in the graph, whatever else is in
    the batch. A gradient that is clipped or cleaned after backward is not that of the loss any more.
    """
    came, wanted = _CASE.treated(repair_nan_loss).run.steps, _CASE.healthy().steps
    for number in range(min(len(came), _COMPARED)):
        norms = [
            {tuple(p.shape): step.norms[id(p)] or 0.0 for p in step.parameters}
            for step in (came[number], wanted[number])
        ]
        for shape, name in _SAID.items():
            what = f"the norm of the gradient of the {name} at step {number}"
            expect.equal(norms[0].get(shape, 0.0), norms[1][shape], what=what, rtol=3e-3, atol=1e-4)


_CASE.learns("One photo in 192 was enough: its NaN was added to the gradient of every weight of a layer.")
