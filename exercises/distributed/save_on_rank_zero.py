"""A checkpoint in a group

Write a checkpoint from a group of ranks, and let every rank read it back.

`save_on_rank_zero(model, optimizer, step, path, device)` is called on all ranks with the same `path`, and
returns on each of them what that rank has read from the file: a dict `{"model": ..., "optimizer": ...,
"step": step}` with both state dicts, its tensors on `device`.

- Rank 0 alone writes, and there is one file afterwards, at `path`.
- At every moment there is a whole checkpoint at `path`, once there was one. Whoever looks while rank 0 is
  writing, or after it broke off, finds the one before.
- No rank reads before the file is there. And when the function returns on one rank, **every** rank has read:
  the file may be written anew or deleted from then on.
- `model` may be wrapped in `DistributedDataParallel`. The keys are those of the module inside, so that the
  file fits the bare model as well as the wrapped one. A module may have a part of its own that is called
  `module`.
- The file can be read with `weights_only=True`, and that is how it is read.

All ranks see the same disk. Use `torch.save`, `torch.load` and what is needed around them; `path` is a
string.
"""

import contextlib
import io
import shutil
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from course_utils import evidence, expect
from course_utils.exercise import Exercise

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
    model: nn.Module, optimizer: torch.optim.Optimizer, step: int, path: str, device: torch.device
) -> dict:
    """Writes `path` on rank 0; on every rank: what was read from it"""
    raise NotImplementedError


_SETUP = """model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
model(torch.ones(1, 2)).sum().backward()
optimizer.step()"""
_WRAPPED = _SETUP.replace("nn.Linear(2, 1)", "DistributedDataParallel(nn.Linear(2, 1))")
_CALL = "save_on_rank_zero(model, optimizer, {step}, 'model.pt', torch.device('{device}'))"


def _given(answer, setup=_SETUP):
    return expect.given(setup, save_on_rank_zero=answer, DistributedDataParallel=DistributedDataParallel)


@contextlib.contextmanager
def _in_one_folder(path):
    """All ranks work in the folder of rank 0."""
    shared = [str(path)]
    dist.broadcast_object_list(shared, src=0)
    with contextlib.chdir(shared[0]):
        yield


_STORAGES = (torch.UntypedStorage, torch.storage.TypedStorage)


@contextlib.contextmanager
def _watched(save=None, load=None):
    """Counts the files written and read; `save` is called before each is written, `load` before one is
    read."""
    found = {"save": 0, "load": []}
    plain_save, plain_load = torch.save, torch.load

    def saving(obj, f, *args, **kwargs):
        if not isinstance(obj, _STORAGES):  # so tensors are pickled
            found["save"] += 1
            if save is not None:
                save(f)
        return plain_save(obj, f, *args, **kwargs)

    def loading(f, *args, **kwargs):
        careless = kwargs.get("weights_only") is False
        if isinstance(f, io.BytesIO) and careless:  # so they are unpickled
            return plain_load(f, *args, **kwargs)
        found["load"].append(careless)
        if load is not None:
            load(f)
        try:
            return plain_load(f, *args, **kwargs)
        finally:
            Path("looked").touch()

    torch.save, torch.load = saving, loading
    try:
        yield found
    finally:
        torch.save, torch.load = plain_save, plain_load


def _waits_for(name):
    """Gives the other ranks time until one of them has left this mark; those that wait for this one never
    do."""
    end = time.monotonic() + 0.2
    while not Path(name).exists() and time.monotonic() < end:
        time.sleep(0.01)


def _called(t, step, device="cpu"):
    """What the answer gives on this rank. Writing takes long: a rank that does not wait for it comes too
    early."""
    dist.barrier()
    with _watched(save=lambda f: _waits_for("looked")) as found:
        came = t.call(_CALL.format(step=step, device=device))
    dist.barrier()
    with contextlib.suppress(FileNotFoundError):
        Path("looked").unlink()
    files = sorted(path.name for path in Path().iterdir() if path.name != "looked")
    dist.barrier()
    return came, found, files


