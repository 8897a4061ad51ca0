"""What autocast keeps for backward

A model has a linear layer from each of `widths` to the next, and a ReLU after each but the last. Its input
`x` is a float32 leaf of size `(batch, widths[0])`; `x_grad` says whether it requires grad.

    results = [model(x) for _ in range(calls)]

Return two integers: the bytes that this keeps for backward in float32, and with the line in one region of
bfloat16 autocast. Each storage counts once; the float32 parameters don't count; `x` does where it is kept.

In a region autocast casts a float32 leaf that requires grad once, and anything else at each use.

Work it out in plain Python, without torch.

`amp_saves(2, (3, 5, 4), 1, False)` → `(64, 72)`
"""

import functools
import itertools

import torch
from torch import nn

from course_utils import measure
from course_utils.exercise import Exercise, Table, Trait, expect
from course_utils.exercise.kits import strides

exercise = Exercise(
    minutes=12,
    hints=[
        "Go through one forward. Which tensors does each layer's backward need? Which of them is there "
        "already: a parameter, or kept by the layer before?",
        "The gradient of a weight takes the layer's input, the gradient of the input takes the weight. In "
        "float32 that weight is a parameter. Under autocast it is a copy. And who asks for the gradient of "
        "the first layer's input?",
        "float32: 4 bytes for each element of `x`, once, and of each ReLU's output, in each call. Autocast: "
        "2 bytes for each element of the same, where `x` counts in each call unless `x_grad`; and 2 for each "
        "element of the weights, once, of the first weight only if `x_grad`.",
    ],
)


@exercise.starter
def amp_saves(batch: int, widths: tuple[int, ...], calls: int, x_grad: bool) -> tuple[int, int]:
    """Bytes kept for backward: in float32, and under bfloat16 autocast"""
    raise NotImplementedError


_TRAITS = [
    Trait(
        "`x` requires grad",
        lambda batch, widths, calls, x_grad, wanted: x_grad,
        "Then the first layer computes a gradient of its input, and autocast holds on to its copy of `x`.",
    ),
    Trait(
        "`x` does not require grad",
        lambda batch, widths, calls, x_grad, wanted: not x_grad,
        "Then nobody asks for the gradient of the first layer's input, and `x` is cast at each use.",
    ),
    Trait(
        "the model is called more than once",
        lambda batch, widths, calls, x_grad, wanted: calls > 1,
        "Each call has activations of its own. `x` and the weights are the same tensors in all of them.",
    ),
    Trait(
        "the model has a ReLU",
        lambda batch, widths, calls, x_grad, wanted: len(widths) > 2,
        "A ReLU and the layer after it keep the same tensor, and that layer keeps its weight too.",
    ),
]


@functools.cache
def _kept(batch, widths, calls, x_grad):
    """What torch keeps: measured on a model of this shape."""
    layers = [m for n, k in itertools.pairwise(widths) for m in (nn.Linear(n, k), nn.ReLU())]
    model, x = nn.Sequential(*layers[:-1]), torch.ones(batch, widths[0], requires_grad=x_grad)

    def run(enabled):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            return [model(x) for _ in range(calls)]

    return measure.saved_bytes(run, False).total, measure.saved_bytes(run, True).total


def _judge(came, wanted, looked_at=(0, 1)):
    if type(came) not in (tuple, list) or len(came) != 2 or any(type(n) is not int for n in came):
        return "you return something else than two integers"
    told = []
    for i in looked_at:
        if came[i] != wanted[i]:
            of = ("float32", "autocast")[i]
            told.append(f"your bytes for {of} are too {'many' if came[i] > wanted[i] else 'few'}")
    return " and ".join(told)


def _compare(amp_saves, batches, shapes, calls=(1,), x_grad=(False,), judge=_judge):
    all_of_them = itertools.product(batches, shapes, calls, x_grad)
    cases = [(arguments, _kept(*arguments)) for arguments in all_of_them]
    Table("amp_saves", cases, _TRAITS).compare(
        amp_saves, judge, simplest=lambda a: (a[2], a[3], len(a[1]), a[0])
    )


_SHAPES = (3, 5), (3, 5, 4), (8, 6, 8, 2), (16, 16, 16, 16), (2, 9, 1, 3, 7)


@exercise.check
def in_float32(amp_saves):
    """One call in float32

    A linear layer keeps its input, and a ReLU its output. The output of a ReLU is the input of the next
    layer: one tensor, kept once. The output of the last layer is needed by no backward.
    """
    _compare(amp_saves, (1, 2, 32), _SHAPES, judge=lambda *both: _judge(*both, looked_at=(0,)))


@exercise.check
def under_autocast(amp_saves):
    """One call under autocast, where it keeps less and where it keeps more

    A linear layer keeps what it multiplied: the 16-bit copies of its input and its weight. A weight is kept
    for the gradient of the input, and data wants none. A copy is a tensor of its own, so these bytes are new;
    they don't depend on the batch.
    """
    _compare(amp_saves, (1, 2, 32), _SHAPES)


@exercise.check
def input_with_gradient(amp_saves):
    """An input that requires grad

    Now the first layer needs its weight in backward. In float32 that is the parameter, which doesn't count.
    Under autocast it is one more copy.
    """
    _compare(amp_saves, (1, 2, 32), _SHAPES, x_grad=(True,))


@exercise.check
def more_calls(amp_saves):
    """Two calls and three, with the same `x`

    In float32 all calls keep the same `x`. Autocast holds on to the copies of leaves that require grad, until
    the region ends. Other inputs are cast at each use, and each copy is kept.
    """
    _compare(amp_saves, (1, 4), _SHAPES, calls=(1, 2, 3), x_grad=(False, True))


@exercise.check
def from_the_numbers(amp_saves):
    """It is worked out in plain Python

    Whoever builds the model and measures it has the bytes, and not what they are made of.
    """
    t = expect.given("", amp_saves=amp_saves)
    for arguments in ((2, (3, 5, 4), 1, False), (4, (3, 5), 2, True)):
        strides.plain_python(lambda a=arguments: t.call(f"amp_saves{a}"))
