"""Sums can be added up in any order and over any parts, means cannot. So every rank adds up what it found,
the sums of all ranks are added up once, and one division at the end makes both means. The number to divide
by is known without counting: it is the length of the data set.

What the sampler repeats stands at the end of its list. A rank's share goes through the list from the
front, so what it has to count comes first in it. Whether the list was shuffled makes no difference. A rank
may be left with nothing to count; it takes part in the reduction all the same, with zeros.

The modes are noted module by module, for `model.train()` would also put those into training mode that
somebody had put into eval mode on purpose."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader


def evaluate_exactly(model: nn.Module, loader: DataLoader) -> tuple[float, float]:
    """The accuracy and the mean loss over the whole data set"""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    length = len(loader.dataset)
    left = len(range(loader.sampler.rank, length, loader.sampler.num_replicas))
    sums = 0
    with torch.no_grad():
        for x, y in loader:
            logits, y = model(x)[:left], y[:left]
            left -= len(y)
            right = (logits.argmax(1) == y).sum()
            sums += torch.stack((right, F.cross_entropy(logits, y, reduction="sum")))
    for module, mode in modes.items():
        module.training = mode
    dist.all_reduce(sums)
    accuracy, loss = (sums / length).tolist()
    return accuracy, loss


# Other right answers


def _own_loader(model, loader):
    """Reads the examples of this rank with a loader that repeats none. It may have no batch at all."""
    from torch.utils.data import Subset

    rank, ranks = loader.sampler.rank, loader.sampler.num_replicas
    share = Subset(loader.dataset, range(rank, len(loader.dataset), ranks))
    modes = [module.training for module in model.modules()]
    for module in model.modules():
        module.training = False
    right, loss, number = 0, 0.0, 0
    with torch.inference_mode():
        for x, y in DataLoader(share, loader.batch_size):
            logits = model(x)
            right += (logits.max(dim=1).indices == y).sum().item()
            loss += F.cross_entropy(logits, y).item() * len(y)
            number += len(y)
    for module, mode in zip(model.modules(), modes, strict=True):
        module.training = mode
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, (right, loss, number))
    right, loss, number = (sum(parts) for parts in zip(*found, strict=True))
    return right / number, loss / number


def _with_weights(model, loader):
    """A copy of the model evaluates, and every example has a weight: 0 for a repeated one."""
    import copy

    judge = copy.deepcopy(model).eval().requires_grad_(False)
    place = loader.sampler.rank
    columns = []
    for x, y in loader:
        places = place + torch.arange(len(y), device=y.device) * loader.sampler.num_replicas
        place += len(y) * loader.sampler.num_replicas
        log_p = judge(x).log_softmax(1)
        each = torch.stack((log_p.argmax(1).eq(y), -log_p.gather(1, y[:, None])[:, 0], torch.ones_like(y)))
        columns.append((each * (places < len(loader.dataset))).sum(1))
    total = torch.stack(columns).sum(0)
    parts = [torch.empty_like(total) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, total)
    right, loss, number = torch.stack(parts).sum(0).tolist()
    return right / number, loss / number


def _by_index(model, loader):
    """Asks the sampler for the indices, and leaves out what an earlier place of the list had already."""
    mine = list(loader.sampler)
    counted = [
        i * loader.sampler.num_replicas + loader.sampler.rank < len(loader.dataset) for i in range(len(mine))
    ]
    modes = {name: module.training for name, module in model.named_modules()}
    model.train(False)
    right, loss = [], []
    with torch.set_grad_enabled(False):
        for x, y in loader:
            logits = model(x)
            right += (logits.argmax(dim=-1) == y).tolist()
            loss += F.cross_entropy(logits, y, reduction="none").tolist()
    for name, module in model.named_modules():
        module.training = modes[name]
    result = []
    for values in (right, loss):
        total = torch.tensor(
            sum(v for v, counts in zip(values, counted, strict=True) if counts), device=y.device
        )
        total = total.float()
        dist.reduce(total, dst=0)
        dist.broadcast(total, src=0)
        result.append(total.item() / len(loader.dataset))
    return tuple(result)


also_right = [_own_loader, _with_weights, _by_index]
