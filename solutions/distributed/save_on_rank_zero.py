"""All ranks hold the same weights, so one of them writes. The others have to know when: a barrier after
writing is the moment from which the file is there. A second one after reading is the moment from which it may
go, since without it rank 0 might be at the next checkpoint while a slow rank still reads this one. Both stand
outside the `if`, where every rank comes by.

Renaming within a folder is one step for everybody who looks: the old file until then, the new one afterwards.
What is half written has another name.

The wrapper is itself a module, with the model as its part `module`, and that is where the prefix comes
from. The state dict of the part has none. A model without a wrapper may have keys that begin with
`module.` too, so the keys cannot tell; the type can. `map_location` matters because a file remembers the
device of each tensor: without it every rank would put its copy on the GPU of rank 0. `weights_only=True`
is what `torch.load` does by itself."""

import os
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


def _through_memory(model, optimizer, step, path, device):
    """Written by hand, from bytes; a message in place of a barrier."""
    import io

    if isinstance(model, DistributedDataParallel):
        model = model.module
    if dist.get_rank() == 0:
        with Path(path + ".tmp").open("wb") as file:
            torch.save(dict(model=model.state_dict(), optimizer=optimizer.state_dict(), step=step), file)
            file.flush()
            os.fsync(file.fileno())
        Path(path + ".tmp").rename(path)
    written = torch.ones(1)
    dist.broadcast(written, src=0)
    read = torch.load(io.BytesIO(Path(path).read_bytes()), map_location=device)
    dist.all_reduce(written)
    return read


def _prefix_of_a_wrapper(model, optimizer, step, path, device):
    """Takes the prefix off where there is a wrapper, and moves after reading."""
    import tempfile

    wrapped = isinstance(model, DistributedDataParallel)
    if dist.get_rank() == 0:
        state = {
            key[len("module.") :] if wrapped else key: value for key, value in model.state_dict().items()
        }
        with tempfile.NamedTemporaryFile(dir=Path(path).parent, delete=False) as file:
            torch.save({"model": state, "optimizer": optimizer.state_dict(), "step": step}, file)
        os.replace(file.name, path)  # noqa: PTH105 (the function that the hint names)
    dist.barrier(async_op=True).wait()
    read = torch.load(path, map_location=lambda storage, place: storage, weights_only=True)
    dist.barrier()
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.to(device), read)


def _saved_into_memory(model, optimizer, step, path, device):
    """`torch.save` writes to memory, and the bytes go to a file at once."""
    import io

    if dist.get_rank() == 0:
        memory = io.BytesIO()
        bare = model.module if type(model) is DistributedDataParallel else model
        torch.save({"step": step, "optimizer": optimizer.state_dict(), "model": bare.state_dict()}, memory)
        new = Path(f"{path}.new")
        new.write_bytes(memory.getvalue())
        new.replace(path)
    dist.barrier()
    read = torch.load(path, device)
    dist.barrier()
    return read


also_right = [_through_memory, _prefix_of_a_wrapper, _saved_into_memory]
