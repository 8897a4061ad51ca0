"""Batch norm over the batches of all ranks

Each rank holds a part `x` of one batch. Return this rank's part of what `F.batch_norm(..., training=True)`
gives in one process for all parts together: every channel is normalised by its mean and its variance over the
elements of **all** ranks.

`x` has the shape (n, channels) or (n, channels, ...), in any layout. `n` differs from rank to rank. It may be
1, and some ranks may have no row at all, but not all of them. Either all ranks' `x` require a gradient or
none does.

- The variance that normalises is the biased one, with `eps` added under the root. `running_mean` and
  `running_var`, the same on all ranks, are changed in place as `F.batch_norm` changes them, so they are the
  same on all ranks afterwards. They get no graph. The running variance takes the unbiased variance.
- Every rank calls backward on a loss of its own, all at the same time. The gradient of `x` is that of the
  **sum of all ranks' losses**: the outputs of the other ranks depend on this `x` too, through mean and
  variance. The gradients of `weight` and `bias` are what this rank's own loss gives; adding up the shares is
  left to whoever averages all the other gradients.
- Forward takes two collectives at most, and nothing that travels, in forward or backward, grows with `n`.
- The mean may be a thousand times as large as what the elements differ by: digits are kept then too.

`nn.SyncBatchNorm` is torch's own; in training it refuses tensors on the CPU.

With `x = torch.tensor([[1.], [3.]])` on rank 0 and `x = torch.tensor([[8.]])` on rank 1 the mean is 4 and the
variance 26/3. With a weight of 1 and a bias of 0 rank 0 gets `[[-1.0190], [-0.3397]]`, rank 1 `[[1.3587]]`
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from course_utils import evidence, expect, measure
from course_utils.exercise import Exercise

exercise = Exercise(
    minutes=30,
    hints=[
        "Means cannot be added up over ranks. Sums and counts can: which do a mean and a variance need? A "
        "rank with no rows has sums too.",
        "`dist.all_reduce` writes sums into a tensor and autograd does not notice. What rank 0 adds goes "
        "into the sum of every rank, so every rank's gradient of that sum is part of rank 0's. Put the "
        "collective into an `autograd.Function` and find out what its backward has to do.",
        "First add up one tensor of `channels + 1` numbers over the ranks: the sums of the channels and how "
        "many elements each has. Then subtract the mean of all, and add up the squares of what is left. What "
        "travels backward through such a sum is added up over the ranks in the same way.",
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
    """(n, channels, ...), and four of shape (channels,) -> (n, channels, ...)"""
    raise NotImplementedError


_CALL = "sync_batch_norm(x, running_mean, running_var, weight, bias{})"


def _given(answer, rank, device, sizes, shape=(2,), turned=False, options=""):
    """Runs the answer on this rank, as an example that is shown; also gives what one process makes of all
    parts. `turned`: in the layout in which the channels come last."""
    total, channels = sum(sizes), shape[0]
    as_asked = ".double()" + f".to('{device.type}')" * (device.type != "cpu")
    size = (total, *shape[1:], channels) if turned else (total, *shape)
    numbers, turn = torch.Size(size).numel(), ".movedim(-1, 1)" * turned
    t = expect.given(
        # Larger from row to row: each rank has a mean and a variance of its own.
        f"""batch = torch.arange({numbers}.){as_asked}.pow(2).div({numbers}).view{size}{turn}
