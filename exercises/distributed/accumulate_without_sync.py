"""Accumulation that communicates once a step

A batch that does not fit into memory is taken in parts. The gradients of its *micro-batches* add up in
`.grad`, then the optimizer makes one step. `model` is a `DistributedDataParallel`, which averages over the
ranks in every backward, although the sum of a step would do. Train it on `batches`, pairs `(x, y)`: `every`
of them make a step, and what remains at the end makes one too. In each step only the backward of its last
micro-batch communicates, once, the way that `DistributedDataParallel` does it.

`loss(outputs, y)` is the mean over the samples of one micro-batch. A step follows the gradient of the mean
over all samples of the step, on all ranks. Micro-batches may be of different sizes, also among the ranks.
All ranks have equally many micro-batches, and equally many samples in each step. What is in `.grad` before
the call does not count.

Keep one graph at a time: a micro-batch's backward has run before the next one's forward. `batches` may be a
generator, which has no length; when a step is made, at most one micro-batch of the next step has been taken
from it.

With five micro-batches and `every=2` there are three steps: five backwards, of which the second, the fourth
and the fifth communicate.
"""

import contextlib
import copy
import itertools
from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from course_utils import evidence, expect, measure
from course_utils.exercise import Exercise

exercise = Exercise(
    minutes=20,
    hints=[
        "`model.no_sync()` switches the averaging off. It is the forward that reads the switch: it tells the "
        "backward that belongs to it whether to communicate. Which micro-batch must not be inside?",
        "In a generator you only see that a micro-batch was the last when there is no other. Take the "
        "micro-batches of one step together: `itertools.islice` takes up to so many from an iterator.",
        "A mean over 3 samples and one over 1 sample: with which weights is their sum the mean over the 4? "
        "The weights of a step add up to 1 on each rank. The averaging over the ranks is done by the model.",
    ],
)


@exercise.starter
def accumulate_without_sync(
    model: DistributedDataParallel,
    optimizer: Optimizer,
    loss: Callable[[Tensor, Tensor], Tensor],
    batches: Iterable[tuple[Tensor, Tensor]],
    every: int,
) -> None:
    """One pass over `batches`, a step of the optimizer for each `every` of them"""
    raise NotImplementedError


