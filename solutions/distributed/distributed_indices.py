"""Nothing is sent between ranks, and still they agree. Each makes the whole order for itself, from a seed
that is the same everywhere, and takes its own part. The seed contains the epoch, so the order of an epoch can
be made without those before it.

The order is filled up because the ranks wait for each other in every step. In evaluation, what is read
twice has to be counted once.
"""

import torch


def distributed_indices(
    length: int,
    num_replicas: int,
    rank: int,
    *,
    shuffle: bool = True,
    seed: int = 0,
    epoch: int = 0,
    drop_last: bool = False,
) -> list[int]:
    """The items that this rank reads in this epoch, in their order"""
    order = list(range(length))
    if shuffle:
        generator = torch.Generator().manual_seed(seed + epoch)
        order = torch.randperm(length, generator=generator).tolist()
    each = length // num_replicas
    if length % num_replicas and not drop_last:
        each += 1
    # Behind its end the order begins again.
    return [order[place % length] for place in range(rank, each * num_replicas, num_replicas)]


# Other right answers

from course_utils.exercise import Edit


def _with_cycle(length, num_replicas, rank, *, shuffle=True, seed=0, epoch=0, drop_last=False):
    import itertools
    import math

    g = torch.Generator()
    g.manual_seed(seed + epoch)
    order = torch.randperm(length, generator=g).tolist() if shuffle else range(length)
    each = (math.floor if drop_last else math.ceil)(length / num_replicas)
    return list(itertools.islice(itertools.cycle(order), rank, each * num_replicas, num_replicas))


def _as_columns(length, num_replicas, rank, *, shuffle=True, seed=0, epoch=0, drop_last=False):
    """The order as a matrix with a column for each rank."""
    order = torch.arange(length)
    if shuffle:
        order = torch.randperm(length, generator=torch.Generator().manual_seed(seed + epoch))
    rest = length % num_replicas
    order = (
        order[: length - rest] if drop_last else order.repeat(num_replicas)[: length + -length % num_replicas]
    )
    return order.view(-1, num_replicas)[:, rank].tolist()


also_right = [_with_cycle, _as_columns]


# Mistakes

_PLACES = "range(rank, each * num_replicas, num_replicas)"
_OWN = "torch.Generator().manual_seed(seed + epoch)"
_DRAWN = "torch.randperm(length, generator=generator)"
_FILLED = "(torch.randperm(-(-length // num_replicas) * num_replicas, generator=generator) % length)"

mistakes = [
    Edit("one piece for each rank", _PLACES, "range(rank * each, (rank + 1) * each)", told_by="shares"),
    Edit("fills up with one slice", "order[place % length]", "(order + order)[place]", told_by="filled_up"),
    Edit("does not fill up", _PLACES, f"{_PLACES} if place < length", told_by="filled_up"),
    Edit("never cuts", " and not drop_last", "", told_by="cut"),
    Edit("the rank is in the seed", "seed + epoch", "seed + epoch + rank", told_by="shuffled"),
    Edit("the same in every epoch", "seed + epoch", "seed", told_by="every_epoch"),
    Edit("fills up before it shuffles", _DRAWN, _FILLED, told_by="shuffled_first"),
    Edit("seeds the program", _OWN, "torch.manual_seed(seed + epoch)", told_by="on_its_own"),
]
_WHOLE = "there are only whole numbers"
not_tried = {"hard numbers": _WHOLE, "dtypes": _WHOLE, "left alone": _WHOLE}