x = batch.split({list(sizes)})[{rank}].clone().requires_grad_()  # rank {rank}
weight = torch.arange(1., {channels + 1}){as_asked}.requires_grad_()
bias = torch.arange(3., {channels + 3}){as_asked}.requires_grad_()
running_mean = torch.full(({channels},), 5.){as_asked}
running_var = torch.full(({channels},), 2.){as_asked}""",
        sync_batch_norm=answer,
    )
    wanted = _in_one_process(t, sizes, **eval(f"dict({options})"))
    result = t.call(_CALL.format(f", {options}" * bool(options)))
    return t, expect.a_tensor(result), wanted


def _in_one_process(t, sizes, momentum=0.1, eps=1e-5):
    """(results, gradients of x; of weight and bias) for each rank, running mean and variance: by torch."""
    x, weight, bias = (one.detach().double().cpu().requires_grad_() for one in (t.batch, t.weight, t.bias))
    mean, var = (one.to("cpu", torch.float64, copy=True) for one in (t.running_mean, t.running_var))
    results = F.batch_norm(x, mean, var, weight, bias, True, momentum, eps).split(list(sizes))
    # The loss of each rank alone for the parameters, that of all for x.
    own = [torch.autograd.grad(_loss(y), (weight, bias), retain_graph=True) for y in results]
    of_x = torch.autograd.grad(sum(map(_loss, results)), x)[0].split(list(sizes))
    return [y.detach() for y in results], of_x, own, (mean, var)


def _loss(y):
    """Every element of the outputs counts differently, and none alone."""
    weights = torch.arange(1.0, y.numel() + 1).to(y) / max(y.numel(), 1)
    return (y * weights.reshape(y.shape)).sin().sum() * y.size(0)


def _gradients(result, *inputs):
    expect.in_graph(result, of="`x`, `weight` and `bias`")
    return torch.autograd.grad(_loss(result), inputs, allow_unused=True)


def _expect_like(actual, oracle, what):
    """As the oracle says; `None` where nothing depends on it is told by name."""
    expect.true(actual is not None, f"no gradient reaches {what}", "expected: one does")
    expect.equal(actual.cpu().double(), oracle, what=what, rtol=1e-6, atol=1e-8)


def _expect_result(rank, result, wanted):
    _expect_like(result.detach(), wanted[0][rank], "the result")


@exercise.check(ranks=2, deadline=10)
def equal_parts(sync_batch_norm, rank, device):
    """Two ranks with equally many rows"""
    t, result, wanted = _given(sync_batch_norm, rank, device, (3, 3))
    _expect_result(rank, result, wanted)


@exercise.check(ranks=3, deadline=10)
def unequal_parts(sync_batch_norm, rank, device):
    """Three ranks with unequally many rows, one of them with a single one"""
    t, result, wanted = _given(sync_batch_norm, rank, device, (4, 1, 3), options="eps=0.5")
    _expect_result(rank, result, wanted)


@exercise.check(ranks=2, deadline=10)
def images(sync_batch_norm, rank, device):
    """An `x` of four dimensions, in another layout"""
    t, result, wanted = _given(sync_batch_norm, rank, device, (1, 2), (3, 2, 4), turned=True)
    (found,) = _gradients(result, t.x)
    _expect_result(rank, result, wanted)
    _expect_like(found, wanted[1][rank], "the gradient of `x`")


@exercise.check(ranks=3, deadline=10)
def gradient_of_x(sync_batch_norm, rank, device):
    """The gradient of `x` is that of the sum of all ranks' losses"""
    t, result, wanted = _given(sync_batch_norm, rank, device, (2, 4, 1))
    (found,) = _gradients(result, t.x)
    _expect_like(found, wanted[1][rank], "the gradient of `x`")


@exercise.check(ranks=2, deadline=10)
def gradients_of_parameters(sync_batch_norm, rank, device):
    """The gradients of `weight` and `bias` are those of this rank's own loss"""
    t, result, wanted = _given(sync_batch_norm, rank, device, (2, 4))
    found = _gradients(result, t.weight, t.bias)
    for name, one, oracle in zip(("weight", "bias"), found, wanted[2][rank], strict=True):
        _expect_like(one, oracle, f"the gradient of `{name}`")
    before = t.batch.split([2, 4])[rank], torch.arange(1.0, 3.0), torch.arange(3.0, 5.0)
    for name, was in zip(("x", "weight", "bias"), before, strict=True):
        expect.unchanged(getattr(t, name).detach(), was.to(t.x), what=f"`{name}`")


