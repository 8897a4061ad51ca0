"""One step on two processes

The process group exists. All ranks make one step together and return its loss, a float. They come with the
same model, optimizer, rows and random state. `model.loss(ids, targets)` is the mean over rows.

- A rank runs the model on its share of the rows. Shares differ by one row at most; with fewer rows than
  ranks, some are empty.
- Without dropout, loss and parameters become those of one process with all rows (compared in float64): old
  gradients cleared, norm cut to at most 1, a step.
- A rank sends at most two messages, with each gradient once.
- Dropout draws other masks on each rank, and in each step. Afterwards all ranks have the same random state.
"""

import contextlib
import copy

import torch
import torch.distributed as dist
from torch import Tensor

from course_utils.exercise import Exercise, Rows, expect
from course_utils.exercise.kits import gpt, ranks
from course_utils.exercise.kits.whys import because

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


_TOGETHER = """A rank knows the loss of its own rows. That of all rows is a sum over the ranks, like the
gradient."""
_MEAN = """The mean over all rows is the sum of the ranks' means, each times its share of the rows. So is
its gradient."""
_WEIGHTED = """If each rank's mean counts equally, the row of a rank that has one counts twice as much as
those of a rank that has two. Weight each mean by its share of the rows."""
_CUT = """The norm that counts is that of the gradient of all rows: each rank's own is another number, and
what each rank cuts by itself is no longer a part of one gradient. So it's cut after the sum."""
_CLEARED = "Backward adds to what is in `.grad`. Clear it on every rank, in the first step too."


def _flat(parameters):
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    return torch.nn.utils.parameters_to_vector(grads).clone()


def _one_process(model, optimizer, t):
    """A step of one process with all rows: its loss, and the gradient before it was cut."""
    optimizer.zero_grad()
    loss = model.loss(t.ids, t.targets)
    loss.backward()
    whole = _flat(model.parameters())
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item(), whole


def _all_through(t, call):
    told = "DistributedDataParallel sends more than two messages: some when it is made, one for each bucket"
    with ranks.torchs_own_refused(told):
        return ranks.all_through(t, call)


def _other_gradient(came, wholes, old, mean):
    """Of the first step to which the optimizer came with another gradient: what that is, and the rule."""
    for step, (got, whole) in enumerate(zip(came, wholes, strict=False), 1):
        norm = whole.norm().item()
        right = whole / max(norm, 1.0)
        told = f"In step {step} the gradient that the optimizer finds"
        if (got - right).norm() > 1e-6 * right.norm():
            parts = torch.stack([whole, old] if old.any() else [whole], 1)
            shares = torch.linalg.lstsq(parts, got).solution
            if (parts @ shares - got).norm() > 1e-6 * got.norm():
                return f"{told} isn't that of one process, nor a multiple of it.", _CUT if norm > 1 else mean
            if len(shares) > 1 and abs(shares[1]) > 1e-6:
                return f"{told} has the old one in it.", _CLEARED
            times = got.norm() / right.norm()
            return f"{told} is {times:.3g} times that of one process.", _CUT if norm > 1 else mean
        old = got
    return "", ""


def _expect_like_one_process(t, steps=1, mean=_MEAN):
    model, optimizer = copy.deepcopy((t.model, t.optimizer))
    own, old, came, rows_here = copy.deepcopy(t.model), _flat(t.model.parameters()), [], []
    wanted = [_one_process(model, optimizer, t) for _ in range(steps)]
    with contextlib.ExitStack() as stack:
        note = t.model.register_forward_pre_hook(lambda _, inputs: rows_here.append(inputs[0].clone()))
        stack.callback(note.remove)
        note = t.optimizer.register_step_pre_hook(lambda *_: came.append(_flat(t.model.parameters())))
        stack.callback(note.remove)
        stack.enter_context(expect.left_alone([t.ids, t.targets], what="the rows"))
        # One expression, so that a report shows as many calls as were made.
        losses, _ = _all_through(t, _CALL if steps == 1 else f"[{_CALL} for _ in range({steps})]")
    symptom, why = _other_gradient(came, [whole for _, whole in wanted], old, mean)
    pairs = zip([losses] if steps == 1 else losses, wanted, strict=True)
    for step, (loss, (right, _)) in enumerate(pairs, 1):
        when = f" of step {step}" * (steps > 1)
        expect.true(isinstance(loss, float), f"the result{when} is {expect.show(loss)}, expected a float")
        number = torch.tensor([loss, right], dtype=torch.float64)
        like, factors = {}, {"the number of ranks": dist.get_world_size()}
        if step == 1 and rows_here:
            alone = own.loss(rows_here[0], rows_here[0].roll(-1, 1)).detach()
            like = {"the mean over the rows of this rank": alone}
        with because(mean if symptom else _TOGETHER):
            what = f"the loss{when}"
            expect.equal(number[0], number[1], what=what, rtol=1e-6, atol=1e-7, factors=factors, like=like)
    last = "the step" if steps == 1 else f"step {steps}"
    after = f"after {last} (the norm of the gradient was {wanted[-1][1].norm():.3f})"
    with Rows() as rows:
        for (name, found), p in zip(t.model.named_parameters(), model.parameters(), strict=True):
            with rows.of(f"`{name}`"):
                try:
                    what = f"`{name}` {after}"
                    expect.equal(found.detach(), p.detach(), what=what, rtol=1e-6, atol=1e-7)
                except expect.Mismatch as error:
                    error.symptom, error.why = symptom or error.symptom, why
                    raise


