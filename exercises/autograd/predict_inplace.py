"""Predict: raises, safe, or wrong

`x = torch.tensor([-1.0, 0.5, 2.0], requires_grad=True)`. Each line writes to a tensor in place. Then
`y.sum().backward()` runs. What happens?

- `"raises"`: an error, in the line itself or in backward;
- `"safe"`: no error, and `x.grad` says how the sum changes with the numbers that `x` held at the beginning;
- `"wrong"`: no error, and `x.grad` is something else.

The first line writes to nothing and is answered. Replace every `...` before you run any of the others.
"""

import torch

from course_utils.exercise import Exercise, predict

exercise = Exercise(
    minutes=15,
    core=True,
    hints=[
        "The derivative of `exp` is its result, that of `sin` is computed from its input, that of `x + 1` "
        "needs neither. What each of them keeps follows from that.",
        "A tensor counts the operations that write to it, in `_version`. A node remembers the version at "
        "which it kept a tensor; backward compares the two numbers. Views and detached tensors "
        "count together with their source; `.data` and NumPy do not.",
        "Three questions for each line: what did a node keep? Was that written to afterwards? Was the write "
        "counted? Harm needs a yes to the first two.",
    ],
)


@exercise.starter
def predict_inplace() -> dict:
    """What comes of each line: `"raises"`, `"safe"` or `"wrong"`"""
    return {
        "y = x.exp(); y = y + 1": "safe",  # an example: this one is answered
        # a result
        "y = x + 1; y += 1": ...,
        "y = x.exp(); y += 1": ...,
        "y = x.sin(); y += 1": ...,
        "y = x.exp(); y *= 1": ...,
        "y = x * 2; y.exp_()": ...,
        # x itself
        "x += 1; y = x * x": ...,
        "y = x * x; x.detach().add_(1)": ...,
        "y = x * x; x.data += 1": ...,
        "y = x + 1; x.data += 1": ...,
        "y = x * x; x.detach().numpy()[:] = 0": ...,
        # parts and operands
        "y = x.exp(); y[0] = 0": ...,
        "y = torch.zeros(2); y[:] = x[:2] * x[1:]": ...,
        "w = torch.ones(3); y = x * w; w.zero_()": ...,
        "h = x * 2; y = h.relu_() + h": ...,
    }


def _sum_of(line, x):
    names = {"torch": torch, "x": x}
    exec(line, names)
    return names["y"].sum()


def _truth(line):
    """What torch does; `"safe"` where the gradient is the slope that is measured along each axis."""
    x = torch.tensor([-1.0, 0.5, 2.0], requires_grad=True)
    start = x.detach().double()
    try:
        _sum_of(line, x).backward()
    except RuntimeError:
        return "raises"
    steps = 1e-3 * torch.eye(3, dtype=torch.float64)
    slope = torch.stack([_sum_of(line, start + step) - _sum_of(line, start - step) for step in steps]) / 2e-3
    return "safe" if torch.allclose(x.grad.double(), slope.double(), rtol=0.01, atol=0.01) else "wrong"


def _compare(predict_inplace, whys):
    predictions = predict.written_down(predict_inplace)
    truths = {line: _truth(line) for line in whys}
    words = ("raises", "safe", "wrong")
    predict.compare(predictions, truths, whys, words=words, all_lines=exercise.starter_object())


predict.add_check(exercise)


@exercise.check
def a_result(predict_inplace):
    """A write to the result of an operator

    A write does harm if a node has kept what it hits. What these nodes keep follows from the derivative:
    their result, their input, or no tensor. The write itself is an operation and is recorded like others.
    """
    whys = {
        "y = x.exp(); y = y + 1": "`y + 1` makes a new tensor, and nothing is written to.",
        "y = x + 1; y += 1": "The derivative of an addition is 1: its node keeps no tensor.",
        "y = x.exp(); y += 1": "The derivative of `exp` is its result, and the node keeps that.",
        "y = x.sin(); y += 1": "The derivative of `sin` is the cosine of its input: the node keeps `x`.",
        "y = x.exp(); y *= 1": "`exp` keeps its result. Backward compares versions, which count "
        "operations, not changes.",
        "y = x * 2; y.exp_()": "`exp_` keeps its result, at the version that it has after the write. The "
        "product with a number keeps no tensor that the write could hit.",
    }
    _compare(predict_inplace, whys)


@exercise.check
def x_itself(predict_inplace):
    """A write to `x`, or to its storage under another name

    Torch refuses `x += 1` on a leaf that requires grad, unless grad mode is off. `detach()`, `.data` and
    NumPy reach its storage all the same. Backward notices such a write if it was counted: `detach()` shares
    the counter, `.data` has one of its own, and NumPy writes without one. If no node has kept the tensor,
    there is nothing to notice.
    """
    whys = {
        "x += 1; y = x * x": "`x` is a leaf that requires a gradient, and here torch lets no operator write "
        "to it: it would be the result of an operation then, and `.grad` belongs to the leaf.",
        "y = x * x; x.detach().add_(1)": "The product keeps `x`. A detached tensor shares the storage "
        "of `x`, and its version counter.",
        "y = x * x; x.data += 1": "The product keeps `x`. `.data` shares the storage of `x`, and has a "
        "version counter of its own.",
        "y = x + 1; x.data += 1": "The derivative of an addition is 1, whatever `x` is: its node keeps "
        "no tensor.",
        "y = x * x; x.detach().numpy()[:] = 0": "The product keeps `x`. NumPy writes to the storage of "
        "`x`, and knows of no version.",
    }
    _compare(predict_inplace, whys)


@exercise.check
def parts_and_operands(predict_inplace):
    """A write to a part, to an operand, and under another name

    Ask which tensor a node has kept. It doesn't matter how much of that tensor was written to, or whether it
    requires grad.
    """
    whys = {
        "y = x.exp(); y[0] = 0": "`exp` keeps its whole result, and `y[0]` is a view of it: the two have "
        "one version.",
        "y = torch.zeros(2); y[:] = x[:2] * x[1:]": "What is written requires a gradient, so the write puts "
        "`y` into the graph. The product keeps its two factors, and the write goes to neither.",
        "w = torch.ones(3); y = x * w; w.zero_()": "The gradient of `x` is `w`, so the product keeps it. "
        "The write to `w` is counted, though it requires no gradient.",
        "h = x * 2; y = h.relu_() + h": "`relu_` returns `h` itself, after the write: `2 * relu(x * 2)` is "
        "what the line computes. The sum keeps no tensor, and `relu_` keeps its result.",
    }
    _compare(predict_inplace, whys)
