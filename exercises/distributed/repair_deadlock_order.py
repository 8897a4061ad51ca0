"""Repair: gradients in the order in which they came

Several ranks train the same model, and average their gradients after backward. `ready` lists the parameters
of this rank by their names in `model.named_parameters()`, in the order in which backward gave them a
gradient. That order is another one where a rank went through the model in another way, and so is the list
itself: a part that its examples did not need has no gradient there, `.grad` is None.

The function below works as long as all ranks have the same list. With other lists it adds up what does not
belong together, and hangs. Mend it.

- Afterwards a parameter that has a gradient on some rank has one on all ranks: the mean over **all** ranks,
  where a rank without one counts as zeros. So the models stay the same.
- A parameter that has a gradient on no rank keeps None on all of them. To an optimizer with momentum or
  weight decay, zeros are not the same as None.
- Every rank calls the same collectives in the same order, with as many bytes, and waits for each. There are
  at most two more than there are parameters, and no barrier. Gradients travel as tensors; names may travel as
  objects.
- Parameters may have different dtypes; a parameter and its gradient have the same, and the mean is computed
  in it or in a wider one. A gradient of zeros is a gradient.

`ready` holds the same names as there are gradients.
"""

import torch
import torch.distributed as dist
from torch import nn

from course_utils import evidence, expect, measure
from course_utils.exercise import Exercise

exercise = Exercise(
    minutes=15,
    hints=[
        "Two ranks, two parameters of the same size, other orders: what is in `.grad` afterwards? Does a "
        "collective know which parameter it is for?",
        "Which order do all ranks have, without asking each other? And what could a rank bring for a "
        "parameter that it did not use, so that it calls the same collectives as they?",
        "That a parameter was used on no rank is nothing that one rank can see. Let each put a one or "
        "a zero for every parameter into one tensor, and look at what comes back from a collective.",
    ],
)


@exercise.starter
def repair_deadlock_order(model: nn.Module, ready: list[str]) -> None:
    """Averages the gradients over all ranks; `ready`: names of those that this rank has"""
    parameters = dict(model.named_parameters())
    for name in ready:
        grad = parameters[name].grad
        dist.all_reduce(grad)
        grad /= dist.get_world_size()


# By name: the shape of the parameter. Where the lists differ the sizes do not: of different size, what an
# answer without a common order gets is chance, and may end its process.
_SAME_SIZE = {"a": (2,), "b": (2,), "c": (2,)}
_SIZES = {"a": (2, 2), "b": (3,), "c": (), "d": (1, 5)}
_CODE = """model = nn.Module()
{parameters}
ready = {ready}  # rank {rank}
for name, number in zip(ready, {numbers}):
    parameter = model.get_parameter(name)
    parameter.grad = torch.full_like(parameter, number)"""


def _given(answer, shapes, ready, rank, doubles=()):
    """A model, and on this rank the gradients that are `ready`, full of numbers that tell."""
    lines = []
    for name, shape in shapes.items():
        dtype = ", dtype=torch.float64" * (name in doubles)
        lines.append(f"model.{name} = nn.Parameter(torch.ones({shape}{dtype}))")
    numbers = [_number(name, rank) for name in ready[rank]]
    code = _CODE.format(parameters="\n".join(lines), ready=ready[rank], rank=rank, numbers=numbers)
    return expect.given(code, repair_deadlock_order=answer)


def _number(name, rank):
    if name in "yz":  # a gradient of zeros; one that float32 does not hold
        return 0.0 if name == "z" else 2.0**30 + 1
    return float(10 ** ("abcd".index(name)) * (rank + 1))


