"""A quarter of the bytes, and no error that adds up

Write a communication hook for float32. Each rank rounds its gradients to whole numbers from -127 to 127, in
units of a *scale*, a 127th of the largest magnitude, of the bucket or of each parameter. The result averages
what was sent.

- The hook doesn't wait.
- A rank sends one byte for each element, and at most 8 for each parameter.
- What rounding takes away is added to the same elements in the next backward, before scale and rounding.
  `state`, a dict, keeps it. Parameters change their order.
- A gradient with a NaN on some rank has one on all.

`[127., 0.6]` on rank 0, `[0., -254.]` on rank 1 → `[63.5, -126.5]`; rank 0 keeps `[0., -0.4]`
"""

import torch
import torch.distributed as dist
from torch import Tensor

from course_utils import measure
from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import ranks

exercise = Exercise(
    minutes=35,
    hints=[
        "The whole numbers of two ranks are in different units: to add them up means nothing, and eight "
        "bits wouldn't hold the sum. What does a rank need from another one to know the gradients it "
        "meant?",
        "`dist.all_gather` with `async_op=True` returns a work, and its `get_future()` a future that is "
        "done when everything has arrived. `then` takes a function that runs at that time; what it "
        "returns is the value of the new future. `torch.futures.collect_all` makes one future of several.",
        "The residual is what you wanted to send, less what your own numbers stand for. Cut it into "
        "pieces along `bucket.parameters()`, and keep each piece under its parameter. For all zeros the "
        "scale must not be zero.",
    ],
)