def _bare(model):
    return model.module if isinstance(model, DistributedDataParallel) else model


def _expected(t, step):
    return {
        "model": {key: value.clone() for key, value in _bare(t.model).state_dict().items()},
        "optimizer": t.optimizer.state_dict(),
        "step": step,
    }


@exercise.check(ranks=2)
def every_rank_reads(save_on_rank_zero, rank, tmp_path):
    """Every rank gets what rank 0 had, however long that takes to write"""
    with _in_one_folder(tmp_path):
        t = _given(save_on_rank_zero)
        wanted = [_expected(t, 7)]
        dist.broadcast_object_list(wanted, src=0)
        came, found, files = _called(t, 7)
    evidence.record("read", len(found["load"]) > 0)
    expect.equal(came, wanted[0])
    expect.true(
        len(found["load"]) > 0, f"rank {rank} never called `torch.load`", "expected: every rank reads"
    )
    evidence.record("files", (len(files), "model.pt" in files))  # what others are called says nothing
    with evidence.silent():
        expect.equal(files, ["model.pt"], what="the list of files")


@exercise.check(ranks=2)
def rank_zero_writes(save_on_rank_zero, rank, tmp_path):
    """Rank 0 writes once, the other never, and nobody reads with `weights_only=False`"""
    with _in_one_folder(tmp_path):
        t = _given(save_on_rank_zero)
        _, found, _ = _called(t, 1)
    written = found["save"]
    evidence.record("written", written)
    expect.true(written == 1 - rank, f"calls of `torch.save` on rank {rank}: {written}, expected {1 - rank}")
    expect.true(
        not any(found["load"]),
        "`torch.load` was called with `weights_only=False`: it runs whatever code the file holds",
        "expected: `weights_only=True`",
    )


_BOTH = """class Both(nn.ModuleDict):
    def forward(self, x): return self['submodule'](self['module'](x))
"""


@exercise.check(ranks=2)
def wrapped_and_bare(save_on_rank_zero, rank, tmp_path):
    """What is saved from a wrapped model fits the bare one, also where a part is called `module`"""
    inner = "Both({'module': nn.Linear(2, 1), 'submodule': nn.Linear(1, 1)})"
    with _in_one_folder(tmp_path):
        for made in (inner, f"DistributedDataParallel({inner})"):
            t = _given(save_on_rank_zero, _BOTH + _SETUP.replace("nn.Linear(2, 1)", made))
            wanted = [_expected(t, 2)["model"]]
            dist.broadcast_object_list(wanted, src=0)
            came, _, _ = _called(t, 2)
            model = came["model"] if isinstance(came, dict) else came
            expect.equal(sorted(model), sorted(wanted[0]), what="the list of keys of the model")
            expect.equal(dict(model), wanted[0], what="the model")


@exercise.check(ranks=3)
def may_be_deleted(save_on_rank_zero, rank, tmp_path):
    """When rank 0 returns it deletes the file, however long the others take to read"""
    slow = (lambda f: _waits_for("deleted")) if rank else None
    with _in_one_folder(tmp_path):
        t = _given(save_on_rank_zero)
        with _watched(load=slow):
            came = t.call(_CALL.format(step=4, device="cpu"))
        if rank == 0:
            Path("model.pt").unlink(missing_ok=True)
            Path("deleted").touch()
        dist.barrier()
    expect.equal(came["step"] if isinstance(came, dict) else came, 4, what="the step that was read")