class _Watched:
    """A run of the answer on this rank: what it did in which order, and the parameters after each step."""

    def __init__(self, answer, rank, device, sizes, every, *, momentum=0.0, stale=False, stream=False):
        layers = nn.Sequential(nn.Linear(6, 3), nn.Tanh(), nn.Linear(3, 2)).to(device)
        self.model = DistributedDataParallel(layers)
        self.settings = {"lr": 0.5, "momentum": momentum}
        self.optimizer = torch.optim.SGD(self.model.parameters(), **self.settings)
        # What all ranks hold: every rank can make it.
        rng = torch.Generator().manual_seed(3)
        self.data = [[_pair(n, rng, device) for n in of_rank] for of_rank in sizes]
        self.every, self.before = every, copy.deepcopy(layers).double().cpu()
        layers.register_forward_hook(lambda *_: self.traffic.note("forward"))
        self.after, self.switch = [], []
        self.optimizer.register_step_post_hook(lambda *_: self._stepped())
        if stale:
            for p in self.model.parameters():
                p.grad = torch.full_like(p, 5.0)
        self.code = self._code(sizes[rank], rank, stale, stream)
        batches = self._stream(rank) if stream else self.data[rank]
        with expect.situation(*self.code), measure.traffic() as self.traffic:
            answer(self.model, self.optimizer, self._loss, batches, every)
        with evidence.silent():  # a micro-batch taken one earlier is no other mistake
            self.order = self.traffic.order

    def _code(self, sizes, rank, stale, stream):
        momentum = f", momentum={self.settings['momentum']}" if self.settings["momentum"] else ""
        brackets = "()" if stream else "[]"
        code = [
            "model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 3), nn.Tanh(), nn.Linear(3, 2)))",
            f"optimizer = torch.optim.SGD(model.parameters(), lr=0.5{momentum})",
            f"batches = {brackets[0]}(torch.randn(n, 6), torch.randn(n, 2)) for n in {sizes}{brackets[1]}"
            f"  # rank {rank}",
        ]
        if stale:
            code.append("for p in model.parameters(): p.grad = torch.full_like(p, 5.0)")
        return [*code, f"accumulate_without_sync(model, optimizer, F.mse_loss, batches, {self.every})"]

    def _loss(self, outputs, y):
        if outputs.requires_grad:
            outputs.register_hook(self._goes_back)
        return F.mse_loss(outputs, y)

    def _goes_back(self, _):
        self.traffic.note("backward")
        self.switch.append(self.model.require_backward_grad_sync)

    def _stream(self, rank):
        for pair in self.data[rank]:
            self.traffic.note("taken")
            yield pair

    def _stepped(self):
        self.traffic.note("step")
        self.after.append([p.detach().double().cpu() for p in self.model.parameters()])

    def expect_as_one_process(self):
        """After each step: the parameters of one process that has the whole batch of the step, in float64."""
        net = self.before
        optimizer = torch.optim.SGD(net.parameters(), **self.settings)
        starts = range(0, len(self.data[0]), self.every)
        with expect.situation(*self.code):
            expect.equal(len(self.after), len(starts), what="the number of steps")
            for number, (start, found) in enumerate(zip(starts, self.after, strict=True), 1):
                pairs = [pair for of_rank in self.data for pair in of_rank[start : start + self.every]]
                x, y = (torch.cat(parts).double().cpu() for parts in zip(*pairs, strict=True))
                optimizer.zero_grad()
                F.mse_loss(net(x), y).backward()
                optimizer.step()
                wanted = dict(net.named_parameters())
                for (name, p), came in zip(wanted.items(), found, strict=True):
                    what = f"`{name}` after step {number}"
                    expect.equal(came, p.detach(), what=what, rtol=1e-4, atol=1e-5)

    def expect_collectives(self):
        """An all-reduce in the backward of the last micro-batch of each step, and nowhere else."""
        calls = self.traffic.calls
        found = [[]]
        for mark in self.order:
            if mark == "step":
                found.append([])
            elif mark == "backward":
                found[-1].append(0)
            elif mark.startswith("all_reduce") and found[-1] and calls[int(mark.split()[1])].backward:
                found[-1][-1] += 1
        number = len(self.data[0])
        lengths = [min(self.every, number - start) for start in range(0, number, self.every)]
        wanted = [[0] * (length - 1) + [1] for length in lengths]
        if found[:-1] != wanted:
            # `no_sync` around the backward alone does what leaving it out does. It is not the same mistake.
            evidence.record("switch in each backward", self.switch)
        with expect.situation(*self.code):
            # (DDP's own broadcasts: once, it tells the ranks in which order gradients are ready.)
            others = [call.name for call in calls if not call.backward and call.name != "broadcast"]
            expect.equal(others, [], what="the list of collectives that were not called by backward")
            expect.equal(found[:-1], wanted, what="the number of all-reduces in each backward, step by step,")


def _pair(n, rng, device):
    return torch.randn(n, 6, generator=rng).to(device), torch.randn(n, 2, generator=rng).to(device)


@exercise.check(ranks=2)
def one_step(accumulate_without_sync, rank, device):
    """Four micro-batches make the step that the whole batch makes in one process"""
    run = _Watched(accumulate_without_sync, rank, device, [[2] * 4] * 2, 4)
    run.expect_as_one_process()


@exercise.check(ranks=2)
def collectives(accumulate_without_sync, rank, device):
    """In each step only the last backward communicates"""
    run = _Watched(accumulate_without_sync, rank, device, [[2] * 9] * 2, 3)
    run.expect_collectives()


