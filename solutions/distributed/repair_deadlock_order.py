"""A collective has no name. The first one that a rank calls meets the first one of every other rank, the
second the second, whatever they were meant for. So all ranks have to call the same ones in the same order,
and the order has to come from something that is the same on all of them: the model is, the way through it was
not.

The order alone is not enough. A rank that skips what it did not use calls fewer collectives than the others,
so it brings zeros instead. It also takes the mean home, or its model would no longer be theirs.

Whether anybody used a parameter is a question that no rank can answer by itself: it takes a collective of
its own, of one number for each parameter. A set of names is no order, by the way: Python mixes the hashes
of strings with a number that differs from process to process."""

import torch
import torch.distributed as dist
from torch import nn


def repair_deadlock_order(model: nn.Module, ready: list[str]) -> None:
    """Averages the gradients over all ranks; `ready`: names of those that this rank has"""
    names = [name for name, _ in model.named_parameters()]
    users = torch.tensor([float(name in ready) for name in names])
    dist.all_reduce(users)
    for name in [name for i, name in enumerate(names) if users[i] > 0]:
        parameter = model.get_parameter(name)
        mean = (
            torch.zeros_like(parameter) if parameter.grad is None else parameter.grad / dist.get_world_size()
        )
        dist.all_reduce(mean)
        parameter.grad = mean


# Other right answers


def _one_bucket(model, ready):
    """All gradients in one tensor of the widest dtype, with a mark for each at its end."""
    parameters = list(model.parameters())
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    marks = torch.tensor([p.grad is not None for p in parameters], dtype=torch.bool)
    bucket = torch.cat([grad.detach().flatten().double() for grad in grads] + [marks.double()])
    dist.all_reduce(bucket)
    *means, marks = bucket.split([grad.numel() for grad in grads] + [len(grads)])
    for parameter, mean, mark in zip(parameters, means, marks.tolist(), strict=True):
        if mark:
            parameter.grad = (mean / dist.get_world_size()).view_as(parameter).to(parameter.dtype)


def _decides_afterwards(model, ready):
    """All are launched before the first is waited for; a zero too many is dropped in the end."""
    named = sorted(model.named_parameters())
    own = {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in named}
    works = [dist.all_reduce(own[name], async_op=True) for name, _ in named]
    used = torch.zeros(len(named), dtype=torch.uint8)
    for i, (name, _) in enumerate(named):
        used[i] = name in ready
    dist.all_reduce(used, op=dist.ReduceOp.MAX)
    for work in works:
        work.wait()
    for (name, parameter), anybody in zip(named, used.tolist(), strict=True):
        parameter.grad = own[name] / dist.get_world_size() if anybody else None


def _numbers_are_gathered(model, ready):
    names = [name for name, _ in model.named_parameters()]
    mine = torch.tensor([name in ready for name in names], dtype=torch.uint8)
    lists = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(lists, mine)
    for i, name in enumerate(names):
        parameter = model.get_parameter(name)
        if not any(one[i] for one in lists):
            continue
        mean = parameter.new_zeros(parameter.shape) if name not in ready else parameter.grad / len(lists)
        dist.all_reduce(mean)
        parameter.grad = mean.detach()


def _names_are_gathered(model, ready):
    lists = [None] * dist.get_world_size()
    dist.all_gather_object(lists, ready)
    for name in sorted(set().union(*lists)):
        parameter = model.get_parameter(name)
        sent = torch.zeros_like(parameter, requires_grad=False) if parameter.grad is None else parameter.grad
        dist.all_reduce(sent)
        parameter.grad = sent / len(lists)


also_right = [_one_bucket, _decides_afterwards, _numbers_are_gathered, _names_are_gathered]
