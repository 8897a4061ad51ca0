"""A trace is the list of operators that ran for one input. A branch, a loop, a dimension that was asked for
in an `if`, an `.item()` and a `len` were Python's business, so the list has only what followed from them.
Shapes are recorded as long as they stay shapes: `x.shape[0]`, half of it, one less.

A script is compiled from the text: branches and loops are in it. It is another language all the same. Its
whole numbers have 64 bits, so the product wraps around without an error, and the trace, which holds what
Python computed, is the one that is right.

Both copies share the tensors of the model and nothing else: a write into the weight reaches them, another
tensor or another number under the name does not. The mode is an attribute of the script, which its `.train()`
changes; the trace has recorded a dropout that drops nothing.
"""


def predict_trace() -> dict:
    """Which copy gives what Python gives: `"both"`, `"trace"`, `"script"` or `"neither"`"""
    return {
        "branch": "script",  # an example: this one is answered
        # one input, another input
        "chosen": "both",
        "by_dimension": "script",
        "halved": "script",
        "by_the_largest": "script",
        "big_number": "trace",
        # another length
        "summed": "script",
        "mean_by_shape": "both",
        "mean_by_len": "script",
        "in_pairs": "both",
        "last": "both",
        # the model after it was copied
        "all three: .train()": "script",
        "model.weight.data.mul_(3)": "both",
        "model.weight = nn.Parameter(torch.full((4,), 3.0))": "neither",
        "model.factor = 3.0": "neither",
    }
