"""The sum over all ranks, passed around a ring

Every rank has a 1-D tensor `x` of the same length. Return their sum on every rank, as a new tensor.

Each of `n` ranks sends to `(r + 1) % n` and receives from `(r - 1) % n` alone, and each call names that rank.
Cut `x` into `n` pieces of at most `ceil(length / n)` elements, say with `tensor_split`. They go around once
to be summed and once more to spread the sums, so a rank sends `2 * (n - 1)` pieces, no more. A piece may be
empty; it can be sent too.

Use `dist.send`, `recv`, `isend` and `irecv`, no collective. Wait for all that you launch.

`[1, 2, 3]` on rank 0 and `[10, 20, 30]` on rank 1 → on both `[11, 22, 33]`
"""

import torch
from torch import Tensor

from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import ranks

exercise = Exercise(
    minutes=20,
    core=True,
    hints=[
        "There are two rounds. After the first, each rank has one complete piece of the sum, another one "
        "than every other rank. In the second round these travel on until all ranks have them all.",
        "In a step of the first round a rank sends one piece, receives the piece before that one, and "
        "adds its own to it. It sends that sum next. Write down for three ranks: which piece is complete "
        "on which rank after two steps?",
        "A send ends when the other rank receives. So launch the send, receive into a tensor like the "
        "piece that comes, then wait for the send. In the second round what comes replaces what is there.",
    ],
)


@exercise.starter
def ring_all_reduce(x: Tensor) -> Tensor:
    """(length,) -> (length,), the same on every rank"""
    raise NotImplementedError


_CALL = "ring_all_reduce(x)"


# One digit of a sum for each rank: whose elements are missing, or there twice, can be read from it.
_SETUP = "rank = dist.get_rank()\nx = torch.arange(1., length + 1) * 10**rank"


def _expect_sum(t, length, world_size):
    found, _ = ranks.all_through(t, _CALL)
    expect.equal(found, torch.arange(1.0, length + 1) * int("1" * world_size))


@exercise.check(ranks=2, deadline=6, given=f"length = 4\n{_SETUP}")
def comes_to_an_end(t):
    """Two ranks come to an end, and have waited for what they began

    With gloo `send` returns when the other rank takes the message. If all send first, nobody receives.
    `isend` and `irecv` return at once, and until their `wait()` the tensor belongs to the message.
    """
    ranks.all_through(t, _CALL)


@exercise.check(ranks=3, deadline=6, given=f"length = 6\n{_SETUP}")
def to_the_next_rank(t, world_size):
    """Messages only, to the next rank and from the one before

    With two neighbours a rank needs two connections, however many ranks there are. A rank in the middle would
    carry the bytes of all others. A collective may do that, too. And without the name of a rank gloo can't
    receive what is empty.
    """
    _, calls = ranks.all_through(t, _CALL)
    ranks.expect_messages_only(calls)
    says = {"send": (1, "sends to"), "recv": (-1, "receives from")}
    for name, those in ranks.messages(calls).items():
        step, does = says[name]
        peers = sorted({"nobody by name" if call.peer is None else call.peer for call in those}, key=str)
        expect.equal(peers, [(t.rank + step) % world_size], what=f"the list of ranks that this one {does}")


@exercise.check(ranks=3, deadline=6, given=f"length = 6\n{_SETUP}")
def right_sums(t, world_size):
    """Three ranks, six elements: every rank has the whole sum

    In the first round each rank adds its own to the piece that comes; after `n - 1` steps that piece has been
    to all. In the second round the piece that came last goes on first, and what comes replaces what is there.
    A digit here is a rank: 111 is complete.
    """
    _expect_sum(t, 6, world_size)


@exercise.check(ranks=3, deadline=6, given=_SETUP, cases=[7, 8, 2])
def unequal_pieces(t, length, world_size):
    """The length may be no multiple of the number of ranks

    Sender and receiver have to agree on the size of every message. `tensor_split` gives `n` pieces, the first
    ones longer by one, and of fewer elements than ranks some are empty, while the others go around as ever.
    `chunk` and `split` give pieces of one size and a rest, and may give fewer.
    """
    _expect_sum(t, length, world_size)


@exercise.check(
    ranks=2,
    deadline=6,
    given=f"length = 6\n{_SETUP}",
    cases={"a contiguous tensor": "", "a view": "x = x[::2]"},
)
def left_alone(t):
    """`x` stays as it was, and the result is a tensor of its own

    `tensor_split` gives views, and `reshape` and `contiguous` give `x` itself or a view where they can.
    Adding to a piece adds to `x` then.
    """
    with expect.left_alone(t.x, what="`x`"):
        found, _ = ranks.all_through(t, _CALL)
    expect.own_storage(found, t.x, of="`x`")


@exercise.check(
    ranks=2,
    deadline=6,
    given="rank = dist.get_rank()\nx = (rank + 1) * 2**24 + 5**rank * torch.arange(4, dtype=torch.int32)",
)
def of_integers(t):
    """Integers are added up exactly

    A message is bytes without a dtype, so receive a piece into a tensor with the dtype of `x`. By default
    `torch.empty(n)` is float32, which holds all whole numbers only up to 2**24.
    """
    found, _ = ranks.all_through(t, _CALL)
    expect.equal(found, 3 * 2**24 + 6 * torch.arange(4, dtype=torch.int32))


@exercise.check(ranks=4, deadline=6, given=_SETUP, cases=[400, 3])
def pieces_not_tensors(t, length, world_size):
    """A rank sends `2 * (n - 1)` pieces, also where there are fewer elements than ranks

    A piece is an `n`-th of the tensor; of a short one it's one element or none. To pass the whole tensor from
    rank to rank takes `n - 1` tensors. To add it up along a chain and send it back takes two, and one rank
    works at a time.
    """
    found, calls = ranks.all_through(t, _CALL)
    sizes = [call.bytes for call in calls if call.name == "send"]
    # In each round all pieces but one, and no more than where the shortest is the one.
    limit = 2 * (length - length // world_size) * t.x.itemsize
    expect.at_most(sum(sizes), limit, f"bytes that this rank sends, with {t.x.nbytes:,} in `x`")
    longest = max(sizes) // t.x.itemsize
    expect.at_most(longest, -(-length // world_size), "elements in the longest piece it sends")
    expect.equal(found, torch.arange(1.0, length + 1) * 1111)