@exercise.check(ranks=1)
def the_one_before(save_on_rank_zero, rank, tmp_path):
    """While a checkpoint is written, and when that breaks off, the one before is there, whole"""
    seen = []

    def breaks_off(f):
        data = b"half of a file"
        f.write(data) if hasattr(f, "write") else Path(f).write_bytes(data)
        if hasattr(f, "flush"):
            f.flush()
        seen.append(_step_of("model.pt"))
        raise OSError("no space left")

    with _in_one_folder(tmp_path):
        t = _given(save_on_rank_zero, f"{_SETUP}\n{_CALL.format(step=5, device='cpu')}")
        with _watched(save=breaks_off), contextlib.suppress(OSError):
            t.call(_CALL.format(step=6, device="cpu"))
        seen.append(_step_of("model.pt"))
        what = "the steps found at `path` while 6 is written, and after an OSError in `torch.save`,"
        expect.equal(seen, [5, 5], what=what)
        with _at_every_moment("model.pt") as found:
            came = t.call(_CALL.format(step=7, device="cpu"))
    expect.equal(found, [5, 7], what="the list of what is at `path`, from before the call until after it,")
    expect.equal(came["step"] if isinstance(came, dict) else came, 7, what="the step that was read")


@contextlib.contextmanager
def _at_every_moment(path):
    """What is at `path`, looked at after each call of a function in C, without repetitions."""
    found, last = [_step_of(path)], _state_of(path)

    def look(frame, event, function):
        nonlocal last
        if event == "c_return" and (now := _state_of(path)) != last:
            last = now
            found.extend([step] if (step := _step_of(path)) != found[-1] else [])

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        yield found
    finally:
        sys.setprofile(before)


def _state_of(path):
    try:
        about = Path(path).stat()
    except FileNotFoundError:
        return None
    return about.st_ino, about.st_size, about.st_mtime_ns


def _step_of(path):
    """The step of the checkpoint there; words where there is none."""
    if not Path(path).exists():
        return "no file"
    try:
        return torch.load(path, weights_only=True)["step"]
    except Exception:
        return "half of a file"


@exercise.check(ranks=2)
def where_it_is_wanted(save_on_rank_zero, rank, tmp_path):
    """Every tensor is where this rank wants it"""
    wanted = torch.device("meta" if rank else "cpu")  # a device that every machine has
    with _in_one_folder(tmp_path):
        t = _given(save_on_rank_zero, _WRAPPED)
        came, _, _ = _called(t, 1, wanted.type)
    came = came if isinstance(came, dict) else {}
    tensors = {f"came['model']['{key}']": value for key, value in came.get("model", {}).items()}
    for i, state in came.get("optimizer", {}).get("state", {}).items():
        tensors |= {f"came['optimizer']['state'][{i}]['{key}']": value for key, value in state.items()}
    places = {name: value.device.type for name, value in tensors.items() if isinstance(value, torch.Tensor)}
    evidence.record("places", places)
    expect.true(len(places) > 0, "there is no tensor in the result", "expected: a model and an optimizer")
    for name, place in places.items():
        expect.true(place == wanted.type, f"`{name}` is on {place}, expected on {wanted.type}")


# --- the mistakes -----------------------------------------------------------------------------------------


def _kept(model, optimizer, step, state=None):
    state = _bare(model).state_dict() if state is None else state
    return {"model": state, "optimizer": optimizer.state_dict(), "step": step}


def _write(kept, path):
    torch.save(kept, f"{path}.part")
    Path(f"{path}.part").replace(path)


def _read(path, device):
    kept = torch.load(path, map_location=device, weights_only=True)
    dist.barrier()
    return kept


def _shared(kept, path, device, write=_write):
    """A right answer with holes: what is written, and how."""
    if dist.get_rank() == 0:
        write(kept, path)
    dist.barrier()
    return _read(path, device)


@exercise.mistake
def every_rank_writes(model, optimizer, step, path, device):
    """Every rank writes. What is at `path` in the end is whichever came last; that all hold the same
    weights does not make their files the same, and writing to one name at once can spoil the file."""
    rank = dist.get_rank()
    torch.save(_kept(model, optimizer, step), f"{path}.{rank}")
    dist.barrier()
    if rank == 0:
        for other in range(1, dist.get_world_size()):
            Path(f"{path}.{other}").unlink()
        Path(f"{path}.0").replace(path)
    dist.barrier()
    return _read(path, device)


@every_rank_writes.form
def a_file_each(model, optimizer, step, path, device):
    mine = path if dist.get_rank() == 0 else f"{path}.{dist.get_rank()}"
    _write(_kept(model, optimizer, step), mine)
    return _read(mine, device)