@exercise.check(ranks=3)
def five_steps(accumulate_without_sync, rank, device):
    """Five steps on three ranks, each the same as in one process; old gradients do not count"""
    run = _Watched(
        accumulate_without_sync, rank, device, [[2] * 10] * 3, 2, momentum=0.9, stale=True, stream=True
    )
    run.expect_as_one_process()


@exercise.check(ranks=2)
def the_tail(accumulate_without_sync, rank, device):
    """What remains at the end makes a step, which communicates too"""
    run = _Watched(accumulate_without_sync, rank, device, [[2] * 8] * 2, 3, stream=True)
    run.expect_collectives()
    run.expect_as_one_process()


@exercise.check(ranks=2)
def sizes(accumulate_without_sync, rank, device):
    """Micro-batches of different sizes: every sample of a step counts as much as any other"""
    run = _Watched(accumulate_without_sync, rank, device, [[3, 1, 1, 2, 5], [1, 3, 2, 1, 5]], 2)
    run.expect_as_one_process()


@exercise.check(ranks=2)
def one_at_a_time(accumulate_without_sync, rank, device):
    """One graph at a time, and no step is read ahead"""
    run = _Watched(accumulate_without_sync, rank, device, [[2] * 7] * 2, 3, stream=True)
    order = run.order
    passes = [mark for mark in order if mark in ("forward", "backward")]
    with expect.situation(*run.code):
        expect.equal(passes, ["forward", "backward"] * 7, what="the order of what ran")
        steps = [i for i, mark in enumerate(order) if mark == "step"]
        for number, i in enumerate(steps[:3], 1):
            taken = order[:i].count("taken")
            expect.at_most(taken, 3 * number + 1, f"micro-batches taken when step {number} is made")


@exercise.check(ranks=2)
def one_or_none(accumulate_without_sync, rank, device):
    """`every` is 1, or more than there are; and no micro-batch at all"""
    for number, every in ((2, 1), (2, 5), (0, 3)):
        run = _Watched(accumulate_without_sync, rank, device, [[2] * number] * 2, every, momentum=0.9)
        run.expect_collectives()
        run.expect_as_one_process()


# --- the mistakes -----------------------------------------------------------------------------------------


def _steps(batches, every):
    """The micro-batches of each step, as lists."""
    stream = iter(batches)
    return iter(lambda: list(itertools.islice(stream, every)), [])


def _quiet(model, quiet):
    return model.no_sync() if quiet else contextlib.nullcontext()


def _train(model, optimizer, loss, batches, every, *, syncs=None, weigh=None):
    """The right way, with other micro-batches that communicate, or other weights."""
    for step in _steps(batches, every):
        optimizer.zero_grad()
        samples = sum(len(x) for x, _ in step)
        for i, (x, y) in enumerate(step):
            last = i == len(step) - 1
            with _quiet(model, not (syncs(i, last) if syncs else last)):
                weight = weigh(len(step), samples, len(x)) if weigh else len(x) / samples
                (loss(model(x), y) * weight).backward()
        optimizer.step()


@exercise.mistake
def syncs_every_time(model, optimizer, loss, batches, every):
    """Every backward communicates. What the gradients add up to is right, and all but the last all-reduce of
    each step were for nothing: run the micro-batches before the last inside `model.no_sync()`."""
    _train(model, optimizer, loss, batches, every, syncs=lambda i, last: True)


@syncs_every_time.variant
def never_switches(model, optimizer, loss, batches, every):
    for step in _steps(batches, every):
        for p in model.parameters():
            p.grad = None
        total = sum(x.shape[0] for x, _ in step)
        for x, y in step:
            out = model(x)
            torch.autograd.backward(loss(out, y).mul(x.shape[0]).div(total))
        optimizer.step()


@exercise.mistake
def backward_alone(model, optimizer, loss, batches, every):
    """Your `no_sync` is around the backward alone, and every backward communicates. It is the forward that
    reads the switch and prepares the backward for communicating: run it inside too."""
    for step in _steps(batches, every):
        optimizer.zero_grad()
        samples = sum(len(x) for x, _ in step)
        for i, (x, y) in enumerate(step):
            part = loss(model(x), y) * (len(x) / samples)
            with _quiet(model, i < len(step) - 1):
                part.backward()
        optimizer.step()


