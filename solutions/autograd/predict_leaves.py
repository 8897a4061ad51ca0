"""A leaf is a tensor without a `grad_fn`. An operation with a derivative records a node if grad mode is on,
one of its inputs requires grad, and its result can require grad. In these lines the result is otherwise a
leaf that doesn't. So `torch.ones(3) * 2`, `x > 0` (booleans), and `x * 2` under `no_grad` are leaves;
`x.clone()` and `x[:2]` are not. `x.float()` has nothing to do and returns `x` itself.

`detach()` and `nn.Parameter` make a new start with the same numbers. `y += x` is recorded for `y`: it was a
leaf, and now it is the result of an addition. This backward keeps the gradients of leaves that require grad,
and of tensors on which `retain_grad()` was called.
"""


def predict_leaves() -> dict:
    """(leaf?, requires a gradient?, has a gradient afterwards?) for each y"""
    return {
        "y = x": (True, True, True),  # an example: this one is answered
        # without x
        "y = torch.ones(3)": (True, False, False),
        "y = torch.ones(3) * 2": (True, False, False),
        # from x
        "y = x * 2": (False, True, False),
        "y = x[:2]": (False, True, False),
        "y = x.clone()": (False, True, False),
        "y = x > 0": (True, False, False),
        # converted
        "y = x.double()": (False, True, False),
        "y = x.float()": (True, True, True),
        # a new start
        "y = x.detach()": (True, False, False),
        "with torch.no_grad(): y = x * 2": (True, False, False),
        "y = nn.Parameter(x * 2)": (True, True, True),
        # later
        "y = torch.zeros(3); y += x": (False, True, False),
        "y = x * 2; y.retain_grad()": (False, True, True),
    }


# Other right answers

from course_utils.exercise import Edit, Wrong

also_right = []


# Mistakes


def _asks_torch():
    import torch

    x = torch.ones(3, requires_grad=True)
    return {**predict_leaves(), "y = x.float()": (x.float().is_leaf, True, True)}


def _all_in_the_graph_have_gradients():
    return {line: (leaf, needs, needs) for line, (leaf, needs, _) in predict_leaves().items()}


mistakes = [
    Wrong(_asks_torch, told_by="written_down"),
    Edit(
        "results are no leaves",
        '"y = torch.ones(3) * 2": (True,',
        '"y = torch.ones(3) * 2": (False,',
        told_by="without_x",
    ),
    Wrong(_all_in_the_graph_have_gradients, told_by="from_x"),
    Edit(
        "copies are leaves",
        '"y = x.clone()": (False, True, False)',
        '"y = x.clone()": (True, True, True)',
        told_by="from_x",
    ),
    Edit(
        "every conversion is recorded",
        '"y = x.float()": (True, True, True)',
        '"y = x.float()": (False, True, False)',
        told_by="converted",
    ),
    Edit(
        "parameters stay in the graph",
        '"y = nn.Parameter(x * 2)": (True, True, True)',
        '"y = nn.Parameter(x * 2)": (False, True, False)',
        told_by="new_start",
    ),
    Edit(
        "a leaf stays a leaf",
        '"y = torch.zeros(3); y += x": (False, True, False)',
        '"y = torch.zeros(3); y += x": (True, False, False)',
        told_by="later",
    ),
    Edit(
        "retained makes a leaf",
        '"y = x * 2; y.retain_grad()": (False,',
        '"y = x * 2; y.retain_grad()": (True,',
        told_by="later",
    ),
]
