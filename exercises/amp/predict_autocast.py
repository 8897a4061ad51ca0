"""Predict: dtypes under autocast

    linear, norm = nn.Linear(4, 4), nn.LayerNorm(4)
    x, y = torch.randn(2, 4, requires_grad=True), torch.tensor([1, 3])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        h = linear(x)

Write down the dtype of each line, such as `torch.float32`. Lines without a label run in this region, and
lines with `off:` in a region inside, with `enabled=False`. Lines with `after:` run when all have ended, and
after `F.cross_entropy(h, y).backward()`, whose forward was in the region; `h.retain_grad()` kept `h.grad`.

The first line is answered. Replace every `...`, before you run any of them.
"""

import torch
from torch import nn
from torch.nn import functional as F

from course_utils.exercise import Exercise, predict

exercise = Exercise(
    minutes=10,
    core=True,
    hints=[
        "For each operator: is it on a list of autocast's, and on which? What is on none computes as it "
        "would without autocast, from the dtypes that it gets.",
        "Matrix products are cast down, and losses such as `cross_entropy` up. float64 is left alone. "
        "`square`, `mean`, `softmax` and `layer_norm` are on no list of the CPU's.",
        "A region with `enabled=False` changes no tensor that exists already. Each cast is a node "
        "of the graph, and its backward casts back to the dtype of what was cast.",
    ],
)


@exercise.starter
def predict_autocast() -> dict:
    return {
        "linear.weight": torch.float32,  # an example: this one is answered
        # on a list
        "linear(h + x)": ...,
        "x.double() @ x.double().t()": ...,
        "F.cross_entropy(h, y)": ...,
        # on no list
        "norm(h + x)": ...,
        "(x @ x.t()).softmax(-1)": ...,
        "(h - h.mean()).square().mean()": ...,
        # switched off inside
        "off: linear(x)": ...,
        "off: F.relu(h)": ...,
        # after the regions
        "after: linear.weight.grad": ...,
        "after: h.grad": ...,
    }


_WHYS = {
    "linear.weight": "Autocast casts what goes into an operator. Parameters stay what they are.",
    "linear(h + x)": "The sum is float32, and `linear` is on the list of those that are cast down.",
    "x.double() @ x.double().t()": "The list casts float32 and 16-bit tensors. float64 is left alone.",
    "F.cross_entropy(h, y)": "This loss is on the list of those that are cast up.",
    "norm(h + x)": "The sum is float32. `layer_norm` is on no list of the CPU's, and keeps that.",
    "(x @ x.t()).softmax(-1)": "The product is cast down. `softmax` is on no list of the CPU's.",
    "(h - h.mean()).square().mean()": "None is on a list of the CPU's. So the loss has the dtype of `h`.",
    "off: linear(x)": "No cast happens here, and neither `x` nor the weight was ever changed.",
    "off: F.relu(h)": "`h` was computed outside. A region says what operators do, and changes no tensor.",
    "after: linear.weight.grad": "The weight was cast on its way in. Backward of a cast casts back.",
    "after: h.grad": "The cast before the loss is a node too. Its backward gives `h` a gradient like `h`.",
}
_IN, _OFF, _AFTER = list(_WHYS)[:7], list(_WHYS)[7:9], list(_WHYS)[9:]


def _compare(predict_autocast, lines):
    predictions = predict.written_down(predict_autocast)
    names = {"F": F, "linear": nn.Linear(4, 4), "norm": nn.LayerNorm(4), "y": torch.tensor([1, 3])}
    names["x"] = torch.randn(2, 4, requires_grad=True)

    def run(these):
        return {line: eval(line.rpartition(": ")[2], names) for line in these}

    with torch.autocast("cpu", dtype=torch.bfloat16):
        names["h"] = names["linear"](names["x"])
        names["h"].retain_grad()
        found = run(_IN)
        with torch.autocast("cpu", enabled=False):
            found |= run(_OFF)
    found["F.cross_entropy(h, y)"].backward()
    found |= run(_AFTER)
    predict.compare(predictions, {line: found[line].dtype for line in lines}, _WHYS, all_lines=_WHYS)


predict.add_check(exercise)


@exercise.check
def on_a_list(predict_autocast):
    """Operators on a list: cast down, or cast up

    Autocast casts what goes into some operators: matrix products down, `cross_entropy` up. float64 is left
    alone.
    """
    _compare(predict_autocast, _IN[:4])


@exercise.check
def on_no_list(predict_autocast):
    """Operators on no list

    They compute from the dtypes that they get, so a low dtype spreads. CUDA has other lists.
    """
    _compare(predict_autocast, _IN[4:])


@exercise.check
def switched_off(predict_autocast):
    """Inside a region with `enabled=False`

    No cast happens there, up or down. What was computed outside comes in with the dtype that it has.
    """
    _compare(predict_autocast, _OFF)


@exercise.check
def afterwards(predict_autocast):
    """After the region, and after backward

    Autograd records each cast. Backward of a cast gives the gradient the dtype of what was cast.
    """
    _compare(predict_autocast, _AFTER)
