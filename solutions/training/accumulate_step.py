"""The gradient of a sum is the sum of the gradients, and `backward` adds it up in `.grad`. Each micro-batch
gives the sum of its token losses, divided by the number of tokens in all of them. That number comes from the
targets alone, before the first forward.

`backward` frees the graph of its micro-batch. What is left of it is one number, the detached loss.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def accumulate_step(
    model: nn.Module, micro_batches: Sequence[tuple[Tensor, Tensor]], optimizer: torch.optim.Optimizer
) -> Tensor:
    count = sum((y != -100).sum() for _, y in micro_batches)
    optimizer.zero_grad()
    total = 0
    for x, y in micro_batches:
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum") / count
        loss.backward()
        total = total + loss.detach()
    optimizer.step()
    return total


# Other right answers

from course_utils.exercise import Edit, Wrong


def _divides_the_gradients(model, micro_batches, optimizer):
    model.zero_grad()
    total, count = 0.0, 0
    for x, y in micro_batches:
        logits = model(x)
        loss = F.cross_entropy(logits.transpose(1, 2), y, reduction="sum")
        loss.backward()
        count += (y != -100).sum().item()
        total += loss.item()
    for p in model.parameters():
        if p.grad is not None:
            p.grad /= count
    optimizer.step()
    optimizer.zero_grad()
    return torch.tensor(total / count, dtype=loss.dtype, device=x.device)


def _selects(model, micro_batches, optimizer):
    counts = [int(y.ne(-100).sum()) for _, y in micro_batches]
    for p in model.parameters():
        p.grad = None
    losses = []
    for (x, y), n in zip(micro_batches, counts, strict=True):
        if n:
            keep = y != -100
            losses.append(F.cross_entropy(model(x)[keep], y[keep]) * (n / sum(counts)))
            losses[-1].backward()
            losses[-1] = losses[-1].detach()
    optimizer.step()
    return torch.stack(losses).sum()


also_right = [_divides_the_gradients, _selects]


def _weighs_means(model, micro_batches, optimizer):
    count = sum((y != -100).sum() for _, y in micro_batches)
    optimizer.zero_grad()
    total = 0
    for x, y in micro_batches:
        loss = F.cross_entropy(model(x).mT, y) * (y != -100).sum() / count
        loss.backward()
        total = total + loss.detach()
    optimizer.step()
    return total


mistakes = [
    Edit("mean of means", ', reduction="sum") / count', ") / len(micro_batches)", told_by="gradient"),
    Edit("counts padding", "(y != -100).sum()", "y.numel()", told_by="gradient"),
    Edit(
        "clears inside",
        "        loss.backward()",
        "        optimizer.zero_grad()\n        loss.backward()",
        told_by="gradient",
    ),
    Wrong(_weighs_means, told_by="result"),
    Edit(
        "clears what trains",
        "    optimizer.zero_grad()\n",
        "    for p in model.parameters():\n        p.grad = None if p.requires_grad else p.grad\n",
        told_by="old",
    ),
    Edit("never clears", "    optimizer.zero_grad()\n", "", told_by="old"),
    Edit("returns the last loss", "return total", "return loss.detach()", told_by="result"),
    Edit(
        "sums the graphs",
        " + loss.detach()\n    optimizer.step()\n    return total",
        " + loss\n    optimizer.step()\n    return total.detach()",
        told_by="one_at_a_time",
    ),
]

not_tried = {
    "hard numbers": "large logits are tried, by a large weight; the rest is torch's `cross_entropy`",
    "seeds": "gradient and loss are compared with those of one large batch",
}
equivalent = {
    "line 17: `loss.detach()` -> `loss.detach_()`": "backward is over, and nobody needs this graph any more",
}
