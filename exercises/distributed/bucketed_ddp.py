"""Buckets that leave while backward runs

`BucketedDDP(module, bucket_bytes)` averages gradients like `MiniDDP`, in few messages that leave early. All
ranks use all parameters.

1. At construction put trained parameters into buckets, in reverse order: into the last one if its gradients
   then have at most `bucket_bytes` bytes, else into a new one.
2. A bucket is one `all_reduce` of one tensor. Launch it with `async_op=True` when it's complete and the one
   before it is launched. Gradients may come in another order on each rank.
3. At the end of backward (`queue_callback`), wait for all. Then `.grad` is the mean; a second backward adds
   its mean.

Don't use `DistributedDataParallel`.

`nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))`, 16 bytes → `1.bias 1.weight`, `0.bias`, `0.weight`
"""

import torch
import torch.distributed as dist
from torch import nn

from course_utils.exercise import Exercise, Rows, expect
from course_utils.exercise.kits import ranks

exercise = Exercise(
    minutes=30,
    hints=[
        "Make the buckets in `__init__`, as lists of parameters, and print them for a small model. What "
        "does a hook need to know of a bucket to tell that this gradient was the last one missing?",
        "A hook of each parameter counts down in its bucket. Then, from the first bucket that isn't "
        "launched yet: while the next one is complete, put its gradients into one flat tensor and launch "
        "that. Keep what the launch returned, with the flat tensor, for later.",
        "The launch of the last bucket queues the callback. There, bucket by bucket: wait, divide, cut "
        "the flat tensor into pieces of `numel()` elements and copy each into its `.grad`. At the end "
        "reset the counters for the next backward.",
    ],
)


@exercise.starter
class BucketedDDP(nn.Module):
    """Averages gradients over all ranks, bucket by bucket."""

    def __init__(self, module: nn.Module, bucket_bytes: int):
        raise NotImplementedError

    def forward(self, *args, **kwargs):
        raise NotImplementedError


def _given(BucketedDDP, *lines):
    """The example, and a list for its traffic: there every gradient is noted when it arrives, before a hook
    of the answer is called."""
    watch = []

    def wrapped(module, bucket_bytes):
        for name, p in module.named_parameters():
            if p.requires_grad:
                p.register_hook(lambda _, name=name: watch[-1].note(name) if watch else None)
        return ranks.without_torchs_own(BucketedDDP)(module, bucket_bytes)

    return ranks.given("\n".join(("rank = dist.get_rank()", *lines)), BucketedDDP=wrapped), watch


def _happened(watch):
    """Gradients, launches and waits of this rank, in order."""
    order = watch[-1].order
    order = order[: next(i for i, entry in enumerate(order) if entry.startswith("barrier"))]
    return ["launch" if entry.startswith("all_reduce") else entry.partition(" ")[0] for entry in order]


_ONES = "for p in model.parameters():\n    p.data.fill_(1)"
_TWO_LAYERS = f"model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))\n{_ONES}"
_MAKE = "ddp = BucketedDDP(model, 16)"
_CALL = "ddp(x).sum().backward()"


def _x(world_size):
    return f"x = torch.tensor([[{world_size}., {2 * world_size}.]]) * 10**rank"


def _expect_means(t, when, *times):
    """What `times` passes give, each with so many times `x`. A digit of the mean is a rank."""

    def grads(x):
        a, b, n = x * sum(times), 2 * x * sum(times), len(times)
        found = {"0.weight": [[a, b]] * 2, "0.bias": [n, n], "1.weight": [[a + b + n] * 2], "1.bias": [n]}
        return {name: torch.tensor(values, dtype=torch.float32) for name, values in found.items()}

    alone = int(t.x[0, 0])
    mean = int("1" * dist.get_world_size())
    ranks.expect_gradients(t.model, grads(mean), grads(alone), when)


@exercise.check(ranks=2, deadline=6)
def waits_at_the_end(BucketedDDP, world_size):
    """Each launch is waited for, and nobody waits before all are launched

    A launch may return before anything is sent. The sum is there after `wait()` of what it returned, for that
    bucket alone. If a hook waits, backward stands still meanwhile.
    """
    t, watch = _given(BucketedDDP, _TWO_LAYERS, _x(world_size), _MAKE)
    ranks.all_through(t, _CALL, watch)
    done = [entry for entry in _happened(watch) if entry in ("launch", "wait")]
    expect.true(
        done == sorted(done),
        f"what this rank did, in order: {', '.join(done)}",
        "expected: it waits when all are launched",
    )


@exercise.check(ranks=3, deadline=6)
def means(BucketedDDP, world_size):
    """When backward returns, every gradient is the mean over three ranks

    An `all_reduce` adds up. `torch.cat` makes a copy: what the collective writes there isn't in any `.grad`
    until you copy it back.
    """
    t, watch = _given(BucketedDDP, _TWO_LAYERS, _x(world_size), _MAKE)
    ranks.all_through(t, _CALL, watch)
    _expect_means(t, "after backward", 1)


