"""Accumulation that communicates once a step

A batch that doesn't fit into memory is split into *micro-batches*. Train `model`, a
`DistributedDataParallel`, on the list `batches` of pairs `(x, y)`. Each `every` of them make one step of
`optimizer`; what is left at the end makes one too.

`loss(model(x), y)` is the mean over the samples of a micro-batch. A step follows the gradient of the mean
over all samples of the step, on all ranks. Micro-batches may differ in size; all ranks have the same sizes.

Only the last backward of a step communicates. Run each backward before the next forward. `.grad` may hold
something at first.

Five micro-batches, `every=2` → three steps; the second, fourth and fifth backward communicate.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from course_utils import measure
from course_utils.exercise import Exercise, Rows, expect
from course_utils.exercise.kits import ranks

exercise = Exercise(
    minutes=20,
    hints=[
        "`model.no_sync()` switches the averaging off. The forward reads the switch and tells its "
        "backward whether to communicate. Which micro-batch must not be inside?",
        "Take the micro-batches of one step as a slice of the list. Then you know which is the last of "
        "them, also at the end of the list, and how many samples the step has.",
        "A mean over 3 samples and one over 1 sample: with which weights is their sum the mean over all "
        "4? The weights of a step add up to 1 on each rank. The model averages over the ranks.",
    ],
)


@exercise.starter
def accumulate_without_sync(
    model: DistributedDataParallel,
    optimizer: Optimizer,
    loss: Callable[[Tensor, Tensor], Tensor],
    batches: list[tuple[Tensor, Tensor]],
    every: int,
) -> None:
    """One pass over `batches`, a step of the optimizer for each `every` of them"""
    raise NotImplementedError


# The gradient is minus the mean of `x`: with this learning rate that is what a step adds to the weight.
_SETUP = """rank = dist.get_rank()
model = nn.parallel.DistributedDataParallel(nn.Linear(1, 1, bias=False))
nn.init.zeros_(model.module.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
loss = lambda outputs, y: (y - outputs).mean()
x = torch.arange(1., {end}).view(-1, 1) * 10**rank
batches = [(part, torch.zeros_like(part)) for part in x.split({sizes})]"""


class _Run:
    """A run of the answer on this rank: what it did in which order, and the weight after each step."""

    def __init__(self, answer, sizes, every, more=""):
        self.sizes, self.every = sizes, every
        setup = _SETUP.format(end=sum(sizes) + 1, sizes=sizes) + more
        self.t = ranks.given(setup, accumulate_without_sync=answer)
        self.after, self.switched_off = [], []
        self.t.model.module.register_forward_hook(self._forward)
        self.t.optimizer.register_step_post_hook(self._stepped)
        with expect.left_alone(self.t.batches, what="`batches`"), measure.traffic() as self.seen:
            self.t.call(f"accumulate_without_sync(model, optimizer, loss, batches, {every})")
        self.order = list(self.seen.order)

    def _forward(self, module, inputs, outputs):
        self.seen.note("forward")
        if outputs.requires_grad:
            outputs.register_hook(self._backward)

    def _backward(self, gradient):
        self.seen.note("backward")
        self.switched_off.append(not self.t.model.require_backward_grad_sync)

    def _stepped(self, *_):
        self.seen.note("step")
        self.after.append(self.t.model.module.weight.item())

    def expect_weights(self, world_size):
        """After each step: the weight of one process that has the samples of all ranks."""
        steps = [sum(self.sizes[i : i + self.every]) for i in range(0, len(self.sizes), self.every)]
        expect.equal(len(self.after), len(steps), what="the number of steps")
        own = self.t.x.flatten().double()
        whole = own / 10**self.t.rank * int("1" * world_size) / world_size
        means = [torch.stack([part.mean() for part in x.split(steps)]) for x in (own, whole)]
        alone, wanted = (mean.cumsum(0) for mean in means)
        expect.equal(
            torch.tensor(self.after, dtype=torch.float64),
            wanted,
            what="the weight after each step",
            rtol=1e-5,
            like={"what this rank alone computes": alone},
            factors={"`every`": self.every, "the number of ranks": world_size},
        )


@exercise.check(ranks=2)
def one_step(accumulate_without_sync, world_size):
    """Four micro-batches make the step that the whole batch makes in one process

    The gradients of several backwards add up in `.grad`. Each is the gradient of a mean over one micro-batch,
    so weight it by the micro-batch's share of the samples. DDP averages what is in `.grad` by then, and
    divides by the number of ranks itself.
    """
    _Run(accumulate_without_sync, [2] * 4, 4).expect_weights(world_size)


@exercise.check(ranks=2)
def sizes(accumulate_without_sync, world_size):
    """Micro-batches of different sizes: every sample of a step counts as much as any other

    If you add a mean over one sample and a mean over three with equal weights, the one sample counts as much
    as the three together. Weight each mean by its share of the samples of the step.
    """
    _Run(accumulate_without_sync, [3, 1, 2], 3).expect_weights(world_size)


@exercise.check(ranks=2)
def several_steps(accumulate_without_sync, world_size):
    """Each step has the gradients of its own micro-batches

    Backward adds to what is in `.grad`. Clear it before each step, the first one too: the caller may have
    left something there.
    """
    earlier = "\nmodel.module.weight.grad = torch.tensor([[100.0]])"
    with Rows() as rows:
        for label, more in (("an empty `.grad` at first", ""), ("something in `.grad` at first", earlier)):
            with rows.of(label):
                _Run(accumulate_without_sync, [2] * 6, 3, more).expect_weights(world_size)


@exercise.check(ranks=2)
def the_tail(accumulate_without_sync, world_size):
    """What is left at the end makes a step like the others

    If the number of micro-batches isn't a multiple of `every`, the last step has fewer. Its last micro-batch
    still has to communicate, and its weights still add up to 1. Without the average each rank ends with a
    model of its own.
    """
    for number, every in ((5, 2), (2, 3)):
        _Run(accumulate_without_sync, [2] * number, every).expect_weights(world_size)


@exercise.check(ranks=2)
def one_at_a_time(accumulate_without_sync):
    """The backward of a micro-batch runs before the forward of the next

    A graph keeps what its backward needs until that has run. All graphs at once take about as much memory as
    the whole batch.
    """
    run = _Run(accumulate_without_sync, [2] * 3, 3)
    passes = [mark for mark in run.order if mark in ("forward", "backward")]
    expect.equal(passes, ["forward", "backward"] * 3, what="the order of what ran")


@exercise.check(ranks=2)
def collectives(accumulate_without_sync):
    """In each step the last backward communicates, and nothing else

    With one forward for each backward, the forward decides whether its backward communicates, so `no_sync`
    has to be on while the forward runs. An average in backward can travel while other gradients are still
    computed; one after backward can't.
    """
    run = _Run(accumulate_without_sync, [2] * 5, 2)
    found = [[]]
    for mark in run.order:
        if mark == "step":
            found.append([])
        elif mark == "backward":
            found[-1].append(0)
        elif mark.startswith("all_reduce") and run.seen.calls[int(mark.split()[1])].backward and found[-1]:
            found[-1][-1] += 1
    wanted = [[0, 1], [0, 1], [1]]
    if found[:-1] != wanted:
        counts = [count for step in found for count in step]
        off = any(count and off for count, off in zip(counts, run.switched_off, strict=True))
        raise expect.Mismatch(
            f"all-reduces in each backward, step by step: {found[:-1]}, expected {wanted}",
            symptom="A backward communicated although `no_sync` was on while it ran." if off else "",
        )
    # Once, the model tells all ranks by two broadcasts in which order gradients come.
    others = [call.name for call in run.seen.calls if not call.backward and call.name != "broadcast"]
    expect.equal(others, [], what="the list of collectives outside of backward")
