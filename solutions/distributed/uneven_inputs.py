"""A collective needs every rank, so a rank that has run out cannot leave. It goes on in the same loop, and
gives what does not change a sum: zeros for the gradients, and a zero where the others give a one. So the last
element says how many gradients are in the sum, and all ranks learn in the same collective that nobody has a
batch any more. None of them has to know how many batches there will be.

What comes out of the collective is the same on every rank, so every rank takes the same step, and weights and
optimizer stay equal without being sent. The gradients are cleared in every round, also where no backward
follows: otherwise the mean of the step before would be handed in again.

DDP's `join()` does half of this. Ranks that have run out answer every bucket with zeros, and at the end the
rank that was last broadcasts its weights. The optimizer of a rank that has run out takes no step, so what it
remembers, momentum or moments, is not the same on all ranks, and in the next epoch the weights drift apart.
By default the sum is divided by the number of all ranks: where half of them have a batch the gradient is half
as large.
"""

from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F


def uneven_inputs(
    model: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    optimizer: torch.optim.Optimizer,
    batches: Iterator[tuple[Tensor, Tensor]],
) -> int:
    """-> the number of steps"""
    parameters = [p for p in model.parameters() if p.requires_grad]
    steps = 0
    while True:
        batch = next(batches, None)
        optimizer.zero_grad()
        if batch is not None:
            x, y = batch
            loss(model(x), y).backward()
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        flat = F.pad(torch.cat([grad.flatten() for grad in grads]), (0, 1), value=float(batch is not None))
        dist.all_reduce(flat)

        *sums, count = flat.split([*(p.numel() for p in parameters), 1])
        if count == 0:
            return steps
        for i, p in enumerate(parameters):
            p.grad = (sums[i] / count).view_as(p)
        optimizer.step()
        steps += 1


# Other right answers

from course_utils.exercise import Edit, Wrong


def _asks_first(model, loss, optimizer, batches):
    """Two collectives: who has a batch, then the gradients, into the places where they are."""
    parameters, steps = [p for p in model.parameters() if p.requires_grad], 0
    while True:
        batch = next(batches, None)
        taking_part = torch.tensor(batch is not None).int()
        dist.all_reduce(taking_part)
        if not taking_part:
            return steps
        for p in parameters:
            p.grad = torch.zeros_like(p)
        if batch:
            (loss(model(batch[0]), batch[1]) / taking_part).backward()
        flat = torch.cat([p.grad.reshape(-1) for p in parameters])
        dist.all_reduce(flat)
        for p in parameters:
            p.grad.copy_(flat[: p.numel()].view_as(p))
            flat = flat[p.numel() :]
        optimizer.step()
        steps += 1


def _looks_ahead(model, loss, optimizer, batches):
    """One batch ahead: whether another step follows is known in the step before."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    batch, steps, working = next(batches, None), 0, torch.zeros(())
    dist.all_reduce(working.fill_(batch is not None))
    while working:
        grads = [torch.zeros_like(p) for p in parameters]
        if batch is not None:
            grads = torch.autograd.grad(loss(model(batch[0]), batch[1]), parameters)
        batch = next(batches, None)
        more = torch.tensor([float(batch is not None)])
        flat = torch.cat((nn.utils.parameters_to_vector(grads) / working, more))
        dist.all_reduce(flat)
        for p, part in zip(parameters, flat[:-1].split([p.numel() for p in parameters]), strict=True):
            p.grad = part.view(p.shape)
        optimizer.step()
        steps, working = steps + 1, flat[-1]
    return steps


also_right = [_asks_first, _looks_ahead]


# Mistakes


def _joins(model, loss, optimizer, batches):
    wrapped, steps = nn.parallel.DistributedDataParallel(model), 0
    with wrapped.join(divide_by_initial_world_size=False):
        for x, y in batches:
            optimizer.zero_grad()
            loss(wrapped(x), y).backward()
            optimizer.step()
            steps += 1
    most = torch.tensor(steps)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    return int(most)


_CLEAR, _ASK, _STEP = (
    f"        {line}\n" for line in ("optimizer.zero_grad()", "if batch is not None:", "optimizer.step()")
)
_LEAVES = "        if batch is None:\n            return steps\n"
_REDUCE = "        dist.all_reduce(flat)\n"
_EACH = """        for part in flat.split([p.numel() for p in parameters] + [1]):
            dist.all_reduce(part)
"""

mistakes = [
    Edit("does not wait", "all_reduce(flat)", "all_reduce(flat, async_op=True)", told_by="equally_many"),
    Edit("leaves", _CLEAR, _LEAVES + _CLEAR, told_by="one_runs_out"),
    Edit("zeros for frozen ones", " if p.requires_grad]", "]", told_by="frozen"),
    Edit(
        "reads all at once",
        "    steps = 0\n",
        "    steps, batches = 0, iter(list(batches))\n",
        told_by="few_held",
    ),
    Edit("hands in the last mean", _CLEAR + _ASK, f"{_ASK}    {_CLEAR}", told_by="one_runs_out"),
    Edit("takes no step", _STEP, f"{_ASK}    {_STEP}", told_by="one_runs_out"),
    Wrong(_joins, told_by="one_runs_out"),
    Edit("a collective for each", _REDUCE, _EACH, told_by="collectives"),
]
not_tried = {
    "hard numbers": "gradients are only added up",
    "left alone": "the model is to be trained",
}
