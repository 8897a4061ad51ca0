"""One step on two processes

All ranks make one step together and return its loss, a float. They come with the same model, optimizer, rows
and random state. `model.loss(ids, targets)` is the mean over rows.

- A rank runs the model on its share of the rows. Shares differ by one row at most; with fewer rows than
  ranks, some are empty.
- Without dropout, loss and parameters become those of one process with all rows: old gradients cleared,
  gradients' norm cut to at most 1, a step.
- A rank sends at most two messages, with each gradient once.
- Dropout draws other masks on each rank, and in each step. Afterwards the random state is the same on all
  ranks.
"""

import copy

import torch
import torch.distributed as dist
from torch import Tensor

from course_utils.exercise import Exercise, Rows, expect
from course_utils.exercise.kits import gpt, ranks

exercise = Exercise(
    minutes=25,
    hints=[
        "`tensor_split` cuts rows into shares. With which weights do the means of shares of two rows and one "
        "row add up to the mean of all three? Where in the step may the norm be looked at?",
        "One flat tensor takes the loss and all gradients in one `all_reduce`. `model.parameters()` names "
        "the tied weight once. A rank without rows brings zeros.",
        "A number drawn from the common random state is the same on all ranks, and another in each step. "
        "Inside `torch.random.fork_rng()` seed with that number plus the rank, and run forward and backward.",
    ],
)


@exercise.starter
def fast_step_ranks(
    model: gpt.GPT, optimizer: torch.optim.Optimizer, ids: Tensor, targets: Tensor
) -> float:
    """`ids` and `targets` are (rows, time) -> the mean loss over all rows"""
    raise NotImplementedError


_CALL = "fast_step_ranks(model, optimizer, ids, targets)"
# In float64, so that a sum in another order is the same but for its last digits.
_SETUP = """
from course_utils.exercise.kits import gpt

class Exact(gpt.GPT):
    def loss(self, ids, targets):
        return {scale} * F.cross_entropy(self(ids).flatten(0, 1), targets.flatten())

torch.manual_seed(0)
model = Exact(7, context=6, width=8, heads=2, layers=2, dropout={dropout}).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
ids = torch.randint(7, ({rows}, 6))
targets = ids.roll(-1, 1)
"""
_OLD = "model.loss(ids, targets.flip(0)).backward()"
_SAME_ROWS = "ids, targets = (x[:1].repeat(4, 1) for x in (ids, targets))\n"


def _setup(rows=4, dropout=0.0, scale=0.25):
    return _SETUP.format(rows=rows, dropout=dropout, scale=scale)


def _one_process(model, optimizer, t):
    """A step of one process with all rows: its loss, and the norm of the gradient before it was cut."""
    optimizer.zero_grad()
    loss = model.loss(t.ids, t.targets)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item(), norm.item()


def _all_through(t, call):
    told = "DistributedDataParallel sends more than two messages: some when it is made, one for each bucket"
    with ranks.torchs_own_refused(told):
        return ranks.all_through(t, call)


def _expect_like_one_process(t, steps=1):
    model, optimizer = copy.deepcopy((t.model, t.optimizer))
    wanted = [_one_process(model, optimizer, t) for _ in range(steps)]
    with expect.left_alone([t.ids, t.targets], what="the rows"):
        # One expression, so that a report shows as many calls as were made.
        came, _ = _all_through(t, _CALL if steps == 1 else f"[{_CALL} for _ in range({steps})]")
    for step, (loss, (mean, _)) in enumerate(zip([came] if steps == 1 else came, wanted, strict=True), 1):
        when = f" of step {step}" * (steps > 1)
        expect.true(isinstance(loss, float), f"the result{when} is {expect.show(loss)}, expected a float")
        number = torch.tensor([loss, mean], dtype=torch.float64)
        factors = {"the number of ranks": dist.get_world_size()}
        expect.equal(number[0], number[1], what=f"the loss{when}", rtol=1e-6, atol=1e-7, factors=factors)
    last = "the step" if steps == 1 else f"step {steps}"
    after = f"after {last} (the norm of the gradient was {wanted[-1][1]:.3f})"
    with Rows() as rows:
        for (name, found), p in zip(t.model.named_parameters(), model.parameters(), strict=True):
            with rows.of(f"`{name}`"):
                expect.equal(found.detach(), p.detach(), what=f"`{name}` {after}", rtol=1e-6, atol=1e-7)


