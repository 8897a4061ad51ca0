"""Three questions decide each line. What did a node keep? `exp` keeps its result, `sin` and `x * x` keep
their input, `x * w` keeps the factor `w`, an addition no tensor, and `exp_` the result that it has written.
Was that tensor written to afterwards? If not, the line is safe. Was the write counted? Through a view, a
slice or a detached tensor it was: they share the version, and backward raises even if no number changed.
Through `.data` and NumPy it wasn't, and the gradient is wrong.

Two lines stand apart. In `x += 1`, torch refuses to write to a leaf that requires grad. And in
`h.relu_() + h` the gradient is right, though perhaps not what its author wanted: `h` is rectified before it
is added, so the line computes `2 * relu(h)`.
"""


def predict_inplace() -> dict:
    """What comes of each line: `"raises"`, `"safe"` or `"wrong"`"""
    return {
        "y = x.exp(); y = y + 1": "safe",  # an example: this one is answered
        # a result
        "y = x + 1; y += 1": "safe",
        "y = x.exp(); y += 1": "raises",
        "y = x.sin(); y += 1": "safe",
        "y = x.exp(); y *= 1": "raises",
        "y = x * 2; y.exp_()": "safe",
        # x itself
        "x += 1; y = x * x": "raises",
        "y = x * x; x.detach().add_(1)": "raises",
        "y = x * x; x.data += 1": "wrong",
        "y = x + 1; x.data += 1": "safe",
        "y = x * x; x.detach().numpy()[:] = 0": "wrong",
        # parts and operands
        "y = x.exp(); y[0] = 0": "raises",
        "y = torch.zeros(2); y[:] = x[:2] * x[1:]": "safe",
        "w = torch.ones(3); y = x * w; w.zero_()": "raises",
        "h = x * 2; y = h.relu_() + h": "safe",
    }


# Other right answers

from course_utils.exercise import Edit, Wrong

also_right = []


# Mistakes


def _asks_torch():
    import torch

    x = torch.ones(3, requires_grad=True)
    return {**predict_inplace(), "y = x + 1; y += 1": "safe" if (x + 1).add_(1).requires_grad else "raises"}


mistakes = [
    Wrong(_asks_torch, told_by="written_down"),
    Edit("versions compare values", 'y *= 1": "raises"', 'y *= 1": "safe"', told_by="a_result"),
    Edit(
        "a write to any result raises",
        'y = x + 1; y += 1": "safe"',
        'y = x + 1; y += 1": "raises"',
        told_by="a_result",
    ),
    Edit(
        "detach hides a write",
        'x.detach().add_(1)": "raises"',
        'x.detach().add_(1)": "wrong"',
        told_by="x_itself",
    ),
    Edit(
        "data shows a write",
        'x * x; x.data += 1": "wrong"',
        'x * x; x.data += 1": "raises"',
        told_by="x_itself",
    ),
    Edit("a constant may change", 'w.zero_()": "raises"', 'w.zero_()": "safe"', told_by="parts_and_operands"),
]