@exercise.check(
    ranks=2,
    given=lambda scale: _setup(scale=scale),
    cases={"a gradient with a norm below 1": 0.25, "a gradient with a norm above 1": 40.0},
)
def like_one_process(t, scale):
    """Loss and parameters are those of one process with all rows

    The mean over all rows is the mean of two means over equally many. Gradients have the dtype of the model's
    parameters, and so has what is made of them.
    """
    _expect_like_one_process(t)


@exercise.check(ranks=2, given=_setup(), cases={"no gradient at first": "", "old gradients": _OLD})
def several_steps(t):
    """Two steps, one after the other

    What the optimizer keeps, its momentum here, stays the same on all ranks as long as the gradients are.
    """
    _expect_like_one_process(t, steps=2)


_ALL_ROWS = "If every rank computes all rows, the sum is right, and three processes take as long as one."
_EACH_ONCE = """The mean is one over all rows: each is in the share of one rank. All ranks have the rows;
none is sent."""
_SLOWEST = "The ranks wait for the one with the most rows."


@exercise.check(ranks=3, given=_setup, cases={"four rows": 4, "five rows": 5})
def its_own_rows(t, rows):
    """A rank runs the model on its share alone, and shares differ by one row at most

    All ranks have the rows, so none has to be sent: a share is a part of them, by the number of the rank.
    """
    seen = []
    t.model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].clone()))
    t.call(_CALL)
    found = torch.cat(seen) if seen else t.ids[:0]
    everyones = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, found.tolist())
    shares = [len(share) for share in everyones]
    told = f"the ranks run the model on {shares[0]}, {shares[1]} and {shares[2]} of {rows} rows"
    with because(_ALL_ROWS if min(shares) == rows else _EACH_ONCE):
        expect.true(sum(shares) == rows, told, f"expected: on {rows} together")
    with because(_SLOWEST):
        expect.true(max(shares) - min(shares) <= 1, told, "expected: shares that differ by one row at most")
    together = sorted(row for share in everyones for row in share)
    told = "the rows of all ranks together are not those of `ids`, each once"
    with because(_EACH_ONCE):
        expect.true(together == sorted(t.ids.tolist()), told)


@exercise.check(ranks=3, given=_setup, cases={"five rows": 5, "two rows": 2})
def unequal_shares(t, rows):
    """Three ranks whose shares are unequal, and one that has no row

    A rank without rows takes part in each message all the same, with zeros of the shape and dtype that others
    bring. The mean over no row is nan, and nan times 0 is nan.
    """
    _expect_like_one_process(t, mean=_WEIGHTED)


_ONE_TIED = "The table of characters is the head's weight as well: it's one parameter with one gradient."


@exercise.check(ranks=2, given=_setup())
def messages(t):
    """At most two messages in a step, with each gradient once

    All ranks wait for each other in a message, whatever its size. So gradients travel together, in one flat
    tensor.
    """
    t.run(_CALL)
    _, calls = _all_through(t, _CALL)
    expect.at_most(len(calls), 2, "messages of this rank in the second step")
    size = sum(p.nbytes for p in t.model.parameters())
    told = f"bytes that this rank sends in the second step (the gradients have {size:,})"
    with because(_ONE_TIED):
        expect.at_most(sum(call.bytes for call in calls), size + 64, told)


_ALIKE = """From the same state both ranks draw the same numbers, and row 0 of one rank gets the mask of
row 0 of the other."""
_AGAIN = "A seed that is the same in each step repeats the masks of the step before."


@exercise.check(ranks=2, given=f"{_setup(dropout=0.5)}{_SAME_ROWS}")
def dropout(t, rank):
    """Other masks on each rank and in each step; then the same random state

    If the states differ afterwards, so does what ranks have to draw alike, such as the order of the next
    epoch.
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
    with because(_ALIKE):
        expect.true(first[0] != second[0], drawn.format("on both ranks in one step"))
    with because(_AGAIN):
        expect.true(masks[0] != masks[1], drawn.format("on this rank in two steps"))
    both = zip(states_of_0, states_of_1, strict=True)
    told = "afterwards the two ranks have different random states", "expected: the same"
    expect.true(all(torch.equal(a, b) for a, b in both), *told)
