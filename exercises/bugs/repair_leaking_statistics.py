"""Repair: a validation that is too good

The function below trains a classifier and validates it after each epoch, on images of a new camera: how will
the model do on a camera that it has never met? It reports a loss of 0.56. A model that was trained before
anybody had the new images has 0.61 on them. And with another validation set, but the same images, classes and
seed, another model comes out. Mend it.

- All images are normalized with one mean and one std before `model` gets them.
- The layers, the optimizer with its settings, the batches and the number of steps stay, and so does the
  validation, on all of `x_val` at once.

`repair_leaking_statistics(x, y, x_val, y_val, seed=0)` → `model`, 48 losses, 8 validation losses.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import kept, training_runs

exercise = Exercise(
    minutes=3,
    hints=[
        "Which lines use `x_val` before the validation begins?",
        "What could be known of the images when the model was trained, and what was known later?",
        "Compute the mean and the std from `x` alone, and use the same two numbers for `x_val`.",
    ],
)


@exercise.starter
def repair_leaking_statistics(
    x: Tensor, y: Tensor, x_val: Tensor, y_val: Tensor, seed: int
):
    """Data to train and to validate -> the model, losses, validation losses"""
    torch.manual_seed(seed)
    images = torch.cat([x, x_val])
    images = (images - images.mean()) / images.std()
    x, x_val = images[: len(x)], images[len(x) :]
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses, val_losses = [], []
    for _ in range(8):
        for batch in torch.randperm(len(x)).split(32):
            loss = F.cross_entropy(model(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        with torch.no_grad():
            val_losses.append(F.cross_entropy(model(x_val), y_val).item())
    return model, losses, val_losses


def _normalized(t, images):
    return (images - t.x.mean()) / t.x.std()


def _healthy(t, seed):
    torch.manual_seed(seed)
    return training_runs.trained(training_runs.small(t), F.cross_entropy, _normalized(t, t.x), t.y)


_X, _Y = training_runs.shapes(300, seed=100)
_MEAN, _STD = training_runs.shapes(192)[0].mean(), training_runs.shapes(192)[0].std()
_CASE = training_runs.Case(
    exercise,
    setup="""x, y = training_runs.shapes(192)
x_val, y_val = training_runs.shapes(180, seed=1)
x, x_val = 60 * x + 90, 60 * x_val + 94""",
    call="model, losses, val_losses = {name}(x, y, x_val, y_val, seed)",
    train=_healthy,
    held=training_runs.on_held(((_X - _MEAN) / _STD, _Y)),
    scaled=True,
)


@exercise.check
def blind(repair_leaking_statistics):
    """Training knows nothing of the validation set

    A validation set stands for data that nobody has seen. A mean or a std that is taken from it tells the
    model how those images are lit. No class leaks that way, and the loss is too good all the same. It leaks
    too where validation losses say when to stop or which weights to return, and where random numbers that the
    validation draws change the order of the next epoch.
    """
    t = _CASE.treated(repair_leaking_statistics)
    setup = f"{_CASE.setup}\nx_val = 3 * x_val[:60]\ny_val = (y_val[:60] + 1) % 3"
    other = _CASE.treated(repair_leaking_statistics, setup=setup)
    here, same = "with this validation set", "expected: the same with any"
    for step, (came, was) in enumerate(zip(other.run.losses, t.run.losses, strict=False)):
        told = f"{here} the loss of step {step} is {came:.4g}, with another {was:.4g}"
        expect.true(abs(came - was) < 1e-5, told, same)
    steps, others = (len(one.run.steps) for one in (other, t))
    expect.true(steps == others, f"{here} the run has {steps} steps, with another {others}", same)
    end, another = (_CASE.loss(one.model) for one in (other, t))
    told = f"{here} the returned model has a loss of {end:.4g} on held data, with another {another:.4g}"
    expect.true(abs(end - another) < 1e-4 * another, f"{told}, after the same steps", same)


@exercise.check
def same_numbers(repair_leaking_statistics):
    """All images are normalized with the mean and the std of the training images

    One mean and one std of all training images as they came serve both sets: they are fitted, like weights.
    With a mean of its own, a set of brighter images looks like any other.
    """
    t = _CASE.treated(repair_leaking_statistics)
    both = torch.cat([t.x, t.x_val])
    for forward in t.run.trained + t.run.evaluated:
        name = "x" if forward.trained else "x_val"
        what = f"the batch of step {forward.step}" if forward.trained else ""
        what = what or f"the input of the validation after step {forward.step}"
        rows, alike = kept.nearest(forward, getattr(t, name), name)
        told = f"{what} has rows that are no images of `{name}`, with one mean and one std for all pixels"
        expect.true(bool((alike > 0.999).all()), told, f"expected: images of `{name}`, normalized")
        raw = getattr(t, name)[rows].flatten(1)
        like = {
            "what its images were before": raw,
            "what the statistics of the validation set give": (raw - t.x_val.mean()) / t.x_val.std(),
            "what the statistics of both sets give": (raw - both.mean()) / both.std(),
            "what the statistics of the batch alone give": (raw - raw.mean()) / raw.std(),
        }
        wanted = _normalized(t, raw)
        expect.equal(forward.input.flatten(1), wanted, what=what, rtol=1e-3, atol=1e-3, like=like)


@exercise.check
def what_stays(repair_leaking_statistics):
    """The network, the data, the training and the validation stay

    A validation loss that gets worse is no fault of the repair: it was wrong before.
    """
    t = _CASE.stays(repair_leaking_statistics, start=["weights", "rows"])
    t.own_losses()
    expect.true(not any(f.graph for f in t.run.evaluated), "the validation records a graph", "expected: none")
    wanted = [F.cross_entropy(out, t.y_val).item() for out in t.validated(180, in_order=False)]
    expect.equal(t.val_losses, wanted, what="`val_losses`", rtol=1e-4)


_CASE.learns("Measured on images of the camera that it was trained for, normalized as in training.")
