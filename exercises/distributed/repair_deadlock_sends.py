"""Repair: a ring in which everybody sends first

A table is cut into blocks of rows, one block on each rank, in the order of the ranks. In a step every row is
replaced by a mixture with its neighbours, `(above + 2 * row + below) / 4`. The table closes to a ring: above
the first row of rank 0 lies the last row of the last rank. So in every step a rank needs one row from each of
its two neighbours.

The function below never comes back. `dist.send` returns when the other rank takes the message, and the other
rank is in `dist.send` too. Mend it, for every number of ranks from two on, odd ones as well.

- In a step a rank sends two rows and receives two, as messages to and from its neighbours. There is no
  collective: a rank has no use for the rows of all others. Nor is there a second thread.
- What is launched asynchronously is waited for.
- Ranks may have different numbers of rows, at least one. `x` may have any strides, and stays as it is.
- Two ranks are each other's neighbours above and below. Of two messages from the same rank, the first that
  was sent is the first that is received.

To see where it hangs: `run_ranks(lambda rank, size: repair_deadlock_sends(torch.eye(2)), 2)`.
"""

import time

import torch
import torch.distributed as dist
from torch import Tensor

from course_utils import evidence, expect, measure
from course_utils.exercise import Exercise

exercise = Exercise(
    minutes=15,
    hints=[
        "Write down for two ranks what each of them does first. Who would have to do something else for the "
        "first message to arrive? Then the same for three ranks in a ring.",
        "There are two ways out. Either some rank receives where the others send: with two neighbours to "
        "serve that has to hold for each direction of its own. Or sending does not make a rank wait.",
        "`dist.isend` returns at once, with an object that has a method `wait`. Launch both messages, then "
        "receive, and wait for the messages that you launched at the end of the step.",
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


def _given(answer, rank, rows, more=""):
    """The block of this rank: of the rows of a table of squares, whose neighbours tell."""
    begin, end = 3 * sum(rows[:rank]), 3 * sum(rows[: rank + 1])
    block = f"torch.arange({begin}., {end}.).view({rows[rank]}, 3).square()"
    return expect.given(f"x = {block}  # rank {rank}\n{more}", repair_deadlock_sends=answer)


def _table(rows, steps):
    """The oracle: the whole table in one process."""
    table = torch.arange(0.0, 3 * sum(rows), dtype=torch.float64).view(-1, 3).square()
    for _ in range(steps):
        table = (table.roll(1, 0) + 2 * table + table.roll(-1, 0)) / 4
    return table.split(rows)


def _ran(t, call):
    """What the answer gives, what it sent, and the names of the messages that it did not wait for. None is
    dropped before all ranks are through, whether or not somebody waits for it: else it might never be sent.
    """
    with measure.traffic() as sent:
        came = t.call(call)
        calls = list(sent.calls)
        with evidence.silent():
            order = sent.order
        dist.barrier()
    sent.calls[:] = calls
    return came, sent, [call.name for i, call in enumerate(calls) if f"wait {i}" not in order]


def _expect_waited_for(rank, sent, never):
    launched = len(sent.calls)
    expect.true(
        not never,
        f"messages of rank {rank}: {launched}, waited for: {launched - len(never)}, expected all",
        f"the first that nobody waits for is a `{(never or [''])[0]}`",
    )


def _expect_rows(answer, rank, rows, steps, more=""):
    t = _given(answer, rank, rows, more)
    before = t.x.clone()
    call = f"repair_deadlock_sends(x, {steps})" if steps != 1 else "repair_deadlock_sends(x)"
    came, sent, never = _ran(t, call)
    _expect_waited_for(rank, sent, never)  # what came without that would be chance
    expect.equal(came, _table(rows, steps)[rank].to(t.x.dtype), what=f"the block of rank {rank}")
    expect.unchanged(t.x, before, what="`x`")


@exercise.check(ranks=2, deadline=10)
def waited_for(repair_deadlock_sends, rank):
    """It comes to an end on two ranks, and every message that was launched is waited for"""
    t = _given(repair_deadlock_sends, rank, [2, 2])
    _, sent, never = _ran(t, "repair_deadlock_sends(x, 2)")
    _expect_waited_for(rank, sent, never)


@exercise.check(ranks=2, deadline=10)
def messages(repair_deadlock_sends, rank):
    """Two rows leave a rank in a step and two arrive, as messages"""
    steps = 3
    t = _given(repair_deadlock_sends, rank, [4, 4])
    _, sent, _ = _ran(t, f"repair_deadlock_sends(x, {steps})")
    names = sorted({call.name for call in sent.calls} - {"send", "recv"})
    collectives = sum(sent.count(name) for name in names)
    said = f"collectives on rank {rank}: {collectives} ({', '.join(names)}), expected none"
    expect.true(collectives == 0, said)
    row = t.x[0].nbytes
    for name, what in (("send", "sent"), ("recv", "received")):
        size = sent.bytes(name)
        said = f"rows {what} by rank {rank} in {steps} steps: {size / row:g}, expected {2 * steps}"
        expect.true(size == 2 * steps * row, said)


@exercise.check(ranks=2, deadline=10)
def two_ranks(repair_deadlock_sends, rank):
    """One step on two ranks"""
    _expect_rows(repair_deadlock_sends, rank, [3, 2], 1)


@exercise.check(ranks=2, deadline=10)
def several_steps(repair_deadlock_sends, rank):
    """Five steps, each with the rows of the step before"""
    _expect_rows(repair_deadlock_sends, rank, [2, 4], 5)


@exercise.check(ranks=3, deadline=10)
def three_ranks(repair_deadlock_sends, rank):
    """Three ranks in a ring, one of them with a single row"""
    _expect_rows(repair_deadlock_sends, rank, [2, 1, 3], 2)


@exercise.check(ranks=4, deadline=10)
def four_ranks(repair_deadlock_sends, rank):
    """Four ranks of which one comes late, in double precision, from columns that lie apart"""
    if rank == 2:  # the others are ahead of it by a step where they can be
        time.sleep(0.1)
    strided = "x = x.double().t().contiguous().t()"
    _expect_rows(repair_deadlock_sends, rank, [1, 3, 2, 2], 3, strided)


# --- the mistakes -----------------------------------------------------------------------------------------


def _mixed(x, above, below):
    return (torch.cat((above, x[:-1])) + 2 * x + torch.cat((x[1:], below))) / 4


def _bordered(x, exchange):
    """The rows above and below: `exchange(up, down, first, last, above, below)` does what fills them."""
    rank, size = dist.get_rank(), dist.get_world_size()
    first, last = x[:1].contiguous(), x[-1:].contiguous()
    above, below = torch.empty_like(last), torch.empty_like(first)
    exchange((rank - 1) % size, (rank + 1) % size, first, last, above, below)
    return above, below


def _stepped(x, steps, exchange):
    for _ in range(steps):
        x = _mixed(x, *_bordered(x, exchange))
    return x


@exercise.mistake
def all_do_the_same_first(x, steps=1):
    """On two ranks each still waits for the other, or for a message that never comes. That is so as long
    as both do the same thing first, be it that both send or that both receive. To sleep, to meet at a
    barrier or to exchange the two sends changes nothing of it."""

    def exchange(up, down, first, last, above, below):
        dist.barrier()
        dist.send(last, down)
        dist.send(first, up)
        dist.barrier()
        dist.recv(above, up)
        dist.recv(below, down)

    return _stepped(x, steps, exchange)


@all_do_the_same_first.variant
def all_receive_first(x, steps=1):
    def exchange(up, down, first, last, above, below):
        dist.recv(above, up)
        dist.send(last, down)
        dist.recv(below, down)
        dist.send(first, up)

    return _stepped(x, steps, exchange)


@exercise.mistake
def parity_of_the_rank(x, steps=1):
    """Two ranks come through, three do not: two neighbours in the ring do the same thing first, and each of
    them waits for the other. To share out by even and odd ranks does not help, since in a ring of three
    ranks 2 and 0 are neighbours. Take turns in one direction after the other, or send without waiting."""

    def exchange(up, down, first, last, above, below):
        if dist.get_rank() % 2 == 0:
            dist.send(last, down)
            dist.send(first, up)
            dist.recv(above, up)
            dist.recv(below, down)
        else:
            dist.recv(above, up)
            dist.recv(below, down)
            dist.send(last, down)
            dist.send(first, up)

    return _stepped(x, steps, exchange)


@parity_of_the_rank.variant
def pairs_of_ranks(x, steps=1):
    even = dist.get_rank() % 2 == 0

    def exchange(up, down, first, last, above, below):
        order = [(down, last, below), (up, first, above)]
        for peer, out, into in order if even else reversed(order):
            if even:
                dist.send(out, peer)
                dist.recv(into, peer)
            else:
                dist.recv(into, peer)
                dist.send(out, peer)

    return _stepped(x, steps, exchange)


@exercise.mistake
def receives_in_another_order(x, steps=1):
    """On two ranks your row above and your row below are exchanged. Both come from the same rank there, and
    what it sent first is what arrives first: receive in the order in which the neighbour sends."""

    def exchange(up, down, first, last, above, below):
        launched = [dist.isend(last, down), dist.isend(first, up)]
        dist.recv(below, down)
        dist.recv(above, up)
        for work in launched:
            work.wait()

    return _stepped(x, steps, exchange)


@receives_in_another_order.variant
def in_one_batch(x, steps=1):
    def exchange(up, down, first, last, above, below):
        wanted = [(dist.irecv, above, up), (dist.irecv, below, down)]
        messages = [(dist.isend, first, up), (dist.isend, last, down), *wanted]
        for work in dist.batch_isend_irecv([dist.P2POp(*message) for message in messages]):
            work.wait()

    return _stepped(x, steps, exchange)


@exercise.mistake
def tags_of_its_own(x, steps=1):
    """Your tags say on which side of a rank the other one is, and the two ends of a message do not agree on
    that: what goes up for its sender comes from below for its receiver. On two ranks the rows are exchanged,
    on three each rank waits for a message that has another tag."""

    def exchange(up, down, first, last, above, below):
        above_tag, below_tag = 1, 2
        wanted = [(dist.irecv, above, up, None, above_tag), (dist.irecv, below, down, None, below_tag)]
        sent = [(dist.isend, first, up, None, above_tag), (dist.isend, last, down, None, below_tag)]
        for work in dist.batch_isend_irecv([dist.P2POp(*message) for message in sent + wanted]):
            work.wait()

    return _stepped(x, steps, exchange)


@exercise.mistake
def keeps_to_itself(x, steps=1):
    """Nothing hangs any more, since nothing is sent: your rows at the border are mixed with rows of the same
    rank."""
    for _ in range(steps):
        x = (x.roll(1, 0) + 2 * x + x.roll(-1, 0)) / 4
    return x


@keeps_to_itself.form
def repeats_its_border(x, steps=1):
    for _ in range(steps):
        x = _mixed(x, x[:1], x[-1:])
    return x


@exercise.mistake
def exchanges_once(x, steps=1):
    """You exchange rows once for all steps. After a step the neighbour's row is another one, and the next
    step needs that."""

    def exchange(up, down, first, last, above, below):
        launched = [dist.isend(last, down), dist.isend(first, up)]
        dist.recv(above, up)
        dist.recv(below, down)
        for work in launched:
            work.wait()

    above, below = _bordered(x, exchange)
    for _ in range(steps):
        x = _mixed(x, above, below)
    return x


@exercise.mistake
def gathers_the_table(x, steps=1):
    """The values are right, and every rank gets the rows of all others by a collective, to use two of them.
    What a rank receives then grows with the number of ranks. Two messages to the neighbours do not."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for _ in range(steps):
        blocks = [None] * size
        dist.all_gather_object(blocks, x)
        x = _mixed(x, blocks[rank - 1][-1:], blocks[(rank + 1) % size][:1])
    return x


@gathers_the_table.form
def gathers_the_borders(x, steps=1):
    rank, size = dist.get_rank(), dist.get_world_size()
    for _ in range(steps):
        own = torch.cat((x[:1], x[-1:]))
        borders = [torch.empty_like(own) for _ in range(size)]
        dist.all_gather(borders, own)
        x = _mixed(x, borders[rank - 1][1:], borders[(rank + 1) % size][:1])
    return x


@exercise.mistake
def never_waits(x, steps=1):
    """You launch messages and do not wait for all of them. That one has arrived says nothing of the
    others: until `wait` returns, a tensor on its way out must be neither changed nor freed, one on its way
    in not read, and what `isend` gave must be kept. With gloo a message of which that is dropped too soon is
    never sent, and its receiver waits for ever."""
    kept = []

    def exchange(up, down, first, last, above, below):
        kept.extend((dist.isend(last, down), dist.isend(first, up), first, last))
        dist.recv(above, up)
        dist.recv(below, down)

    return _stepped(x, steps, exchange)


@never_waits.variant
def waits_for_one(x, steps=1):
    kept = []

    def exchange(up, down, first, last, above, below):
        kept.extend((dist.isend(last, down), first, last))
        other = dist.isend(first, up)
        dist.recv(above, up)
        dist.recv(below, down)
        other.wait()

    return _stepped(x, steps, exchange)


@never_waits.variant
def waits_for_what_it_sends(x, steps=1):
    kept = []

    def exchange(up, down, first, last, above, below):
        launched = [dist.isend(last, down), dist.isend(first, up)]
        kept.extend((dist.irecv(above, up), dist.irecv(below, down), above, below))
        for work in launched:
            work.wait()

    return _stepped(x, steps, exchange)


@exercise.mistake
def sends_the_other_border(x, steps=1):
    """The rows go to the wrong neighbours: the rank below needs your last row above its first one, and the
    rank above needs your first."""

    def exchange(up, down, first, last, above, below):
        launched = [dist.isend(first, down), dist.isend(last, up)]
        dist.recv(above, up)
        dist.recv(below, down)
        for work in launched:
            work.wait()

    return _stepped(x, steps, exchange)
