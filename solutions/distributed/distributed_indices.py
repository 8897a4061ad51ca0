"""Nothing is sent between ranks, and still they agree. Each makes the whole order for itself, from a seed
that is the same everywhere, and takes its own part. The seed contains the epoch, so the order of an epoch can
be made without those before it: a run that is resumed in epoch 7 needs no random state of an earlier one.

The order is filled up because the ranks wait for each other in every step. A rank with one batch less would
leave the others waiting for its gradients. In training a few items that count twice hardly matter. In
evaluation they do.

Every `num_replicas`-th entry, not one piece for each rank: the first batches of all ranks together are then
the beginning of the order, and what is repeated falls to the last ranks, one item each."""

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
        order = order[torch.randperm(length, generator=torch.Generator().manual_seed(seed + epoch))]
    if drop_last:
        order = order[: length - length % num_replicas]
    elif length:
        order = torch.cat([order, *[order] * num_replicas])[: length + -length % num_replicas]
    return order.view(-1, num_replicas)[:, rank].tolist()


def _state_put_back(length, num_replicas, rank, *, shuffle=True, seed=0, epoch=0, drop_last=False):
    """Draws from torch's random state, and puts back what it was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed + epoch)
        order = torch.randperm(length).tolist() if shuffle else [*range(length)]
    while order and len(order) % num_replicas:
        if drop_last:
            order.pop()
        else:
            order.append(order[len(order) - length])
    return order[rank::num_replicas]


also_right = [_with_cycle, _as_columns, _state_put_back]