@backward_alone.variant
def switches_after_the_forward(model, optimizer, loss, batches, every):
    for step in _steps(batches, every):
        optimizer.zero_grad(set_to_none=False)
        total = sum(len(y) for _, y in step)
        left = len(step)
        for x, y in step:
            part = len(y) / total * loss(model(x), y)
            left -= 1
            if not left:
                part.backward()
                continue
            with model.no_sync():
                part.backward()
        optimizer.step()


@backward_alone.form
def forward_outside_and_no_tail(model, optimizer, loss, batches, every):
    optimizer.zero_grad()
    for i, (x, y) in enumerate(batches, 1):
        part = loss(model(x), y) / every
        with _quiet(model, i % every):
            part.backward()
        if i % every == 0:
            optimizer.step()
            optimizer.zero_grad()


@exercise.mistake
def never_syncs(model, optimizer, loss, batches, every):
    """No backward communicates, and each rank trains a model of its own. The last micro-batch of each step,
    its forward and its backward, has to run outside of `no_sync`: its all-reduce averages what has added up
    in `.grad`, not only what it brings itself."""
    with model.no_sync():
        _train(model, optimizer, loss, batches, every, syncs=lambda i, last: False)


@never_syncs.variant
def steps_inside(model, optimizer, loss, batches, every):
    for step in _steps(batches, every):
        optimizer.zero_grad()
        with model.no_sync():
            samples = sum(len(x) for x, _ in step)
            for x, y in step:
                (loss(model(x), y) / samples * len(x)).backward()
            optimizer.step()


@exercise.mistake
def syncs_the_first(model, optimizer, loss, batches, every):
    """The first micro-batch of each step communicates, and what the later ones add stays on its rank: the
    ranks make different steps. The all-reduce averages what is in `.grad` at that moment, so it belongs to
    the last."""
    _train(model, optimizer, loss, batches, every, syncs=lambda i, last: i == 0)


@exercise.mistake
def drops_the_tail(model, optimizer, loss, batches, every):
    """The micro-batches that remain at the end make no step: `(i + 1) % every == 0` is never true for them.
    You need to know that a micro-batch is the last one before its forward runs."""
    for step in _steps(batches, every):
        if len(step) == every:
            _train(model, optimizer, loss, step, every)


@drops_the_tail.form
def counts_to_every(model, optimizer, loss, batches, every):
    optimizer.zero_grad()
    for i, (x, y) in enumerate(batches):
        last = (i + 1) % every == 0
        with _quiet(model, not last):
            (loss(model(x), y) / every).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()


@exercise.mistake
def tail_not_synced(model, optimizer, loss, batches, every):
    """What remains at the end makes a step, with gradients that were never averaged: all of it ran inside
    `no_sync`, and the ranks differ from there on. The last micro-batch of the tail has to communicate."""
    for step in _steps(batches, every):
        full = len(step) == every
        _train(model, optimizer, loss, step, every, syncs=lambda i, last, full=full: last and full)


@tail_not_synced.form
def steps_after_the_loop(model, optimizer, loss, batches, every):
    optimizer.zero_grad()
    number = 0
    for x, y in batches:
        number += 1
        with _quiet(model, number % every):
            (loss(model(x), y) / every).backward()
        if number % every == 0:
            optimizer.step()
            optimizer.zero_grad()
    if number % every:
        optimizer.step()


@exercise.mistake
def divides_the_tail_by_every(model, optimizer, loss, batches, every):
    """You divide by `every`, also at the end, where fewer micro-batches make the step: its gradient comes out
    too small. What counts is the number of samples that this step really has."""
    _train(model, optimizer, loss, batches, every, weigh=lambda parts, samples, n: 1 / every)


