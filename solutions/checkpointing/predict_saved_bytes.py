"""Without a checkpoint, ask each operator in the graph what its own backward needs. A linear layer takes its
input, for the weight's gradient; a ReLU its output; `sin` its input; `exp` and `tanh` their outputs. The same
tensor counts once, so four pairs keep `x` and four outputs. A view keeps its whole storage.

A checkpoint keeps its inputs in the place of all that. So it's worth it where the inside keeps much more than
the input has: a deep block, a wide one. Around one ReLU it swaps the output for an input of the same size.
Around the frozen one it adds bytes: a weight would have been saved, which is there anyway; now an input is.

It keeps its input for what was saved inside. Where nothing was, as for `t * 2`, nothing
holds on to the input."""


def predict_saved_bytes() -> dict:
    return {
        "net[0](x)": 2048,  # an example: this one is answered
        # plain
        "net(x)": 5 * 2048,  # x and four outputs of ReLUs
        "net(x[:4])": 2048 + 4 * 512,
        "g.sin().exp().tanh()": 3 * 2048,
        "x.sin().exp().tanh()": 0,
        # checkpointed
        "ck(net, x)": 2048,
        "each(x)": 4 * 2048,
        "net[4:](ck(net[:4], x))": 2048 + 3 * 2048,
        "ck(lambda t: ck(net[4:], ck(net[:4], t)), x)": 2048,
        # worth it?
        "ck(net[1], net[0](x))": 2 * 2048,
        "ck(lambda t: t * 2, g)": 0,
        "frozen(g)": 0,
        "ck(frozen, g)": 2048,
    }


# Other right answers

import torch

from course_utils import measure
from course_utils.exercise import Edit, Wrong


def _from_a_table():
    kept = [1, 5, 2, 3, 0, 1, 4, 4, 1, 2, 0, 0, 1]
    return {line: n * 2048 for line, n in zip(predict_saved_bytes(), kept, strict=True)}


also_right = [_from_a_table]


# Mistakes


def _measures():
    g = torch.randn(16, 32, requires_grad=True)
    return predict_saved_bytes() | {
        "g.sin().exp().tanh()": measure.saved_bytes(lambda: g.sin().exp().tanh()).total
    }


def _counts_elements():
    lines = predict_saved_bytes()
    return lines | {line: n // 4 for line, n in lines.items() if line != "net[0](x)"}


mistakes = [
    Wrong(_measures, told_by="written_down"),
    Wrong(_counts_elements, told_by="plain"),
    Edit("each layer keeps one", "5 * 2048", "8 * 2048", told_by="plain"),
    Edit("a slice is small", "2048 + 4 * 512", "5 * 512", told_by="plain"),
    Edit("keeps all inside too", '"ck(net, x)": 2048', '"ck(net, x)": 5 * 2048', told_by="checkpointed"),
    Edit("the last output too", "4 * 2048", "5 * 2048", told_by="checkpointed"),
    Edit(
        "the input always",
        '"ck(lambda t: t * 2, g)": 0',
        '"ck(lambda t: t * 2, g)": 2048',
        told_by="worth_it",
    ),
    Edit("never more", '"ck(frozen, g)": 2048', '"ck(frozen, g)": 0', told_by="worth_it"),
]
