"""An `all_reduce` needs every rank. Under `if rank == 0` one rank calls it, in the open or inside a function
that computes a loss. A collective doesn't know what it's for: it meets the next one that the other ranks
call, here the sum of their next gradient. So every rank computes the loss, and only the log stays under the
condition.

Then the second fault shows: rank 0 leaves the loop when the loss rises, and the others go on to the next
gradient. All ranks have to decide alike about the next collective: from a number that all of them have, or
because one of them tells the others. The loss of a rank's own examples isn't such a number.
"""

import torch
import torch.distributed as dist
from torch import Tensor


def repair_deadlock_rank_zero(w: Tensor, train: tuple, valid: tuple, epochs: int, log: list) -> Tensor:
    """(features,), examples of this rank -> (features,), the same on every rank"""

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

from course_utils.exercise import Edit


def _rank_zero_tells_the_others(w, train, valid, epochs, log):
    x, y = train
    rank, ended = dist.get_rank(), torch.zeros(())
    while epochs and not ended:
        epochs -= 1
        grad = x.mT.mv(x.mv(w) - y)
        dist.all_reduce(grad)
        w = torch.sub(w, grad, alpha=0.125)
        squares = torch.tensor([(valid[0].mv(w) - valid[1]).pow(2).sum(), len(valid[1])])
        dist.reduce(squares, dst=0)
        if rank == 0:
            loss = float(squares[0] / squares[1])
            ended.fill_(bool(log) and loss >= log[-1])
            log.append(loss)
        dist.broadcast(ended, src=0)
    return w


def _sums_are_gathered(w, train, valid, epochs, log):
    losses, n = [], dist.get_world_size()
    for _ in range(epochs):
        grads = [torch.empty_like(w) for _ in range(n)]
        dist.all_gather(grads, train[0].t() @ (train[0] @ w - train[1]))
        w = w - sum(grads) / 8
        errors, parts = valid[0] @ w - valid[1], torch.empty(n, 2)
        dist.all_gather_into_tensor(parts.view(-1), torch.tensor([errors.dot(errors), errors.numel()]))
        losses.append((parts.sum(0)[0] / parts.sum(0)[1]).item())
        if len(losses) > 1 and losses[-1] >= losses[-2]:
            break
    log.extend(losses if dist.get_rank() == 0 else [])
    return w


also_right = [_rank_zero_tells_the_others, _sums_are_gathered]


# Mistakes

_LOSS = "loss = mean_loss(*valid).item()"
_BARRIER = "dist.barrier()\n        loss = mean_loss(*valid).item() if dist.get_rank() == 0 else 0.0"
_REDUCED = "dist.all_reduce(total)"
_MEANS = """mean = total[0] / total[1].clamp(min=1)
        dist.all_reduce(mean)
        return mean / dist.get_world_size()"""

mistakes = [
    Edit("a barrier around it", _LOSS, _BARRIER, told_by="comes_to_an_end"),
    Edit(
        "rank 0 leaves alone",
        "loss >= best",
        "loss >= best and dist.get_rank() == 0",
        told_by="ends_together",
    ),
    Edit("writes to `w`", "w = w - 0.125 * grad", "w -= 0.125 * grad", told_by="weights"),
    Edit("trains on its own", "dist.all_reduce(grad)", "pass", told_by="weights"),
    Edit("each looks at its own", _REDUCED, "pass", told_by="loss_of_all"),
    Edit("rank 0 decides by its own", _REDUCED, "dist.broadcast(total, 0)", told_by="loss_of_all"),
    Edit("notes it on every rank", "if dist.get_rank() == 0:", "if True:", told_by="the_log"),
    Edit(
        "the mean of means",
        f"{_REDUCED}\n        return total[0] / total[1]",
        _MEANS,
        told_by="unequal_numbers",
    ),
]
not_tried = {"hard numbers": "the loss is the starter's"}
