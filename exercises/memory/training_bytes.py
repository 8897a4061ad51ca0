"""Bytes before the first batch

Return how many bytes training holds between `optimizer.step()` and the next `zero_grad()`, activations
apart: a dictionary with the keys `"model"` (parameters and buffers), `"gradients"` (of the parameters) and
`"optimizer"`. `kind` is one of

- `"sgd"`; `"momentum"`, SGD with momentum; `"adam"`, whose step counts take 4 bytes for each tensor;
- `"masters"`: Adam on float32 copies of all trained parameters, float32 ones too. Copies and state belong to
  the optimizer, and the copies' gradients are let go in `step`. The model keeps its dtypes.

A parameter with two names is one tensor. A frozen one gets no gradient. Work it out from shapes and dtypes:
the model may be on `meta`.

`training_bytes(nn.Linear(2, 3), "adam")` → `{"model": 36, "gradients": 36, "optimizer": 80}`
"""

import torch
from torch import nn

from course_utils import measure
from course_utils.exercise import Exercise, Rows, expect
from course_utils.exercise.symptoms import BYTES

exercise = Exercise(
    minutes=10,
    core=True,
    hints=[
        "Which tensors does the optimizer keep for one parameter, of which shape and dtype?",
        "`model.parameters()` gives each tensor once. Which of them get a gradient?",
        "`t.nbytes` for parameters, buffers and gradients. Adam keeps two tensors like the parameter and a "
        "count of 4 bytes. Masters: 4 bytes an element three times, and the counts.",
    ],
)


@exercise.starter
def training_bytes(model: nn.Module, kind: str) -> dict[str, int]:
    """Bytes of the model, of its gradients, of the optimizer's state"""
    raise NotImplementedError


def _measured(model: nn.Module, kind: str) -> dict[str, int]:
    """By training for one step and adding up the storages that are there."""
    trained = [p for p in model.parameters() if p.requires_grad]
    for p in trained:
        p.grad = torch.ones_like(p)
    masters = [nn.Parameter(p.detach().float()) for p in trained] if kind == "masters" else []
    for master, p in zip(masters, trained, strict=False):
        master.grad = p.grad.float()
    how = {"sgd": (torch.optim.SGD, {}), "momentum": (torch.optim.SGD, {"momentum": 0.9})}
    make, settings = how.get(kind, (torch.optim.Adam, {}))
    optimizer = make(masters or trained, lr=0.1, **settings)
    optimizer.step()
    state = [t for entry in optimizer.state.values() for t in entry.values() if isinstance(t, torch.Tensor)]
    held = {"model": [*model.parameters(), *model.buffers()], "gradients": [p.grad for p in trained]}
    held["optimizer"] = [*state, *masters]
    model.zero_grad()
    return {part: sum(t.untyped_storage().nbytes() for t in tensors) for part, tensors in held.items()}


def _compare(training_bytes, models, kinds):
    with Rows() as rows:
        for label, setup in models.items():
            for kind in kinds:
                with rows.of(f"`{kind}` with {label}"):
                    t = expect.given(setup, training_bytes=training_bytes)
                    came = t.call(f"training_bytes(model, {kind!r})")
                    expect.equal(came, _measured(t.model, kind), factors=BYTES)


_TIED = "model = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5))\nmodel[1].weight = model[0].weight"
_FROZEN = "model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))\nmodel[0].requires_grad_(False)"


@exercise.check
def states(training_bytes):
    """Each optimizer keeps its own state

    Plain SGD keeps nothing. Momentum is one tensor for each parameter. Adam, without `amsgrad`, keeps two for
    each, and for each a step count of its own.
    """
    models = {"one layer": "model = nn.Linear(2, 3)", "one parameter": "model = nn.PReLU(7)"}
    _compare(training_bytes, models, ["sgd", "momentum", "adam"])


@exercise.check
def dtypes(training_bytes):
    """By default gradients, momentum and Adam's means have the dtype of their parameter

    A number takes 4 bytes in float32, 2 in bfloat16 and 8 in float64. The step counts are float32 here.
    """
    mixed = "model = nn.Sequential(nn.Linear(3, 4).bfloat16(), nn.Linear(4, 2).double())"
    models = {"bfloat16": "model = nn.Linear(6, 5).bfloat16()", "bfloat16 and float64": mixed}
    _compare(training_bytes, models, ["momentum", "adam"])


@exercise.check
def once(training_bytes):
    """The model is every parameter and every buffer, once

    `parameters()` and `buffers()` give each tensor once. `state_dict()` gives a tied weight under each of its
    names, and leaves out a buffer that isn't saved.
    """
    models = {
        "buffers": "model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))",
        "a buffer that isn't saved": "model = nn.Linear(2, 3)\n"
        "model.register_buffer('positions', torch.arange(9), persistent=False)",
        "a tied weight": _TIED,
    }
    _compare(training_bytes, models, ["sgd"])


@exercise.check
def trained(training_bytes):
    """A frozen parameter gets no gradient and no state, a tied one gets them once

    SGD with momentum and Adam make state for a parameter when they first step it, and they skip parameters
    without a gradient.
    """
    _compare(training_bytes, {"a tied weight": _TIED, "a frozen layer": _FROZEN}, ["sgd", "momentum", "adam"])


@exercise.check
def masters(training_bytes):
    """Masters are float32 whatever the model is

    The optimizer has a copy of each trained parameter, of a float32 one too. It steps the copies, so its
    state is float32, with a count for each. The gradients that backward leaves are the model's.
    """
    models = {
        "bfloat16": "model = nn.Linear(6, 5).bfloat16()",
        "bfloat16 and float32": "model = nn.Sequential(nn.Linear(3, 4).bfloat16(), nn.LayerNorm(4))",
        "float64": "model = nn.Linear(3, 4).double()",
        "a frozen layer": f"{_FROZEN}\nmodel.bfloat16()",
        "a tied weight": f"{_TIED}\nmodel.bfloat16()",
    }
    _compare(training_bytes, models, ["masters"])


@exercise.check
def counted(training_bytes):
    """It is worked out, not tried

    7 billion parameters have a shape and a dtype on `meta`, and take no memory there: the address of each
    is 0.
    """
    large = "model = nn.Linear(100_000, 70_000, device='meta')"
    t, n = expect.given(large, training_bytes=training_bytes), 4 * 7_000_070_000
    wanted = {"model": n, "gradients": n, "optimizer": 2 * n + 8}
    expect.equal(t.call("training_bytes(model, 'adam')"), wanted)
    t = expect.given("model = nn.Linear(300, 300)", training_bytes=training_bytes)
    with expect.left_alone(t.model.weight, what="`model.weight`"):
        peak = measure.peak_bytes(t.call, "training_bytes(model, 'masters')", device="cpu")
    expect.at_most(peak.total, 1000, "what the call allocates", unit="bytes")
    expect.true(t.model.weight.grad is None, "`model.weight.grad` is a tensor after the call, expected None")