@exercise.check(
    ranks=2,
    given=lambda scale: _setup(scale=scale),
    cases={"a gradient with a norm below 1": 0.25, "a gradient with a norm above 1": 40.0},
)
def like_one_process(t, scale):
    """Loss and parameters are those of one process with all rows

    The mean over all rows is the mean of two means over equally many. The norm that counts is that of the
    averaged gradient: each rank's own is another number, and what each rank cuts by itself is no longer a
    part of one gradient.
    """
    _expect_like_one_process(t)


@exercise.check(ranks=2, given=_setup(), cases={"no gradient at first": "", "old gradients": _OLD})
def several_steps(t):
    """Two steps, one after the other

    Backward adds to what is in `.grad`. Clear it on every rank, in the first step too. What the optimizer
    keeps, its momentum here, stays the same on all ranks as long as the gradients are.
    """
    _expect_like_one_process(t, steps=2)


@exercise.check(ranks=3, given=_setup, cases={"five rows": 5, "two rows": 2})
def unequal_shares(t, rows):
    """Three ranks whose shares are unequal, and one that has no row

    If each rank's mean counts equally, the row of a rank that has one counts twice as much as those of a rank
    that has two. Weight each mean by its share of the rows. The mean over no row is nan, and nan times 0 is
    nan; but a rank without rows has to take part in the sum.
    """
    _expect_like_one_process(t)


@exercise.check(ranks=3, given=_setup, cases={"four rows": 4, "five rows": 5})
def its_own_rows(t, rows):
    """A rank runs the model on its share alone, and shares differ by one row at most

    If every rank computes all rows, the sum is right, and three processes take as long as one. They wait for
    the one with the most rows. All ranks have the rows, so none has to be sent.
    """
    seen = []
    t.model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].clone()))
    t.call(_CALL)
    found = torch.cat(seen) if seen else t.ids[:0]
    everyones = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, found.tolist())
    shares = [len(share) for share in everyones]
    told = f"the ranks run the model on {shares[0]}, {shares[1]} and {shares[2]} of {rows} rows"
    expect.true(sum(shares) == rows, told, f"expected: on {rows} together")
    expect.true(max(shares) - min(shares) <= 1, told, "expected: shares that differ by one row at most")
    together = sorted(row for share in everyones for row in share)
    told = "the rows of all ranks together are not those of `ids`, each once"
    expect.true(together == sorted(t.ids.tolist()), told)


@exercise.check(ranks=2, given=_setup())
def messages(t):
    """At most two messages in a step, with each gradient once

    All ranks wait for each other in a message, whatever its size. So gradients travel together, in one flat
    tensor. The table of characters is the head's weight as well: it's one parameter with one gradient.
    """
    t.run(_CALL)
    _, calls = _all_through(t, _CALL)
    expect.at_most(len(calls), 2, "messages of this rank in the second step")
    size = sum(p.nbytes for p in t.model.parameters())
    told = f"bytes that this rank sends in the second step (the gradients have {size:,})"
    expect.at_most(sum(call.bytes for call in calls), size + 64, told)


@exercise.check(ranks=2, given=f"{_setup(dropout=0.5)}{_SAME_ROWS}")
def dropout(t, rank):
    """Other masks on each rank and in each step; then the same random state

    From the same state both ranks draw the same numbers, and row 0 of one rank gets the mask of row 0 of the
    other. A seed that is the same in each step repeats the masks of the step before. And if the states differ
    afterwards, so does what ranks have to draw alike, such as the order of the next epoch.
    """
    masks, states = [], []
    for block in t.model.blocks:
        block.dropout.register_forward_hook(lambda _, x, out: masks[-1].append((out == 0).tolist()))
    for _ in range(2):
        masks.append([])
        t.call(_CALL)
        states.append(torch.get_rng_state())
    everyones = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, (masks, states))
    (first, states_of_0), (second, states_of_1) = everyones
    drawn = "the same elements are dropped {}, expected: others"
    expect.true(first[0] != second[0], drawn.format("on both ranks in one step"))
    expect.true(masks[0] != masks[1], drawn.format("on this rank in two steps"))
    both = zip(states_of_0, states_of_1, strict=True)
    told = "afterwards the two ranks have different random states", "expected: the same"
    expect.true(all(torch.equal(a, b) for a, b in both), *told)