@exercise.starter
def compress_hook(state: dict, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """What DDP calls for each bucket: a future of the average over the ranks"""
    raise NotImplementedError


# `of_all`: for each rank, an input for each backward. Parameters stay as they are; gradients are added up.
_SETUP = """rank = dist.get_rank()
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel({})
model.register_comm_hook({{}}, compress_hook)
inputs = of_all[rank]
sums = [torch.zeros_like(p) for p in model.parameters()]"""
_BACKWARDS = """for x in inputs:
    model.zero_grad()
    model(torch.tensor([x])).sum().backward()
    for p, total in zip(model.parameters(), sums): total += p.grad"""
# The gradient of its weight is the input.
_ONE = _SETUP.format("nn.Linear(2, 1, bias=False)")


def _gradients(t, x):
    """What one process computes for an input, as one row of numbers."""
    found = torch.autograd.grad(t.model.module(torch.tensor([x])).sum(), list(t.model.parameters()))
    return torch.cat([g.flatten() for g in found]).double()


def _rounded(gradient):
    scale = gradient.abs().max() / 127
    return (gradient / scale).round() * scale


def _expect_close(t):
    """The sum of the averages is off by no more than half a unit of the last backward, however many there
    were: a rank rounds its gradients and at most half a unit from before."""
    t.run(_BACKWARDS)
    n, units, number = len(t.of_all), [0.0] * len(t.of_all), len(t.inputs)
    exact, stateless = 0.0, 0.0
    for of_all in zip(*t.of_all, strict=True):
        gradients = [_gradients(t, x) for x in of_all]
        exact = exact + sum(gradients) / n
        stateless = stateless + sum(map(_rounded, gradients)) / n
        units = [(g.abs().max().item() + 0.51 * u) / 127 for g, u in zip(gradients, units, strict=True)]
    allowed = 0.51 * sum(units) / n + 1e-6 * number
    expect.equal(
        torch.cat([total.flatten() for total in t.sums]).double(),
        exact,
        what=f"the sum of {number} averages, which may be off by {allowed:.1g},",
        rtol=0,
        atol=allowed,
        like={"the same as without any residual": stateless},
        factors={"the number of ranks": n},
    )


@exercise.check(ranks=2)
def returns_at_once(compress_hook):
    """The hook returns before other ranks have sent anything

    DDP can call it in the middle of backward, while more is still to be computed. Without `async_op=True` an
    `all_gather` waits for all ranks here, and so does its `wait()`. What `then` gets runs when everything has
    arrived.
    """
    hook = ranks.BeforeOthers(compress_hook)
    t = ranks.given(f"of_all = [[[127.0, 0.6]], [[0.0, -254.0]]]\n{_ONE}", compress_hook=hook.called)
    t.run(_BACKWARDS)
    told = "it waits inside the hook for what the other ranks send"
    expect.true(not hook.waited, told, "expected: it returns a future at once")


@exercise.check(
    ranks=2,
    given=f"of_all = [[[.5, 1.5, -2.5, 3.5]], [[7.5, -1.5, 4.5, .5]]]\n{_SETUP.format('nn.Linear(4, 100)')}",
)
def bytes_sent(t, world_size):
    """One byte for each element

    A tensor is sent as it's held: whole numbers in `float32` take four bytes each, in `int8` one. torch's
    `fp16_compress_hook` sends two.
    """
    with measure.traffic() as traffic:
        t.run(_BACKWARDS)
    # What is received does not count. Of `world_size` ranks that see a broadcast, one brings it.
    brought = traffic.bytes(backward=True) - traffic.bytes("recv", backward=True)
    brought -= traffic.bytes("broadcast", backward=True) * (world_size - 1) // world_size
    expect.at_most(brought, 500 + 16, "for 500 elements and 2 parameters this rank brings", unit="bytes")


@exercise.check(
    ranks=3,
    given=f"of_all = [[[127. / per, .6 / per]], [[0., -254. / per]], [[381. / per, 0.]]]\n{_ONE}",
    cases={"gradients of size 100": 1, "gradients of size 1e-11": 1e13},
)
def one_backward(t, per):
    """The average of what three ranks sent, each in its own unit

    A whole number means nothing without its unit, so every rank's scale travels with its numbers. `round`
    goes to the nearest one, `to(torch.int8)` cuts the fraction off, and what is beyond 127 may come back
    negative. What is added to a scale, or bounds it, may be large beside tiny gradients. With a hook of your
    own the model doesn't divide by the number of ranks here: it takes what the future brings.
    """
    t.run(_BACKWARDS)
    of_own_scale = torch.tensor([254.0, -126.0]) * (t.rank + 1) / 3
    expect.equal(
        t.sums[0].flatten() * per,
        torch.tensor([508.0, -253.0]) / 3,
        what=f"the gradient of `weight`{f', times {per:g},' * (per > 1)}",
        like={"what this rank's own scale makes of all numbers": of_own_scale},
        factors={"the number of ranks": 3},
    )


@exercise.check(ranks=2, given=f"of_all = [[[0.0, 0.0], [0.3, 0.2]], [[0.0, 0.0], [0.0, 0.0]]]\n{_ONE}")
def zeros(t):
    """Gradients that are zero everywhere, and others after them

    A 127th of zero is zero, and zero divided by zero is nan. In a residual nan stays for ever. Any positive
    finite scale will do for zeros.
    """
    _expect_close(t)


@exercise.check(
    ranks=2,
    given=lambda of_all: f"of_all = {of_all}\n{_ONE}",
    cases={
        "the same gradient eight times": "[[[0.1, -9.67]] * 8, [[0.5, 0.013]] * 8]",
        "small ones after a large one": "[[[100.0, 0.3], [0.1, 0.04], [0.1, 0.04]], [[0.5, 0.013]] * 3]",
    },
)
def feedback(t):
    """Over many backwards the sum is off by no more than one of them

    A gradient that stays the same is rounded in the same direction every time, and what rounding takes away
    grows with the steps. So add what was lost to the next gradient, before you make the scale: a large
    gradient may lose more than all of a small one after it. What you round is this sum, not the gradient:
    lost is the sum less what was sent, and so holds what was lost before.
    """
    _expect_close(t)


_FOUR = f"""small = [[0.01, -0.02, 0.03]] * 2
of_all = [[[80.0, 31.0, -50.0], *small], [[-7.0, 3.0, 40.0], *small]]
{_SETUP.format("nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))")}"""


@exercise.check(ranks=2, given=_FOUR)
def by_parameter(t):
    """What was lost reaches the elements that lost it, in buckets of another order

    In its first backward the model sees in which order gradients are ready, and puts the parameters into
    buckets in that order. A residual kept by the number of a bucket, or as one tensor, then belongs to
    others.
    """
    _expect_close(t)


@exercise.check(ranks=2, given=f"of_all = [[[0.5, -2.0]], [[torch.nan, 1.0]]]\n{_ONE}")
def not_a_number(t):
    """A NaN in the gradients of one rank is in the average, on both

    `int8` has no NaN: what becomes of one may differ from machine to machine. The scale has one. `nan >
    1e-12` is false, and so `max(1e-12, nan)` is `1e-12`; `clamp` leaves a NaN what it is.
    """
    t.run(_BACKWARDS)
    told = (
        f"the gradient of `weight` is {expect.show(t.sums[0])}; that of rank 1 held a NaN before it was sent"
    )
    expect.true(
        bool(t.sums[0].isnan().any()), told, "expected: a NaN, so that nobody trains on unaware of it"
    )
