"""Find the loss that compares all with all

A loss of predictions `(N, 1)` and targets `(N,)` may be broadcast to `(N, N)`: every prediction meets every
target. Look for one that stays the same, but for rounding, with the targets in another order along
dimension 0, whatever the predictions are.

Return `["(8, 1) against (8,)"]`, with the shapes of `model(x)` and `y`, if `loss_fn` is such a loss for these
shapes, and `[]` if the order matters, all targets are equal, or `model(x)` is no tensor. A loss may be as
small as 1e-24.

- Judge the loss, not this model's predictions. `loss_fn` takes every prediction between
  the least and the greatest target.
- Model, batch `(x, y)` and random state stay as they were.

`((out - y) ** 2).mean()` with those shapes is such a loss.
"""

from torch import nn

from course_utils.exercise import Exercise
from course_utils.exercise.kits import bugs, numbers
from course_utils.exercise.kits.numbers import SEEDS

exercise = Exercise(
    minutes=12,
    hints=[
        "Shapes alone do not tell, since a loss may squeeze. Try it with the targets in another order.",
        "Which order is another one for certain? And which predictions would hide a difference? Equal ones, "
        "or all of them below all targets, do so for some good losses.",
        "In `torch.random.fork_rng()`, draw predictions of that shape, uniformly between `y.min()` and "
        "`y.max()`. Are the losses for `y` and `y.roll(1, 0)` closer than 1e-5 times their size?",
    ],
)


@exercise.starter
def find_broadcast_loss(model: nn.Module, batch, loss_fn) -> list[str]:
    """The shapes of prediction and target, if each prediction meets every target"""
    raise NotImplementedError


_NAME, _HEAD, _COLUMN = "find_broadcast_loss", "self.head = nn.Linear(4, 1)", "torch.randn(6, 1)"
_OWN = "lambda out, y: ((out[:, 0] - y) ** 2).mean()"


def _loss(loss="lambda out, y: ((out - y) ** 2).mean()", y="torch.randn(6)", out="self.head(x)", init=_HEAD):
    return bugs.net(init, f"return {out}", y=y, loss=loss)


@exercise.check
def broadcast(find_broadcast_loss):
    """`(N, 1)` against `(N,)` is found, whichever side has the 1

    Broadcasting aligns shapes from the right: `(6, 1)` and `(6,)` give `(6, 6)`. `F.mse_loss` and `F.l1_loss`
    warn of it; an expression of your own does not. The terms are the same in any order of the targets; the
    last digits of their sum may differ, and `==` sees that.
    """
    plain = {
        "squares, by hand": _loss(),
        "a sum, and a penalty": _loss("lambda out, y: (out - y).abs().sum() + out.pow(2).sum()"),
        "classes as numbers": _loss(y="torch.arange(6) % 3"),
        "zeros and ones by turns": _loss(y="torch.arange(6.) % 2"),
    }
    plain["large targets"] = _loss(y=numbers.hard("6", "large numbers")["large numbers"])
    three = _loss(y="torch.randn(6, 3)", out="x[:, None, :3]")
    models = {label: (code, ["(6, 1) against (6,)"]) for label, code in plain.items()} | {
        "a flat prediction": (_loss(y=_COLUMN, out="self.head(x)[:, 0]"), ["(6,) against (6, 1)"]),
        "three numbers each": (three, ["(6, 1, 3) against (6, 3)"]),
        "one prediction for all": (_loss(out="self.head(x).mean()"), ["() against (6,)"]),
    }
    bugs.examine(_NAME, find_broadcast_loss, models, SEEDS)


@exercise.check
def shapes(find_broadcast_loss):
    """It keeps quiet where the shapes differ and each prediction meets its own target

    For class indices `cross_entropy` wants one dimension more in the prediction than in the targets, and a
    loss may make its shapes fit itself. Which element meets which is decided inside the loss, and not by the
    shapes outside.
    """
    weighted = "nn.CrossEntropyLoss(torch.tensor([1., 2., 3.]))"
    codes = {
        "both `(N, 1)`": _loss(y=_COLUMN),
        "cross-entropy with weights": _loss(weighted, "torch.arange(6) % 3", "x[:, :3]"),
        "a loss that squeezes": _loss("lambda out, y: F.mse_loss(out.squeeze(1), y)"),
    }
    bugs.quiet(_NAME, find_broadcast_loss, codes, SEEDS)


