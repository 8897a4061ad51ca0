"""The all-reduce of a `DistributedDataParallel` averages what stands in `.grad` when a backward has added to
it. So it need not run for every micro-batch: the last one finds the sum of the step there, and its all-reduce
averages all of it. `no_sync` has to hold while the forward runs. There the model prepares for the backward
(it arms the hooks that launch the all-reduces), or does not; the backward itself asks for nothing more.

Whether a micro-batch is the last one must be known before its forward. A step's micro-batches taken together
tell it, at the end of the data too, and they tell how many samples the step has: a mean over `n` of `samples`
samples has the weight `n / samples`.

`DistributedDataParallel` divides by the number of ranks. With equally many samples on each that is the mean
over all of them, and nothing has to be said about the other ranks here."""

import contextlib
import itertools
from collections.abc import Callable, Iterable

from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer


def accumulate_without_sync(
    model: DistributedDataParallel,
    optimizer: Optimizer,
    loss: Callable[[Tensor, Tensor], Tensor],
    batches: Iterable[tuple[Tensor, Tensor]],
    every: int,
) -> None:
    """One pass over `batches`, a step of the optimizer for each `every` of them"""
    stream = iter(batches)
    while step := list(itertools.islice(stream, every)):
        samples = sum(len(x) for x, _ in step)
        optimizer.zero_grad()
        for i, (x, y) in enumerate(step, 1):
            with contextlib.nullcontext() if i == len(step) else model.no_sync():
                part = loss(model(x), y) * (len(x) / samples)
                part.backward()
        optimizer.step()


# Other right answers


def _forward_alone(model, optimizer, loss, batches, every):
    """The backward does not ask whether it is inside."""
    stream = iter(batches)
    while True:
        step = [pair for _, pair in zip(range(every), stream, strict=False)]
        if not step:
            return
        total = sum(y.shape[0] for _, y in step)
        optimizer.zero_grad(set_to_none=False)
        for left in reversed(range(len(step))):
            x, y = step.pop(0)
            with contextlib.ExitStack() as stack:
                if left:
                    stack.enter_context(model.no_sync())
                outputs = model(x)
            (loss(outputs, y) * len(y)).div(total).backward()
        optimizer.step()


def _looks_one_ahead(model, optimizer, loss, batches, every):
    """How many samples a step has is known after its last micro-batch; the gradients are divided then."""
    stream = iter(batches)
    coming, count, samples = next(stream, None), 0, 0
    optimizer.zero_grad()
    while coming is not None:
        (x, y), coming = coming, next(stream, None)
        count, samples = count + 1, samples + len(x)
        last = count == every or coming is None
        with contextlib.nullcontext() if last else model.no_sync():
            (loss(model(x), y) * len(x)).backward()
        if last:
            for p in model.parameters():
                p.grad /= samples
            optimizer.step()
            optimizer.zero_grad()
            count = samples = 0


def _past_the_wrapper(model, optimizer, loss, batches, every):
    """The module inside knows nothing of the other ranks: its backward does not communicate."""
    stream = iter(batches)
    for first in stream:
        step = [first, *itertools.islice(stream, every - 1)]
        samples = sum(len(x) for x, _ in step)
        for p in model.parameters():
            p.grad = None
        for x, y in step[:-1]:
            (loss(model.module(x), y) / samples * len(x)).backward()
        x, y = step[-1]
        (loss(model(x), y) / samples * len(x)).backward()
        optimizer.step()


def _turns_the_switch(model, optimizer, loss, batches, every):
    """`no_sync` sets an attribute and puts it back."""
    stream = iter(batches)
    while step := tuple(itertools.islice(stream, every)):
        samples = sum(len(x) for x, _ in step)
        optimizer.zero_grad()
        for i, (x, y) in enumerate(step):
            model.require_backward_grad_sync = i + 1 == len(step)
            (loss(model(x), y) * len(x) / samples).backward()
        optimizer.step()


also_right = [_forward_alone, _looks_one_ahead, _past_the_wrapper, _turns_the_switch]
