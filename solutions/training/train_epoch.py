"""The five calls of a step, for each batch. The sum of the losses is a tensor on the device: adding to it is
one more small kernel in the queue, and Python goes on. Each loss counts as often as its batch has examples,
so the last, smaller batch counts for less.

`detach` cuts the graph off. Without it the sum would refer to the graphs of all batches.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn


def train_epoch(
    model: nn.Module,
    loader: Iterable[tuple[Tensor, Tensor]],
    optimizer: torch.optim.Optimizer,
    loss_fn: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    model.train()
    total, count = 0, 0
    for x, y in loader:
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        total = total + loss.detach() * len(x)
        count += len(x)
    return total / count


# Other right answers

from course_utils.exercise import Edit


def _stacks(model, loader, optimizer, loss_fn):
    model.train()
    model.zero_grad()
    losses, sizes = [], []
    for x, y in loader:
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        losses.append(loss.detach())
        sizes.append(x.shape[0])
    weights = torch.tensor(sizes, device=losses[0].device)
    return (torch.stack(losses) * weights).sum() / sum(sizes)


def _running_mean(model, loader, optimizer, loss_fn):
    was = model.training
    model.train()
    mean, seen = 0, 0
    for x, y in loader:
        loss = loss_fn(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen += len(y)
        mean = mean + (loss.detach().double() - mean) * (len(y) / seen)
    model.train(was)
    return mean.to(loss.dtype)


also_right = [_stacks, _running_mean]

mistakes = [
    Edit("never clears", "        optimizer.zero_grad()\n", "", told_by="trained"),
    Edit(
        "clears before the step",
        "        optimizer.step()\n",
        "        optimizer.zero_grad()\n        optimizer.step()\n",
        told_by="trained",
    ),
    Edit("leaves the mode of the parts", "model.train()", "model.training = True", told_by="mode"),
    Edit(
        "mean of means",
        "loss.detach() * len(x)\n        count += len(x)",
        "loss.detach()\n        count += 1",
        told_by="mean",
    ),
    Edit(
        "counts elements",
        "* len(x)\n        count += len(x)",
        "* y.numel()\n        count += y.numel()",
        told_by="mean",
    ),
    Edit("a float32 sum", "loss.detach() * len(x)", "loss.detach().float() * len(x)", told_by="mean"),
    Edit("reads each loss", "loss.detach() * len(x)", "loss.item() * len(x)", told_by="waits"),
    Edit("keeps the graphs", "loss.detach() * len(x)", "loss * len(x)", told_by="graphs"),
]

not_tried = {
    "hard numbers": "the loss is computed by `loss_fn`",
    "seeds": "each loss is compared with that of the same run, by five calls",
}
equivalent = {
    "line 20: `loss.detach()` -> `loss.detach_()`": "nobody needs this loss any more",
}
