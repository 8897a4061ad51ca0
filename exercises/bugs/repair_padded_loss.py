"""Repair: the same sentences, and a lower loss in wider rows

The function below trains a model to predict the next word. Sentences of 2 to 12 words stand in rows, with
zeros behind the last word. In rows of 12 the loss falls to 0.6, in rows of 40 to 0.25. Yet on new sentences
both models have a loss of 0.7 per word, and a colleague's has 0.5. Mend it, so that the width of the rows
makes no difference.

- The loss of a step is a mean over the words to predict; each counts the same.
- The layers, the optimizer with its settings, the batches of whole rows and the number of steps stay.

`repair_padded_loss(rows, seed=0)` → `model`, `[2.17, 2.07, …]`: `rows` is `(n, width)`, words are 1 to 8.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import kept, training_runs

exercise = Exercise(
    minutes=4,
    hints=[
        "Print `rows[0]`, and what the model is to predict at each of its places. How many are words?",
        "A zero after a zero is easy to predict: such places lower the mean, and the gradient of the others.",
        "`cross_entropy` can leave out targets of a certain value: look at its arguments.",
    ],
)


@exercise.starter
def repair_padded_loss(rows: Tensor, seed: int) -> tuple[nn.Module, list[float]]:
    """(n, width) -> the model, the loss of each step"""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Embedding(9, 16),
        nn.Linear(16, 32),
        nn.ReLU(),
        nn.Linear(32, 9),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(5):
        for batch in torch.randperm(len(rows)).split(16):
            words, following = rows[batch, :-1], rows[batch, 1:]
            scores = model(words)
            loss = F.cross_entropy(scores.flatten(0, 1), following.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return model, losses


_HELD = training_runs.sentences(300, seed=100)[0]


def _of_words(scores, following):
    """The mean over the words to predict"""
    words = following > 0
    return -scores.log_softmax(-1).gather(-1, following[..., None])[..., 0][words].sum() / words.sum()


def _healthy(t, seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Embedding(9, 16), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 9))
    return training_runs.trained(model, _of_words, t.rows[:, :-1], t.rows[:, 1:], epochs=5, size=16)


_CASE = training_runs.Case(
    exercise,
    setup="rows, lengths = training_runs.sentences(96)\nrows = F.pad(rows, (0, 28))",
    call="model, losses = {name}(rows, seed)",
    train=_healthy,
    held=training_runs.on_held((_HELD[:, :-1], _HELD[:, 1:]), _of_words),
    room=1.2,
    short=("96", "100"),
)


@exercise.check
def mean_over_words(repair_padded_loss):
    """The loss of each step is the mean over the words to predict

    For the loss each zero is a target like any other, until it is told. All places count whose target is a
    word, the next one in its row. The sum is divided by the number of these places, not by all places, nor by
    the sentences. The mean of the rows' means gives a word of a short sentence more weight.
    """
    t = _CASE.treated(repair_padded_loss)
    words, following = t.rows[:, :-1], t.rows[:, 1:]
    for forward, loss in zip(t.run.trained, t.run.losses, strict=False):
        targets = following[kept.rows_of(forward, words, "rows[:, :-1]")]
        wanted = _of_words(forward.output, targets).item()
        each, is_word = F.cross_entropy(forward.output.mT, targets, reduction="none"), targets > 0
        like = {
            "the mean over all places": each.mean(),
            "the mean over the places whose input is a word": each[forward.input > 0].mean(),
            "the sum over the words, divided by all places": (each * is_word).mean(),
            "the sum over the words, not their mean": (each * is_word).sum(),
            "the mean of the means of the rows": ((each * is_word).sum(1) / is_word.sum(1)).mean(),
        }
        what = f"the loss of step {forward.step}"
        expect.equal(torch.tensor(loss), torch.tensor(wanted), what=what, rtol=1e-5, atol=1e-5, like=like)


@exercise.check
def any_width(repair_padded_loss):
    """In rows of 12 and of 40 columns the same sentences give the same losses

    How wide a batch is depends on its longest sentence, which should not change the gradient of a word.
    """
    wide = _CASE.treated(repair_padded_loss).run.losses
    t = _CASE.treated(repair_padded_loss, setup="rows, lengths = training_runs.sentences(96)")
    for step, (came, wanted) in enumerate(zip(t.run.losses, wide, strict=False)):
        told = f"the loss of step {step} is {came:.4g} in rows of 12, and {wanted:.4g} in rows of 40"
        expect.true(abs(came - wanted) < 1e-3 * wanted, told, "expected: the same")


@exercise.check
def what_stays(repair_padded_loss):
    """The layers, the data and its batches, the optimizer and the steps stay

    A higher rate makes up for a divided gradient at one share of zeros, and is too high at another.
    """
    _CASE.stays(repair_padded_loss, loss=False)


_CASE.learns(
    "Where five of six targets are zeros, the gradient of the words is a sixth of what it is without them."
)