@exercise.mistake
def reads_too_early(model, optimizer, step, path, device):
    """Rank 0 is still writing when another rank looks for the file. Nothing makes that rank wait: it needs a
    barrier between writing and reading, one that all ranks call."""
    if dist.get_rank() == 0:
        _write(_kept(model, optimizer, step), path)
    else:
        time.sleep(0.001)
    return _read(path, device)


@exercise.mistake
def barrier_on_rank_zero(model, optimizer, step, path, device):
    """On two ranks one waits in a barrier that the other does not come to, or comes to another time. A
    barrier is a collective: it belongs after the `if`, not under it."""
    if dist.get_rank() == 0:
        _write(_kept(model, optimizer, step), path)
        dist.barrier()
    else:
        while not Path(path).exists():
            time.sleep(0.01)
    return _read(path, device)


@exercise.mistake
def returns_too_early(model, optimizer, step, path, device):
    """A rank returns while another is still reading. The caller goes on, and the next checkpoint, or
    whoever clears up, takes the file from under that rank: there is a second meeting, after reading."""
    if dist.get_rank() == 0:
        _write(_kept(model, optimizer, step), path)
    dist.barrier()
    return torch.load(path, map_location=device, weights_only=True)


@returns_too_early.variant
def meets_by_an_all_reduce(model, optimizer, step, path, device):
    if dist.get_rank() == 0:
        torch.save(_kept(model, optimizer, step), path + "~")
        Path(path + "~").rename(path)
    dist.all_reduce(torch.zeros(1))
    return torch.load(path, device)


@exercise.mistake
def writes_in_place(model, optimizer, step, path, device):
    """You write to `path` itself. From the first byte on the checkpoint before is gone, and until the last
    the new one is not there: if writing breaks off, there is none. Write under another name, then rename."""
    return _shared(_kept(model, optimizer, step), path, device, write=torch.save)


@exercise.mistake
def not_in_one_step(model, optimizer, step, path, device):
    """There is a moment without a whole checkpoint at `path`: the one before is gone, and the new one is not
    there yet. It is so when the old file is deleted first, and when the new one is copied over it, which
    takes one byte after the other. A rename takes the place of what is there in one step."""

    def write(kept, path):
        torch.save(kept, f"{path}.new")
        Path(path).unlink(missing_ok=True)
        Path(f"{path}.new").rename(path)

    return _shared(_kept(model, optimizer, step), path, device, write)


@not_in_one_step.form
def copies_it(model, optimizer, step, path, device):
    def write(kept, path):
        torch.save(kept, f"{path}.new")
        shutil.copyfile(f"{path}.new", path)
        Path(f"{path}.new").unlink()

    return _shared(_kept(model, optimizer, step), path, device, write)


@not_in_one_step.form
def deletes_it_first(model, optimizer, step, path, device):
    def write(kept, path):
        Path(path).unlink(missing_ok=True)
        _write(kept, path)

    return _shared(_kept(model, optimizer, step), path, device, write)


@exercise.mistake
def prefix_left(model, optimizer, step, path, device):
    """The keys of a wrapped model begin with `module.`: its state dict is that of the wrapper. A bare
    model has no such keys, and does not take them. Save the state dict of the module inside."""
    return _shared(_kept(model, optimizer, step, model.state_dict()), path, device)


@prefix_left.form
def wraps_what_is_bare(model, optimizer, step, path, device):
    state = {f"module.{key}": value for key, value in _bare(model).state_dict().items()}
    return _shared(_kept(model, optimizer, step, state), path, device)


@exercise.mistake
def prefix_everywhere(model, optimizer, step, path, device):
    """You take `module.` out of the keys, whether or not it comes from a wrapper. A model may have a part
    of its own of that name, or of a name that ends with it; these keys lose a piece that belongs to them.
    Whether there is a wrapper is a question about the model, not about its keys."""
    state = {key.replace("module.", ""): value for key, value in model.state_dict().items()}
    return _shared(_kept(model, optimizer, step, state), path, device)


