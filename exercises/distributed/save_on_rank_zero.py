"""A checkpoint in a group

All ranks call `save_on_rank_zero(model, optimizer, step, path, device)` with the same `path`. It writes a
checkpoint and returns on each rank what that rank read from the file: a dict `{"model": ..., "optimizer":
..., "step": step}` with both state dicts, its tensors on `device`.

- Rank 0 alone writes. No rank reads before the file is there. None returns before all have read it: after
  that it may be deleted.
- At every moment of a write, `path` holds the checkpoint before, complete.
- `model` may be wrapped in `DistributedDataParallel`. The keys are those of the module inside.

All ranks see the same disk. Use `torch.save` and `torch.load`; `path` is a string.
"""

import itertools
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import distributed, ranks

exercise = Exercise(
    minutes=20,
    hints=[
        "Draw two lanes, one for each rank: write, read, return. Which of these has to wait for which of the "
        "other lane? How many meetings does that take, and does every rank come to each?",
        "A file that is being written is half a file. Write it under another name next to `path`; a rename "
        "puts it there in one move (`os.replace`).",
        "The wrapped model keeps the model itself in an attribute. The state dict of that has no prefix to "
        "take off, and `isinstance` says which of the two you were given. `torch.load` can put tensors where "
        "you want them while it reads.",
    ],
)


@exercise.starter
def save_on_rank_zero(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    step: int,
    path: str,
    device: torch.device,
) -> dict:
    """Writes `path` on rank 0; on every rank: what was read from it"""
    raise NotImplementedError


# Without the DDP around it a rank has weights of its own.
_SETUP = """torch.manual_seed(rank)
model = {}
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
model(torch.ones(1, 2)).sum().backward()
optimizer.step()"""
_CALL = "save_on_rank_zero(model, optimizer, {step}, 'model.pt', torch.device('{device}'))"
_RANK, _LINEAR = "rank = dist.get_rank()\n", _SETUP.format("nn.Linear(2, 1)")
_WITH_PARTS = f"from collections import OrderedDict\n{_SETUP}".format
_PARTS = "nn.Sequential(OrderedDict(module=nn.Linear(2, 1), submodule=nn.Linear(1, 1)))"


def _state(t):
    model = t.model.module if isinstance(t.model, DistributedDataParallel) else t.model
    return {"model": dict(model.state_dict()), "optimizer": t.optimizer.state_dict()}


def _call(step, device="cpu"):
    return _CALL.format(step=step, device=device)


@exercise.check(ranks=2, given=_RANK + _LINEAR)
def every_rank_reads(t):
    """Every rank reads what rank 0 has written, however long that takes

    Ranks are processes: one doesn't wait for another by itself. A barrier between writing and reading does,
    if every rank calls it; under `if rank == 0` one would wait in vain.
    """
    wanted = _state(ranks.on_rank_0(_LINEAR))
    with distributed.Files() as files:
        t.run(_call(5))
        t.run(f"read = {_call(7)}")
    expect.equal(t.read, {**wanted, "step": 7})
    expect.true(files.loads > 0, "this rank never called `torch.load`", "expected: every rank reads the file")


@exercise.check(ranks=2, given=_RANK + _LINEAR)
def may_be_deleted(t):
    """When one rank returns the file may go, however long the other takes to read

    The caller goes on, and the next checkpoint, or a clean-up, takes the file away from a rank that still
    reads. So you need a second barrier, after reading.
    """
    with distributed.Files(slow_readers=True):
        read = t.call(_call(4))
        if t.rank == 0:
            t.run("import os\nos.remove('model.pt')")
    expect.equal(read["step"], 4, what="the step that was read")


@exercise.check(ranks=2, given=_RANK + _LINEAR)
def rank_zero_writes(t):
    """Rank 0 writes once, the other never

    After a step of DDP all ranks hold the same weights, so one of them can write. Two that write to one
    name at once can spoil it.
    """
    with distributed.Files() as files:
        t.call(_call(1))
    expect.equal(files.saves, 1 - t.rank, what="the number of calls of `torch.save` on this rank")


@exercise.check(ranks=1, given=_RANK + _LINEAR)
def the_one_before(t):
    """At every moment there is a whole checkpoint at `path`, once there was one

    A file that is written, or copied to, is empty first and then half a file; if the process dies, it stays
    so. A rename within a folder replaces the old file in one step.
    """
    found = []
    with distributed.Files():
        t.run(_call(5))
        with distributed.at_every_change(Path(), lambda: found.append(_step_there())):
            t.call(_call(7))
    found = [step for step, _ in itertools.groupby([5, *found])]
    expect.equal(found, [5, 7], what="the list of what is at `path`, from before the second call on,")


def _step_there():
    """The step of the checkpoint that is there; words where there is none."""
    if not Path("model.pt").exists():
        return "no file"
    try:
        return torch.load("model.pt")["step"]
    except Exception:
        return "half a file"


@exercise.check(
    ranks=1,
    given=lambda model: _RANK + _WITH_PARTS(model),
    cases={
        "the bare model": _PARTS,
        "the wrapped one": f"nn.parallel.DistributedDataParallel({_PARTS})",
    },
)
def wrapped_and_bare(t, model):
    """The keys are those of the module inside, also where a part of it is called `module`

    DDP is a module with the model as its part `module`: its state dict has that before each key, and the bare
    model doesn't take such keys. A bare model may have a part of that name too. The type tells them apart;
    keys and attributes don't.
    """
    wanted = _state(ranks.on_rank_0(_WITH_PARTS(model)))["model"]
    with distributed.Files():
        read = t.call(_call(2))["model"]
    expect.equal(sorted(read), sorted(wanted), what="the list of keys")
    expect.equal(dict(read), wanted, what="the model")


@exercise.check(
    ranks=2,
    given=_RANK + _SETUP.format("nn.parallel.DistributedDataParallel(nn.Linear(2, 1))"),
)
def where_it_is_wanted(t):
    """Every tensor is where this rank wants it

    A file says on which device each tensor was, and `torch.load` puts it there again: for all ranks that is
    the GPU of rank 0. `map_location` names another place for them.
    """
    with distributed.Files(), expect.left_alone(t.model, what="`model`"):
        # A device that every machine has.
        t.run(f"read = {_call(1, 'meta')}")
    places = {f"read['model']['{key}']": value for key, value in t.read["model"].items()}
    for i, state in t.read["optimizer"]["state"].items():
        places |= {f"read['optimizer']['state'][{i}]['{key}']": value for key, value in state.items()}
    for name, value in places.items():
        expect.equal(expect.a_tensor(value, what=name).device.type, "meta", what=f"the device of `{name}`")
