"""Predict: leaf, `requires_grad`, `.grad`

`x = torch.ones(3, requires_grad=True)`. Each line below makes a tensor `y`; then
`(x.sum() + y.sum()).backward()` runs. For each line write down three answers, `True` or `False`:

1. is `y` a leaf (`y.is_leaf`)?
2. does it require a gradient (`y.requires_grad`)?
3. is `y.grad` a tensor after that backward, and not None?

The first line is answered: there `y` is `x` itself. Replace every `...` before you run any of the lines. The
first two answers mostly decide the third; one line breaks that rule.
"""

import torch
from torch import nn

from course_utils.exercise import Exercise, predict

exercise = Exercise(
    minutes=10,
    core=True,
    hints=[
        "A leaf is a tensor with no node behind it: `grad_fn` is None. When does an operator leave a node "
        "behind, and when has it no reason to?",
        "An operator is recorded when grad mode is on and at least one of its inputs requires a gradient. "
        "Without a node the result is a leaf, whoever made it. Some calls hand back the tensor they got, "
        "since there is nothing to do, and some make a new start with the same numbers.",
        "Backward fills `.grad` of leaves that require a gradient and are reached, and of no other tensor "
        "unless it was asked to keep it there. An in-place operation is recorded like any other, for the "
        "tensor that it writes to.",
    ],
)


@exercise.starter
def predict_leaves() -> dict:
    """(leaf?, requires a gradient?, has a gradient afterwards?) for each y"""
    return {
        "y = x": (True, True, True),  # an example: this one is answered
        # without x
        "y = torch.ones(3)": ...,
        "y = torch.ones(3) * 2": ...,
        # from x
        "y = x * 2": ...,
        "y = x[:2]": ...,
        "y = x.clone()": ...,
        "y = x > 0": ...,
        # converted
        "y = x.double()": ...,
        "y = x.float()": ...,
        # a new start
        "y = x.detach()": ...,
        "with torch.no_grad(): y = x * 2": ...,
        "y = nn.Parameter(x * 2)": ...,
        # later
        "y = torch.zeros(3); y += x": ...,
        "y = x * 2; y.retain_grad()": ...,
    }


def _truth(line):
    names = {"torch": torch, "nn": nn, "x": torch.ones(3, requires_grad=True)}
    exec(line, names)
    x, y = names["x"], names["y"]
    leaf, requires_grad = y.is_leaf, y.requires_grad
    (x.sum() + y.sum()).backward()
    return leaf, requires_grad, y.grad is not None


def _compare(predict_leaves, whys):
    predictions = predict.written_down(predict_leaves)
    parts = ("leaf", "requires_grad", "gradient")
    truths = {line: _truth(line) for line in whys}
    predict.compare(predictions, truths, whys, parts=parts, all_lines=exercise.starter_object())


@exercise.check
def written_down(predict_leaves):
    """The predictions are written down, not computed

    What there is to learn lies between what you believed and what torch does. Whoever runs an operator is
    told before having believed anything.
    """
    predict.written_down(predict_leaves)


@exercise.check
def without_x(predict_leaves):
    """Tensors that have nothing to do with `x`

    A leaf is a tensor without a `grad_fn`. An operator leaves a node behind where one of its operands
    requires a gradient, and only there.
    """
    whys = {
        "y = x": "`y` is a second name for the tensor `x`: its three answers are those of `x`.",
        "y = torch.ones(3)": "It has no `grad_fn`, so it is a leaf. Nobody has asked for its gradient: for "
        "backward it is a constant.",
        "y = torch.ones(3) * 2": "No operand requires a gradient, so the product was not recorded. Without a "
        "`grad_fn` its result is a leaf, although an operator made it.",
    }
    _compare(predict_leaves, whys)


@exercise.check
def from_x(predict_leaves):
    """Results of operators on `x`

    What is computed from a tensor that requires a gradient requires one too, has a `grad_fn`, and is no leaf.
    Backward passes its gradient on, and keeps it at leaves alone.
    """
    whys = {
        "y = x * 2": "The product was recorded: `y` has a `grad_fn` and is no leaf. Its gradient is passed "
        "on to `x` and dropped.",
        "y = x[:2]": "A slice shares the storage of `x`, and it is recorded like any operator. Its "
        "gradient becomes a part of `x.grad`.",
        "y = x.clone()": "`clone` is an operator too, and is recorded: a gradient goes back through it to "
        "`x`.",
        "y = x > 0": "Only tensors of floating point (or complex) numbers can require a gradient. A "
        "comparison gives booleans, so nothing was recorded and `y` is a leaf.",
    }
    _compare(predict_leaves, whys)


@exercise.check
def converted(predict_leaves):
    """`x` in another dtype, and in the one that it has

    A conversion is an operator, and is recorded. Where the tensor is what it is to become, nothing runs and
    the same tensor comes back. So it is with `.to(device)`.
    """
    whys = {
        "y = x.double()": "A new tensor was computed from `x` and the step was recorded, so `y` is no leaf. "
        "`.grad` goes to the tensor that was converted.",
        "y = x.float()": "`x` is float32 already, there is nothing to do: `y` is `x` itself.",
    }
    _compare(predict_leaves, whys)


@exercise.check
def new_start(predict_leaves):
    """The same numbers, and no way back to `x`

    `detach`, `no_grad` and `nn.Parameter` each give a tensor without a history. They differ in the flag: a
    Parameter asks for a gradient of its own.
    """
    whys = {
        "y = x.detach()": "It reads the storage of `x` and has no `grad_fn`: a leaf, and one that requires "
        "no gradient until somebody asks for it.",
        "with torch.no_grad(): y = x * 2": "Under `no_grad` no node is left behind: a leaf without a "
        "gradient. Leaving the block does not bring `y` into the graph.",
        "y = nn.Parameter(x * 2)": "A Parameter takes the numbers and leaves the history behind. It is a "
        "leaf that requires a gradient, and the loss was computed from it.",
    }
    _compare(predict_leaves, whys)


@exercise.check
def later(predict_leaves):
    """What is done to `y` after it was made

    An operation in place is recorded for the tensor that it writes to. `retain_grad` asks for a gradient to
    be kept at a tensor inside the graph, and leaves the tensor where it is.
    """
    whys = {
        "y = torch.zeros(3); y += x": "After the addition `y` is the result of an operator on `x`: it has a "
        "`grad_fn` and is a leaf no more. As inside the graph elsewhere, its gradient is dropped.",
        "y = x * 2; y.retain_grad()": "`retain_grad` does not change the graph: the `grad_fn` is still "
        "there. It asks for the gradient to be kept in `y.grad`.",
    }
    _compare(predict_leaves, whys)
