"""All ranks hold the same weights, so one of them writes. After the first barrier the file is there. After
the second one it may go: without it rank 0 might write the next checkpoint while a slow rank still reads this
one. Both stand outside the `if`, where every rank calls them.

A rename within a folder is one step: the old file before it, the new one after it. A half-written file has
another name.

The wrapper is itself a module, with the model as its part `module`; that is where the prefix comes from. A
model without a wrapper may have such keys too, so check the type. A file remembers the device of each tensor:
without `map_location` every rank would put its copy on the GPU of rank 0.
"""

from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def save_on_rank_zero(
    model: nn.Module, optimizer: torch.optim.Optimizer, step: int, path: str, device: torch.device
) -> dict:
    """Writes `path` on rank 0; on every rank: what was read from it"""
    if dist.get_rank() == 0:
        bare = model.module if isinstance(model, DistributedDataParallel) else model
        kept = {"model": bare.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        unfinished = Path(f"{path}.unfinished")
        torch.save(kept, unfinished)
        unfinished.replace(path)
    dist.barrier()
    read = torch.load(path, map_location=device)
    dist.barrier()
    return read


# Other right answers

import io
import os

from course_utils.exercise import Edit


def _through_memory(model, optimizer, step, path, device):
    """`torch.save` writes to memory, and the bytes go to a file at once; a message in place of a barrier."""
    if isinstance(model, DistributedDataParallel):
        model = model.module
    if dist.get_rank() == 0:
        memory = io.BytesIO()
        torch.save(dict(model=model.state_dict(), optimizer=optimizer.state_dict(), step=step), memory)
        new = Path(f"{path}.new")
        new.write_bytes(memory.getvalue())
        new.rename(path)
    written = torch.ones(1)
    dist.broadcast(written, src=0)
    read = torch.load(io.BytesIO(Path(path).read_bytes()), map_location=device)
    dist.all_reduce(written)
    return read


def _prefix_of_a_wrapper(model, optimizer, step, path, device):
    """Takes the prefix off where there is a wrapper, and moves after reading."""
    wrapped = isinstance(model, DistributedDataParallel)
    if dist.get_rank() == 0:
        state = {
            key[len("module.") :] if wrapped else key: value for key, value in model.state_dict().items()
        }
        with Path(path + ".tmp").open("wb") as file:
            torch.save({"model": state, "optimizer": optimizer.state_dict(), "step": step}, file)
        os.replace(path + ".tmp", path)  # noqa: PTH105 (the function that the hint names)
    dist.barrier(async_op=True).wait()
    read = torch.load(path, map_location=lambda storage, place: storage, weights_only=True)
    dist.barrier()
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.to(device), read)


also_right = [_through_memory, _prefix_of_a_wrapper]


# Mistakes

_FIRST = "    if dist.get_rank() == 0:\n"
_OWN = '    if dist.get_rank() > 0:\n        torch.save(step, f"{path}.{dist.get_rank()}")\n    else:\n'
_MEETS = "    dist.barrier()\n    read"
_BARE = "model.module if isinstance(model, DistributedDataParallel) else model"

mistakes = [
    Edit("reads too early", _MEETS, "    read", told_by="every_rank_reads"),
    Edit(
        "a barrier for rank 0 alone", _MEETS, "        dist.barrier()\n    read", told_by="every_rank_reads"
    ),
    Edit("returns too early", "    dist.barrier()\n    return", "    return", told_by="may_be_deleted"),
    Edit("every rank writes a file", _FIRST, _OWN, told_by="rank_zero_writes"),
    Edit(
        "writes in place",
        'unfinished = Path(f"{path}.unfinished")',
        "unfinished = Path(path)",
        told_by="the_one_before",
    ),
    Edit("leaves the prefix", _BARE, "model", told_by="wrapped_and_bare"),
    Edit("asks for the attribute", _BARE, 'getattr(model, "module", model)', told_by="wrapped_and_bare"),
    Edit("where they were", ", map_location=device", "", told_by="where_it_is_wanted"),
]
not_tried = {"hard numbers": "a file holds any number", "dtypes": "a file holds any dtype"}