@exercise.check(ranks=2, deadline=10)
def running_statistics(sync_batch_norm, rank, device):
    """The running mean and variance, changed in place, and without a graph"""
    t, result, wanted = _given(sync_batch_norm, rank, device, (4, 1), options="momentum=0.3")
    t.call(_CALL.format(""))
    F.batch_norm(t.batch.double().cpu(), *wanted[3], training=True)
    for name, oracle in zip(("running_mean", "running_var"), wanted[3], strict=True):
        found = getattr(t, name)
        evidence.record("has a graph", found.requires_grad)
        _expect_like(found.detach(), oracle, f"`{name}` after a call with a momentum of 0.3 and one without")
        expect.true(
            not found.requires_grad, f"`{name}` hangs in a graph", "expected: it is a number for each channel"
        )


@exercise.check(ranks=2, deadline=10)
def no_rows(sync_batch_norm, rank, device):
    """A rank without rows takes part, in forward and backward"""
    t, result, wanted = _given(sync_batch_norm, rank, device, (3, 0))
    (found,) = _gradients(result, t.x)
    _expect_result(rank, result, wanted)
    _expect_like(found, wanted[1][rank], "the gradient of `x`")


@exercise.check(ranks=2, deadline=10)
def large_mean(sync_batch_norm, rank, device):
    """A mean that is large against the differences, in single precision"""
    more = expect.on(device)
    t = expect.given(
        f"""batch = 2000 + torch.arange(8.{more}).view(8, 1) / 4
x = batch[{5 * rank}:{5 + 3 * rank}]  # rank {rank}, plain data
weight, bias = torch.ones(1{more}).requires_grad_(), torch.zeros(1{more}).requires_grad_()
running_mean, running_var = torch.zeros(1{more}), torch.ones(1{more})""",
        sync_batch_norm=sync_batch_norm,
    )
    wanted, *_ = _in_one_process(t, (5, 3))
    result = expect.a_tensor(t.call(_CALL.format("")))
    expect.equal(result.dtype, torch.float32, what="the dtype of the result")
    off = (result.detach().double().cpu() - wanted[rank]).abs().max().item()
    # By how much it is off is a matter of rounding, and no two ways of writing it round alike.
    evidence.record("digits kept", off <= 0.005)
    if not off <= 0.005:
        raise expect.Mismatch(
            f"an element of the result is off by {off:.2g}, expected by 0.005 at most",
            "in float32 `x` itself is exact here",
        )


@exercise.check(ranks=3, deadline=10)
def what_travels(sync_batch_norm, rank, device):
    """Two collectives in forward at most, and nothing that grows with the rows"""
    traffic = []
    for sizes in ((2, 1, 2), (40, 20, 40)):
        with measure.traffic() as seen, evidence.silent():
            t, result, _ = _given(sync_batch_norm, rank, device, sizes)
            _gradients(result, t.x)
        traffic.append(seen)
    forward, backward = (
        [sum(call.bytes for call in seen.calls if call.backward == where) for seen in traffic]
        for where in (False, True)
    )
    expect.at_most(traffic[0].count(backward=False), 2, "collectives in forward")
    for where, (few, many) in (("forward", forward), ("backward", backward)):
        grows = many > 1.5 * few
        evidence.record("grows", grows)
        expect.true(
            not grows,
            f"in {where} a rank gives {few:,} bytes to collectives for 2, 1 and 2 rows, "
            f"and {many:,} for 40, 20 and 40",
            "expected: as many",
        )


# --- the mistakes -----------------------------------------------------------------------------------------


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, part):
        total = part.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, grad):
        return _Sum.forward(ctx, grad)


def _without_a_derivative(part):
    dist.all_reduce(part)
    return part


def _over_channels(one, x):
    return one.view(1, -1, *[1] * (x.dim() - 2))


def _summed(x):
    return x.sum([dim for dim in range(x.dim()) if dim != 1])


def _moments(x, add):
    """Count, mean and variance over all ranks; `add` adds up over them."""
    sums = add(torch.cat((_summed(x), x.new_tensor([x.numel() / x.size(1)]))))
    count, mean = sums[-1].detach(), sums[:-1] / sums[-1].detach()
    return count, mean, add(_summed((x - _over_channels(mean, x)).square())) / count


def _apply(x, mean, var, weight, bias, eps):
    normal = (x - _over_channels(mean, x)) * _over_channels(var + eps, x).rsqrt()
    return normal * _over_channels(weight, x) + _over_channels(bias, x)