@prefix_everywhere.form
def prefix_of_each_key(model, optimizer, step, path, device):
    state = {key.removeprefix("module."): value for key, value in model.state_dict().items()}
    return _shared(_kept(model, optimizer, step, state), path, device)


@exercise.mistake
def asks_for_the_attribute(model, optimizer, step, path, device):
    """You save `model.module` where there is one. A bare model may have a part of that name, and then this
    part is all that is saved: ask for the type of the wrapper, not for the attribute."""
    state = getattr(model, "module", model).state_dict()
    return _shared(_kept(model, optimizer, step, state), path, device)


@exercise.mistake
def forgets_the_optimizer(model, optimizer, step, path, device):
    """The state of the optimizer is not in the file. Momentum starts from zero then, and training goes on
    in another way than it would have."""
    return _shared({"model": _bare(model).state_dict(), "step": step}, path, device)


@forgets_the_optimizer.variant
def keeps_the_model_only(model, optimizer, step, path, device):
    if dist.get_rank() == 0:
        torch.save(dict(step=step, model=_bare(model).state_dict()), path + ".new")
        Path(path + ".new").rename(path)
    dist.barrier()
    found = torch.load(path, device)
    dist.all_reduce(torch.ones(1))
    return found


@exercise.mistake
def tensors_where_they_were(model, optimizer, step, path, device):
    """The tensors come back to the device from which rank 0 saved them. On a machine with GPUs that is the
    GPU of rank 0, for all ranks: `torch.load` needs `map_location`."""
    if dist.get_rank() == 0:
        _write(_kept(model, optimizer, step), path)
    dist.barrier()
    kept = torch.load(path, weights_only=True)
    dist.barrier()
    return kept


@tensors_where_they_were.form
def moves_the_model_alone(model, optimizer, step, path, device):
    if dist.get_rank() == 0:
        _write(_kept(model, optimizer, step), path)
    dist.barrier()
    kept = torch.load(path, weights_only=True)
    kept["model"] = {key: value.to(device) for key, value in kept["model"].items()}
    dist.barrier()
    return kept


@exercise.mistake
def trusts_the_file(model, optimizer, step, path, device):
    """You read with `weights_only=False`, which runs whatever code the file holds. State dicts and numbers
    need none of that."""
    if dist.get_rank() == 0:
        _write(_kept(model, optimizer, step), path)
    dist.barrier()
    kept = torch.load(path, map_location=device, weights_only=False)
    dist.barrier()
    return kept


@exercise.mistake
def returns_its_own(model, optimizer, step, path, device):
    """What you return was not read from the file, but taken from the memory of this rank. Whether the file
    is good is found out only by reading it, and a rank of its own weights would not even get those of rank
    0."""
    if dist.get_rank() == 0:
        _write(_kept(model, optimizer, step), path)
    dist.barrier()
    return {
        "model": {key: value.clone().to(device) for key, value in _bare(model).state_dict().items()},
        "optimizer": optimizer.state_dict(),
        "step": step,
    }


@returns_its_own.form
def rank_zero_has_it(model, optimizer, step, path, device):
    kept = _kept(model, optimizer, step)
    if dist.get_rank() == 0:
        _write(kept, path)
    dist.barrier()
    if dist.get_rank() > 0:
        return _read(path, device)
    dist.barrier()
    return kept


@exercise.mistake
def rank_zero_reads_for_all(model, optimizer, step, path, device):
    """Rank 0 reads, and the others get its objects over the network. That is right where disks are not
    shared; here every rank was to read, which takes no message at all."""
    kept = [None]
    if dist.get_rank() == 0:
        _write(_kept(model, optimizer, step), path)
        kept = [torch.load(path, map_location="cpu", weights_only=True)]
    dist.broadcast_object_list(kept, src=0)
    found = kept[0]
    found["model"] = {key: value.to(device) for key, value in found["model"].items()}
    for state in found["optimizer"]["state"].values():
        state |= {key: value.to(device) for key, value in state.items() if isinstance(value, torch.Tensor)}
    return found
