"""Predict: leaf, `requires_grad`, `.grad`

`x = torch.ones(3, requires_grad=True)`. Each line below makes a tensor `y`. Then
`(x.sum() + y.sum()).backward()` runs. Write down three answers for each line, `True` or `False`:

1. is `y` a leaf (`y.is_leaf`)?
2. does it require grad (`y.requires_grad`)?
3. does `y.grad` hold a tensor after that backward?

The first line is answered: there `y` is `x` itself. Replace every `...` before you run any of the lines. In
all lines but one, the first two answers decide the third.
"""

import torch
from torch import nn

from course_utils.exercise import Exercise, predict

exercise = Exercise(
    minutes=10,
    core=True,
    hints=[
        "A leaf is a tensor with no node behind it: `grad_fn` is None. When does an operator leave a node "
        "behind, and when doesn't it?",
        "An operator with a derivative is recorded when grad mode is on, at least one of its inputs requires "
        "a gradient, and its result can require one. Without a node the result is a leaf. Some calls have "
        "nothing to do and return the tensor they got, and some make a new start with the same numbers.",
        "This backward fills `.grad` of the leaves that it reaches and that require grad, and of tensors "
        "that were asked to keep it. An in-place operation is recorded for the tensor that it writes to.",
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


predict.add_check(exercise)


@exercise.check
def without_x(predict_leaves):
    """Tensors that have nothing to do with `x`

    A leaf is a tensor without a `grad_fn`. An operation records no node if none of its operands requires
    grad.
    """
    whys = {
        "y = x": "`y` is a second name for the tensor `x`: its three answers are those of `x`.",
        "y = torch.ones(3)": "It has no `grad_fn`, so it is a leaf. It doesn't require grad: for "
        "backward it is a constant.",
        "y = torch.ones(3) * 2": "No operand requires a gradient, so the product was not recorded. Without a "
        "`grad_fn` its result is a leaf, although an operator made it.",
    }
    _compare(predict_leaves, whys)


@exercise.check
def from_x(predict_leaves):
    """Results of operators on `x`

    These results of floating point require grad, have a `grad_fn`, and are no leaves; integers and booleans
    have no gradient. This backward passes their gradients on and keeps only those of leaves.
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

    A conversion to another dtype of floating point is an operation and is recorded. If the tensor has the
    dtype already, nothing runs and the same tensor comes back.
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

    In these lines `detach`, `no_grad` and `nn.Parameter` each give a tensor without a history. They differ in
    the flag: a Parameter requires grad.
    """
    whys = {
        "y = x.detach()": "It reads the storage of `x` and has no `grad_fn`: a leaf that doesn't "
        "require grad.",
        "with torch.no_grad(): y = x * 2": "Under `no_grad` the product leaves no node: a leaf without a "
        "gradient. Leaving the block does not bring `y` into the graph.",
        "y = nn.Parameter(x * 2)": "A Parameter takes the numbers and leaves the history behind. It is a "
        "leaf that requires a gradient, and the loss was computed from it.",
    }
    _compare(predict_leaves, whys)


@exercise.check
def later(predict_leaves):
    """What is done to `y` after it was made

    An operation in place is recorded for the tensor that it writes to. `retain_grad` asks for the gradient of
    a tensor inside the graph, and doesn't change the graph.
    """
    whys = {
        "y = torch.zeros(3); y += x": "After the addition `y` is the result of an operator on `x`: it has a "
        "`grad_fn` and is not a leaf any more. So its gradient is dropped.",
        "y = x * 2; y.retain_grad()": "`retain_grad` does not change the graph: the `grad_fn` is still "
        "there. It asks for the gradient to be kept in `y.grad`.",
    }
    _compare(predict_leaves, whys)
