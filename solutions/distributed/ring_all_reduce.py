"""In the first round each piece travels once around and is added to on its way. After `n - 1` steps it has
been to every rank: piece `rank + 1` is complete on `rank`. In the second round the complete pieces travel.
All ranks send and receive in every step, so no connection is idle.

Each element is added up in one order and passed on unchanged. So all ranks hold the same bits, and replicas
that are updated with the sum don't drift apart.

Launch the send, receive, and only then wait for the send. With `send` in place of `isend` all ranks would
wait for somebody to receive.
"""

import torch
import torch.distributed as dist
from torch import Tensor


def ring_all_reduce(x: Tensor) -> Tensor:
    """(length,) -> (length,), the same on every rank"""
    n, rank = dist.get_world_size(), dist.get_rank()
    total = x.clone()
    pieces = total.tensor_split(n)
    for step in range(2 * (n - 1)):
        leaves, comes = pieces[(rank - step) % n], pieces[(rank - step - 1) % n]
        came = torch.empty_like(comes)
        sending = dist.isend(leaves, (rank + 1) % n)
        dist.recv(came, (rank - 1) % n)
        sending.wait()
        comes.copy_(came + comes if step < n - 1 else came)
    return total


# Other right answers

from course_utils.exercise import Edit, Wrong


def _in_batches(x):
    """Pads to pieces of equal size where it has to, and receives straight into place in the second round."""
    n, rank = dist.get_world_size(), dist.get_rank()
    rows = torch.cat((x, x.new_zeros(-len(x) % n))).view(n, -1)

    def exchange(out, into):
        send = dist.P2POp(dist.isend, rows[out % n], (rank + 1) % n)
        for work in dist.batch_isend_irecv([send, dist.P2POp(dist.irecv, into, (rank - 1) % n)]):
            work.wait()

    buffer = torch.zeros_like(rows[0])
    for k in range(n - 1):
        exchange(rank - k, buffer)
        rows[(rank - k - 1) % n] += buffer
    for k in range(n - 1):
        exchange(rank + 1 - k, rows[(rank - k) % n])
    return rows.flatten()[: len(x)].clone()


def _one_receives_first(x):
    """Blocking calls only: rank 0 receives before it sends, which breaks the circle of those that wait."""
    n, rank = dist.get_world_size(), dist.get_rank()
    pieces = [piece.clone() for piece in torch.tensor_split(x, n)]
    for step in range(2 * n - 2):
        at, before = (rank - step) % n, (rank - step - 1) % n
        came = torch.empty_like(pieces[before])
        calls = [(dist.send, pieces[at], (rank + 1) % n), (dist.recv, came, (rank - 1) % n)]
        for call, tensor, peer in calls if rank else reversed(calls):
            call(tensor, peer)
        pieces[before] = pieces[before] + came if step < n - 1 else came
    return torch.cat(pieces)


also_right = [_in_batches, _one_receives_first]


# Mistakes


def _whole_tensor_around(x):
    n, rank = dist.get_world_size(), dist.get_rank()
    total, held = x.clone(), x.clone()
    for _ in range(n - 1):
        came = torch.empty_like(held)
        sending = dist.isend(held, (rank + 1) % n)
        dist.recv(came, (rank - 1) % n)
        sending.wait()
        total, held = total + came, came
    return total


def _gathers(x):
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.contiguous())
    return sum(parts)


mistakes = [
    Edit("all send first", "sending = dist.isend(", "dist.send(", told_by="comes_to_an_end"),
    Edit("does not wait for its sends", "sending.wait()", "pass", told_by="comes_to_an_end"),
    Edit("names nobody", "dist.recv(came, (rank - 1) % n)", "dist.recv(came)", told_by="to_the_next_rank"),
    Edit(
        "receives into float32", "torch.empty_like(comes)", "torch.empty(len(comes))", told_by="of_integers"
    ),
    Edit("chunks", "total.tensor_split(n)", "total.chunk(n)", told_by="unequal_pieces"),
    Edit("adds into x", "x.clone()", "x", told_by="left_alone"),
    Wrong(_gathers, told_by="to_the_next_rank"),
    Wrong(_whole_tensor_around, told_by="pieces_not_tensors"),
]
not_tried = {"hard numbers": "whole numbers show every summand", "dtypes": "int32 is tried"}
