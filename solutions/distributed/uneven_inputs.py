"""A collective needs every rank, so a rank that has run out cannot leave. It goes on in the same loop, and
gives what does not change a sum: zeros for the gradients, and a zero where the others give a one. So the last
element says how many gradients are in the sum, and all ranks learn in the same collective that nobody has a
batch any more. None of them has to know how many batches there will be.

What comes out of the collective is the same on every rank, so every rank takes the same step, and weights and
optimizer stay equal without being sent. The gradients are cleared in every round, also where no backward
follows: otherwise the mean of the step before would be handed in again.

Frozen parameters have no gradient and get none: with a gradient of zeros weight decay would shrink them.

DDP's `join()` does half of this. Forward tells the ranks that have run out that somebody goes on, they answer
every bucket with zeros, and at the end the rank that was last broadcasts its weights. The optimizer of a rank
that has run out takes no step. Momentum and moments are then not the same on all ranks, and the next epoch
begins like that: its ranks train weights that drift apart until the next `join()` ends. By default
the sum is divided by the number of all ranks, `divide_by_initial_world_size=True`: a step in which half of
the ranks have a batch is half as large."""

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
    sizes = [p.numel() for p in parameters]
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

        *sums, count = flat.split([*sizes, 1])
        if count == 0:
            return steps
        for i, p in enumerate(parameters):
            p.grad = (sums[i] / count).view(p.shape)
        optimizer.step()
        steps += 1


# Other right answers


def asks_first(model, loss, optimizer, batches):
    """Two collectives: who has a batch, then the gradients, into the places where they are."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    steps = -1
    taking_part = 1
    while taking_part:
        steps += 1
        batch = next(batches, None)
        flags = torch.zeros(dist.get_world_size(), device=parameters[0].device)
        flags[dist.get_rank()] = batch is not None
        dist.all_reduce(flags)
        taking_part = int(flags.sum())
        if taking_part:
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
    return steps


class _Training(dist.algorithms.join.Joinable):
    """What torch's `Join` asks for: it calls `main_hook` on a rank that is done while others are not."""

    def __init__(self, model, optimizer):
        super().__init__()
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.optimizer, self.steps = optimizer, 0

    def step(self, gradients, count):
        flat = torch.cat([g.flatten() for g in gradients] + [gradients[0].new_full((1,), count)])
        dist.all_reduce(flat)
        flat /= flat[-1].clone()
        for p, part in zip(
            self.parameters, flat.split([*map(torch.numel, self.parameters), 1]), strict=False
        ):
            p.grad = part.reshape(p.shape)
        self.optimizer.step()
        self.steps += 1

    def join_hook(self, **kwargs):
        training = self

        class Shadow(dist.algorithms.join.JoinHook):
            def main_hook(self):
                training.step([torch.zeros_like(p) for p in training.parameters], 0)

        return Shadow()

    @property
    def join_device(self):
        return self.parameters[0].device

    @property
    def join_process_group(self):
        return dist.group.WORLD


def with_torchs_join(model, loss, optimizer, batches):
    training = _Training(model, optimizer)
    with dist.algorithms.join.Join([training]):
        for x, y in batches:
            dist.algorithms.join.Join.notify_join_context(training).wait()
            gradients = torch.autograd.grad(loss(model(x), y), training.parameters)
            training.step(gradients, 1)
    return training.steps


def looks_ahead(model, loss, optimizer, batches):
    """With the gradients of a batch goes whether there is another one, so no round is without a batch."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    following, steps = next(batches, None), 0
    going_on = torch.tensor([float(following is not None)], device=parameters[0].device)
    dist.all_reduce(going_on, op=dist.ReduceOp.MAX)
    while going_on.item():
        batch, following = following, next(batches, None) if following is not None else None
        model.zero_grad(set_to_none=False)
        if batch is not None:
            model.zero_grad()
            loss(model(batch[0]), batch[1]).backward()
        own = [torch.zeros_like(p).flatten() if batch is None else p.grad.flatten() for p in parameters]
        own.append(own[0].new_tensor([batch is not None, following is not None]))
        flat = torch.cat(own)
        everyone = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, flat)
        total = torch.stack(everyone).sum(0)
        going_on = total[-1]
        nn.utils.vector_to_parameters(
            total[:-2] / total[-2], shells := [torch.empty_like(p) for p in parameters]
        )
        for p, shell in zip(parameters, shells, strict=True):
            p.grad = shell.data
        optimizer.step()
        steps += 1
    return steps


also_right = [asks_first, with_torchs_join, looks_ahead]
