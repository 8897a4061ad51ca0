"""Repair: a loss that only rank 0 looks at

A linear model is trained by several ranks. Each has its own examples to train on and its own to validate
with, `train = (x, y)` and `valid = (x, y)`. After each step rank 0 notes the validation loss, and training
ends as soon as it is no longer smaller than the one before.

On one rank the function below works. On two, rank 0 never comes back, and the weights of rank 1 are wrong.
There are two faults, and the second shows when the first is gone. Mend both.

- All ranks return the same weights: those after the last step, for which the loss was no longer smaller, or
  after `epochs` steps. `w` itself stays as it is.
- The validation loss is the mean over the examples of all ranks. They need not have equally many, and a rank
  may have none. It is that of the weights after the step, and so it is `log` on rank 0: one number for each
  step, the last one too. On the other ranks `log` stays empty.
- In a step there are two collectives, or three where one carries a decision, and no barrier. No example
  leaves its rank: what it brings to a collective has no more bytes than the weights.

To see where it hangs: `run_ranks(lambda rank, size: repair_deadlock_rank_zero(torch.zeros(2), (torch.eye(2),
torch.ones(2)), (torch.eye(2), torch.ones(2)), 3, []), 2)`.
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
        "Let it hang, and look at where rank 0 waits. How many collectives has it called by then, and how "
        "many the others? Which of theirs did its second one meet?",
        "A condition that is true on one rank only may stand around a `print`, never around a collective. A "
        "helper that holds a collective counts as one.",
        "When the loss is known to all ranks, look at what is left under the condition. Which line there "
        "decides whether a rank comes to the next collective?",
    ],
)


@exercise.starter
def repair_deadlock_rank_zero(w: Tensor, train: tuple, valid: tuple, epochs: int, log: list) -> Tensor:
    """(features,) and the examples of this rank -> (features,), the same on every rank"""

    def mean_loss(x: Tensor, y: Tensor) -> Tensor:
        total = torch.stack(((x @ w - y).square().sum(), torch.tensor(float(len(y)))))
        dist.all_reduce(total)
        return total[0] / total[1]

    x, y = train
    best = float("inf")
    for _ in range(epochs):
        grad = x.t() @ (x @ w - y)
        dist.all_reduce(grad)
        w = w - 0.125 * grad
        if dist.get_rank() == 0:
            loss = mean_loss(*valid).item()
            log.append(loss)
            if loss >= best:
                break
            best = loss
    return w


# Training pulls the weights to (2, 1); the validation examples of the cases below say where the loss is
# least.
_TRAIN = [
    ("[[1., 0.], [0., 1.]]", "[2., 1.]"),
    ("[[1., 1.]]", "[3.]"),
    ("[[1., -1.]]", "[1.]"),
]
# By case: for each rank the x and y to validate with.
_FALLS = [("[[1., 0.], [0., 1.]]", "[2., 1.5]"), ("[[1., 1.]]", "[4.]"), ("[[1., 1.]]", "[3.5]")]
_RISES = [("[[1., 1.]]", "[1.5]"), ("[[1., 0.]]", "[1.75]")]
_FIRST_RISES = [("[[1., 0.]]", "[0.25]"), ("[[0., 1.], [1., 0.]]", "[2., 3.]")]
_ONE_HAS_NONE = [("[[1., 0.], [0., 1.]]", "[1.5, 0.5]"), ("[[1., 1.]]", "[2.5]"), ("torch.zeros(0, 2)", "[]")]


def _tensor(text):
    return text if text.startswith("torch") else f"torch.tensor({text})"


def _given(answer, rank, valid):
    train = ", ".join(map(_tensor, _TRAIN[rank]))
    valid = ", ".join(map(_tensor, valid[rank]))
    setup = f"w = torch.zeros(2)\ntrain = {train}  # rank {rank}\nvalid = {valid}  # rank {rank}\nlog = []"
    return expect.given(setup, repair_deadlock_rank_zero=answer)


def _together(pairs):
    """The examples of all ranks, in double precision."""
    both = [[eval(_tensor(text)).double() for text in pair] for pair in pairs]
    return tuple(map(torch.cat, zip(*both, strict=True)))


def _in_one_process(valid, epochs):
    """The oracle: everything in one process, and the gradient by autograd. (weights, losses)"""
    x, y = _together(_TRAIN[: len(valid)])
    x_valid, y_valid = _together(valid)
    w, losses = torch.zeros(2, dtype=torch.float64, requires_grad=True), []
    for _ in range(epochs):
        (grad,) = torch.autograd.grad((x @ w - y).square().sum() / 2, w)
        w = (w - 0.125 * grad).detach().requires_grad_()
        losses.append(torch.nn.functional.mse_loss(x_valid @ w, y_valid).item())
        if len(losses) > 1 and losses[-1] >= losses[-2]:
            break
    return w.detach().float(), losses


def _expect_training(answer, rank, valid, epochs):
    t = _given(answer, rank, valid)
    came = t.call(f"repair_deadlock_rank_zero(w, train, valid, {epochs}, log)")
    weights, losses = _in_one_process(valid, epochs)
    if rank == 0:
        expect.equal(t.log, losses, what="log", rtol=1e-4)
    expect.equal(came, weights, what="the result", rtol=1e-5, atol=1e-6)
    expect.unchanged(t.w, torch.zeros(2), what="`w`")


@exercise.check(ranks=1, deadline=10)
def one_rank(repair_deadlock_rank_zero, rank):
    """On one rank it does what it did"""
    _expect_training(repair_deadlock_rank_zero, rank, [("[[1., 1.]]", "[1.5]")], 8)
    _expect_training(repair_deadlock_rank_zero, rank, [("[[1., 1.]]", "[9.]")], 3)
    _expect_training(repair_deadlock_rank_zero, rank, [("[[0., 0.]]", "[1.]")], 5)


@exercise.check(ranks=2, deadline=10)
def to_the_last_epoch(repair_deadlock_rank_zero, rank):
    """Two ranks, and a loss that becomes smaller in each of five steps"""
    _expect_training(repair_deadlock_rank_zero, rank, _FALLS[:2], 5)


@exercise.check(ranks=2, deadline=10)
def collectives(repair_deadlock_rank_zero, rank):
    """Two or three small collectives in a step, the same on both ranks"""
    epochs = 4
    t = _given(repair_deadlock_rank_zero, rank, _FALLS[:2])
    with measure.traffic() as sent:
        t.call(f"repair_deadlock_rank_zero(w, train, valid, {epochs}, log)")
        calls = list(sent.calls)
        with evidence.silent():
            order = sent.order
        seen = [None, None]
        dist.all_gather_object(seen, [(call.name, call.bytes) for call in calls])
    expect.true(seen[0] == seen[1], "the two ranks do not call the same", *map(_listed, (0, 1), seen))
    barriers = sum(call.name == "barrier" for call in calls)
    expect.true(barriers == 0, f"barriers in {epochs} steps: {barriers}, expected none")
    expect.at_least(len(calls), 2 * epochs, f"collectives in {epochs} steps on rank {rank}")
    expect.at_most(len(calls), 3 * epochs, f"collectives in {epochs} steps on rank {rank}")
    largest = max(call.bytes for call in calls)
    expect.at_most(largest, t.w.nbytes, f"brought to one collective by rank {rank}", unit="bytes")
    never = [call.name for i, call in enumerate(calls) if f"wait {i}" not in order]
    said = f"collectives that rank {rank} launched and did not wait for: {len(never)}, expected none"
    expect.true(not never, said)


def _listed(rank, calls):
    return f"rank {rank}: {', '.join(name for name, _ in calls[:6]) or 'none'}{', …' * (len(calls) > 6)}"


@exercise.check(ranks=2, deadline=10)
def log_on_rank_zero(repair_deadlock_rank_zero, rank):
    """One loss for each step on rank 0, nothing on the other"""
    t = _given(repair_deadlock_rank_zero, rank, _FALLS[:2])
    t.call("repair_deadlock_rank_zero(w, train, valid, 3, log)")
    expect.equal(len(t.log), 3 if rank == 0 else 0, what="the number of entries of `log`")


@exercise.check(ranks=2, deadline=10)
def one_loss_for_all(repair_deadlock_rank_zero, rank):
    """A loss that rises on one rank ends nothing while that of all becomes smaller"""
    _expect_training(repair_deadlock_rank_zero, rank, _FIRST_RISES, 4)


@exercise.check(ranks=2, deadline=10)
def all_stop_together(repair_deadlock_rank_zero, rank):
    """The loss rises, and both ranks end after the same step"""
    _expect_training(repair_deadlock_rank_zero, rank, _RISES, 12)


@exercise.check(ranks=3, deadline=10)
def three_ranks(repair_deadlock_rank_zero, rank):
    """Three ranks, of which one has nothing to validate with"""
    _expect_training(repair_deadlock_rank_zero, rank, _ONE_HAS_NONE, 10)


# --- the mistakes -----------------------------------------------------------------------------------------


def _step(w, x, y):
    grad = x.t() @ (x @ w - y)
    dist.all_reduce(grad)
    return w - 0.125 * grad


def _own_step(w, x, y):
    return w - 0.125 * (x.t() @ (x @ w - y))


def _own(w, x, y):
    return torch.stack(((x @ w - y).square().sum(), torch.tensor(float(len(y)))))


def _of_all(w, x, y):
    total = _own(w, x, y)
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


def _of_its_own(w, x, y):
    total, count = _own(w, x, y)
    return (total / count).item()


def _note(log, loss):
    if dist.get_rank() == 0:
        log.append(loss)


def _trained(w, train, valid, epochs, log, step=_step, loss=_of_all, note=_note):
    """A right answer with holes: `step(w, x, y)`, `loss(w, x, y)` and `note(log, loss)`."""
    best = float("inf")
    for _ in range(epochs):
        w = step(w, *train)
        found = loss(w, *valid)
        note(log, found)
        if found >= best:
            break
        best = found
    return w


@exercise.mistake
def only_rank_zero_comes_to_it(w, train, valid, epochs, log):
    """On two ranks one still waits in a collective that the other does not come to. What stands under
    `if rank == 0` is called on one rank alone, and meets whatever the other calls next: so it is with the
    `all_reduce` in `mean_loss`, and with a barrier. A barrier for the other rank is another collective, and
    sleeping gives it no reason to call this one."""
    best = float("inf")
    for _ in range(epochs):
        w = _step(w, *train)
        if dist.get_rank() == 0:
            loss = _of_all(w, *valid)
            log.append(loss)
            if loss >= best:
                break
            best = loss
        else:
            dist.barrier()
    return w


@only_rank_zero_comes_to_it.form
def sleeps(w, train, valid, epochs, log):
    best = float("inf")
    for _ in range(epochs):
        w = _step(w, *train)
        time.sleep(0.001 * dist.get_rank())
        if dist.get_rank() == 0:
            log.append(_of_all(w, *valid))
            if log[-1] >= best:
                break
            best = log[-1]
    return w


@only_rank_zero_comes_to_it.variant
def barrier_around_it(w, train, valid, epochs, log):
    best, ended = float("inf"), False
    for _ in range(epochs):
        w = _step(w, *train)
        dist.barrier()
        if dist.get_rank() == 0:
            log.append(_of_all(w, *valid))
            ended = log[-1] >= best
            best = log[-1]
        dist.barrier()
        if ended:
            return w
    return w


@exercise.mistake
def rank_zero_leaves_alone(w, train, valid, epochs, log):
    """When the loss rises, one rank leaves the loop and the other waits for it in the next step: all may
    know the loss by now, but not all act on it, as long as the `break` stands under `if rank == 0`. A
    decision that ends a loop with collectives in it has to be taken on every rank, from the same number."""
    best = float("inf")
    for _ in range(epochs):
        w = _step(w, *train)
        loss = _of_all(w, *valid)
        if dist.get_rank() == 0:
            log.append(loss)
            if loss >= best:
                break
            best = loss
    return w


@rank_zero_leaves_alone.variant
def others_never_stop(w, train, valid, epochs, log):
    losses, step = [], 0
    while step < epochs and not (dist.get_rank() == 0 and len(losses) > 1 and losses[-1] >= losses[-2]):
        w, step = _step(w, *train), step + 1
        losses.append(_of_all(w, *valid))
        _note(log, losses[-1])
    return w


@exercise.mistake
def each_looks_at_its_own(w, train, valid, epochs, log):
    """The collective is gone from the validation, and each rank computes the loss of its own examples.
    That is not the loss of all, and it rises at another time on each rank: one leaves the loop, and the
    others wait for it."""
    return _trained(w, train, valid, epochs, log, loss=_of_its_own)


@each_looks_at_its_own.variant
def validates_locally(w, train, valid, epochs, log):
    own = []
    for _ in range(epochs):
        w = _step(w, *train)
        x, y = valid
        own.append(torch.nn.functional.mse_loss(x @ w, y).item())
        if own[-2:-1] and own[-1] >= own[-2]:
            break
    log += own if dist.get_rank() == 0 else []
    return w


@exercise.mistake
def decides_by_its_own(w, train, valid, epochs, log):
    """A rank leaves the loop though the loss of all still becomes smaller, and the other waits for it. The
    loss of its own examples is not what decides: it rises at another time on each rank."""
    best = float("inf")
    for _ in range(epochs):
        w = _step(w, *train)
        _note(log, _of_all(w, *valid))
        own = _of_its_own(w, *valid)
        if own >= best:
            break
        best = own
    return w


@exercise.mistake
def rank_zero_decides_for_all(w, train, valid, epochs, log):
    """Rank 0 validates with its own examples and tells the others. All end together, by the loss of some
    of the examples: those of the other ranks count for nothing."""

    def loss(w, x, y):
        total, count = _own(w, x, y)
        dist.broadcast(mean := total / count, src=0)
        return mean.item()

    return _trained(w, train, valid, epochs, log, loss=loss)


@rank_zero_decides_for_all.variant
def tells_the_others(w, train, valid, epochs, log):
    rank, best = dist.get_rank(), float("inf")
    for _ in range(epochs):
        w = _step(w, *train)
        end = torch.zeros(())
        if rank == 0:
            log.append(_of_its_own(w, *valid))
            end += log[-1] >= best
            best = log[-1]
        dist.all_reduce(end)
        if end:
            break
    return w


@exercise.mistake
def never_stops(w, train, valid, epochs, log):
    """Training goes on to the last epoch, though the loss rises. All ranks know the loss, so all of them
    can end after the same step."""
    for _ in range(epochs):
        w = _step(w, *train)
        _note(log, _of_all(w, *valid))
    return w


@exercise.mistake
def logs_on_every_rank(w, train, valid, epochs, log):
    """Every rank notes the loss. That all have to compute it together does not make all of them write it
    down: what stays under `if rank == 0` is the log."""
    return _trained(w, train, valid, epochs, log, note=list.append)


@exercise.mistake
def validates_before_the_step(w, train, valid, epochs, log):
    """Your loss is that of the weights before the step: the collective was moved to where all ranks come
    by, and the weights are not the same there."""
    best = float("inf")
    for _ in range(epochs):
        loss = _of_all(w, *valid)
        w = _step(w, *train)
        _note(log, loss)
        if loss >= best:
            break
        best = loss
    return w


@exercise.mistake
def averages_the_means(w, train, valid, epochs, log):
    """Your loss is a mean of the means of the ranks. A rank with one example then weighs as much as one with
    many, and one without any makes it NaN. Add up the squares and their number."""

    def loss(w, x, y):
        total, count = _own(w, x, y)
        dist.all_reduce(mean := total / count)
        return mean.item() / dist.get_world_size()

    return _trained(w, train, valid, epochs, log, loss=loss)


@averages_the_means.form
def zero_where_there_is_none(w, train, valid, epochs, log):
    def loss(w, x, y):
        total, count = _own(w, x, y)
        dist.all_reduce(mean := total / count.clamp(min=1))
        return mean.item() / dist.get_world_size()

    return _trained(w, train, valid, epochs, log, loss=loss)


@exercise.mistake
def trains_on_its_own(w, train, valid, epochs, log):
    """The gradient is that of this rank alone: its all-reduce is gone, and every rank trains a model of its
    own."""
    return _trained(w, train, valid, epochs, log, step=_own_step)


@exercise.mistake
def divides_the_gradient(w, train, valid, epochs, log):
    """The gradient is divided by the number of ranks. It is a sum over the examples here, not a mean: that
    of all examples is the sum of what the ranks have, and with a mean the steps are too short."""

    def step(w, x, y):
        return w + (_step(w, x, y) - w) / dist.get_world_size()

    return _trained(w, train, valid, epochs, log, step=step)


@exercise.mistake
def returns_the_best(w, train, valid, epochs, log):
    """When the loss rises you return the weights from before the last step. Those with the smallest loss
    are often what is wanted; here the weights after the last step were asked for."""
    best = float("inf")
    for _ in range(epochs):
        before, w = w, _step(w, *train)
        loss = _of_all(w, *valid)
        _note(log, loss)
        if loss >= best:
            return before
        best = loss
    return w


@exercise.mistake
def gathers_the_examples(w, train, valid, epochs, log):
    """The examples travel: every rank gets those of all others, and does alone what was to be done
    together. Sums over examples are enough to know the gradient and the loss, and they are no larger than
    the weights."""
    seen = [None] * dist.get_world_size()
    dist.all_gather_object(seen, (train, valid))
    train, valid = (tuple(map(torch.cat, zip(*part, strict=True))) for part in zip(*seen, strict=True))
    return _trained(w, train, valid, epochs, log, step=_own_step, loss=_of_its_own)
