"""A trace is the list of operators that ran for one input. Python decided the branch, ran the loop and called
`.item()` and `len`, so the list has only what followed. The size in `mean_by_shape` was recorded, as an
operator.

A script is compiled from the source, so it has branches and loops. It's another language all the same. Its
whole numbers have 64 bits, so the product wraps around without an error; the trace holds the number that
Python computed, and is right.

Both copies share the model's tensors. A write into the weight reaches them; another tensor
or another number under the name doesn't. The mode is an attribute of the script, which its `.train()`
changes. The trace recorded a dropout that drops nothing.
"""


def predict_trace() -> dict:
    """Which copy gives what Python gives: `"both"`, `"trace"`, `"script"`, `"neither"`"""
    return {
        "branch": "script",  # an example: this one is answered
        # one input, another input
        "chosen": "both",
        "halved": "script",
        "by_the_largest": "script",
        "big_number": "trace",
        # another length
        "summed": "script",
        "mean_by_shape": "both",
        "mean_by_len": "script",
        # the model
        "all three: .train()": "script",
        "model.weight.data.mul_(3)": "both",
        "model.weight = nn.Parameter(torch.full((4,), 3.0))": "neither",
        "model.factor = 3.0": "neither",
    }


# Other right answers

from course_utils.exercise import Edit, Wrong


def _asks_torch():
    import torch

    script = torch.ones(4).sum() > 3
    return {**predict_trace(), "halved": "script" if script else "both"}


mistakes = [
    Wrong(_asks_torch, told_by="written_down"),
    Edit("a trace has the branches", '"halved": "script"', '"halved": "both"', told_by="values"),
    Edit("a script is Python", '"big_number": "trace"', '"big_number": "both"', told_by="values"),
    Edit("sizes are constants", '"mean_by_shape": "both"', '"mean_by_shape": "script"', told_by="shapes"),
    Edit("len is a size", '"mean_by_len": "script"', '"mean_by_len": "both"', told_by="shapes"),
    Edit("copies hold copies", 'mul_(3)": "both"', 'mul_(3)": "neither"', told_by="models"),
    Edit("a trace has a mode", '.train()": "script"', '.train()": "both"', told_by="models"),
]