def _keep(running_mean, running_var, mean, var, count, momentum):
    with torch.no_grad():
        running_mean.lerp_(mean, momentum)
        running_var.lerp_(var * count / (count - 1), momentum)


def _mistaken(x, running_mean, running_var, weight, bias, momentum, eps, *, add=_Sum.apply, moments=_moments):
    """A right answer with holes."""
    count, mean, var = moments(x, add)
    _keep(running_mean, running_var, mean, var, count, momentum)
    return _apply(x, mean, var, weight, bias, eps)


@exercise.mistake
def this_rank_only(x, running_mean, running_var, weight, bias, momentum=0.1, eps=1e-5):
    """You normalise by the mean and the variance of this rank's own part. That is what `nn.BatchNorm1d` does
    under DDP: each rank has statistics of its own. Here they are those of all ranks."""
    return _mistaken(x, running_mean, running_var, weight, bias, momentum, eps, add=lambda part: part)


@this_rank_only.form
def built_in_batch_norm(x, running_mean, running_var, weight, bias, momentum=0.1, eps=1e-5):
    return F.batch_norm(x, running_mean, running_var, weight, bias, True, momentum, eps)


@exercise.mistake
def takes_synced_layer(x, running_mean, running_var, weight, bias, momentum=0.1, eps=1e-5):
    """`nn.SyncBatchNorm` refuses tensors on the CPU in training. What it does is asked for here: sums over
    all ranks, in forward and in backward."""
    layer = torch.nn.SyncBatchNorm(x.size(1), eps, momentum).to(x)
    layer.weight, layer.bias = torch.nn.Parameter(weight), torch.nn.Parameter(bias)
    layer.running_mean, layer.running_var = running_mean, running_var
    return layer(x)


@exercise.mistake
def mean_of_means(x, running_mean, running_var, weight, bias, momentum=0.1, eps=1e-5):
    """You take the mean of the ranks' means. A rank with one row then weighs as much as one with a thousand,
    and the mean of no rows is `nan`. Add up sums and counts."""

    def moments(x, add):
        dims, ranks = [0, *range(2, x.dim())], dist.get_world_size()
        mean = add(x.mean(dims)) / ranks
        var = add((x - _over_channels(mean, x)).square().mean(dims)) / ranks
        return ranks * x.numel() / x.size(1), mean, var

    return _mistaken(x, running_mean, running_var, weight, bias, momentum, eps, moments=moments)


@mean_of_means.variant
def mean_of_squares(x, running_mean, running_var, weight, bias, momentum=0.1, eps=1e-5):
    def moments(x, add):
        dims = [0, *range(2, x.dim())]
        both = add(torch.stack((x.mean(dims), x.square().mean(dims)))) / dist.get_world_size()
        return x.numel() / x.size(1) * dist.get_world_size(), both[0], both[1] - both[0] ** 2

    return _mistaken(x, running_mean, running_var, weight, bias, momentum, eps, moments=moments)


@mean_of_means.form
def counts_for_the_variance(x, running_mean, running_var, weight, bias, momentum=0.1, eps=1e-5):
    def moments(x, add):
        mean = add(x.mean([0, *range(2, x.dim())])) / dist.get_world_size()
        squares = _summed((x - _over_channels(mean, x)).square())
        sums = add(torch.cat((squares, x.new_tensor([x.numel() / x.size(1)]))))
        return sums[-1].detach(), mean, sums[:-1] / sums[-1].detach()

    return _mistaken(x, running_mean, running_var, weight, bias, momentum, eps, moments=moments)


@exercise.mistake
def variance_within(x, running_mean, running_var, weight, bias, momentum=0.1, eps=1e-5):
    """You take the mean of the ranks' variances. Each of them is measured from its own rank's mean, so how
    far the ranks' means lie apart is missing. Subtract the mean of all ranks before you square."""

    def moments(x, add):
        rows = x.numel() / x.size(1)
        own = _over_channels(_summed(x) / rows if rows else _summed(x), x)
        squares = _summed((x - own).square())
        sums = add(torch.cat((_summed(x), squares, x.new_tensor([rows]))))
        return sums[-1].detach(), *(sums[:-1] / sums[-1].detach()).chunk(2)

    return _mistaken(x, running_mean, running_var, weight, bias, momentum, eps, moments=moments)