def _expect_means(answer, shapes, ready, rank, doubles=()):
    t = _given(answer, shapes, ready, rank, doubles)
    t.call("repair_deadlock_order(model, ready)")
    found = {name: parameter.grad for name, parameter in t.model.named_parameters()}
    evidence.record("without a gradient", [name for name, grad in found.items() if grad is None])
    for name, grad in found.items():
        numbers = [_number(name, r) if name in names else 0.0 for r, names in enumerate(ready)]
        what = f"`model.{name}.grad`"
        if any(name in names for names in ready):
            mean = torch.full_like(t.model.get_parameter(name), sum(numbers) / len(numbers)).detach()
            expect.true(grad is not None, f"{what} is None", f"expected: {sum(numbers) / len(numbers):g}")
            expect.equal(grad, mean, what=what, rtol=1e-12 if name in doubles else None, atol=0.0)
        else:
            expect.true(grad is None, f"{what} is {expect.show(grad)}", "expected: None, as on all ranks")
    for name, parameter in t.model.named_parameters():
        expect.unchanged(parameter.detach(), torch.ones_like(parameter), what=f"`model.{name}`")


@exercise.check(ranks=1, deadline=10)
def one_rank(repair_deadlock_order, rank):
    """On one rank everything stays as it is"""
    _expect_means(repair_deadlock_order, _SIZES, [["c", "a"]], rank)


@exercise.check(ranks=2, deadline=10)
def the_same_order(repair_deadlock_order, rank):
    """Two ranks with the same list, of different sizes and two dtypes"""
    lists = [["d", "a", "b", "c", "y"]] * 2
    _expect_means(repair_deadlock_order, {**_SIZES, "y": (2,)}, lists, rank, doubles="bdy")


@exercise.check(ranks=2, deadline=10)
def nobody_has_one(repair_deadlock_order, rank):
    """A parameter without a gradient on any rank"""
    _expect_means(repair_deadlock_order, _SIZES, [["c", "a"]] * 2, rank)
    _expect_means(repair_deadlock_order, _SAME_SIZE, [[], []], rank)


@exercise.check(ranks=2, deadline=10)
def another_order(repair_deadlock_order, rank):
    """Two ranks with the same names in different orders"""
    _expect_means(repair_deadlock_order, _SAME_SIZE, [["c", "b", "a"], ["a", "c", "b"]], rank)


@exercise.check(ranks=2, deadline=10)
def collectives(repair_deadlock_order, rank):
    """The same collectives on both ranks, few, and waited for"""
    lists = [["c", "b", "a"], ["a", "c", "b"]]
    t = _given(repair_deadlock_order, _SAME_SIZE, lists, rank)
    with measure.traffic() as sent:
        t.call("repair_deadlock_order(model, ready)")
        calls = list(sent.calls)
        with evidence.silent():
            order = sent.order
        seen = [None, None]
        dist.all_gather_object(seen, [(call.name, call.bytes) for call in calls])
    told = [f"rank {r}: {_listed(those)}" for r, those in enumerate(seen)]
    expect.true(seen[0] == seen[1], "the two ranks do not call the same", *told)
    barriers = sum(call.name == "barrier" for call in calls)
    expect.true(barriers == 0, f"barriers: {barriers}, expected none")
    expect.at_least(len(calls), 1, f"collectives on rank {rank}")
    expect.at_most(len(calls), 5, f"collectives on rank {rank} for 3 parameters")
    size = sum(call.bytes for call in calls)
    with evidence.silent():
        expect.at_most(size, 160, f"brought by rank {rank} (gradients: 24 bytes)", unit="bytes")
    never = sum(f"wait {i}" not in order for i in range(len(calls)))
    said = f"collectives that rank {rank} launched and did not wait for: {never}, expected none"
    expect.true(never == 0, said)


def _listed(calls):
    return ", ".join(f"{name} of {size} bytes" for name, size in calls[:8]) or "none"


@exercise.check(ranks=2, deadline=10)
def another_list(repair_deadlock_order, rank):
    """Two ranks of which each has a gradient that the other lacks, one of them zeros"""
    shapes = {**_SAME_SIZE, "z": (2,)}
    _expect_means(repair_deadlock_order, shapes, [["b", "a", "z"], ["c", "b"]], rank)


