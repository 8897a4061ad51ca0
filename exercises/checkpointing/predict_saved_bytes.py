"""Predict: bytes kept for backward

    x = torch.randn(16, 32)  # 2,048 bytes
    g = torch.randn(16, 32, requires_grad=True)
    pairs = [(nn.Linear(32, 32), nn.ReLU()) for _ in range(4)]
    net = nn.Sequential(*[layer for pair in pairs for layer in pair])
    frozen = nn.Linear(32, 32).requires_grad_(False)
    ck = partial(checkpoint, use_reentrant=False)

    def each(x):
        for i in range(0, 8, 2):
            x = ck(net[i : i + 2], x)
        return x

Replace each `...` by the number of bytes that are kept once the line has run and its result is still there.
Write `3 * 2048` or `6144`. Each storage counts once and whole; `x` and `g` count where they are kept,
parameters don't, frozen or not.
"""

import functools
from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from course_utils import measure
from course_utils.exercise import Exercise, predict

exercise = Exercise(
    minutes=8,
    core=True,
    hints=[
        "Plain lines: which operators are in a graph at all, and what does each backward need, its input or "
        "its output? A tensor that two of them need is there once.",
        "A checkpoint keeps its inputs until backward, and nothing from inside. What is outside of it keeps "
        "what it keeps anyway.",
        "`sin` keeps its input, `exp` and `tanh` their outputs. `* 2` needs neither, and a frozen linear "
        "layer needs its weight alone. A checkpoint keeps its input where anything inside would have been "
        "saved, be it a parameter. Where nothing would, it keeps nothing.",
    ],
)


_NESTED = "ck(lambda t: ck(net[4:], ck(net[:4], t)), x)"


@exercise.starter
def predict_saved_bytes() -> dict:
    """Bytes that are kept for backward"""
    return {
        "net[0](x)": 2048,  # an example: this one is answered
        # plain
        "net(x)": ...,
        "net(x[:4])": ...,
        "g.sin().exp().tanh()": ...,
        "x.sin().exp().tanh()": ...,
        # checkpointed
        "ck(net, x)": ...,
        "each(x)": ...,
        "net[4:](ck(net[:4], x))": ...,
        "ck(lambda t: ck(net[4:], ck(net[:4], t)), x)": ...,
        # worth it?
        "ck(net[1], net[0](x))": ...,
        "ck(lambda t: t * 2, g)": ...,
        "frozen(g)": ...,
        "ck(frozen, g)": ...,
    }


_WHYS = {
    "net[0](x)": "A linear layer keeps its input for the gradient of its weight. That `x` requires no "
    "gradient makes no difference to it.",
    "net(x)": "Each linear layer keeps its input, each ReLU its output, and most of these are shared.",
    "net(x[:4])": "A slice is a view, and a view that is kept keeps its whole storage. What the ReLUs make "
    "has 4 rows.",
    "g.sin().exp().tanh()": "Each of the three keeps one tensor: `sin` its input, `exp` and `tanh` their "
    "outputs. No two of these are the same.",
    "x.sin().exp().tanh()": "Where no input requires grad and there are no parameters, there is no graph.",
    "ck(net, x)": "A checkpoint keeps its input, and nothing from inside.",
    "each(x)": "Each checkpoint keeps its input. Its output is the input of the next one, and the output of "
    "the last is kept by nobody.",
    "net[4:](ck(net[:4], x))": "The first half keeps its input. The second half is plain: it keeps its input "
    "too, and what its ReLUs make.",
    _NESTED: "The outer checkpoint keeps its input. The input of the second inner one is made inside, and "
    "what is made inside is made again in backward.",
    "ck(net[1], net[0](x))": "The linear layer is outside, and keeps its input. The checkpoint keeps the "
    "input of the ReLU, where the ReLU would have kept its output, a tensor of the same size.",
    "ck(lambda t: t * 2, g)": "The backward of `* 2` needs the 2 and no tensor. Nothing inside is saved, so "
    "there is nothing that a checkpoint would keep its input for.",
    "frozen(g)": "The gradient of the input takes the weight. The input is for the gradient of the weight, "
    "and nobody wants that.",
    "ck(frozen, g)": "The layer saves its weight, which is there anyway. A checkpoint puts off whatever is "
    "saved inside: it runs the layer again in backward, and for this it keeps its input.",
}


@functools.cache
def _kept(line):
    """What torch keeps, measured."""
    ck = partial(checkpoint, use_reentrant=False)
    layers = [layer for _ in range(4) for layer in (nn.Linear(32, 32), nn.ReLU())]
    net, frozen = nn.Sequential(*layers), nn.Linear(32, 32).requires_grad_(False)

    def each(x):
        for i in range(0, 8, 2):
            x = ck(net[i : i + 2], x)
        return x

    names = {"net": net, "frozen": frozen, "ck": ck, "each": each}
    names |= {"x": torch.randn(16, 32), "g": torch.randn(16, 32, requires_grad=True)}
    return measure.saved_bytes(eval, line, names, exclude=frozen).total


def _compare(predict_saved_bytes, *lines):
    predictions = predict.written_down(predict_saved_bytes)
    predict.compare(predictions, {line: _kept(line) for line in lines}, _WHYS, all_lines=_WHYS)


@exercise.check
def written_down(predict_saved_bytes):
    """The predictions are written down, not measured

    A prediction is what you believe before torch tells you. One that was measured is right, and you have not
    found out what you believed.
    """
    predict.written_down(predict_saved_bytes)


@exercise.check
def plain(predict_saved_bytes):
    """Without a checkpoint

    An operator in the graph keeps what its own backward needs: inputs, outputs, or neither. A tensor that two
    of them keep is there once, and a view keeps its whole storage.
    """
    lines = "net[0](x)", "net(x)", "net(x[:4])", "g.sin().exp().tanh()", "x.sin().exp().tanh()"
    _compare(predict_saved_bytes, *lines)


@exercise.check
def checkpointed(predict_saved_bytes):
    """With checkpoints around all, around each pair, around a half, and nested

    A checkpoint keeps its inputs. What is made inside of it is made again in backward, the inputs of inner
    checkpoints too. What is outside of it is kept as ever.
    """
    _compare(predict_saved_bytes, "ck(net, x)", "each(x)", "net[4:](ck(net[:4], x))", _NESTED)


@exercise.check
def worth_it(predict_saved_bytes):
    """Where a checkpoint saves no bytes

    A checkpoint puts its input in the place of what is saved inside. Where that is as large, or a parameter,
    it gains nothing. Where nothing is saved inside, it keeps nothing.
    """
    lines = "ck(net[1], net[0](x))", "ck(lambda t: t * 2, g)", "frozen(g)", "ck(frozen, g)"
    _compare(predict_saved_bytes, *lines)