@variance_within.variant
def weighs_variances(x, running_mean, running_var, weight, bias, momentum=0.1, eps=1e-5):
    rows = x[:, 0].numel()
    flat = x.movedim(1, 0).flatten(1)
    var, mean = torch.var_mean(flat, 1, correction=0) if rows else (flat.sum(1), flat.sum(1))
    sums = _Sum.apply(torch.stack((mean * rows, var * rows, torch.full_like(mean, rows))))
    mean, var = sums[0] / sums[2], sums[1] / sums[2]
    _keep(running_mean, running_var, mean, var, sums[2], momentum)
    return _apply(x, mean, var, weight, bias, eps)


@variance_within.form
def mean_of_variances(x, running_mean, running_var, weight, bias, momentum=0.1, eps=1e-5):
    def moments(x, add):
        own = x.var([dim for dim in range(x.dim()) if dim != 1], correction=0)
        sums = add(torch.cat((_summed(x), x.new_tensor([x.numel() / x.size(1)]))))
        return sums[-1].detach(), sums[:-1] / sums[-1].detach(), add(own) / dist.get_world_size()

    return _mistaken(x, running_mean, running_var, weight, bias, momentum, eps, moments=moments)


@variance_within.form
def averages_both(x, running_mean, running_var, weight, bias, momentum=0.1, eps=1e-5):
    def moments(x, add):
        dims, ranks = [0, *range(2, x.dim())], dist.get_world_size()
        mean, var = add(torch.stack((x.mean(dims), x.var(dims, correction=0)))) / ranks
        return ranks * x.numel() / x.size(1), mean, var

    return _mistaken(x, running_mean, running_var, weight, bias, momentum, eps, moments=moments)


@exercise.mistake
def no_derivative(x, running_mean, running_var, weight, bias, momentum=0.1, eps=1e-5):
    """The gradient of `x` lacks what goes through the statistics to the outputs of the other ranks.
    `dist.all_reduce` writes the sum into your tensor, and autograd does not notice: in backward the sum of
    all ranks counts as this rank's own part. The gradients have to be added up over the ranks as well."""
    return _mistaken(x, running_mean, running_var, weight, bias, momentum, eps, add=_without_a_derivative)


@no_derivative.variant
def identity_in_backward(x, running_mean, running_var, weight, bias, momentum=0.1, eps=1e-5):
    class Sum(torch.autograd.Function):
        @staticmethod
        def forward(ctx, part):
            return _without_a_derivative(part.clone())

        @staticmethod
        def backward(ctx, grad):
            return grad

    mean, count = Sum.apply(torch.stack((_summed(x), _summed(torch.ones_like(x)))))
    mean = mean / count
    centred = x - _over_channels(mean, x)
    var = Sum.apply(_summed(centred * centred)) / count
    _keep(running_mean, running_var, mean, var, count, momentum)
    return _apply(x, mean, var, weight, bias, eps)


@exercise.mistake
def constant_statistics(x, running_mean, running_var, weight, bias, momentum=0.1, eps=1e-5):
    """In your backward mean and variance are constants. They depend on `x`, so part of the gradient goes
    through them: to this rank's outputs and to those of all others."""
    with torch.no_grad():
        count, mean, var = _moments(x, _Sum.apply)
    _keep(running_mean, running_var, mean, var, count, momentum)
    return _apply(x, mean, var, weight, bias, eps)


@constant_statistics.variant
def detaches(x, running_mean, running_var, weight, bias, momentum=0.1, eps=1e-5):
    sums = torch.cat((_summed(x), _summed(torch.ones_like(x))[:1])).detach()
    dist.all_reduce(sums)
    mean = sums[:-1] / sums[-1]
    squares = _summed((x.detach() - _over_channels(mean, x)) ** 2)
    dist.all_reduce(squares)
    _keep(running_mean, running_var, mean, squares / sums[-1], sums[-1], momentum)
    normal = (x - _over_channels(mean, x)) / _over_channels((squares / sums[-1] + eps).sqrt(), x)
    return torch.addcmul(_over_channels(bias, x), normal, _over_channels(weight, x))


