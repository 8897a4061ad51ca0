"""Ranks with unequally many batches

Train `model` on ranks with unequally many batches. In every step each rank with a batch left takes the next.
The gradient is the **mean over these ranks** of those of `loss(model(x), y)`. A rank that has run out takes
the same steps. Return their number.

All ranks begin alike. `batches`, an iterator of pairs `(x, y)`, doesn't fit into memory; it may be empty on
some ranks, or all. `.grad` may hold something at first. Frozen parameters keep None; every batch uses the
others.

A step takes two collectives at most; two more may find out that all are done.

Two batches on rank 0, one on rank 1 → two steps on both, the second by rank 0's gradient alone.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from course_utils import measure
from course_utils.exercise import Exercise, Rows, expect
from course_utils.exercise.kits import ranks

exercise = Exercise(
    minutes=20,
    hints=[
        "A collective needs every rank. So a rank may leave its loop only when all know that nobody has a "
        "batch left. Who can tell them?",
        "A sum over ranks of ones and zeros says how many still have a batch. It can travel in the tensor "
        "in which the gradients travel, or before it.",
        "In every round: clear the gradients; run forward and backward if there is a batch; put all "
        "gradients into one flat tensor, zeros if there was no batch, and a 1 or a 0 behind them; add it "
        "up over the ranks. If the last element is 0, all are done. Otherwise divide by it, hand out the "
        "gradients, step.",
    ],
)


@exercise.starter
def uneven_inputs(
    model: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    optimizer: torch.optim.Optimizer,
    batches: Iterator[tuple[Tensor, Tensor]],
) -> int:
    """-> the number of steps"""
    raise NotImplementedError


_CALL = "uneven_inputs(model, loss, optimizer, batches)"
# Batch i of rank r: r + 1 rows of (i + 1) * 10**r. The gradient of a batch is minus the mean of its rows.
_SETUP = """rank, lengths = dist.get_rank(), {lengths}
model = nn.Linear(2, 1)
model.load_state_dict({{'weight': torch.zeros(1, 2), 'bias': torch.ones(1)}})
model.bias.requires_grad_({bias})
optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5, weight_decay=0.25)
loss = lambda output, y: (y - output).mean()
shares = [
    [(torch.full((r + 1, 2), (i + 1.) * 10**r), torch.zeros(r + 1, 1)) for i in range(length)]
    for r, length in enumerate(lengths)
]
batches = iter(shares[rank])"""
_OLD = "\nmodel.weight.grad = torch.full((1, 2), 100.)"
_DOUBLE = """
model.double()
shares = [[(x.double() / 7, y.double()) for x, y in share] for share in shares]
batches = iter(shares[rank])"""

# `held`: how many of the earlier batches are still there when the next one is asked for.
_COUNTED = """
import weakref
made, held = [], []
def one_by_one():
    for pair in shares[0]:
        held.append(sum(x() is not None for x in made))
        batch = [part.clone() for part in pair]
        made.append(weakref.ref(batch[0]))
        yield batch
        del batch