@exercise.check(ranks=2, deadline=10)
def one_has_none(repair_deadlock_order, rank):
    """A rank that has no gradient at all"""
    _expect_means(repair_deadlock_order, _SAME_SIZE, [["c", "a"], []], rank)


@exercise.check(ranks=3, deadline=10)
def three_ranks(repair_deadlock_order, rank):
    """Three ranks with three lists"""
    lists = [["c", "b"], ["b"], ["a", "b", "c"]]
    _expect_means(repair_deadlock_order, _SAME_SIZE, lists, rank)


# --- the mistakes -----------------------------------------------------------------------------------------


def _mean(parameter):
    """A gradient, zeros where there is none, averaged; not yet in its place."""
    grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    grad = grad.detach().clone()
    dist.all_reduce(grad)
    return grad / dist.get_world_size()


def _used(model):
    """For each parameter, on how many ranks it has a gradient."""
    counts = torch.tensor([float(p.grad is not None) for p in model.parameters()])
    dist.all_reduce(counts)
    return counts.tolist()


@exercise.mistake
def in_its_own_order(model, ready):
    """Each rank still goes by its own list, and a collective has no name. The first one of a rank meets
    the first one of the others, whatever they are for: of equal size they are added up without notice, of
    different size they raise or hang. A barrier before each changes nothing of the order."""
    parameters = dict(model.named_parameters())
    for name in ready:
        grad = parameters[name].grad
        dist.all_reduce(grad, async_op=True).wait()
        grad.div_(dist.get_world_size())


@in_its_own_order.variant
def all_at_once_in_its_own_order(model, ready):
    parameters = dict(model.named_parameters())
    grads = [parameters[name].grad for name in ready]
    works = [dist.all_reduce(grad, async_op=True) for grad in grads]
    for work, grad in zip(works, grads, strict=True):
        work.wait()
        grad.mul_(1 / dist.get_world_size())


@in_its_own_order.form
def barriers_between(model, ready):
    parameters = dict(model.named_parameters())
    for name in ready:
        dist.barrier()
        dist.all_reduce(parameters[name].grad)
        parameters[name].grad /= dist.get_world_size()


