"""A collective is over when every rank has called it. Under `if rank == 0` one rank calls it, whether it
stands there in the open or inside a function that computes a loss. The collective does not know what it
was meant for: it meets the next one that the other ranks call. Here that is the all-reduce of their next
gradient, which happens to be as large, so a loss and a count were added to a gradient before anything hung.
Every rank computes the loss, and the log alone stays under the condition.

Then the second fault shows. Rank 0 used to leave the loop when the loss rose; the others would have gone on
to the all-reduce of the next gradient. A decision about the way of a rank through collectives has to be taken
on all ranks alike: from a number that all of them have, as the result of an all-reduce is, or by one of them
that tells the others.

A loss of one's own examples is no such number, though it is nearly the same. It works until the day on
which it rises on one rank only."""

import torch
import torch.distributed as dist
from torch import Tensor


def repair_deadlock_rank_zero(w: Tensor, train: tuple, valid: tuple, epochs: int, log: list) -> Tensor:
    """(features,) and the examples of this rank -> (features,), the same on every rank"""

    def mean_loss(x: Tensor, y: Tensor) -> Tensor:
        total = torch.stack(((x @ w).sub(y).square().sum(), torch.tensor(float(len(y)))))
        dist.all_reduce(total)
        return total[0] / total[1]

    x, y = train
    best = float("inf")
    for _ in range(epochs):
        grad = x.t() @ (x @ w - y)
        dist.all_reduce(grad)
        w = w - 0.125 * grad
        loss = mean_loss(*valid).item()
        if dist.get_rank() == 0:
            log.append(loss)
        if loss >= best:
            break
        best = loss
    return w


# Other right answers


def _rank_zero_tells_the_others(w, train, valid, epochs, log):
    x, y = train
    x_valid, y_valid = valid
    rank, ended = dist.get_rank(), torch.zeros((), dtype=torch.bool)
    while epochs and not ended:
        epochs -= 1
        grad = x.mT.mv(x.mv(w) - y)
        dist.all_reduce(grad)
        w = torch.sub(w, grad, alpha=0.125)
        squares = torch.tensor([(x_valid.mv(w) - y_valid).pow(2).sum(), len(y_valid)])
        dist.reduce(squares, dst=0)
        if rank == 0:
            loss = float(squares[0] / squares[1])
            ended.fill_(bool(log) and loss >= log[-1])
            log.append(loss)
        dist.broadcast(ended, src=0)
    return w


def _sums_are_gathered(w, train, valid, epochs, log):
    x, y = train
    losses = []
    for _ in range(epochs):
        grads = [torch.empty_like(w) for _ in range(dist.get_world_size())]
        dist.all_gather(grads, x.t() @ (x @ w - y))
        w = w - sum(grads) / 8
        errors = valid[0] @ w - valid[1]
        own = torch.tensor([errors.dot(errors), errors.numel()])
        parts = torch.empty(dist.get_world_size() * 2)
        dist.all_gather_into_tensor(parts, own)
        square, count = parts.view(-1, 2).sum(0).tolist()
        losses.append(square / count)
        if len(losses) > 1 and losses[-1] >= losses[-2]:
            break
    if dist.get_rank() == 0:
        log.extend(losses)
    return w


also_right = [_rank_zero_tells_the_others, _sums_are_gathered]