@divides_the_tail_by_every.form
def scales_up_to_every(model, optimizer, loss, batches, every):
    _train(
        model,
        optimizer,
        loss,
        batches,
        every,
        weigh=lambda parts, samples, n: n / samples * parts / every,
    )


@divides_the_tail_by_every.form
def takes_all_for_as_large_as_the_first(model, optimizer, loss, batches, every):
    for step in _steps(batches, every):
        size = len(step[0][0])
        _train(
            model, optimizer, loss, step, every, weigh=lambda parts, samples, n, size=size: n / (every * size)
        )


@exercise.mistake
def does_not_divide(model, optimizer, loss, batches, every):
    """Each micro-batch brings a mean, and you add up the means as they are: the gradient of four
    micro-batches comes out four times too large. The weights of a step have to add up to 1."""
    _train(model, optimizer, loss, batches, every, weigh=lambda parts, samples, n: 1)


@does_not_divide.variant
def adds_the_means(model, optimizer, loss, batches, every):
    for step in _steps(batches, every):
        optimizer.zero_grad()
        *others, (x, y) = step
        with model.no_sync():
            for more_x, more_y in others:
                loss(model(more_x), more_y).backward()
        loss(model(x), y).backward()
        optimizer.step()


@exercise.mistake
def every_micro_batch_alike(model, optimizer, loss, batches, every):
    """You divide by the number of micro-batches, so that each of them weighs as much as another: a sample in
    a micro-batch of one then weighs three times as much as one in a micro-batch of three. The weight of a
    micro-batch is its share of the samples."""
    _train(model, optimizer, loss, batches, every, weigh=lambda parts, samples, n: 1 / parts)


@exercise.mistake
def divides_by_the_ranks_too(model, optimizer, loss, batches, every):
    """You divide by the number of ranks, and the model does so too: its all-reduce is followed by a division.
    The step comes out too small."""
    _train(
        model,
        optimizer,
        loss,
        batches,
        every,
        weigh=lambda parts, samples, n: n / samples / torch.distributed.get_world_size(),
    )


@divides_by_the_ranks_too.form
def by_the_ranks_and_every(model, optimizer, loss, batches, every):
    ranks = torch.distributed.get_world_size()
    _train(model, optimizer, loss, batches, every, weigh=lambda parts, samples, n: 1 / (every * ranks))


@exercise.mistake
def multiplies_by_the_ranks(model, optimizer, loss, batches, every):
    """You multiply by the number of ranks, and the step comes out as many times too large. The model has
    averaged over the ranks, and the average is what is asked for: each of them has equally many samples."""
    ranks = torch.distributed.get_world_size()
    _train(model, optimizer, loss, batches, every, weigh=lambda parts, samples, n: n / samples * ranks)


@exercise.mistake
def clears_before_each(model, optimizer, loss, batches, every):
    """You clear the gradients before each micro-batch, and only the last one's arrive at the step. They are
    cleared once a step, before its first micro-batch."""
    for step in _steps(batches, every):
        samples = sum(len(x) for x, _ in step)
        for i, (x, y) in enumerate(step):
            optimizer.zero_grad()
            with _quiet(model, i < len(step) - 1):
                (loss(model(x), y) * len(x) / samples).backward()
        optimizer.step()


@exercise.mistake
def never_clears(model, optimizer, loss, batches, every):
    """You do not clear the gradients between two steps: those of the steps before are still in `.grad`, and
    the next step adds its own to them."""
    for step in _steps(batches, every):
        samples = sum(len(x) for x, _ in step)
        for i, (x, y) in enumerate(step):
            with _quiet(model, i < len(step) - 1):
                (loss(model(x), y) * len(x) / samples).backward()
        optimizer.step()


@never_clears.form
def clears_once(model, optimizer, loss, batches, every):
    optimizer.zero_grad()
    never_clears(model, optimizer, loss, batches, every)