batches = one_by_one()"""


def _watched(t):
    """The parameters after each step from here on, one row for each."""
    rows = []

    def stepped(*_):
        rows.append(torch.cat([p.detach().flatten() for p in t.model.parameters()]))

    t.optimizer.register_step_post_hook(stepped)
    return rows


def _in_one_process(setup, lengths, counted=len):
    """The oracle: one process takes the batches of all ranks, step by step."""
    with expect.situation():
        t = ranks.given(setup)
        rows = _watched(t)
        for step in range(max(lengths)):
            pairs = [share[step] for share in t.shares if step < len(share)]
            t.optimizer.zero_grad()
            (sum(t.loss(t.model(x), y) for x, y in pairs) / counted(pairs)).backward()
            t.optimizer.step()
    return rows


def _expect_like_one_process(uneven_inputs, world_size, *lengths, bias=True, more=""):
    setup = _SETUP.format(lengths=list(lengths), bias=bias) + more
    t = ranks.given(setup, uneven_inputs=uneven_inputs)
    found = _watched(t)
    with measure.traffic() as seen:
        result = t.call(_CALL)
    if not seen.count("broadcast"):  # as a `DistributedDataParallel` does, which waits unseen
        ranks.expect_waited(seen)
    expect.equal(len(found), max(lengths), what="the number of steps that the optimizer made")
    expect.equal(result, max(lengths), what="the number of steps that is returned")
    if found:
        by_all = torch.stack(_in_one_process(setup, lengths, counted=lambda pairs: world_size))
        expect.equal(
            torch.stack(found),
            torch.stack(_in_one_process(setup, lengths)),
            what="the matrix of the parameters after each step",
            like={"what comes out where every step is divided by the number of all ranks": by_all},
            factors={"the number of ranks": world_size},
            rtol=1e-12 if found[0].dtype == torch.float64 else None,
        )


@exercise.check(ranks=2)
def equally_many(uneven_inputs, world_size):
    """Two ranks with equally many batches

    The mean of the gradients of two batches is a sum over the ranks, divided by how many gave one. A batch of
    one row counts as much as one of two: each is one rank's batch. `.grad` adds up until it's cleared. With
    `async_op=True` a call returns before anything has arrived: the sum is there after `wait()`. A float64
    gradient that travels in float32 can lose half its digits. All ranks return how many steps they took.
    """
    with Rows() as rows:
        for label, more in (("two batches each", ""), ("float64", _DOUBLE)):
            with rows.of(label):
                _expect_like_one_process(uneven_inputs, world_size, 2, 2, more=more)


@exercise.check(ranks=2)
def one_runs_out(uneven_inputs, world_size):
    """A rank runs out of batches

    A collective needs every rank, so a rank can't leave while another goes on. A rank without a batch brings
    zeros and isn't counted in the mean; clear `.grad` first, which still holds the mean of the step before.
    Momentum depends on the steps that were taken. In DDP's `join()` a rank that has run out takes none, and
    at the end its weights are put right, its optimizer isn't.
    """
    _expect_like_one_process(uneven_inputs, world_size, 1, 3)


@exercise.check(ranks=3)
def none_at_all(uneven_inputs, world_size):
    """A rank never has a batch; and nobody has one

    Before the first backward a parameter's `.grad` is None, or what somebody left there. If no rank has a
    batch there is nothing to learn, and nothing to divide by.
    """
    with Rows() as rows:
        for lengths, more in (((2, 1, 0), ""), ((0, 0, 0), ""), ((2, 1, 0), _OLD)):
            with rows.of(f"`lengths = {list(lengths)}`" + ", something in `.grad` at first" * bool(more)):
                _expect_like_one_process(uneven_inputs, world_size, *lengths, more=more)


@exercise.check(ranks=2)
def frozen(uneven_inputs, world_size):
    """A frozen parameter isn't moved

    Its `.grad` is None, and an optimizer leaves such a parameter alone. To zeros it adds weight decay.
    """
    _expect_like_one_process(uneven_inputs, world_size, 1, 2, bias=False)


@exercise.check(ranks=1)
def few_held(uneven_inputs):
    """No more than a few batches are held

    `list(batches)` reads everything before the first step. An iterator may come from a `DataLoader`: what is
    left can be more than memory holds, and nobody has to know how much it is.
    """
    t = ranks.given(_SETUP.format(lengths=[8], bias=True) + _COUNTED, uneven_inputs=uneven_inputs)
    t.call(_CALL)
    expect.at_most(max(t.held), 3, "batches that are still held when the next one is asked for, of 8")


@exercise.check(ranks=2)
def collectives(uneven_inputs):
    """Two collectives a step at most

    Ranks wait for each other in a sum, whatever its size. All gradients travel in one tensor if you
    concatenate them.
    """
    setup = _SETUP.format(lengths=[1, 3], bias=True).splitlines()
    setup[1:4] = ["model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 1))"]
    t = ranks.given("\n".join(["torch.manual_seed(0)", *setup]), uneven_inputs=uneven_inputs)
    with measure.traffic() as seen:
        t.call(_CALL)
    expect.at_most(seen.count(), 2 * 3 + 2, "collectives for 3 steps and 6 parameters")
