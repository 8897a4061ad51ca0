"""Repair: gradients in the order in which they came

After backward the ranks average their gradients. `ready` names this rank's parameters that have one, in the
order of backward. Ranks may take different ways through the model, so these lists can differ. A parameter
that wasn't used has None in `.grad`.

With different lists the function below sums gradients that don't belong together, or hangs. Mend it:

- A gradient that some rank has becomes, on every rank, the mean over **all** ranks; a rank without one counts
  as zeros. A gradient of zeros is a gradient.
- A gradient that no rank has stays None.

`[2.]` on rank 0 and None on rank 1 → on both `[1.]`
"""

import torch
import torch.distributed as dist
from torch import nn

from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import ranks

exercise = Exercise(
    minutes=15,
    core=True,
    hints=[
        "Two ranks have two parameters of the same size, in different orders: what is in `.grad` "
        "afterwards? Does a collective know which parameter it's for?",
        "Which order do all ranks have, without asking each other? And what could a rank bring for a "
        "parameter that it didn't use, so that it calls the same collectives as the others?",
        "No rank can see by itself that no rank used a parameter. Let each put a one or a zero for every "
        "parameter into one tensor, and look at what comes back from a collective.",
    ],
)


@exercise.starter
def repair_deadlock_order(model: nn.Module, ready: list[str]) -> None:
    """Averages the gradients over all ranks; `ready`: the names that this rank has"""
    parameters = dict(model.named_parameters())
    for name in ready:
        grad = parameters[name].grad
        dist.all_reduce(grad)
        grad /= dist.get_world_size()


# A digit's place says what it is for (a: ones, b: tens, c: hundreds), the digit whose: 30 is b of rank 2.
_SETUP = """rank = dist.get_rank()
ready = {lists}[rank]
model = nn.Module()
model.a, model.b, model.c = (nn.Parameter(torch.ones(size)) for size in {sizes})
for name in ready:
    p = model.get_parameter(name)
    p.grad = torch.full_like(p, {number})"""
_NUMBER = "10. ** 'abc'.index(name) * (rank + 1)"


def _averaged(repair_deadlock_order, lists, number=_NUMBER, sizes=(2, 2, 2)):
    """The example after the call, and what each gradient should be then, and what it was before."""
    code = _SETUP.format(lists=lists, sizes=sizes, number=number)
    t = ranks.given(code, repair_deadlock_order=repair_deadlock_order)
    before = {name: None if p.grad is None else p.grad.clone() for name, p in t.model.named_parameters()}
    t.call("repair_deadlock_order(model, ready)")
    wanted = {}
    for name, p in t.model.named_parameters():
        having = [rank for rank, names in enumerate(lists) if name in names]
        mean = sum(eval(number, {"name": name, "rank": rank}) for rank in having) / len(lists)
        wanted[name] = torch.full_like(p, mean) if having else None
    return t, wanted, before


def _expect_means(repair_deadlock_order, lists, **options):
    t, wanted, before = _averaged(repair_deadlock_order, lists, **options)
    ranks.expect_gradients(t.model, wanted, before, "after the call")


@exercise.check(ranks=2, deadline=6)
def the_same_list(repair_deadlock_order):
    """One list on both ranks, of different shapes: every gradient is the mean

    An `all_reduce` adds up over the ranks; divide by their number. Each tensor keeps its shape.
    """
    _expect_means(repair_deadlock_order, [["c", "a", "b"]] * 2, sizes=((2, 2), 3, ()))


@exercise.check(ranks=2, deadline=6)
def another_order(repair_deadlock_order):
    """The same names in another order: each gradient is averaged with its own kind

    A collective has no name: the first one that a rank calls meets the first one of every other rank. Take
    the order from what is the same everywhere. `named_parameters()` of the same model is; a set of names
    isn't: Python may order it anew in each process.
    """
    _expect_means(repair_deadlock_order, [["c", "b", "a"], ["a", "c", "b"]])


@exercise.check(ranks=2, deadline=6)
def another_list(repair_deadlock_order):
    """`["b", "a"]` on one rank and `["c"]` on the other: both come to an end

    A rank that skips a parameter calls one collective less than the others, and its later calls meet those
    for other parameters. What it calls must not depend on what it used, so it has to bring something.
    """
    _averaged(repair_deadlock_order, [["b", "a"], ["c"]])
    expect.looked()


@exercise.check(ranks=2, deadline=6)
def on_all_ranks(repair_deadlock_order):
    """A gradient that one rank had is on both ranks afterwards

    A rank without it needs the mean as much as the others. They change the parameter in the next step. If it
    doesn't, the models differ from then on.
    """
    t, _, _ = _averaged(repair_deadlock_order, [["b", "a"], ["c"]])
    without = [name for name, grad in ranks.gradients(t.model).items() if grad is None]
    expect.equal(without, [], what="the list of parameters whose `.grad` is None after the call")


@exercise.check(ranks=3, deadline=6)
def mean_over_all(repair_deadlock_order):
    """Three ranks with three lists: a rank without a gradient counts as zeros

    The loss is a mean over the examples of all ranks. For those that didn't use a parameter its derivative is
    zero, and they count: divide by the number of all ranks.
    """
    _expect_means(repair_deadlock_order, [["c", "b"], ["b"], ["a", "b", "c"]])


@exercise.check(ranks=2, deadline=6)
def none_is_not_zero(repair_deadlock_order):
    """What nobody used keeps None, and a gradient of zeros stays a gradient

    To an optimizer zeros are a gradient: with momentum or weight decay it moves the parameter. It leaves one
    alone whose `.grad` is None. No rank knows by itself whether anybody used it, and the sum doesn't tell:
    gradients may be zero, or cancel.
    """
    _expect_means(repair_deadlock_order, [["c", "a"], ["a"]], number="(rank - 0.5) * (name == 'a')")