@never_clears.form
def clears_once_and_divides_afterwards(model, optimizer, loss, batches, every):
    optimizer.zero_grad()
    for step in _steps(batches, every):
        for i, (x, y) in enumerate(step):
            with _quiet(model, i < len(step) - 1):
                (loss(model(x), y) * len(x)).backward()
        for p in model.parameters():
            p.grad /= sum(len(x) for x, _ in step)
        optimizer.step()


@exercise.mistake
def clears_afterwards(model, optimizer, loss, batches, every):
    """You clear the gradients after each step, and not before the first: what was in `.grad` when you were
    called counts as part of it."""
    for step in _steps(batches, every):
        samples = sum(len(x) for x, _ in step)
        for i, (x, y) in enumerate(step):
            with _quiet(model, i < len(step) - 1):
                (loss(model(x), y) * len(x) / samples).backward()
        optimizer.step()
        optimizer.zero_grad()


@exercise.mistake
def one_backward(model, optimizer, loss, batches, every):
    """Several micro-batches of a step, or all of them, have gone forward before the first backward. Their
    graphs are there at once, and take the memory that the batch had no room in. Run each backward before the
    next forward."""
    for step in _steps(batches, every):
        optimizer.zero_grad()
        samples = sum(len(x) for x, _ in step)
        sum(loss(model(x), y) * len(x) / samples for x, y in step).backward()
        optimizer.step()


@one_backward.form
def one_forward(model, optimizer, loss, batches, every):
    for step in _steps(batches, every):
        optimizer.zero_grad()
        x, y = (torch.cat(parts) for parts in zip(*step, strict=True))
        loss(model(x), y).backward()
        optimizer.step()


@one_backward.form
def all_forwards_but_the_last(model, optimizer, loss, batches, every):
    for step in _steps(batches, every):
        optimizer.zero_grad()
        samples = sum(len(x) for x, _ in step)
        with model.no_sync():
            results = [model(x) for x, _ in step[:-1]]
        for result, (x, y) in zip(results, step, strict=False):
            (loss(result, y) * len(x) / samples).backward()
        x, y = step[-1]
        (loss(model(x), y) * len(x) / samples).backward()
        optimizer.step()


@exercise.mistake
def averages_by_hand(model, optimizer, loss, batches, every):
    """You average the gradients yourself, after the last backward: one collective for each parameter, and
    none is under way while backward still runs. Leave it to the model: run the last micro-batch outside of
    `no_sync`."""
    for step in _steps(batches, every):
        optimizer.zero_grad()
        samples = sum(len(x) for x, _ in step)
        with model.no_sync():
            for x, y in step:
                (loss(model(x), y) * len(x) / samples).backward()
        for p in model.parameters():
            torch.distributed.all_reduce(p.grad)
            p.grad /= torch.distributed.get_world_size()
        optimizer.step()


@exercise.mistake
def reads_everything(model, optimizer, loss, batches, every):
    """You take all micro-batches from `batches` before the first step. A stream of data may be longer than
    the memory, and it need not end: take those of one step at a time."""
    _train(model, optimizer, loss, list(batches), every)


@exercise.mistake
def steps_every_time(model, optimizer, loss, batches, every):
    """The optimizer makes a step after every micro-batch. Those inside `no_sync` are steps with gradients of
    this rank alone. Accumulating means one step, when all of them have run."""
    for step in _steps(batches, every):
        optimizer.zero_grad()
        samples = sum(len(x) for x, _ in step)
        for i, (x, y) in enumerate(step):
            with _quiet(model, i < len(step) - 1):
                (loss(model(x), y) * len(x) / samples).backward()
            optimizer.step()


@exercise.mistake
def one_step_more(model, optimizer, loss, batches, every):
    """After the last micro-batch you make a step in any case, also when nothing remains for it."""
    _train(model, optimizer, loss, batches, every)
    optimizer.step()


@one_step_more.variant
def a_step_without_gradients(model, optimizer, loss, batches, every):
    _train(model, optimizer, loss, batches, every)
    optimizer.zero_grad()
    optimizer.step()
