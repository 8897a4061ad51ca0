"""Three kinds of tensors are saved.

Activations: the input of each linear layer, in bfloat16 under autocast. With ReLU that is all. It computes
its gradient from its result, which is the tensor that the next layer saves. GELU keeps its own input besides.

Weights: the gradient of a layer's input is `grad @ weight`. In float32 the weight that is saved is the
parameter, which costs nothing more. Autocast made a copy. The first layer's input needs no gradient, so its
copy isn't saved.

The loss: it runs in float32, so the output is cast up, and saved beside the targets.

Autocast halves the first kind, which grows with the batch. The second is new, and doesn't grow. So with a
small batch and two wide layers autocast saves more than float32.
"""

from collections.abc import Sequence
from itertools import pairwise


def amp_saves(widths: Sequence[int], batch: int, activation: str, autocast: bool) -> int:
    size = 2 if autocast else 4
    saved = size * batch * sum(widths[:-1])
    if activation == "gelu":
        saved += size * batch * sum(widths[1:-1])
    if autocast:
        saved += size * sum(a * b for a, b in pairwise(widths[1:]))
    return saved + 2 * 4 * batch * widths[-1]


# Other right answers

from torch import nn

from course_utils.exercise import Edit, Wrong


def _layer_by_layer(widths, batch, activation, autocast):
    size, total = 4 - 2 * autocast, 8 * batch * widths[-1]
    for i in range(len(widths) - 1):
        first, rows = i == 0, 2 if activation == "gelu" and i > 0 else 1
        total += rows * batch * widths[i] * size
        if autocast and not first:
            total += widths[i] * widths[i + 1] * size
    return total


def _list_of_tensors(widths, batch, activation, autocast):
    size, hidden = (2 if autocast else 4), widths[1:-1]
    tensors = [(batch, width, size) for width in widths[:-1]] + [(batch, widths[-1], 4)] * 2
    tensors += [(batch, width, size) for width in hidden if activation != "relu"]
    tensors += [(a, b, 2) for a, b in pairwise(widths[1:]) if autocast]
    return sum(a * b * c for a, b, c in tensors)


also_right = [_layer_by_layer, _list_of_tensors]

# Mistakes


def _builds_the_model(widths, batch, activation, autocast):
    nn.Sequential(*[nn.Linear(a, b) for a, b in pairwise(widths)])
    return amp_saves(widths, batch, activation, autocast)


mistakes = [
    Edit("ReLU keeps one more", 'if activation == "gelu"', "if activation", told_by="without_autocast"),
    Edit("forgets the targets", "2 * 4 * batch", "4 * batch", told_by="without_autocast"),
    Edit("the loss in 16 bits", "2 * 4 * batch", "2 * size * batch", told_by="one_layer"),
    Edit("the first weight too", "pairwise(widths[1:])", "pairwise(widths)", told_by="one_layer"),
    Edit("no copies", "if autocast:", "if False:", told_by="weights"),
    Edit("the biases too", "a * b for", "a * b + b for", told_by="weights"),
    Edit("GELU like ReLU", '== "gelu"', '== "none"', told_by="other_activation"),
    Wrong(_builds_the_model, told_by="from_the_numbers"),
]

not_tried = {"hard numbers": "whole numbers only", "left alone": "numbers and texts come in"}
