"""Early stopping that keeps the best

Build `EarlyStopping`. `step(value, model)` takes the loss of an evaluation, a float. It says whether to stop:
`True` after `patience` evaluations in a row without an improvement.

- A value is an improvement if it is below the best so far by more than `min_delta`. The first one is, unless
  it is NaN. NaN never is. The best is the value of the last improvement.
- The state of `model` is kept at each improvement: one copy, and no other is made.
- `restore(model)` puts the kept state into the tensors of `model`, as often as it is called.

`patience=2`: the values 3.0, 2.0, 2.5, 2.0 give `False`, `False`, `False`, `True`.
"""

import gc
import math
from unittest import mock

import torch
from torch import nn

from course_utils import measure
from course_utils.exercise import Exercise, expect
from course_utils.measure.memory import collector_off

exercise = Exercise(
    minutes=10,
    hints=[
        "What does `state_dict()` hold: values, or the living tensors?",
        "`value < math.inf` is true of numbers, not of NaN, and not of infinity, which may come first. Which "
        "value do you compare with after a step that was too small to count?",
        "Keep `best`, a count, and `{name: t.clone()}` of the `state_dict()`. An improvement sets all, "
        "anything else adds 1 to the count. `load_state_dict` copies into the tensors that are there.",
    ],
)


@exercise.starter
class EarlyStopping:
    def __init__(self, patience: int, min_delta: float = 0.0):
        raise NotImplementedError

    def step(self, value: float, model: nn.Module) -> bool: ...
    def restore(self, model: nn.Module) -> None: ...


_SETUP = """
model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).to(device)
model[0].half()
def fill(number):
    for tensor in model.state_dict().values():
        tensor.fill_(number)
"""
_NEW = f"{_SETUP}stopping = EarlyStopping(3)"


def _truth(patience, min_delta, values):
    """Whether to stop after each value, and the number of the evaluation that is kept in the end."""
    best, stops = -1, []
    for i, value in enumerate(values):
        if value == value and (best < 0 or values[best] - value > min_delta):
            best = i
        stops.append(i - best >= patience)
    return stops, best


def _series(patience, min_delta, values):
    given = f"{patience}, {min_delta}" if min_delta else f"{patience}"
    written = ", ".join(repr(v) if math.isfinite(v) else f"float('{v}')" for v in values)
    return f"""{_SETUP}stopping = EarlyStopping({given})
stops = []
for i, value in enumerate([{written}]):
    fill(i)
    stops.append(stopping.step(value, model))"""


def _compare(t, *series):
    """What `step` returns, and the number of the evaluation that `restore` brings back."""
    stops, best = _truth(*series)
    expect.equal([bool(stop) for stop in t.stops], stops, what="`stops`")
    t.run("fill(100)\nstopping.restore(model)")
    kept = t.model[0].weight[0, 0].item()
    told = f"`restore` brings back evaluation {kept:g}, expected: {best}, counted from 0"
    expect.true(kept == best, told)


@exercise.check(given=_NEW)
def copies(t, device):
    """What is kept doesn't change with the model, and `restore` writes into its tensors

    `state_dict()` holds the living tensors: training goes on in them, and they are no record of how it was.
    The optimizer holds the parameters, so `restore` must not replace them, nor hand out what is kept. `step`
    only reads.
    """
    fields = dict(t.model.state_dict())
    t.run("fill(1)\nmodel[0].weight.requires_grad_(False)\nmodel[1].eval()")
    t.run("model[1].weight.grad = torch.ones(3, device=device)")
    with expect.left_alone(t.model, what="`model`", gradients=True):
        t.run("stopping.step(1.0, model)")
    for number in (20, 30):
        t.run(f"fill({number})\nstopping.restore(model)")
        for name, tensor in t.model.state_dict().items():
            what = f'`model.state_dict()["{name}"]`'
            expect.same_storage(tensor, fields[name], what=what, of="the same before `restore`")
            right = torch.equal(tensor, torch.ones_like(fields[name]))
            expect.true(right, f"{what} is filled with {tensor.flatten()[0]:g}", "expected: 1")


