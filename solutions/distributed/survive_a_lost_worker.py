"""All that a step reads and changes is in one file: weights and buffers, what the optimizer remembers, the
random state, and the number of steps that are done. What is not in it would be as new after a start. It is
one file, because two could be of different steps.

Rank 0 writes for all. What differs from rank to rank is gathered first; that is also where rank 0 learns that
every rank has done the step. Every rank loads, since every rank was started anew.

`os.replace`, or `replace` of a Path, changes which file a name stands for, in one move. Until then the old
checkpoint has the name, and from then on the new one. A half-written file has another name, and nobody looks
at that.
"""

from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn


def survive_a_lost_worker(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, step: Callable[[int], None], steps: int
) -> None:
    """Runs the steps that are still to do, and keeps each of them in the folder"""
    rank, path = dist.get_rank(), folder / "checkpoint.pt"
    done = 0
    if path.exists():
        done, everyones = torch.load(path)
        weights, memory, random = everyones[rank]
        model.load_state_dict(weights)
        optimizer.load_state_dict(memory)
        torch.set_rng_state(random)
    for i in range(done, steps):
        step(i)
        mine = (model.state_dict(), optimizer.state_dict(), torch.get_rng_state())
        everyones = [None] * dist.get_world_size() if rank == 0 else None
        dist.gather_object(mine, everyones)
        if rank == 0:
            unfinished = folder / "checkpoint.unfinished"
            torch.save((i + 1, everyones), unfinished)
            unfinished.replace(path)


# Other right answers

import io

from course_utils.exercise import Edit


def _a_file_for_each_step(folder, model, optimizer, step, steps):
    """The newest by its number; what differs is gathered by all. Older files are removed."""
    found = sorted(folder.glob("[0-9]*.pt"), key=lambda path: int(path.stem))
    done = int(found[-1].stem) if found else 0
    if found:
        kept = torch.load(found[-1], weights_only=True)
        buffers, random = kept["own"][dist.get_rank()]
        model.load_state_dict({**kept["weights"], **buffers})
        optimizer.load_state_dict(kept["optimizer"])
        torch.default_generator.set_state(random)
    while done < steps:
        step(done)
        done += 1
        own = [None] * dist.get_world_size()
        dist.all_gather_object(own, (dict(model.named_buffers()), torch.get_rng_state()))
        if dist.get_rank() == 0:
            kept = {
                "weights": dict(model.named_parameters()),
                "optimizer": optimizer.state_dict(),
                "own": own,
            }
            with (folder / "writing").open("wb") as file:
                torch.save(kept, file)
            (folder / "writing").rename(folder / f"{done}.pt")
            for old in folder.glob("[0-9]*.pt"):
                if int(old.stem) < done - 1:
                    old.unlink()


def _rank_0_reads(folder, model, optimizer, step, steps):
    """One rank reads, and sends to each of the others what is its own: bytes, as it came."""
    file, me = folder / "state", dist.get_rank()
    kept = torch.load(file) if me == 0 and file.is_file() else [None] * dist.get_world_size()
    box = [None]
    dist.scatter_object_list(box, kept if me == 0 else None)
    begin = 0
    if box[0]:
        begin, weights, memory, random = torch.load(io.BytesIO(box[0]))
        model.load_state_dict(weights)
        optimizer.load_state_dict(memory)
        torch.random.set_rng_state(random)
    for number in range(begin, steps):
        step(number)
        mine = [number + 1, model.state_dict(), optimizer.state_dict(), torch.random.get_rng_state()]
        everyones, buffer = [None] * dist.get_world_size(), io.BytesIO()
        torch.save(mine, buffer)
        dist.all_gather_object(everyones, buffer.getvalue())
        if me == 0:
            torch.save(everyones, f"{file}~")
            Path(f"{file}~").rename(file)


also_right = [_a_file_for_each_step, _rank_0_reads]


# Mistakes

_ENTRY, _LOADS = "everyones[rank]", "        done, everyones = torch.load(path)\n"
_LEAVES = _LOADS + "        if done == steps:\n            return\n"
_SAVES = "            torch.save((i + 1, everyones), unfinished)\n            unfinished.replace(path)\n"
_LATER = """            def write(done=i + 1, everyones=everyones):
                torch.save((done, everyones), unfinished)
                unfinished.replace(path)
            __import__("threading").Thread(target=write).start()
"""
_WEIGHTS = "{**model.state_dict(), **{name: weights[name] for name, _ in model.named_parameters()}}"

mistakes = [
    Edit("repeats a step", "(i + 1, everyones)", "(i, everyones)", told_by="goes_on"),
    Edit("what rank 0 had", _ENTRY, "everyones[0]", told_by="what_it_had"),
    Edit("without the optimizer", "        optimizer.load_state_dict(memory)\n", "", told_by="what_it_had"),
    Edit("without the random state", "        torch.set_rng_state(random)\n", "", told_by="what_it_had"),
    Edit(
        "without the buffers",
        "load_state_dict(weights)",
        f"load_state_dict({_WEIGHTS})",
        told_by="what_it_had",
    ),
    Edit("writes meanwhile", _SAVES, _LATER, told_by="rank_zero_writes"),
    Edit("leaves when nothing is left", _LOADS, _LEAVES, told_by="at_any_moment"),
    Edit("writes in place", '"checkpoint.unfinished"', '"checkpoint.pt"', told_by="at_any_moment"),
]
not_tried = {
    "hard numbers": "a file holds any number",
    "dtypes": "a file holds any dtype",
    "left alone": "the job is to be trained",
    "seeds": "each rank has its own",
}

_A_NAME = "any two names do, as long as they are two"
equivalent = {
    "line 13: `'checkpoint.pt'` -> `'not checkpoint.pt'`": _A_NAME,
    "line 27: `'checkpoint.unfinished'` -> `'not checkpoint.unfinished'`": _A_NAME,
    "line 24: `None` -> `0`": "what stands in the list before `gather_object` fills it is never read",
}
