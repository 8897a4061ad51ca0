"""Bytes saved for backward, with autocast and without

The model: `nn.Linear` layers from `widths[0]` to `widths[-1]`, and one activation between any two of them,
`"relu"` or `"gelu"`. Its parameters are float32, `x` and `y` are float32 data, and `x` has `batch` rows.

    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        loss = F.mse_loss(model(x), y)

Return the number of bytes that the graph keeps for backward. Each storage counts once. Parameters don't
count; `x` and `y` do if they are kept.

Work it out from the numbers: no operator of torch's may run.

`amp_saves((5, 3), 2, "relu", False)` → 88, which is 40 for `x`, 24 for the output and 24 for `y`
"""

import functools
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F

from course_utils import measure
from course_utils.exercise import Exercise, Table, Trait, expect
from course_utils.exercise.compare import kind_of, own_value
from course_utils.exercise.kits.amp import OFF_BY

exercise = Exercise(
    minutes=15,
    hints=[
        "Build such a model and print `measure.saved_bytes(forward)`, with autocast and without: there is a "
        "line for each saved tensor. Which lines say `again`?",
        "A layer saves its input for the gradient of its weight. ReLU needs its result, GELU its input. "
        "Under autocast all of these have 2 bytes an element, and the loss is cast up.",
        "The cast weights are new tensors. A layer saves its weight for the gradient of its input, and the "
        "input of the first layer needs none. No gradient needs the biases here.",
    ],
)


@exercise.starter
def amp_saves(
    widths: Sequence[int], batch: int, activation: str, autocast: bool
) -> int:
    raise NotImplementedError


_ONE_LAYER = (5, 3), (4, 4), (2, 9)
_DEEPER = (5, 7, 3), (16, 2, 9), (8, 8, 8, 8), (3, 11, 6, 2, 5)
_TRAITS = (Trait("autocast is on", lambda *case: case[3], "Autocast makes new tensors where it casts."),)


@functools.cache
def _saved(widths, batch, activation, autocast):
    kind = {"relu": nn.ReLU, "gelu": nn.GELU}[activation]
    layers = [layer for sizes in pairwise(widths) for layer in (nn.Linear(*sizes), kind())]
    model, x, y = nn.Sequential(*layers[:-1]), torch.ones(batch, widths[0]), torch.ones(batch, widths[-1])

    def forward():
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            return F.mse_loss(model(x), y)

    return measure.saved_bytes(forward).total


def _judge(came, wanted):
    came = own_value(came)
    if type(came) not in (int, float):
        return f"you return {kind_of(came, '')}, where a number of bytes is asked for"
    return "" if came == wanted else f"you count too {'many' if came > wanted else 'few'} bytes"


def _compare(amp_saves, all_widths, activation="relu", states=(True,)):
    cases = [
        ((widths, batch, activation, autocast), _saved(widths, batch, activation, autocast))
        for widths in all_widths
        for batch in (1, 4, 30)
        for autocast in states
    ]
    table = Table("amp_saves", cases, _TRAITS)
    table.compare(amp_saves, _judge, simplest=lambda c: sum(c[0]) * c[1], like=OFF_BY)


@exercise.check
def without_autocast(amp_saves):
    """Without autocast: what each layer and the loss keep

    A linear layer keeps its input. ReLU keeps its result, which is the input of the next layer and counts
    once. No activation follows the last layer: `mse_loss` keeps what that gives, and the targets. No backward
    here needs a bias, and the weights are parameters.
    """
    _compare(amp_saves, (*_ONE_LAYER, *_DEEPER), states=(False,))


@exercise.check
def one_layer(amp_saves):
    """One layer under autocast: the input in bfloat16, the loss in float32

    What is saved is the cast input, not `x` itself. `mse_loss` is cast up, so the model's output and the
    targets are saved in float32. The input needs no gradient, so the weight is not saved at all, and nobody
    needs the bias.
    """
    _compare(amp_saves, _ONE_LAYER)


@exercise.check
def weights(amp_saves):
    """More layers under autocast: bfloat16 copies of the weights

    For the gradient of its input a linear layer saves its weight. In float32 that is the parameter itself,
    which is there anyway. Under autocast it is a copy, for all layers but the first. The bias is cast too,
    and no backward needs it.
    """
    _compare(amp_saves, _DEEPER)


@exercise.check
def other_activation(amp_saves):
    """GELU keeps its input

    Nobody else keeps it. The result is the input of the next layer: two tensors where ReLU has one.
    """
    _compare(amp_saves, (*_ONE_LAYER, *_DEEPER), "gelu", states=(False, True))


@exercise.check
def from_the_numbers(amp_saves):
    """Worked out, not measured

    The shapes decide what is kept, so it takes no model and no tensor to know it before anything runs.
    """
    t = expect.given("", amp_saves=amp_saves)
    with measure.operators() as ran:
        t.call("amp_saves((5, 7, 3), 4, 'relu', True)")
    expect.equal(len(ran.calls), 0, what="the number of torch's operators that ran")
