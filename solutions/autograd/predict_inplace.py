"""Three questions decide each line. What did an operator keep? `exp` its result, `sin` and `x * x` their
input, `x * w` the factor `w`, an addition nothing, `exp_` what it has written. Was that written to
afterwards? If not, the line is safe: autograd records in-place operations like others. Could autograd see the
write? Through a view, a slice or a detached tensor, yes: they share the version counter, and backward raises
when a kept tensor has another version than it was kept with, even where no value changed. Through `.data` and
NumPy, no: the gradient comes out wrong.

Two lines stand apart. A leaf that requires a gradient cannot be written to at all. And in `h.relu_() + h` the
gradient is right, and perhaps not the one that its author wanted: `h` is rectified before it is added, so the
line computes `2 * relu(h)`.
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
