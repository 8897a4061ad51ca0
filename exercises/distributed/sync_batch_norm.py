"""Batch norm over the batches of all ranks

Each rank has a part `x` of one batch, at least one row. Return this rank's part of what
`F.batch_norm(..., training=True)` gives for all parts together: each channel is normalised by its mean and
biased variance over **all** rows. A large mean costs no digits. All tensors are float32.

- Update `running_mean` and `running_var` in place, the latter by the unbiased variance.
- Each rank has its own loss. The gradient of `x` is that of the **sum of all ranks' losses**; those of
  `weight` and `bias` are of its own loss.
- Forward takes two collectives at most. Nothing that is sent grows with the rows.

`[[1.], [3.]]` on rank 0, `[[8.]]` on rank 1 → mean 4, variance `26 / 3`
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from course_utils import measure
from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import numbers, ranks

exercise = Exercise(
    minutes=30,
    hints=[
        "You can't add up means over ranks. You can add up sums and counts: which do a mean and a "
        "variance need?",
        "Here `dist.all_reduce` has no derivative. What rank 0 adds goes into the sum of every rank, so "
        "every rank's gradient of that sum is part of rank 0's. Take a collective with a derivative, or put "
        "`dist.all_reduce` into an `autograd.Function` and find out what its backward has to do.",
        "First add up one tensor over the ranks: the sums of the channels, and the number of rows. Then "
        "subtract the mean of all, and add up the squares of the rest. The gradient of such a sum is "
        "added up over the ranks in the same way.",
    ],
)


@exercise.starter
def sync_batch_norm(
    x: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    weight: Tensor,
    bias: Tensor,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """(n, channels), and four of shape (channels,) -> (n, channels)"""
    raise NotImplementedError


_SETUP = """rank, sizes = dist.get_rank(), {sizes}
torch.manual_seed({seed})
batch = {batch}
x = batch.split(sizes)[rank].clone().requires_grad_()
weight = torch.tensor([1., 2.], requires_grad=True)
bias = torch.tensor([3., 4.], requires_grad=True)
running_mean, running_var = torch.full((2,), 5.), torch.full((2,), 2.)"""
_BATCH = "(torch.randn({n}, 2) + torch.arange({n}.)[:, None]) * {unit}"
_CALL = "sync_batch_norm(x, running_mean, running_var, weight, bias{})"
_BACKWARD = "({} * factors.split(sizes)[rank]).sum().backward()".format(_CALL.format(""))
_NEAR = {"rtol": 1e-4, "atol": 1e-5}


def _setup(*sizes, unit=1, batch=_BATCH, seed=0):
    return _SETUP.format(sizes=list(sizes), batch=batch.format(n=sum(sizes), unit=unit), seed=seed)


def _with_factors(*sizes):
    """With a loss: the gradient of every output is another one."""
    return f"{_setup(*sizes)}\nfactors = torch.randn({sum(sizes)}, 2)"


def _normalised(t, mean, var, eps=1e-5):
    """This rank's rows by any mean and variance."""
    return ((t.x - mean) / (var + eps).sqrt() * t.weight + t.bias).detach()


def _expect_result(t, eps=1e-5):
    """The values, against one process that has all rows."""
    options = "" if eps == 1e-5 else f", eps={eps}"
    result, _ = ranks.all_through(t, _CALL.format(options))
    with torch.no_grad():
        weight, bias = t.weight.double(), t.bias.double()
        whole = F.batch_norm(t.batch.double(), None, None, weight, bias, training=True, eps=eps).float()
        parts = t.batch.split(t.sizes)
        means = torch.stack([part.mean(0) for part in parts])
        var, mean = torch.var_mean(t.batch, 0, correction=0)
        own, own_mean = torch.var_mean(t.x, 0, correction=0)
        within = sum(part.var(0, correction=0) * len(part) for part in parts) / len(t.batch)
        like = {
            "that of this rank's rows alone": _normalised(t, own_mean, own, eps),
            "what `eps` outside of the root gives": _normalised(t, mean, (var.sqrt() + eps).square(), 0.0),
            "what the unbiased variance gives": _normalised(t, mean, t.batch.var(0), eps),
            "what the mean of the ranks' variances gives": _normalised(t, mean, within, eps),
            "what the mean of the ranks' means gives": _normalised(
                t, means.mean(0), (t.batch - means.mean(0)).square().mean(0), eps
            ),
        }
    if eps != 1e-5:
        like["what the default of `eps` gives"] = _normalised(t, mean, var)
    # What float32 can know of a deviation from a large mean.
    near = {"rtol": 1e-4, "atol": 1e-5 + 1e-6 * (t.batch.abs().amax(0) / (var + eps).sqrt()).max().item()}
    expect.equal(expect.a_tensor(result).detach(), whole.split(t.sizes)[t.rank], like=like, **near)


# The variance is so small that `eps` counts.
@exercise.check(ranks=2, given=_setup(3, 3, unit=0.01))
def equal_parts(t):
    """Two ranks with equally many rows

    The variance of all rows is measured from the mean of all rows. Each rank's own variance is measured from
    its own mean, and misses how far the means lie apart. `eps` is added to the variance, before the root. And
    a sum that travels in a dtype of fewer bits may lose digits.
    """
    _expect_result(t)


@exercise.check(ranks=3, given=_setup(4, 1, 3))
def unequal_parts(t):
    """Three ranks with unequally many rows, one of them with a single one

    Sums and counts can be added up over ranks. In a mean of means a rank with one row weighs as much as one
    with four. `eps`, here 0.5, is the one that is given.
    """
    _expect_result(t, eps=0.5)


