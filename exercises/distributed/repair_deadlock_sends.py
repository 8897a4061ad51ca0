"""Repair: a ring in which everybody sends first

A table is cut into blocks of rows, one for each rank, in order. In a step every row becomes
`(above + 2 * row + below) / 4`; above the first row of rank 0 lies the last row of the last rank. So a rank
needs one row from each neighbour.

The function below hangs, since all are in `dist.send` at once. Mend it, for two ranks and more.

- In a step a rank sends two rows and receives two, each from a named rank. No collective.
- Wait for all that you launch. Leave `x` as it is.

Messages from one rank arrive in order. It hangs here:
`run_ranks(lambda rank, size: repair_deadlock_sends(torch.eye(2)), 2)`
"""

import contextlib

import torch
import torch.distributed as dist
from torch import Tensor

from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import ranks

exercise = Exercise(
    minutes=15,
    hints=[
        "Write down for two ranks what each does first. Which rank would have to do something else, so "
        "that the first message arrives? Then the same for three ranks in a ring.",
        "There are two ways out. Some rank receives while the others send; with two neighbours that has "
        "to hold for each direction. Or sending doesn't make a rank wait.",
        "`dist.isend` returns at once, with a work object. Launch both messages, then receive, and at the "
        "end of the step wait for the messages that you launched.",
    ],
)


@exercise.starter
def repair_deadlock_sends(x: Tensor, steps: int = 1) -> Tensor:
    """(rows of this rank, columns) -> the same rows after `steps` steps"""
    rank, size = dist.get_rank(), dist.get_world_size()
    up, down = (rank - 1) % size, (rank + 1) % size

    def exchanged(first: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        above, below = torch.empty_like(last), torch.empty_like(first)
        dist.send(last, down)
        dist.send(first, up)
        dist.recv(above, up)
        dist.recv(below, down)
        return above, below

    for _ in range(steps):
        above, below = exchanged(x[:1].contiguous(), x[-1:].contiguous())
        padded = torch.cat((above, x, below))
        x = (padded[:-2] + 2 * x + padded[2:]) / 4
    return x


def _mixed(table):
    return (table.roll(1, 0) + 2 * table + table.roll(-1, 0)) / 4


# A row is 4, 40, 400 and so on: after a step the digits of a row say which rows it is mixed of.
_TABLE = "table = (4 * 10. ** torch.arange(sum(rows))).repeat(2, 1).t()"
_X = "x = table.split(rows)[dist.get_rank()]"


def _expect_rows(t, rank, steps=1):
    """The rows of this rank are those of the whole table in one process."""
    call = "repair_deadlock_sends(x)" if steps == 1 else f"repair_deadlock_sends(x, {steps})"
    rows, table, alone = t.rows, t.table.clone(), t.x.clone()
    blocks, x = table.split(rows), alone
    with expect.left_alone(t.x, what="`x`") if steps > 1 else contextlib.nullcontext():
        found, _ = ranks.all_through(t, call)
    for _ in range(steps):
        table, alone = _mixed(table), _mixed(alone)
    like = {"what this rank alone computes from its own rows": alone}
    if steps == 1:
        above, below = blocks[rank - 1], blocks[(rank + 1) % len(rows)]
        for what, first, last in (
            ("the row from above and that from below are exchanged", below[:1], above[-1:]),
            ("the first row of each rank is sent both ways", above[:1], below[:1]),
            ("the last row of each rank is sent both ways", above[-1:], below[-1:]),
            (
                "the table ends at its edges, where a row is mixed with itself",
                above[-1:] if rank else x[:1],
                below[:1] if rank + 1 < len(rows) else x[-1:],
            ),
        ):
            padded = torch.cat((first, x, last))
            like[f"what comes out where {what}"] = (padded[:-2] + 2 * x + padded[2:]) / 4
    expect.equal(found, table.split(rows)[rank], like=like)


@exercise.check(ranks=2, deadline=6, given=f"rows = [2, 2]\n{_TABLE}\n{_X}")
def comes_to_an_end(t):
    """Two ranks come to an end, and have waited for what they began

    If both do the same first, send or receive, each waits for the other; sleeping or a barrier changes
    nothing. `isend` and `irecv` return at once. Until their `wait()` the tensor belongs to the message: don't
    change one that is sent, or read one that is received. What is sent is contiguous and one row here, as is
    the tensor that it's received into.
    """
    ranks.all_through(t, "repair_deadlock_sends(x)")


@exercise.check(ranks=2, deadline=6, given=f"rows = [2, 3]\n{_TABLE}\n{_X}")
def above_and_below(t, rank):
    """One step on two ranks: the row from above is above

    The last row goes down, and comes from above for its receiver; the first one goes up, around the end of
    the ring too. Two ranks are each other's neighbours on both sides: both messages come from the same rank,
    and what it sent first arrives first. And until `wait()` what is written into a tensor may be what is
    sent.
    """
    _expect_rows(t, rank)


@exercise.check(ranks=2, deadline=6, given=f"rows = [2, 2]\n{_TABLE}.double()\n{_X}")
def every_step(t, rank):
    """Three steps in float64, each with the rows of the step before; `x` stays

    A step gives new rows, and the next step needs those of the neighbours too; `x` is the caller's. A message
    is bytes without a dtype: receive into a tensor of the dtype that was sent.
    """
    _expect_rows(t, rank, steps=3)


@exercise.check(ranks=2, deadline=6, given=f"rows = [4, 4]\n{_TABLE}\n{_X}")
def two_rows_a_step(t):
    """Two rows leave a rank in a step and two arrive, as messages

    A rank needs two rows, from its neighbours. In a collective all ranks take part: what a gather brings
    grows with their number, and a barrier waits for the slowest. A `recv` without a rank takes what comes
    first, and a neighbour may be a step ahead.
    """
    _, calls = ranks.all_through(t, "repair_deadlock_sends(x, 3)")
    ranks.expect_messages_only(calls)
    anybody = sum(call.peer is None for call in calls)
    expect.equal(anybody, 0, what="the number of receives that name no rank")
    says = {"send": "sends", "recv": "receives"}
    for name, those in ranks.messages(calls).items():
        number = sum(call.bytes for call in those) // t.x[0].nbytes
        expect.equal(number, 6, what=f"the number of rows that this rank {says[name]} in three steps")


@exercise.check(ranks=3, deadline=6, given=f"rows = [2, 1, 2]\n{_TABLE}\n{_X}")
def three_ranks(t, rank):
    """Three ranks in a ring, one of them with a single row

    Even ranks that send first and odd ones that receive first come through on two ranks and on four. In a
    ring of three, ranks 2 and 0 are neighbours, and both are even. Taking turns works if each direction is
    done separately.
    """
    _expect_rows(t, rank)
