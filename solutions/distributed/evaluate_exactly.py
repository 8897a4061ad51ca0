"""You can add up sums over any parts, up to rounding; means you can't. So every rank adds up what it found,
the sums of all ranks are added up once, and one division at the end makes both means. Divide by the length of
the data set.

The sampler's repeated examples stand at the end of its list. A rank goes through the list from the front, so
what it has to count comes first in its share, shuffled or not. A rank may have nothing to count; it still
takes part in the reduction, with zeros.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader


def evaluate_exactly(model: nn.Module, loader: DataLoader) -> tuple[float, float]:
    """The accuracy and the mean loss over the whole data set"""
    length = len(loader.dataset)
    left = len(range(loader.sampler.rank, length, loader.sampler.num_replicas))
    sums = 0
    for x, y in loader:
        with torch.no_grad():
            logits, y = model(x)[:left], y[:left]
        left -= len(y)
        right = (logits.argmax(1) == y).sum()
        sums += torch.stack((right, F.cross_entropy(logits, y, reduction="sum")))
    dist.all_reduce(sums)
    accuracy, loss = (sums / length).tolist()
    return accuracy, loss


# Other right answers

from course_utils.exercise import Edit, Wrong


def _own_loader(model, loader):
    """Reads the examples of this rank with a loader that repeats none. It may have no batch at all."""
    places = len(range(loader.sampler.rank, len(loader.dataset), loader.sampler.num_replicas))
    share = torch.utils.data.Subset(loader.dataset, list(loader.sampler)[:places])
    right, loss = 0, 0.0
    for x, y in DataLoader(share, loader.batch_size):
        logits = model(x)
        right += (logits.max(dim=1).indices == y).sum().item()
        loss += F.cross_entropy(logits, y).item() * len(y)
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, (right, loss, places))
    right, loss, number = (sum(parts) for parts in zip(*found, strict=True))
    return right / number, loss / number


def _with_weights(model, loader):
    """Every example has a weight: 0 for a repeated one."""
    place, columns = loader.sampler.rank, []
    for x, y in loader:
        places = place + torch.arange(len(y)) * loader.sampler.num_replicas
        place += len(y) * loader.sampler.num_replicas
        log_p = model(x).log_softmax(1)
        each = torch.stack((log_p.argmax(1).eq(y), -log_p.gather(1, y[:, None])[:, 0], torch.ones_like(y)))
        columns.append((each * (places < len(loader.dataset))).sum(1))
    total = torch.stack(columns).sum(0)
    dist.reduce(total, dst=0)
    dist.broadcast(total, src=0)
    return (total[0] / total[2]).item(), (total[1] / total[2]).item()


also_right = [_own_loader, _with_weights]


# Mistakes

equivalent = {
    "line 14: `with torch.no_grad():` -> `if True:`": "the numbers are the same; a graph would be kept"
}
_CUT = "model(x)[:left], y[:left]"
_SUM = 'torch.stack((right, F.cross_entropy(logits, y, reduction="sum")))'
_ONCE = f"sums += {_SUM}\n    dist.all_reduce(sums)"
_EVERY_BATCH = f"part = {_SUM}\n        dist.all_reduce(part)\n        sums += part"


def _mean_of_batch_means(model, loader):
    means = [
        torch.stack(((model(x).argmax(1) == y).float().mean(), F.cross_entropy(model(x), y)))
        for x, y in loader
    ]
    mean = torch.stack(means).mean(0) / dist.get_world_size()
    dist.all_reduce(mean)
    return tuple(mean.tolist())


def _evaluates_everything(model, loader):
    x, y = (torch.stack(parts) for parts in zip(*loader.dataset, strict=True))
    logits = model(x)
    return (logits.argmax(1) == y).float().mean().item(), F.cross_entropy(logits, y).item()


mistakes = [
    Wrong(_mean_of_batch_means, told_by="of_all_ranks"),
    Edit("reduces to one rank", "dist.all_reduce(sums)", "dist.reduce(sums, 0)", told_by="of_all_ranks"),
    Edit("counts the repeated ones", _CUT, "model(x), y", told_by="repeated"),
    Edit("multiplies a mean", 'y, reduction="sum")', "y) * len(y)", told_by="nothing_to_count"),
    Edit(
        "returns before the collective",
        "    sums = 0",
        "    if not left:\n        return 0.0, 0.0\n    sums = 0",
        told_by="nothing_to_count",
    ),
    Wrong(_evaluates_everything, told_by="its_own_share"),
    Edit("reduces every batch", _ONCE, _EVERY_BATCH, told_by="few_numbers"),
]
not_tried = {"seeds": "each size of the data set has its own"}
