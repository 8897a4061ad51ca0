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

Before you run any, replace each `...` by the number of bytes that are kept once the line has run and its
result is still there. Write `3 * 2048` or `6144`. Each storage counts once and whole; `x` and `g` count where
they are kept, parameters don't, frozen or not.
"""

from functools import cache, partial

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
        "A checkpoint keeps its inputs until backward, and nothing from inside. Outside all is as ever.",
        "`sin` keeps its input, `exp` and `tanh` their outputs, `* 2` neither, a frozen linear layer its "
        "weight alone. A checkpoint keeps its input where anything inside, even a parameter, is saved.",
    ],
)


@exercise.starter
def predict_saved_bytes() -> dict:
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


_PLAIN = {
    "net[0](x)": "For the gradient of its weight a linear layer keeps its input, data too.",
    "net(x)": "Each linear layer keeps its input, each ReLU its output, and most of these are shared.",
    "net(x[:4])": "A view that is kept keeps its whole storage. What the ReLUs make has 4 rows.",
    "g.sin().exp().tanh()": "`sin` keeps its input, `exp` and `tanh` their outputs. No two are the same.",
    "x.sin().exp().tanh()": "Where no input requires grad and there are no parameters, there is no graph.",
}
_CHECKPOINTED = {
    "ck(net, x)": "A checkpoint keeps its input, and nothing from inside.",
    "each(x)": "Each checkpoint keeps its input. The output of the last is kept by nobody.",
    "net[4:](ck(net[:4], x))": "Each half keeps its input, the plain one also what its ReLUs make.",
    "ck(lambda t: ck(net[4:], ck(net[:4], t)), x)": "The outer checkpoint keeps its input. The input of the "
    "second inner one is made inside, and what is made inside is made again in backward.",
}
_WORTH_IT = {
    "ck(net[1], net[0](x))": "Both inputs are kept. The ReLU alone would have kept an output of that size.",
    "ck(lambda t: t * 2, g)": "Nothing inside is saved, so there is nothing to keep the input for.",
    "frozen(g)": "The input is for the gradient of the weight, and nobody wants that.",
    "ck(frozen, g)": "The layer saves its weight. To do it again in backward, a checkpoint keeps its input.",
}


@cache
def _kept(line):
    """What torch keeps, measured on what the task shows: its indented lines."""
    shown = "\n".join(row[4:] for row in __doc__.splitlines() if row.startswith("    "))
    names = {"torch": torch, "nn": nn, "partial": partial, "checkpoint": checkpoint}
    exec(shown, names)
    return measure.saved_bytes(eval, line, names, exclude=names["frozen"]).total


def _compare(predict_saved_bytes, whys):
    truths, every = {line: _kept(line) for line in whys}, _PLAIN | _CHECKPOINTED | _WORTH_IT
    predict.compare(predict.written_down(predict_saved_bytes), truths, whys, unit="bytes", all_lines=every)


predict.add_check(exercise)


@exercise.check(deadline=60)
def plain(predict_saved_bytes):
    """Without a checkpoint

    An operator in the graph keeps what its own backward needs. A tensor that two of them keep is there once.
    """
    _compare(predict_saved_bytes, _PLAIN)


@exercise.check(deadline=60)
def checkpointed(predict_saved_bytes):
    """With checkpoints around all, around each pair, around a half, and nested

    A checkpoint keeps its inputs, and what is outside of it is kept as ever.
    """
    _compare(predict_saved_bytes, _CHECKPOINTED)


@exercise.check(deadline=60)
def worth_it(predict_saved_bytes):
    """Where a checkpoint saves no bytes

    A checkpoint keeps its input in place of what is saved inside. Where that is as large it gains nothing.
    """
    _compare(predict_saved_bytes, _WORTH_IT)
