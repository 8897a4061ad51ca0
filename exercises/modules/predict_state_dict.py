"""Predict: saved, listed, moved

```python
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        self.twice = 2 * self.scale
        self.offset = torch.zeros(3)
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("mask", torch.ones(3), persistent=False)
        self.layers = [nn.Linear(3, 3)]
        self.blocks = nn.ModuleList([nn.Linear(3, 3)])
        self.embed = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight

model = Net()
```

For each tensor write down `True` or `False` three times:

1. is its name a key of `model.state_dict()`?
2. does `model.named_parameters()` list this name?
3. is it on the meta device after `model.to("meta")`?

Names have dots: `layers.0.weight`. The first line is answered. In the group *later* the line's statement runs
first, on a new `model`. Replace every `...` before you run any of it.
"""

import re

import torch
from torch import nn

from course_utils.exercise import Exercise, predict

exercise = Exercise(
    minutes=8,
    core=True,
    hints=[
        "Ask for each assignment: what did `__setattr__` see? A Parameter and a module are noted down. A "
        "tensor or a list isn't, whatever is in the list.",
        "`state_dict` has the parameters and the persistent buffers, `named_parameters` the parameters, "
        "frozen ones too. `.to` goes over the parameters and all buffers.",
        "One Parameter at two places is listed once, under the first name, and saved under both. A name "
        "that is a buffer's stays a buffer's when a plain tensor is assigned to it.",
    ],
)


@exercise.starter
def predict_state_dict() -> dict:
    """(saved?, listed by named_parameters?, moved by .to("meta")?) for each tensor"""
    return {
        "scale": (True, True, True),  # an example: this one is answered
        # tensors
        "frozen": ...,
        "twice": ...,
        "offset": ...,
        "mean": ...,
        "mask": ...,
        # containers
        "layers.0.weight": ...,
        "blocks.0.weight": ...,
        # shared
        "embed.weight": ...,
        "head.weight": ...,
        # later: after the statement, the same for the tensor behind the arrow
        "model.mean = torch.ones(3) -> mean": ...,
        "model.offset = nn.Parameter(torch.ones(3)) -> offset": ...,
        "model.layers = nn.ModuleList(model.layers) -> layers.0.weight": ...,
    }


_CODE = re.search(r"```python\n(.*?)```", __doc__, re.DOTALL).group(1)


def _truth(line):
    statement, _, name = line.rpartition(" -> ")
    names = {"torch": torch, "nn": nn}
    exec(f"{_CODE}\n{statement}", names)
    saved, listed = name in names["model"].state_dict(), name in dict(names["model"].named_parameters())
    names["model"].to("meta")
    path = re.sub(r"\.(\d+)", r"[\1]", name)
    return saved, listed, eval(f"model.{path}.is_meta", names)


def _compare(predict_state_dict, whys):
    predictions = predict.written_down(predict_state_dict)
    truths = {line: _truth(line) for line in whys}
    parts = ("saved", "listed", "moved")
    predict.compare(predictions, truths, whys, parts=parts, all_lines=exercise.starter_object())


predict.add_check(exercise)


@exercise.check
def tensors(predict_state_dict):
    """Tensors of the module itself

    A Parameter or an `nn.Buffer` is registered when it is assigned, a plain tensor by `register_buffer`. If
    you assign a plain tensor to a new name, it is an attribute: torch does not know whether it belongs to the
    model.
    """
    whys = {
        "scale": "A Parameter is registered by the assignment: it is saved, listed and moved.",
        "frozen": "`requires_grad=False` tells autograd to compute no gradient. The registration is the "
        "same.",
        "twice": "`2 * self.scale` is an ordinary tensor, no Parameter.",
        "offset": "A plain tensor is an attribute like a number or a string: torch asks nothing of it.",
        "mean": "A buffer belongs to the model: it is saved and moved. It is no parameter.",
        "mask": "`persistent=False` concerns saving and loading: such a buffer is moved with the others.",
    }
    _compare(predict_state_dict, whys)


@exercise.check
def containers(predict_state_dict):
    """Layers in a list, and in an `nn.ModuleList`

    A module finds what was assigned to its own attributes. A list is no module: torch doesn't look into it,
    and the module isn't told when something is appended.
    """
    whys = {
        "layers.0.weight": "The attribute holds a list, and a list isn't registered. `forward` can call its "
        "layers, but `parameters()`, `state_dict()` and `.to` don't find them.",
        "blocks.0.weight": "An `nn.ModuleList` is a module whose children are called `0`, `1`, ….",
    }
    _compare(predict_state_dict, whys)


@exercise.check
def shared(predict_state_dict):
    """One Parameter at two places

    `named_parameters` goes by identity: an optimizer shall get a parameter once. `state_dict` goes by names:
    whoever loads it may have two tensors there.
    """
    whys = {
        "embed.weight": "It is listed under its first name: `embed` was assigned before `head`.",
        "head.weight": "It is the Parameter of `embed`. `named_parameters` leaves out what it has listed, "
        "`state_dict` saves every name, and `.to` comes to both places.",
    }
    _compare(predict_state_dict, whys)


@exercise.check
def later(predict_state_dict):
    """What is assigned after `__init__`

    `__setattr__` is called for every assignment, at any time, inside of `__init__` and outside.
    """
    whys = {
        "model.mean = torch.ones(3) -> mean": "The name is that of a buffer already. A plain tensor assigned "
        "to it is a buffer as well.",
        "model.offset = nn.Parameter(torch.ones(3)) -> offset": "Assigning a Parameter registers it, also on "
        "a name that was a plain attribute before. That attribute is gone.",
        "model.layers = nn.ModuleList(model.layers) -> layers.0.weight": "The same layers as before, but a "
        "module holds them now, and it is registered.",
    }
    _compare(predict_state_dict, whys)