@exercise.mistake
def averages_in_backward(x, running_mean, running_var, weight, bias, momentum=0.1, eps=1e-5):
    """In backward you average over the ranks what comes back to a sum. The gradient of a sum over ranks is
    the sum of what all of them send back; `x` gets that of the sum of the losses, not of their mean."""

    class Sum(torch.autograd.Function):
        @staticmethod
        def forward(ctx, part):
            return _without_a_derivative(part.clone())

        @staticmethod
        def backward(ctx, grad):
            return _without_a_derivative(grad.clone()) / dist.get_world_size()

    return _mistaken(x, running_mean, running_var, weight, bias, momentum, eps, add=Sum.apply)


class _ByHand(torch.autograd.Function):
    """What follows the statistics. Backward adds up over the elements by `add`, and divides by `count`."""

    @staticmethod
    def forward(ctx, x, mean, var, weight, bias, eps, add, count):
        inverse = (var + eps).rsqrt()
        normal = (x - _over_channels(mean, x)) * _over_channels(inverse, x)
        ctx.save_for_backward(normal, weight * inverse)
        ctx.add, ctx.count = add, count
        return normal * _over_channels(weight, x) + _over_channels(bias, x)

    @staticmethod
    def backward(ctx, grad):
        normal, scale = ctx.saved_tensors
        own = torch.stack((_summed(grad), _summed(grad * normal)))
        plain, along = (_over_channels(one, grad) for one in ctx.add(own) / ctx.count)
        of_x = _over_channels(scale, grad) * (grad - plain - normal * along)
        return of_x, None, None, own[1], own[0], None, None, None


def _by_hand(x, running_mean, running_var, weight, bias, momentum, eps, *, add=_Sum.apply, own_count=False):
    with torch.no_grad():
        count, mean, var = _moments(x, _Sum.apply)
    _keep(running_mean, running_var, mean, var, count, momentum)
    if own_count:
        count = x.numel() / x.size(1) or 1
    return _ByHand.apply(x, mean, var, weight, bias, eps, add, count)


@exercise.mistake
def backward_of_one_rank(x, running_mean, running_var, weight, bias, momentum=0.1, eps=1e-5):
    """What comes back to mean and variance is that of this rank's outputs alone. They went into the outputs
    of all ranks: in backward two sums for each channel are added up over the ranks as well, and divided by
    the number of the elements of all."""
    return _by_hand(x, running_mean, running_var, weight, bias, momentum, eps, add=lambda own: own)


@backward_of_one_rank.form
def as_one_rank_alone(x, running_mean, running_var, weight, bias, momentum=0.1, eps=1e-5):
    return _by_hand(
        x, running_mean, running_var, weight, bias, momentum, eps, add=lambda own: own, own_count=True
    )


@backward_of_one_rank.form
def through_its_own_statistics(x, running_mean, running_var, weight, bias, momentum=0.1, eps=1e-5):
    with torch.no_grad():
        count, mean, var = _moments(x, _Sum.apply)
    _keep(running_mean, running_var, mean, var, count, momentum)
    if len(x):
        own_var, own_mean = torch.var_mean(x, [0, *range(2, x.dim())], correction=0)
        mean, var = own_mean + (mean - own_mean).detach(), own_var + (var - own_var).detach()
    return _apply(x, mean, var, weight, bias, eps)


@exercise.mistake
def own_count_in_backward(x, running_mean, running_var, weight, bias, momentum=0.1, eps=1e-5):
    """In backward you add up over all ranks, and divide by the number of this rank's own elements. Mean and
    variance were divided by the number of all, so what comes back through them is divided by that too."""
    return _by_hand(x, running_mean, running_var, weight, bias, momentum, eps, own_count=True)


@exercise.mistake
def unbiased_everywhere(x, running_mean, running_var, weight, bias, momentum=0.1, eps=1e-5):
    """You normalise by the unbiased variance, divided by one less than the count. Batch norm normalises by
    the biased one; the unbiased one goes into `running_var` alone."""

    count, mean, var = _moments(x, _Sum.apply)
    _keep(running_mean, running_var, mean, var, count, momentum)
    return _apply(x, mean, var * count / (count - 1), weight, bias, eps)


