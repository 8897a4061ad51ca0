"""Repair: predictions that take too much memory

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
from course_utils.exercise.kits import training_runs

exercise = Exercise(
    minutes=3,
    hints=[
        "Print one of the predictions. What stands behind its numbers?",
        "A graph keeps the activations of all layers until a backward frees them. Which forwards have one?",
        "Where no backward comes, `torch.no_grad()` builds no graph. The next epoch trains again.",
    ],
)


@exercise.starter
def repair_hoarded_predictions(
    x: Tensor, y: Tensor, x_val: Tensor, seed: int
) -> tuple[nn.Module, list[float], Tensor]:
    """Images, classes, images to predict -> model, losses, probabilities by epoch"""
    torch.manual_seed(seed)
    body = [nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.2)]
    model = nn.Sequential(*body, nn.Linear(32, 3))
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


def _network(t):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 3))


_CASE = training_runs.Case(
    exercise,
    setup="x, y = training_runs.shapes(192)\nx_val, y_val = training_runs.shapes(180, seed=1)",
    call="model, losses, predictions = {name}(x, y, x_val, seed)",
    train=training_runs.healthy(_network, epochs=6),
)


@exercise.check
def few_graphs(repair_hoarded_predictions):
    """Graphs of earlier batches are gone when the next ones come

    A tensor with a `grad_fn` keeps its whole graph, with the activations that backward would need and free.
    Evaluation mode builds graphs too, and `cat` leads to the graphs of what it joins.
    """
    _CASE.treated(repair_hoarded_predictions).few_graphs(during=3, after=0)


@exercise.check
def predictions_kept(repair_hoarded_predictions):
    """The predictions after each epoch are returned, as they were

    Softmax of the scores of each image, as numbers: nobody will ask them for a gradient. The last batch may
    be shorter. A tensor that is written to again in each epoch holds the last one's numbers.
    """
    t = _CASE.treated(repair_hoarded_predictions, setup=_CASE.setup.replace("180", "175"))
    wanted = torch.stack([output.softmax(1) for output in t.validated(30)])
    came = expect.a_tensor(t.predictions, what="`predictions`")
    expect.equal(came.detach(), wanted, what="`predictions`", rtol=1e-4, atol=1e-5)
    expect.true(not came.requires_grad, "`predictions` require a gradient", "expected: numbers alone")


@exercise.check
def what_stays(repair_hoarded_predictions):
    """The layers, the modes, the batches, the optimizer and the steps stay

    Training needs its graphs. What is switched off for a prediction is switched on for the next epoch.
    """
    _CASE.stays(repair_hoarded_predictions).modes()


_CASE.learns("The graphs that were kept did no harm to the model: they cost memory, and time to free it.")
