"""Repair: a run that needs more memory with every epoch

The function below trains a classifier and writes down, after each epoch, what it predicts for a second set of
images. From six epochs and 180 images it returns 13,000 bytes of predictions; beside them 174,000 bytes stay
in memory as long as the result does. With more of both, memory runs out. Mend it.

- The predictions after each epoch are returned, as one tensor of probabilities.
- They are made in evaluation mode, in batches of 30. When a batch begins, at most three graphs of earlier
  ones exist, and none at the end.
- The layers, the optimizer with its settings, the batches and the number of steps stay.

`repair_hoarded_predictions(x, y, x_val, seed=0)` → `model`, `[1.12, 1.05, …]`, `(6, n_val, 3)` numbers.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import runs

exercise = Exercise(
    minutes=3,
    hints=[
        "Print one of the predictions. What stands behind its numbers?",
        "A result with a `grad_fn` keeps the graph that made it, and the graph keeps the activations of each "
        "layer until a backward frees them. Which of these forwards are ever followed by a backward?",
        "Where no backward comes, no graph is needed: `torch.no_grad()` builds none. Mind where the block "
        "ends; the next epoch trains.",
    ],
)


@exercise.starter
def repair_hoarded_predictions(
    x: Tensor, y: Tensor, x_val: Tensor, seed: int
) -> tuple[nn.Module, list[float], Tensor]:
    """Images and classes, images to predict -> the model, losses, probabilities after each epoch"""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses, predictions = [], []
    for _ in range(6):
        model.train()
        for batch in torch.randperm(len(x)).split(32):
            loss = F.cross_entropy(model(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        model.eval()
        predicted = [model(images).softmax(dim=1) for images in x_val.split(30)]
        predictions.append(torch.cat(predicted))
    return model, losses, torch.stack(predictions)


_HELD = runs.shapes(300, seed=100)


def _healthy(t, seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 3))
    return runs.trained(model, F.cross_entropy, t.x, t.y, epochs=6, size=32, lr=0.1, momentum=0.9)


_CASE = runs.Case(
    exercise,
    setup="x, y = runs.shapes(192)\nx_val, y_val = runs.shapes(180, seed=1)",
    call="model, losses, predictions = repair_hoarded_predictions(x, y, x_val, seed)",
    train=_healthy,
    held=lambda model: F.cross_entropy(model(_HELD[0]), _HELD[1]),
)


@exercise.check
def few_graphs(repair_hoarded_predictions):
    """Graphs of earlier batches are gone when the next ones come

    A tensor with a `grad_fn` keeps its whole graph, and the graph keeps the activations that its backward
    would need. Backward frees them; without one they stay as long as the tensor does. Evaluation mode has no
    say in this. `clone`, `cat` and `cpu` lead to the same graph; `detach` and `no_grad` don't.
    """
    graphs = _CASE.treated(repair_hoarded_predictions).run.graphs
    for number, alive in enumerate(graphs[:-1]):
        told = f"when call {number} of the model begins, {alive} graphs of earlier calls still exist"
        expect.true(alive <= 3, told, "expected: at most 3")
    told = f"{graphs[-1]} graphs still exist when the function has returned"
    expect.true(graphs[-1] == 0, told, "expected: none")


@exercise.check
def predictions_kept(repair_hoarded_predictions):
    """The predictions after each epoch are returned, as they were

    What is wanted are the numbers: they outlive the graph. Nobody will ask them for a gradient.
    """
    t = _CASE.treated(repair_hoarded_predictions)
    wanted = []
    for step in range(6, 37, 6):
        made = [f for f in t.run.evaluated if f.step == step]
        rows = [runs.rows_of(f, t.x_val, "x_val") for f in made]
        what = f"the batches that are predicted after step {step}"
        expect.equal([len(r) for r in rows], [30] * 6, what=what)
        expect.equal(torch.cat(rows), torch.arange(180), what="the order of the images")
        wanted.append(torch.cat([f.output.softmax(1) for f in made]))
    came = expect.a_tensor(t.predictions, what="`predictions`")
    expect.equal(came.detach(), torch.stack(wanted), what="`predictions`", rtol=1e-4, atol=1e-5)
    expect.true(not came.requires_grad, "`predictions` require a gradient", "expected: numbers alone")


@exercise.check
def what_stays(repair_hoarded_predictions):
    """The layers, the modes, the optimizer and the steps stay

    Training needs its graphs: one batch at a time, from the forward to the backward. What is switched off for
    a prediction is switched on again for the next epoch.
    """
    _CASE.stays(repair_hoarded_predictions)
    run = _CASE.treated(repair_hoarded_predictions).run
    for forward in run.trained + run.evaluated:
        when, mode = ("trains", "training") if forward.trained else ("predicts", "evaluation")
        for layer, training in runs.modes(forward).items():
            told = f"{layer} is in the wrong mode when the model {when}, after {forward.step} steps"
            expect.true(training == forward.trained, told, f"expected: in {mode} mode")


@exercise.check
def learns(repair_hoarded_predictions):
    """After training the model is as good as a healthy run's, with three seeds

    The graphs that were kept did no harm to the model: they cost memory, and time to free it.
    """
    _CASE.in_band(repair_hoarded_predictions)