@exercise.mistake
def momentum_of_the_old(x, running_mean, running_var, weight, bias, momentum=0.1, eps=1e-5):
    """You give the old running statistics the weight `momentum`, and the new ones the rest. In batch norm
    `momentum` is the weight of the new ones."""
    return _mistaken(x, running_mean, running_var, weight, bias, 1 - momentum, eps)


@exercise.mistake
def biased_running_variance(x, running_mean, running_var, weight, bias, momentum=0.1, eps=1e-5):
    """Your `running_var` takes the biased variance. `F.batch_norm` puts the unbiased one there: with the
    number of elements of all ranks, less one, below the line."""
    count, mean, var = _moments(x, _Sum.apply)
    _keep(running_mean, running_var, mean, var * (count - 1) / count, count, momentum)
    return _apply(x, mean, var, weight, bias, eps)


@biased_running_variance.variant
def lerps_both(x, running_mean, running_var, weight, bias, momentum=0.1, eps=1e-5):
    _, mean, var = _moments(x, _Sum.apply)
    for running, new in ((running_mean, mean), (running_var, var)):
        running.copy_((1 - momentum) * running + momentum * new.detach())
    return _apply(x, mean, var, weight, bias, eps)


@exercise.mistake
def running_count_of_one_rank(x, running_mean, running_var, weight, bias, momentum=0.1, eps=1e-5):
    """For `running_var` you make the variance unbiased with the number of this rank's own elements, which is
    not even the same on all ranks. The variance is that of all elements, so count all of them."""
    _, mean, var = _moments(x, _Sum.apply)
    _keep(running_mean, running_var, mean, var, x.numel() / x.size(1), momentum)
    return _apply(x, mean, var, weight, bias, eps)


@exercise.mistake
def graph_in_running(x, running_mean, running_var, weight, bias, momentum=0.1, eps=1e-5):
    """You write mean and variance into the running statistics together with their graph. It would grow from
    batch to batch. Update them under `torch.no_grad()`."""
    count, mean, var = _moments(x, _Sum.apply)
    running_mean.mul_(1 - momentum).add_(momentum * mean)
    running_var.mul_(1 - momentum).add_(momentum * var * count / (count - 1))
    return _apply(x, mean, var, weight, bias, eps)


@exercise.mistake
def new_running_tensors(x, running_mean, running_var, weight, bias, momentum=0.1, eps=1e-5):
    """The running statistics are what they were. `running_mean = ...` gives the name inside your function
    another tensor; the caller's is changed by operators that work in place."""
    count, mean, var = _moments(x, _Sum.apply)
    running_mean = (1 - momentum) * running_mean + momentum * mean.detach()
    running_var = (1 - momentum) * running_var + momentum * (var * count / (count - 1)).detach()
    return _apply(x, mean, var, weight, bias, eps)


@exercise.mistake
def counts_its_own(x, running_mean, running_var, weight, bias, momentum=0.1, eps=1e-5):
    """The sums are those of all ranks, the count is this rank's own times the number of ranks. Where ranks
    have unequally many rows, the count has to be added up as well."""

    def moments(x, add):
        count = x.numel() / x.size(1) * dist.get_world_size() or 1
        mean = add(_summed(x)) / count
        return count, mean, add(_summed((x - _over_channels(mean, x)).square())) / count

    return _mistaken(x, running_mean, running_var, weight, bias, momentum, eps, moments=moments)


@counts_its_own.form
def divides_by_its_own(x, running_mean, running_var, weight, bias, momentum=0.1, eps=1e-5):
    def moments(x, add):
        count = x.numel() / x.size(1)
        mean = add(_summed(x)) / count
        return count, mean, add(_summed((x - _over_channels(mean, x)).square())) / count

    return _mistaken(x, running_mean, running_var, weight, bias, momentum, eps, moments=moments)


