"""DDP averages what is in `.grad` when a backward has added to it. So one average is enough for a step: the
last micro-batch finds the sum of the step there. `no_sync` has to be on while the forward runs, because the
forward decides whether its backward communicates, as long as each backward comes before the next forward.

Take a step's micro-batches as a slice. That tells which one is the last, also at the end of the list, and how
many samples the step has: a mean over `n` of `samples` samples has the weight `n / samples`.

DDP divides by the number of ranks. If each has equally many samples, that is the mean over all of them.
"""

import contextlib
from collections.abc import Callable

from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer


def accumulate_without_sync(
    model: DistributedDataParallel,
    optimizer: Optimizer,
    loss: Callable[[Tensor, Tensor], Tensor],
    batches: list[tuple[Tensor, Tensor]],
    every: int,
) -> None:
    """One pass over `batches`, a step of the optimizer for each `every` of them"""
    for start in range(0, len(batches), every):
        step = batches[start : start + every]
        samples = sum(len(x) for x, _ in step)
        optimizer.zero_grad()
        for i, (x, y) in enumerate(step, 1):
            with contextlib.nullcontext() if i == len(step) else model.no_sync():
                part = loss(model(x), y) * (len(x) / samples)
                part.backward()
        optimizer.step()


# Other right answers

import torch.distributed as dist

from course_utils.exercise import Edit, Wrong


def _divides_at_the_end(model, optimizer, loss, batches, every):
    """Only the forward is inside, and the sum over samples is divided when the step is complete."""
    count = 0
    optimizer.zero_grad()
    for i, (x, y) in enumerate(batches, 1):
        last = i % every == 0 or i == len(batches)
        with contextlib.nullcontext() if last else model.no_sync():
            outputs = model(x)
        (loss(outputs, y) * len(x)).backward()
        count += len(x)
        if last:
            for p in model.parameters():
                p.grad /= count
            optimizer.step()
            optimizer.zero_grad()
            count = 0


def _steps(batches, every):
    """For each step its micro-batches, with the weight of each."""
    for start in range(0, len(batches), every):
        step = batches[start : start + every]
        samples = sum(len(x) for x, _ in step)
        yield [(x, y, len(x) / samples) for x, y in step]


def _past_the_wrapper(model, optimizer, loss, batches, every):
    """The module inside knows nothing of the other ranks: here its backward does not communicate."""
    for step in _steps(batches, every):
        optimizer.zero_grad(set_to_none=False)
        for i, (x, y, weight) in enumerate(step, 1):
            outputs = model(x) if i == len(step) else model.module(x)
            (loss(outputs, y) * weight).backward()
        optimizer.step()


also_right = [_divides_at_the_end, _past_the_wrapper]


# Mistakes


def _averages_by_hand(model, optimizer, loss, batches, every):
    for step in _steps(batches, every):
        optimizer.zero_grad()
        with model.no_sync():
            for x, y, weight in step:
                (loss(model(x), y) * weight).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        optimizer.step()


def _one_backward(model, optimizer, loss, batches, every):
    for step in _steps(batches, every):
        optimizer.zero_grad()
        sum(loss(model(x), y) * weight for x, y, weight in step).backward()
        optimizer.step()


def _clears_after_the_step_alone(model, optimizer, loss, batches, every):
    for step in _steps(batches, every):
        for i, (x, y, weight) in enumerate(step, 1):
            with contextlib.nullcontext() if i == len(step) else model.no_sync():
                (loss(model(x), y) * weight).backward()
        optimizer.step()
        optimizer.zero_grad()


_SWITCH = "contextlib.nullcontext() if i == len(step) else model.no_sync()"
_FORWARD = f"""            with {_SWITCH}:
                part = loss(model(x), y) * (len(x) / samples)
                part.backward()"""
_BACKWARD_ALONE = f"""            part = loss(model(x), y) * (len(x) / samples)
            with {_SWITCH}:
                part.backward()"""

mistakes = [
    Edit("never communicates", _SWITCH, "model.no_sync()", told_by="one_step"),
    Edit("adds up the means", " * (len(x) / samples)", "", told_by="one_step"),
    Edit("all micro-batches alike", "len(x) / samples", "1 / len(step)", told_by="sizes"),
    Edit("the tail stays apart", "i == len(step)", "i == every", told_by="the_tail"),
    Edit("the backward alone", _FORWARD, _BACKWARD_ALONE, told_by="collectives"),
    Wrong(_clears_after_the_step_alone, told_by="several_steps"),
    Wrong(_averages_by_hand, told_by="collectives"),
    Wrong(_one_backward, told_by="one_at_a_time"),
]
not_tried = {"hard numbers": "the loss is the caller's"}