@exercise.check(ranks=2, deadline=6)
def adds_up(BucketedDDP, world_size):
    """A second backward adds its mean to the first

    Forget at the end of a backward what you noted in it: arrivals and launches. `.grad` keeps what it has
    until somebody clears it; after the first backward that is the same on all ranks.
    """
    t, watch = _given(BucketedDDP, _TWO_LAYERS, _x(world_size), _MAKE, _CALL)
    ranks.all_through(t, "ddp(5 * x).sum().backward()", watch)
    _expect_means(t, "after two backwards", 1, 5)


@exercise.check(ranks=2, deadline=6)
def buckets(BucketedDDP):
    """One all-reduce for each bucket, filled as the task says, and nothing else

    The last parameter goes first. An element of float32 has 4 bytes, one of float64 has 8: see `nbytes`. A
    parameter that fits exactly goes in, one that doesn't opens a new bucket, and the earlier ones are closed.
    No bucket is empty. A frozen parameter gets no gradient: a bucket with one would wait for ever. Each step
    sends the same: hooks are registered once.
    """
    with Rows() as rows:
        for label, more, limit, wanted in (
            ("32 bytes", "", 32, [32, 12, 36]),
            ("32 bytes, in the third step", "", 32, [32, 12, 36]),
            ("20 bytes", "", 20, [8, 24, 12, 36]),
            ("7 bytes", "", 7, [8, 24, 12, 36]),
            ("1000 bytes", "", 1000, [80]),
            ("float64", "model, x = model.double(), x.double()", 84, [64, 24, 72]),
            ("a frozen bias", "model[0].bias.requires_grad_(False)", 32, [32, 36]),
        ):
            with rows.of(label):
                model = "model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))\nx = torch.ones(1, 3)"
                make = f"ddp = BucketedDDP(model, {limit})"
                earlier = [_CALL] * 2 if "third" in label else []
                t, watch = _given(BucketedDDP, model, *filter(None, [more]), make, *earlier)
                _, calls = ranks.all_through(t, _CALL, watch)
                came = [f"{call.name} of {call.bytes} bytes" for call in calls]
                expect.equal(
                    came, [f"all_reduce of {size} bytes" for size in wanted], what="the list of calls"
                )


@exercise.check(ranks=2, deadline=6)
def early(BucketedDDP):
    """Each bucket is launched as soon as its last gradient is there

    Backward reaches the last layers first here. Buckets in that order fill one after another, and while one
    travels the layers before it are still computed. In the order of `parameters()` the first bucket would be
    complete at the very end.
    """
    model = "model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))\nx = torch.ones(1, 2)"
    t, watch = _given(BucketedDDP, model, "ddp = BucketedDDP(model, 32)")
    ranks.all_through(t, _CALL, watch)
    came = [entry for entry in _happened(watch) if entry != "wait"]
    wanted, left = [], [{"2.bias", "2.weight", "1.bias"}, {"1.weight", "0.bias"}, {"0.weight"}]
    for name in (entry for entry in came if entry != "launch"):
        wanted.append(name)
        while left and left[0] <= set(wanted):
            wanted.append("launch")
            left.pop(0)
    expect.true(
        came == wanted,
        f"gradients and launches as they came: {', '.join(came)}",
        f"expected: {', '.join(wanted)}",
        "the buckets are `2.bias 2.weight 1.bias`, `1.weight 0.bias` and `0.weight`",
    )


@exercise.check(ranks=2, deadline=6)
def in_one_order(BucketedDDP, rank):
    """The ranks go through the layers in different orders

    Collectives have no names: the first of one rank meets the first of the other. So all ranks launch the
    same buckets in the same order, even if a later one is complete first. To run a module is to call it: its
    `forward` alone runs none of its forward hooks.
    """
    orders = [[0, 1, 2], [1, 2, 0]]
    t, watch = _given(
        BucketedDDP,
        f"model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1), nn.Linear(1, 1))\n{_ONES}",
        "model.forward = lambda x, order: model[order[2]](model[order[1]](model[order[0]](x)))",
        "ddp = BucketedDDP(model, 8)",
        f"x, order = torch.tensor([[2. * 10**rank]]), {orders}[rank]",
    )
    ranks.all_through(t, "ddp(x, order=order).sum().backward()", watch)
    ran = []
    t.model.register_forward_hook(lambda *_: ran.append(1))
    expect.equal(t.call("ddp(x, order=order)").detach(), t.x + 3)
    expect.equal(len(ran), 1, what="how often a forward hook of `model` ran in that call")
    # What comes to a layer, and so the gradient of its weight, is `x` and 1 more for each layer before it.
    each = [[2.0 * 10**r + order.index(layer) for layer in range(3)] for r, order in enumerate(orders)]
    mean = [sum(numbers) / 2 for numbers in zip(*each, strict=True)]
    whole, alone = (
        {f"{i}.weight": torch.tensor([[n]]) for i, n in enumerate(numbers)}
        | {f"{i}.bias": torch.ones(1) for i in range(3)}
        for numbers in (mean, each[rank])
    )
    ranks.expect_gradients(t.model, whole, alone)
