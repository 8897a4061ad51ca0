"""Two questions decide each line. Is the operator on a list? And if not, which dtypes come in?

On the CPU `linear`, `@` and attention are cast down, `cross_entropy` and many other losses are cast up.
`softmax`, `layer_norm`, `square` and `mean` are on no list: they keep what they get. bfloat16 spreads through
them, and a sum with `x`, which is float32, ends it. The loss by hand, a mean of squares, stays in bfloat16;
`.float()` in front of it would help.

Parameters and their gradients stay in float32. Each cast is in the graph, and its backward casts to the dtype
of what went in: `h.grad` is bfloat16 as `h` is, and `weight.grad` is float32.
"""

import torch


def predict_autocast() -> dict:
    return {
        "linear.weight": torch.float32,
        "linear(h + x)": torch.bfloat16,
        "x.double() @ x.double().t()": torch.float64,
        "F.cross_entropy(h, y)": torch.float32,
        "norm(h + x)": torch.float32,
        "(x @ x.t()).softmax(-1)": torch.bfloat16,
        "(h - h.mean()).square().mean()": torch.bfloat16,
        "off: linear(x)": torch.float32,
        "off: F.relu(h)": torch.bfloat16,
        "after: linear.weight.grad": torch.float32,
        "after: h.grad": torch.bfloat16,
    }


# Other right answers

from course_utils.exercise import Edit, Wrong


def _other_names():
    return {
        line: {torch.float64: torch.double}.get(dtype, dtype) for line, dtype in predict_autocast().items()
    }


also_right = [_other_names]

# Mistakes


def _asks_torch():
    x = torch.ones(2, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return predict_autocast() | {"linear(h + x)": (x @ x).dtype}


_NORM, _LOSS = '"norm(h + x)": torch.float32', 'square().mean()": torch.bfloat16'

mistakes = [
    Wrong(_asks_torch, told_by="written_down"),
    Edit("the widest wins", 'h + x)": torch.bfloat16', 'h + x)": torch.float32', told_by="on_a_list"),
    Edit("casts float64", "torch.float64", "torch.bfloat16", told_by="on_a_list"),
    Edit(
        "softmax as on CUDA",
        'softmax(-1)": torch.bfloat16',
        'softmax(-1)": torch.float32',
        told_by="on_no_list",
    ),
    Edit("a loss is float32", _LOSS, _LOSS.replace("bfloat16", "float32"), told_by="on_no_list"),
    Edit("casts everything", _NORM, _NORM.replace("float32", "bfloat16"), told_by="on_no_list"),
    Edit("off casts up", 'relu(h)": torch.bfloat16', 'relu(h)": torch.float32', told_by="switched_off"),
    Edit(
        "gradients in 16 bits",
        'weight.grad": torch.float32',
        'weight.grad": torch.bfloat16',
        told_by="afterwards",
    ),
]
