"""Three dicts decide all lines: the parameters, the buffers and the modules that are noted. `__setattr__`
notes a Parameter or a module, `register_buffer` a buffer. `state_dict`, `named_parameters` and `.to` walk
over these dicts.

So `twice`, `offset` and the layers of a plain list are outside. `frozen` is a parameter like any other. A
buffer is no parameter; `persistent=False` leaves it out of `state_dict` alone. The shared weight is one
Parameter with two names: listed once, saved twice.
"""


def predict_state_dict() -> dict:
    """(saved?, listed by named_parameters?, moved by .to("meta")?) for each tensor"""
    return {
        "scale": (True, True, True),  # an example: this one is answered
        # tensors
        "frozen": (True, True, True),
        "twice": (False, False, False),
        "offset": (False, False, False),
        "mean": (True, False, True),
        "mask": (False, False, True),
        # containers
        "layers.0.weight": (False, False, False),
        "blocks.0.weight": (True, True, True),
        # shared
        "embed.weight": (True, True, True),
        "head.weight": (True, False, True),
        # later: the statement runs, then the same questions about the tensor behind the arrow
        "model.mean = torch.ones(3) -> mean": (True, False, True),
        "model.offset = nn.Parameter(torch.ones(3)) -> offset": (True, True, True),
        "model.layers = nn.ModuleList(model.layers) -> layers.0.weight": (True, True, True),
    }


# Other right answers

from course_utils.exercise import Edit, Wrong


def _in_lists():
    lines = predict_state_dict()
    return {line: list(told) if isinstance(told, tuple) else told for line, told in lines.items()}


also_right = [_in_lists]


# Mistakes


def _asks_torch():
    from torch import nn

    return {**predict_state_dict(), "frozen": (True, nn.Linear(3, 3).weight.requires_grad, True)}


mistakes = [
    Wrong(_asks_torch, told_by="written_down"),
    Edit("frozen is no parameter", '"frozen": (True, True', '"frozen": (True, False', told_by="tensors"),
    Edit("buffers are listed", '"mean": (True, False', '"mean": (True, True', told_by="tensors"),
    Edit(
        "temporary buffers stay",
        '"mask": (False, False, True',
        '"mask": (False, False, False',
        told_by="tensors",
    ),
    Edit(
        "lists are searched",
        '"layers.0.weight": (False, False, False)',
        '"layers.0.weight": (True, True, True)',
        told_by="containers",
    ),
    Edit("saved once", '"head.weight": (True,', '"head.weight": (False,', told_by="shared"),
    Edit(
        "a new tensor is plain",
        '-> mean": (True, False, True)',
        '-> mean": (False, False, False)',
        told_by="later",
    ),
    Edit("listed twice", '"head.weight": (True, False', '"head.weight": (True, True', told_by="shared"),
]