@exercise.mistake
def skips_what_it_lacks(model, ready):
    """The order is the same on all ranks, the list is not. A rank that skips a parameter without a
    gradient calls one collective less, and from there on its collectives meet those for other parameters.
    Bring zeros where there is no gradient."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


@skips_what_it_lacks.variant
def sorts_its_list(model, ready):
    parameters = dict(model.named_parameters())
    for name in sorted(ready):
        parameters[name].grad = _mean(parameters[name])


@exercise.mistake
def zeros_for_everybody(model, ready):
    """A parameter that was used on no rank has a gradient of zeros now. It was None: with momentum or
    weight decay an optimizer moves a parameter whose gradient is zero, and leaves alone one that has none."""
    for parameter in model.parameters():
        parameter.grad = _mean(parameter)


@zeros_for_everybody.variant
def fills_in_first(model, ready):
    for parameter in model.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad.div_(dist.get_world_size())


@exercise.mistake
def zeros_are_none(model, ready):
    """You take a gradient of zeros for none at all. A mean may be zero because gradients cancel, or because
    the one that there is holds zeros: whether a parameter was used is another question than what came."""
    for parameter in model.parameters():
        mean = _mean(parameter)
        parameter.grad = mean if mean.any() else None


@zeros_are_none.form
def none_again_where_it_was(model, ready):
    for name, parameter in model.named_parameters():
        mean = _mean(parameter)
        parameter.grad = mean if mean.any() or name in ready else None


@exercise.mistake
def all_in_single_precision(model, ready):
    """Gradients in double precision lose digits: all travel in one tensor of float32. Put those of each
    dtype together, or take the widest."""
    used = [p for p, users in zip(model.parameters(), _used(model), strict=True) if users]
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in used]
    bucket = torch.cat([grad.detach().flatten().float() for grad in grads] or [torch.zeros(0)])
    dist.all_reduce(bucket)
    bucket /= dist.get_world_size()
    for parameter, mean in zip(used, bucket.split([p.numel() for p in used]), strict=True):
        parameter.grad = mean.view_as(parameter).to(parameter.dtype)


@exercise.mistake
def others_keep_none(model, ready):
    """A rank that had no gradient brings zeros and does not take the mean. The others change the parameter
    in the next step and it does not: from then on the models differ."""
    for parameter in model.parameters():
        mean = _mean(parameter)
        if parameter.grad is not None:
            parameter.grad = mean


@others_keep_none.variant
def copies_into_what_is_there(model, ready):
    for name, parameter in model.named_parameters():
        bucket = torch.zeros_like(parameter).detach()
        if name in ready:
            bucket += parameter.grad
        dist.all_reduce(bucket)
        if name in ready:
            parameter.grad.copy_(bucket / dist.get_world_size())


@exercise.mistake
def divides_by_its_users(model, ready):
    """You divide by the number of ranks that have the gradient. The loss is a mean over the examples of
    all ranks, and for those that did not use the parameter the derivative is zero: they count."""
    for parameter, users in zip(model.parameters(), _used(model), strict=True):
        if users:
            parameter.grad = _mean(parameter) * dist.get_world_size() / users


@exercise.mistake
def only_what_all_have(model, ready):
    """Nothing hangs, and a parameter that not every rank used is not averaged: each rank keeps its own
    gradient, or none, and the models drift apart. Zeros are what a rank brings for it."""
    for parameter, users in zip(model.parameters(), _used(model), strict=True):
        if users == dist.get_world_size():
            parameter.grad = _mean(parameter)


@only_what_all_have.variant
def intersects_the_lists(model, ready):
    size = dist.get_world_size()
    parameters = dict(model.named_parameters())
    names = list(parameters)
    have = torch.tensor([float(name in ready) for name in names])
    dist.all_reduce(have, op=dist.ReduceOp.MIN)
    for name in [name for name, everywhere in zip(names, have.tolist(), strict=True) if everywhere]:
        dist.all_reduce(parameters[name].grad)
        parameters[name].grad.div_(size)


@exercise.mistake
def goes_by_rank_zero(model, ready):
    """All ranks go by the list of rank 0. That is one order for all, and what rank 0 did not use is averaged
    nowhere, though other ranks have a gradient for it."""
    parameters = dict(model.named_parameters())
    box = [ready]
    dist.broadcast_object_list(box, src=0)
    for name in box[0]:
        parameters[name].grad = _mean(parameters[name])


@exercise.mistake
def adds_up(model, ready):
    """You add the gradients up and do not divide: with twice as many ranks the steps are twice as long."""
    for parameter, users in zip(model.parameters(), _used(model), strict=True):
        if users:
            parameter.grad = _mean(parameter) * dist.get_world_size()


@exercise.mistake
def leaves_it_out(model, ready):
    """Nothing hangs, since nothing is sent: every rank keeps the gradients of its own examples, and the
    models drift apart."""


@leaves_it_out.form
def divides_its_own(model, ready):
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad /= dist.get_world_size()


@exercise.mistake
def sends_objects(model, ready):
    """The means are right, and far more travels than gradients: pickled objects, with the gradients of
    every rank for every other. An all-reduce of the tensors themselves gives the sum without that."""
    lists = [None] * dist.get_world_size()
    dist.all_gather_object(lists, {name: model.get_parameter(name).grad for name in ready})
    for name, parameter in model.named_parameters():
        found = [grads[name] for grads in lists if name in grads]
        if found:
            parameter.grad = torch.stack(found).sum(0) / len(lists)