@exercise.check
def values(find_broadcast_loss):
    """It keeps quiet where these predictions or this order happen to hide the difference

    Equal predictions, or all below the targets, can hide the order: draw them from where the targets lie. An
    order that leaves the targets as they are hides it too: `flip` of 0, 1, 1, 0, or a random one with luck.
    So can predictions on an even grid. Where all targets are equal, no order tells.
    """
    soft, chances = "torch.linspace(0.4, 0.9, 6)[:, None]", "self.head(x).sigmoid()"
    far = "lambda out, y: (out[:, 0] - y).abs().mean()"
    codes = {
        "a head of zeros": _loss(_OWN, init=f"{_HEAD}\nnn.init.zeros_(self.head.weight)"),
        "whole targets far above": _loss(far, "torch.arange(6) + 50"),
        "chances, soft targets": _loss("F.binary_cross_entropy", soft, chances),
        "the same from both ends": _loss(_OWN, "torch.tensor([0., 1., 2., 2., 1., 0.])"),
        "zeros and ones by turns": _loss(_OWN, "torch.arange(6.) % 2"),
        "one target that differs": _loss(_OWN, "torch.tensor([0., 0., 0., 0., 0., 1.])"),
        "two examples": _loss(_OWN, "torch.tensor([0., 1.])", "self.head(x)[:2]"),
        "a large offset": _loss(f"{_OWN} + 100"),
        "targets that are equal": _loss(_OWN, "torch.ones(6)"),
        "rows that are equal": _loss(y="torch.arange(3.).expand(6, 3)", out="x[:, :3]"),
        "one example": _loss(_OWN, "torch.ones(1)", "self.head(x[:1])"),
        "a dict": _loss("lambda out, y: ((out['y'] - y) ** 2).mean()", _COLUMN, "{'y': self.head(x)}"),
    }
    bugs.quiet(_NAME, find_broadcast_loss, codes, SEEDS)


@exercise.check
def any_size(find_broadcast_loss):
    """It keeps quiet where a good loss is tiny, or the targets lie close together

    `torch.allclose` allows 1e-8 beside 1e-5 times the size: losses of 1e-12 are all the same to it. Rounding
    is relative to what is rounded: ask with `atol=0`. Predictions have the dtype that the model gives them.
    """
    double = "1 + 1e-12 * torch.arange(6).double()\nmodel.double()\nbatch = batch[0].double(), batch[1]"
    hard = numbers.hard("6", "a tiny scale", "a large mean", "one giant")
    codes = {label: _loss(_OWN, code) for label, code in hard.items()} | {
        "a loss scaled down": _loss("lambda out, y: 1e-12 * F.mse_loss(out, y)", _COLUMN),
        "float64, targets 1e-12 apart": _loss(_OWN, double),
    }
    bugs.quiet(_NAME, find_broadcast_loss, codes, SEEDS)


@exercise.check
def on_purpose(find_broadcast_loss):
    """It keeps quiet where all pairs are compared on purpose

    A contrastive loss compares each example with all others, and so does a loss about differences between
    examples. Both know which target belongs to which prediction.
    """
    contrast = "lambda out, y: F.cross_entropy(out @ y.T, torch.arange(6))"
    codes = {
        "a contrastive loss": _loss(contrast, "torch.randn(6, 4)", "x @ self.head.weight.T * x"),
        "differences of all pairs": _loss("lambda out, y: ((out - out.T - (y[:, None] - y)) ** 2).mean()"),
    }
    bugs.quiet(_NAME, find_broadcast_loss, codes, SEEDS)


@exercise.check(cases=bugs.LIVELY)
def left_alone(t):
    """After looking, all is as it was

    The shape of the prediction comes from a call, which moves running statistics in training mode and draws
    for dropout. New predictions are drawn from the same generator.
    """
    bugs.left_alone(t, _NAME)
