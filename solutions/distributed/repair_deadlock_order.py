"""A collective has no name. The first one that a rank calls meets the first one of every other rank, the
second the second. So all ranks have to call the same ones in the same order, and the order has to come from
something that is the same on all of them: the model is, the order of backward isn't.

The order alone isn't enough. A rank that skips what it didn't use calls fewer collectives than the others, so
it brings zeros instead. It also keeps the mean, or its model would differ from theirs.

No rank knows by itself whether anybody used a parameter: that takes another collective, of one number for
each parameter.
"""

import torch
import torch.distributed as dist
from torch import nn


def repair_deadlock_order(model: nn.Module, ready: list[str]) -> None:
    """Averages the gradients over all ranks; `ready`: the names that this rank has"""
    parameters = dict(model.named_parameters())
    users = torch.tensor([float(name in ready) for name in parameters])
    dist.all_reduce(users)
    for i, p in enumerate(parameters.values()):
        if users[i] > 0:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            dist.all_reduce(p.grad)
            p.grad.div_(dist.get_world_size())


# Other right answers

from course_utils.exercise import Edit, Wrong


def _one_bucket(model, ready):
    """All gradients in one tensor, with a mark for each at its end."""
    parameters = list(model.parameters())
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    marks = torch.tensor([float(p.grad is not None) for p in parameters])
    bucket = torch.cat([grad.flatten() for grad in grads] + [marks])
    dist.all_reduce(bucket)
    *means, marks = bucket.split([grad.numel() for grad in grads] + [len(grads)])
    for parameter, mean, mark in zip(parameters, means, marks.tolist(), strict=True):
        if mark:
            parameter.grad = (mean / dist.get_world_size()).view_as(parameter)


def _names_are_gathered(model, ready):
    lists = [None] * dist.get_world_size()
    dist.all_gather_object(lists, ready)
    for name in sorted(set().union(*lists)):
        parameter = model.get_parameter(name)
        sent = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        dist.all_reduce(sent)
        parameter.grad = sent / len(lists)


also_right = [_one_bucket, _names_are_gathered]


# Mistakes


def _skips_what_it_lacks(model, ready):
    for p in model.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()


def _orders_of_their_own(model, ready):
    for name in ready:
        dist.barrier()
        dist.all_reduce(model.get_parameter(name).grad)
        model.get_parameter(name).grad /= dist.get_world_size()


_DIVIDED = "p.grad.div_(dist.get_world_size())"

mistakes = [
    Edit("sums", _DIVIDED, "pass", told_by="the_same_list"),
    Wrong(_orders_of_their_own, told_by="another_order"),
    Wrong(_skips_what_it_lacks, told_by="another_list"),
    Edit(
        "averages what all have", "users[i] > 0", "users[i] == dist.get_world_size()", told_by="on_all_ranks"
    ),
    Edit("divides by those that have it", _DIVIDED, "p.grad /= users[i]", told_by="mean_over_all"),
    Edit("zeros for everybody", "users[i] > 0", "True", told_by="none_is_not_zero"),
    Edit(
        "takes zeros for none",
        _DIVIDED,
        f"{_DIVIDED}\n            p.grad = p.grad if p.grad.any() else None",
        told_by="none_is_not_zero",
    ),
]
not_tried = {"hard numbers": "only averages", "left alone": "`.grad` changes"}
