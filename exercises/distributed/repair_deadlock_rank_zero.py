"""Repair: a loss that only rank 0 looks at

Several ranks train a linear model, each with its own `train = (x, y)` and `valid = (x, y)`. After each step
rank 0 logs the validation loss. Training ends when it's not smaller than before.

On two ranks it hangs. Mend both faults; one shows when the other is gone.

- All ranks return the last weights. `w` stays as it is.
- The loss is the mean over the examples of all ranks. A rank may have none, but not all.
- `log` on rank 0 gets the loss after each step; elsewhere it stays empty.

```python
part = torch.eye(2), torch.ones(2)
w = torch.zeros(2)
run_ranks(lambda rank, size: repair_deadlock_rank_zero(w, part, part, 3, []), 2)
```
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
        "Let it hang, and look at where rank 0 waits. How many collectives has it called by then, and how "
        "many the others? Which of theirs did its second one meet?",
        "A condition that is true on one rank only may stand around a `print`, never around a collective. A "
        "helper that holds a collective counts as one.",
        "When the loss is known to all ranks, look at what is left under the condition. Which line there "
        "decides whether a rank comes to the next collective?",
    ],
)


@exercise.starter
def repair_deadlock_rank_zero(
    w: Tensor,
    train: tuple,
    valid: tuple,
    epochs: int,
    log: list,
) -> Tensor:
    """(features,), examples of this rank -> (features,), the same on every rank"""

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


# What each rank trains on. Together they pull the weights to (4, 2).
_TRAIN = [[2.0, 1.0, 0.5], [6.0, 3.0, 1.5], [4.0, 2.0, 1.0]]
_SETUP = """rank = dist.get_rank()
w, log = torch.zeros(2), []
x = torch.tensor([[1., 0.], [0., 1.], [.5, -.5]])
train = x, torch.tensor({train}[rank])
y = torch.tensor({valid}[rank])
valid = x[:len(y)], y"""


def _trained(repair_deadlock_rank_zero, valid, epochs, train=_TRAIN, alone=False):
    """The example, and what it returned; the weights and losses of one process that has all examples."""
    train = train[: len(valid)]
    setup = _SETUP.format(train=train, valid=valid)
    t = ranks.given(setup, repair_deadlock_rank_zero=repair_deadlock_rank_zero)
    with expect.left_alone(t.w, what="`w`") if alone else contextlib.nullcontext():
        found = t.call(f"repair_deadlock_rank_zero(w, train, valid, {epochs}, log)")
    return t, found, *_in_one_process(t.x.double(), train, valid, epochs)


def _in_one_process(x, train, valid, epochs):
    w, losses = torch.zeros(2, dtype=torch.float64), []
    for _ in range(epochs):
        w = w - 0.125 * sum(x.t() @ (x @ w - torch.tensor(y).double()) for y in train)
        errors = torch.cat([x[: len(y)] @ w - torch.tensor(y).double() for y in valid])
        losses.append(errors.square().mean().item())
        if len(losses) > 1 and losses[-1] >= losses[-2]:
            break
    return w.float(), losses


def _expect_weights(repair_deadlock_rank_zero, rank, valid, epochs):
    t, found, weights, _ = _trained(repair_deadlock_rank_zero, valid, epochs, alone=True)
    alone, _ = _in_one_process(t.x.double(), _TRAIN[rank : rank + 1], valid[rank : rank + 1], epochs)
    expect.equal(found, weights, rtol=1e-5, like={"what this rank comes to alone": alone})


def _expect_log(repair_deadlock_rank_zero, rank, valid, epochs, **options):
    t, _, _, losses = _trained(repair_deadlock_rank_zero, valid, epochs, **options)
    expect.equal(t.log, [] if rank else losses, what="`log`", rtol=1e-4)


@exercise.check(ranks=2, deadline=6)
def comes_to_an_end(repair_deadlock_rank_zero):
    """The loss falls in each of three steps: both ranks come to an end

    A collective needs every rank. One under a condition that is true on one rank, or in a function that is
    called there, meets whatever the others call next. So does a barrier.
    """
    _trained(repair_deadlock_rank_zero, [[9.0, 9.0]] * 2, 3)
    expect.looked()


@exercise.check(ranks=2, deadline=6)
def ends_together(repair_deadlock_rank_zero):
    """The loss rises in the third step: both ranks come to an end

    All ranks have to decide alike whether they go on to the next collective: from a number that all have,
    like the result of an `all_reduce`, or because one rank tells the others.
    """
    _trained(repair_deadlock_rank_zero, [[2.0, 1.0]] * 2, 9)
    expect.looked()


@exercise.check(ranks=2, deadline=6)
def weights(repair_deadlock_rank_zero, rank):
    """Both ranks return the last weights, also where the loss rose, and leave `w` as it is

    The gradient is a sum over examples here, so that of all examples is the sum over the ranks. The loss that
    is no longer smaller is that of the weights after the step. `-=` writes to the caller's tensor.
    """
    _expect_weights(repair_deadlock_rank_zero, rank, [[9.0, 9.0]] * 2, 3)
    _expect_weights(repair_deadlock_rank_zero, rank, [[2.0, 1.0]] * 2, 9)


@exercise.check(ranks=2, deadline=6)
def loss_of_all(repair_deadlock_rank_zero, rank):
    """While the loss of all falls, training goes on, also where that of one rank rises

    The loss of a rank's own examples can differ from rank to rank and rise at another time. Here that would
    end training on one of them.
    """
    _expect_weights(repair_deadlock_rank_zero, rank, [[0.5], [9.0, 9.0]], 4)


@exercise.check(ranks=2, deadline=6)
def the_log(repair_deadlock_rank_zero, rank):
    """`log` has the loss after each step on rank 0, and nothing on the other

    All ranks compute the loss together, and one logs it. After the step the weights have changed, and so has
    the loss. A loss that stays as it was is no longer smaller.
    """
    _expect_log(repair_deadlock_rank_zero, rank, [[2.0, 1.0], [2.5, 1.0]], 9)
    _expect_log(repair_deadlock_rank_zero, rank, [[1.0], [1.0]], 9, train=[[0.0, 0.0, 0.0]] * 2)


@exercise.check(ranks=3, deadline=6)
def unequal_numbers(repair_deadlock_rank_zero, rank):
    """Three ranks with two examples, one and none: every example counts as much

    In a mean of means the one example of a rank weighs as much as the many of another, and the mean of none
    is nan. Squares and their number can be added up. A rank with none calls each collective too.
    """
    _expect_log(repair_deadlock_rank_zero, rank, [[2.0, 1.0], [9.0], []], 6)
