"""A send that waits for its receiver makes a chain: each rank waits for the next one to receive. In a ring
the chain has no end, so nobody ever receives. It breaks at any rank that does not wait there.

`isend` hands the message over and returns, so that every rank comes to its `recv`, and by that the messages
of its neighbours get through. `wait` comes afterwards: until then the tensor belongs to the message.

To let even ranks send first and odd ones receive first breaks the ring too, when it is done for each
direction of its own. Done for both at once it needs an even number of ranks: in a ring of three, ranks 2 and
0 are neighbours, and both are even.

With two ranks the neighbour above is the neighbour below. Both messages come from the same rank, and
nothing but their order tells them apart (or a `tag`): the row that goes down is sent first, and the row
from above is received first."""

import torch
import torch.distributed as dist
from torch import Tensor


def repair_deadlock_sends(x: Tensor, steps: int = 1) -> Tensor:
    """(rows of this rank, columns) -> the same rows after `steps` steps"""
    rank, size = dist.get_rank(), dist.get_world_size()
    up, down = (rank - 1) % size, (rank + 1) % size

    def exchanged(first: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        above, below = torch.empty_like(last), torch.empty_like(first)
        launched = [dist.isend(last, down), dist.isend(first, up)]
        dist.recv(above, up)
        dist.recv(below, down)
        for work in launched:
            work.wait()
        return above, below

    for _ in range(steps):
        above, below = exchanged(x[:1].contiguous(), x[-1:].contiguous())
        padded = torch.cat((above, x, below))
        x = (padded[:-2] + 2 * x + padded[2:]) / 4
    return x


# Other right answers


def _neighbours():
    rank, size = dist.get_rank(), dist.get_world_size()
    return (rank - 1) % size, (rank + 1) % size


def _mixture(x, above, below):
    padded = torch.cat((above, x, below))
    return padded[:-2] / 4 + padded[1:-1] / 2 + padded[2:] / 4


def _one_direction_after_the_other(x, steps=1):
    """Even ranks send first, in each direction."""
    up, down = _neighbours()
    even = dist.get_rank() % 2 == 0
    for _ in range(steps):
        above, below = x.new_empty(2, 1, x.shape[1])
        for row, to, into, source in ((x[-1:], down, above, up), (x[:1], up, below, down)):
            if even:
                dist.send(row.contiguous(), to)
            dist.recv(into, source)
            if not even:
                dist.send(row.contiguous(), to)
        x = _mixture(x, above, below)
    return x


def _rank_zero_breaks_the_ring(x, steps=1):
    up, down = _neighbours()
    for _ in range(steps):
        first, last = x[:1].contiguous(), x[-1:].contiguous()
        above, below = torch.empty_like(last), torch.empty_like(first)
        if dist.get_rank() == 0:
            dist.recv(above, up)
            dist.send(last, down)
            dist.recv(below, down)
            dist.send(first, up)
        else:
            dist.send(last, down)
            dist.recv(above, up)
            dist.send(first, up)
            dist.recv(below, down)
        x = _mixture(x, above, below)
    return x


def _in_one_batch(x, steps=1):
    up, down = _neighbours()
    for _ in range(steps):
        halo = x.new_empty(2, 1, x.shape[1])
        messages = [
            dist.P2POp(dist.isend, x[-1:].contiguous(), down),
            dist.P2POp(dist.isend, x[:1].contiguous(), up),
            dist.P2POp(dist.irecv, halo[0], up),
            dist.P2POp(dist.irecv, halo[1], down),
        ]
        for work in dist.batch_isend_irecv(messages):
            work.wait()
        x = _mixture(x, halo[0], halo[1])
    return x


def _receives_begin_first(x, steps=1):
    """With tags, the order of the messages does not matter."""
    up, down = _neighbours()
    for _ in range(steps):
        above, below = (torch.zeros(1, x.shape[1], dtype=x.dtype) for _ in "ab")
        expected = [dist.irecv(below, down, tag=1), dist.irecv(above, up, tag=2)]
        dist.send(x[-1:].contiguous(), down, tag=2)
        dist.send(x[:1].contiguous(), up, tag=1)
        for work in expected:
            work.wait()
        x = _mixture(x, above, below)
    return x


also_right = [
    _one_direction_after_the_other,
    _rank_zero_breaks_the_ring,
    _in_one_batch,
    _receives_begin_first,
]