@exercise.check(
    ranks=2,
    given=lambda seed: _setup(3, 5, batch=numbers.hard("8, 2", "a large mean")["a large mean"], seed=seed),
    cases=numbers.SEEDS,
)
def large_mean(t, seed):
    """At a mean of 10,000 the digits are still there

    The mean of the squares less the square of the mean is a difference of two large numbers. float32 has
    seven digits, and both begin with the same ones: what is left may be noise, or negative. Subtract the mean
    before you square.
    """
    _expect_result(t)


@exercise.check(ranks=2, given=_setup(4, 1))
def running_statistics(t):
    """The running mean and variance, after two calls, without a graph

    `momentum` is the weight of what is new. `running_var` takes the unbiased variance: divide by the rows of
    all ranks less one. The caller holds these two tensors, so write to them in place, and under `no_grad`:
    otherwise they keep the graphs of all batches before.
    """
    before = torch.stack((t.running_mean, t.running_var))
    mean, var = before.clone()
    for momentum in (0.3, 0.1):
        F.batch_norm(t.batch, mean, var, training=True, momentum=momentum)
    with expect.left_alone(t.x, what="`x`"), expect.left_alone(t.weight, what="`weight`"):
        t.run(_CALL.format(", momentum=0.3, eps=0.5"))
        t.run(_CALL.format(""))
    found = torch.stack((t.running_mean, t.running_var))
    what = "the matrix of `running_mean` and `running_var` after the two calls"
    like, wanted = {"what it was before": before}, torch.stack((mean, var))
    expect.equal(found.detach(), wanted, what=what, like=like, **_NEAR)
    expect.equal(found.requires_grad, False, what="whether one of them hangs in a graph")


@exercise.check(ranks=2, given=_with_factors(2, 4))
def gradient_of_x(t):
    """The gradient of `x` is that of the sum of all ranks' losses

    What a rank puts into a sum over the ranks goes into the outputs of all, so the gradient of its part is
    the sum of what all ranks send back. Here `dist.all_reduce` has no derivative: backward then takes the sum
    of all ranks for this rank's own part. The mean depends on `x` as well as the variance: a constant has no
    gradient.
    """
    ranks.all_through(t, _BACKWARD)
    x, weight = t.batch.clone().requires_grad_(), t.weight.detach()
    losses = (F.batch_norm(x, None, None, weight, t.bias, training=True) * t.factors).split(t.sizes)
    own, wanted = (
        torch.autograd.grad(loss.sum(), x, retain_graph=True)[0].split(t.sizes)[t.rank]
        for loss in (losses[t.rank], torch.cat(losses))
    )
    constant = t.factors.split(t.sizes)[t.rank] * weight / (t.batch.var(0, correction=0) + 1e-5).sqrt()
    like = {
        "that of this rank's own loss": own,
        "what it is where the mean is a constant": _with_constant_mean(t, x).split(t.sizes)[t.rank],
        "what it is where mean and variance are constants": constant,
    }
    expect.true(t.x.grad is not None, "no gradient reaches `x`", "expected: one does")
    expect.equal(t.x.grad, wanted, what="the gradient of `x`", like=like, **_NEAR)


def _with_constant_mean(t, x):
    """The gradient of `x`, all ranks' rows, if the mean had none."""
    centred = x - x.mean(0).detach()
    out = centred / (centred.square().mean(0) + 1e-5).sqrt() * t.weight.detach()
    return torch.autograd.grad((out * t.factors).sum(), x)[0]


@exercise.check(ranks=2, given=_with_factors(2, 4))
def gradients_of_parameters(t):
    """The gradients of `weight` and `bias` are those of this rank's own loss

    DDP averages the gradients of all parameters later, all in one way. One that is already added up would
    count once for every rank.
    """
    ranks.all_through(t, _BACKWARD)
    weight, bias = (one.detach().requires_grad_() for one in (t.weight, t.bias))
    losses = (F.batch_norm(t.batch, None, None, weight, bias, training=True) * t.factors).split(t.sizes)
    own, of_all = (
        torch.autograd.grad(loss.sum(), (weight, bias), retain_graph=True)
        for loss in (losses[t.rank], torch.cat(losses))
    )
    for name, wanted, summed in zip(("weight", "bias"), own, of_all, strict=True):
        found, what = getattr(t, name).grad, f"the gradient of `{name}`"
        expect.true(found is not None, f"no gradient reaches `{name}`", "expected: one does")
        expect.equal(found, wanted, what=what, like={"that of all ranks' losses": summed}, **_NEAR)


@exercise.check(ranks=2)
def what_travels(sync_batch_norm):
    """Two collectives in forward at most, and nothing that grows with the rows

    For each channel a count, a sum and a sum of squared deviations are enough, however many rows there are.
    Ranks wait in each of these collectives; what is known at the same time can travel in one tensor.
    """
    traffic = {}
    for sizes in ((2, 1), (40, 20)):
        t = ranks.given(_with_factors(*sizes), sync_batch_norm=sync_batch_norm)
        with measure.traffic() as traffic[sizes[t.rank]]:
            t.run(_BACKWARD)
    (n, few), (more, many) = traffic.items()
    expect.at_most(few.count(backward=False), 2, "collectives in forward")
    for where, backward in (("forward", False), ("backward", True)):
        sent, then = few.bytes(backward=backward), many.bytes(backward=backward)
        told = f"in {where} this rank gives {sent:,} bytes to collectives for {n} rows, {then:,} for {more}"
        expect.true(then == sent, told, "expected: as many")