@exercise.mistake
def counts_rows(x, running_mean, running_var, weight, bias, momentum=0.1, eps=1e-5):
    """You count rows. In an image every place belongs to the channel as well: a channel has as many elements
    as `x` has, divided by the number of channels."""

    def moments(x, add):
        sums = add(torch.cat((_summed(x), x.new_tensor([float(len(x))]))))
        count, mean = sums[-1].detach(), sums[:-1] / sums[-1].detach()
        return count, mean, add(_summed((x - _over_channels(mean, x)).square())) / count

    return _mistaken(x, running_mean, running_var, weight, bias, momentum, eps, moments=moments)


@exercise.mistake
def cancels(x, running_mean, running_var, weight, bias, momentum=0.1, eps=1e-5):
    """You compute the variance as the mean of the squares less the square of the mean. Where the mean is
    large both are nearly equal, and what is left is rounding. Subtract the mean of all ranks first, then
    square."""

    def moments(x, add):
        sums = add(torch.cat((_summed(x), _summed(x.square()), x.new_tensor([x.numel() / x.size(1)]))))
        mean, squares = (sums[:-1] / sums[-1]).chunk(2)
        return sums[-1].detach(), mean, squares - mean.square()

    return _mistaken(x, running_mean, running_var, weight, bias, momentum, eps, moments=moments)


@cancels.variant
def two_moments(x, running_mean, running_var, weight, bias, momentum=0.1, eps=1e-5):
    flat = x.transpose(0, 1).reshape(x.size(1), -1)
    sums = _Sum.apply(torch.stack((flat.sum(1), (flat**2).sum(1), torch.ones_like(flat).sum(1))))
    mean = sums[0] / sums[2]
    var = sums[1] / sums[2] - mean**2
    _keep(running_mean, running_var, mean, var, sums[2], momentum)
    return _apply(x, mean, var, weight, bias, eps)


@exercise.mistake
def sends_the_batch(x, running_mean, running_var, weight, bias, momentum=0.1, eps=1e-5):
    """You send the elements of `x` themselves to the other ranks. For each channel a sum, a sum of squares
    and a count are enough, however many rows there are."""
    sizes = [torch.zeros(1, device=x.device) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, torch.full((1,), float(len(x)), device=x.device))
    sizes = [int(size) for size in sizes]
    before = sum(sizes[: dist.get_rank()])
    place = x.new_zeros(sum(sizes), *x.shape[1:])
    whole = _Sum.apply(torch.cat((place[:before], x, place[before + len(x) :])))
    result = F.batch_norm(whole, running_mean, running_var, weight, bias, True, momentum, eps)
    return result[before : before + len(x)]


@exercise.mistake
def a_collective_for_each(x, running_mean, running_var, weight, bias, momentum=0.1, eps=1e-5):
    """You take a collective for each of the things that you add up. What is known at the same time can travel
    in one tensor, and each collective is a time of waiting."""

    def moments(x, add):
        count = add(x.new_tensor(x.numel() / x.size(1))).detach()
        mean = add(_summed(x)) / count
        return count, mean, add(_summed((x - _over_channels(mean, x)).square())) / count

    return _mistaken(x, running_mean, running_var, weight, bias, momentum, eps, moments=moments)


@exercise.mistake
def sums_parameters_too(x, running_mean, running_var, weight, bias, momentum=0.1, eps=1e-5):
    """The gradients of `weight` and `bias` are added up over the ranks already. All other gradients of a
    model are shares of the ranks, and are averaged later, all in one way: these would count once for every
    rank."""

    class Everywhere(torch.autograd.Function):
        @staticmethod
        def forward(ctx, one):
            return one.clone()

        @staticmethod
        def backward(ctx, grad):
            return _without_a_derivative(grad.clone())

    weight, bias = Everywhere.apply(weight), Everywhere.apply(bias)
    return _mistaken(x, running_mean, running_var, weight, bias, momentum, eps)


@exercise.mistake
def leaves_without_rows(x, running_mean, running_var, weight, bias, momentum=0.1, eps=1e-5):
    """A rank without rows returns before the collectives, and the others wait for it for ever. It takes part
    in all of them, in backward too, with sums that are zero."""
    if x.numel() == 0:
        return x * weight.sum()
    return _mistaken(x, running_mean, running_var, weight, bias, momentum, eps)
