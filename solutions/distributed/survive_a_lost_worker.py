"""All that a step reads and changes is in one file: weights and buffers, what the optimizer remembers, the
number of steps that are done, and the random state of every rank. What is not in it would be as new after a
start. It is one file, because two could be of different steps.

Rank 0 writes for all: weights and optimizer are the same on every rank. Random states are not, so they are
gathered first; that is also where rank 0 learns that every rank has done the step. Every rank loads, since
every rank was started anew.

`os.replace`, or `replace` of a Path, changes which file a name stands for, in one move. Until then the old
checkpoint has the name, and from then on the new one. A half-written file has another name, and nobody looks
at that."""

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
        kept = torch.load(path)
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        torch.set_rng_state(kept["random"][rank])
        done = kept["done"]
    for i in range(done, steps):
        step(i)
        states = [None] * dist.get_world_size() if rank == 0 else None
        dist.gather_object(torch.get_rng_state(), states)
        if rank == 0:
            unfinished = folder / "checkpoint.unfinished"
            kept = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**kept, "random": states, "done": i + 1}, unfinished)
            unfinished.replace(path)


# Other right answers


def a_file_for_each_step(folder, model, optimizer, step, steps):
    """The newest by its number; numbers of equal width are in order as text. Older ones are removed."""
    generator = torch.default_generator
    found = sorted(folder.glob("[0-9]*.pt"))
    done = int(found[-1].stem) + 1 if found else 0
    if found:
        *states, random = torch.load(found[-1], weights_only=True).values()
        for part, state in zip((model, optimizer), states, strict=True):
            part.load_state_dict(state)
        generator.set_state(random[dist.get_rank()].clone())
    while done < steps:
        step(done)
        mine = generator.get_state()
        everyones = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(everyones, mine)
        if dist.get_rank() == 0:
            saved = dict(model=model.state_dict(), optimizer=optimizer.state_dict(), random=everyones)
            with (folder / ".writing").open("wb") as file:
                torch.save(saved, file)
            (folder / ".writing").rename(folder / f"{done:09}.pt")
            for old in sorted(folder.glob("[0-9]*.pt"))[:-2]:
                old.unlink()
        done += 1


def rank_0_reads_too(folder, model, optimizer, step, steps):
    """One rank reads, and what it read is sent to the others."""
    file, me = Path(folder, "state"), dist.get_rank()
    box = [torch.load(file) if me == 0 and file.is_file() else None]
    dist.broadcast_object_list(box, src=0)
    begin = 0
    if box[0] is not None:
        begin, weights, memory, random = box[0]
        model.load_state_dict(weights)
        optimizer.load_state_dict(memory)
        torch.random.set_rng_state(random[me])
    for number in range(steps):
        if number < begin:
            continue
        step(number)
        random = [None for _ in range(dist.get_world_size())]
        dist.all_gather_object(random, torch.random.get_rng_state())
        if me == 0:
            torch.save((number + 1, model.state_dict(), optimizer.state_dict(), random), f"{file}~")
            Path(f"{file}~").rename(file)
        dist.barrier()


also_right = [a_file_for_each_step, rank_0_reads_too]


# Mutants that no check can tell from the reference

_A_NAME = "Any two names do, as long as they are two."

equivalent = {
    "line 13: `'checkpoint.pt'` -> `'not checkpoint.pt'`": _A_NAME,
    "line 26: `'checkpoint.unfinished'` -> `'not checkpoint.unfinished'`": _A_NAME,
    "line 23: `None` -> `0`": "What stands in the list before `gather_object` fills it is never read.",
}


def generated(answer):
    import tempfile

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with tempfile.TemporaryDirectory() as folder:
        for steps in (2, 5, 5, 6):
            torch.manual_seed(steps)
            model = nn.Linear(2, 1)
            optimizer, run = torch.optim.Adam(model.parameters()), []

            def step(i, model=model, optimizer=optimizer, run=run):
                run.append(i)
                optimizer.zero_grad()
                model(torch.randn(3, 2)).square().mean().backward()
                optimizer.step()

            answer(Path(folder), model, optimizer, step, steps)
            yield [run, model.weight, model.bias, torch.get_rng_state()]
    dist.destroy_process_group()