@exercise.check(
    given=_series,
    cases={
        "it falls": (2, 0.0, [5.0, 4.0, 3.0, 2.0, 1.0]),
        "it rises": (2, 0.0, [1.0, 2.0, 3.0, 4.0]),
        "up, down to a new best, up": (2, 0.0, [3.0, 4.0, 2.0, 5.0, 5.0]),
        "the same value again": (3, 0.0, [1.0, 1.0, 1.0, 1.0]),
        "below 0": (1, 0.0, [-1.0, -2.0, -1.5]),
        "0, then above it": (2, 0.0, [1.0, 0.0, 0.5, 0.25]),
        "infinity first": (2, 0.0, [math.inf] * 3),
    },
)
def counts(t, device, patience, min_delta, values):
    """It stops after `patience` evaluations in a row without an improvement, and keeps the best

    A lower loss is better. With `patience=1` the first evaluation without an improvement says stop; each
    improvement begins the count anew. When it says stop, the last evaluation isn't the one to keep.
    """
    _compare(t, patience, min_delta, values)


@exercise.check(
    given=_series,
    cases={
        "two small steps make a large one": (3, 0.5, [3.0, 2.75, 2.25, 2.0, 1.875]),
        "exactly `min_delta`": (1, 0.5, [3.0, 2.5]),
    },
)
def small(t, device, patience, min_delta, values):
    """What is not below the best by more than `min_delta` doesn't count

    The best is the value of the last improvement. If small steps moved it too, a loss that falls slowly might
    never improve.
    """
    _compare(t, patience, min_delta, values)


@exercise.check(
    given=_series,
    cases={
        "NaN after the best": (2, 0.0, [1.0, math.nan, math.nan]),
        "NaN twice, then a number": (2, 0.0, [math.nan, math.nan, 1.0]),
        "NaN first": (3, 0.0, [math.nan, 2.0, 3.0, 1.0]),
        "infinity, then NaN": (2, 0.0, [2.0, math.inf, math.nan]),
    },
)
def nan(t, device, patience, min_delta, values):
    """NaN is no improvement

    `<`, `>` and `==` with NaN are false. `value < best` says no, `not value >= best` says yes; and once NaN
    is the best, nothing is below it.
    """
    _compare(t, patience, min_delta, values)


def _kept(t, statements):
    """The bytes of the tensors that are new after these lines, but for those of the model. A copy may run no
    operator; Python's collector knows it, by the generation that begins here."""
    gc.collect(1)
    with collector_off():
        t.run(statements)
        gc.collect(0)
        new = [thing for thing in gc.get_objects(1) if type(thing) in (torch.Tensor, nn.Parameter)]
    storages = [tensor.untyped_storage() for tensor in new if tensor.layout == torch.strided]
    found = {storage.data_ptr(): storage.nbytes() for storage in storages}
    own = {tensor.untyped_storage().data_ptr() for tensor in t.model.state_dict().values()}
    return sum(size for place, size in found.items() if place not in own)


@exercise.check(given=_NEW)
def memory(t, device):
    """There is one copy, made at an improvement

    A copy of a large model takes time and memory. An evaluation without an improvement needs none, and the
    old copy is of no use when there is a better one.
    """
    size = sum(tensor.nbytes for tensor in t.model.state_dict().values())
    kept = _kept(t, "for value in (4.0, 3.0, 2.0, 3.0, 2.0):\n    stopping.step(value, model)")
    expect.at_most(kept, 1.5 * size, f"bytes kept after five steps, of a model of {size} bytes")
    deep = torch.Tensor.__deepcopy__  # it runs no operator, so it's counted by itself
    with mock.patch.object(torch.Tensor, "__deepcopy__", autospec=True, side_effect=deep) as copied:
        more = measure.peak_bytes(t.call, "stopping.step(2.5, model)").total
    expect.at_most(copied.call_count, 0, "tensors copied by an evaluation without an improvement")
    expect.at_most(more, size // 2, "bytes allocated by an evaluation without an improvement")
