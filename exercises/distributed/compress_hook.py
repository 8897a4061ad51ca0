"""A quarter of the bytes, and no error that adds up

`DistributedDataParallel` hands each bucket of gradients to a *communication hook*, if one is registered, and
takes what its future brings for the average over the ranks. Write a hook that sends one byte for each
element. Round the gradients of this rank to the whole numbers from -127 to 127, in units of a *scale*: a
127th of the largest magnitude, so that rounding takes away at most half a unit. Each rank has its own scale,
one for the bucket or one for each parameter. Return a future of the average of what the ranks have sent,
in the shape and dtype of `bucket.buffer()`. A rank brings at most one byte for each element and 8 for each
parameter; what it receives from others does not count.

What rounding takes away is not lost: it is added to the same elements in the next backward, before scale and
rounding (*error feedback*). So the sum of the averages over many steps is off by no more than the last step
is. `state` is a dict that belongs to this hook on this rank, empty at first, for you to fill.

`bucket.parameters()` and `bucket.gradients()` are lists in one order, that of the buffer, where each gradient
takes up `numel()` elements. After the first backward the model sorts the parameters anew, into other buckets
and another order. The hook does not wait: it returns when its messages are on the way. Gradients may be zero
everywhere. Where a gradient holds NaN on some rank, the average of that gradient holds NaN on every rank.
torch's own hooks send two bytes for each element, which is not enough here.

With `[127., 0.6]` on rank 0 and `[0., -254.]` on rank 1 the scales are 1 and 2, and the average is
`[63.5, -126.5]`; rank 0 keeps `[0., -0.4]`."""

import contextlib
import threading
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from course_utils import expect, measure
from course_utils.exercise import Exercise

exercise = Exercise(
    minutes=45,
    hints=[
        "The whole numbers of two ranks are in different units: adding them up means nothing, and eight bits "
        "would not hold the sum. What does a rank need from another one to know the gradients it meant?",
        "`dist.all_gather` with `async_op=True` gives a work, and its `get_future()` one that is done when "
        "everything has arrived. `then` takes a function that runs at that time; what it returns is what the "
        "new future brings. `torch.futures.collect_all` makes one future of several.",
        "The residual is what you wanted to send, less what your own numbers stand for. Cut it into pieces "
        "along `bucket.parameters()`, and keep each piece under its parameter. Beside all zeros a scale must "
        "not be zero.",
    ],
)


@exercise.starter
def compress_hook(state: dict, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """What `DistributedDataParallel` calls for each bucket: a future of the average over the ranks"""
    raise NotImplementedError


class _Run:
    """A model with the hook on this rank, and what came of it. The parameters stay as they are; the gradients
    of several backwards are added up here."""

    def __init__(self, answer, rank, device, net, *, dtype=torch.float32):
        self.model = DistributedDataParallel(net.to(device, dtype))
        self.rank, self.answer = rank, answer
        self.futures, self.buffers = [], []
        self.model.register_comm_hook({}, self._hook)
        self.names, self.parameters = zip(*self.model.module.named_parameters(), strict=True)
        self.sums = [torch.zeros_like(p, dtype=torch.float64) for p in self.parameters]
        self.exact = [torch.zeros_like(p, dtype=torch.float64) for p in self.parameters]
        self.unit, self.backwards, self.code = 0.0, 0, []

    def _hook(self, state, bucket):
        buffer = bucket.buffer()
        self.buffers.append((tuple(buffer.shape), buffer.dtype))
        self.futures.append(self.answer(state, bucket))
        return self.futures[-1]

    def backward(self, values):
        """One forward and backward; gives the calls of this rank. `values`: the inputs of all ranks."""
        self.backwards += 1
        dtype = self.parameters[0].dtype
        self.code = [
            f"net = {_code(self.model.module)}" + ("" if dtype == torch.float32 else f".to({dtype})"),
            "model = DistributedDataParallel(net)",
            "model.register_comm_hook({}, compress_hook)",
            f"x = torch.tensor({values[self.rank]}, dtype={dtype})".replace("nan", "torch.nan")
            + f"  # rank {self.rank}",
            "model(x).sum().backward()" + (f"  # number {self.backwards}" if self.backwards > 1 else ""),
        ]
        inputs = [torch.tensor(of_rank, dtype=dtype, device=self.parameters[0].device) for of_rank in values]
        self.model.zero_grad()
        self.futures.clear()
        self.buffers.clear()
        total = self.model(inputs[self.rank]).sum()
        with expect.situation(*self.code), measure.traffic() as traffic:
            total.backward()
        for kept, p in zip(self.sums, self.parameters, strict=True):
            kept += p.grad
        self._add_exact(inputs)
        return traffic

    def _add_exact(self, inputs):
        """The average that one process computes; the unit: the mean of those of the ranks, at most. A rank
        rounds its gradients and half a unit from before."""
        largest = []
        for x in inputs:
            local = torch.autograd.grad(self.model.module(x).sum(), self.parameters)
            largest.append(max(g.abs().max().item() for g in local))
            for exact, g in zip(self.exact, local, strict=True):
                exact += g.double() / len(inputs)
        self.unit = (sum(largest) / len(largest) + 0.51 * self.unit) / 127

    def expect_close(self):
        """What has arrived is off by half a unit of the last backward, however many there were."""
        what, over = "the gradient of", ""
        if self.backwards > 1:
            what, over = "the sum of the gradients of", f" over {self.backwards} backwards"
        with expect.situation(*self.code):
            for name, total, exact in zip(self.names, self.sums, self.exact, strict=True):
                allowed = 0.51 * self.unit + 1e-6 * self.backwards
                expect.equal(total, exact, what=f"{what} `{name}`{over}", rtol=0, atol=allowed)


def _code(net):
    if isinstance(net, nn.Sequential):
        return f"nn.Sequential({', '.join(_code(layer) for layer in net)})"
    return f"nn.Linear({net.in_features}, {net.out_features}{'' if net.bias is not None else ', bias=False'})"


_ONE = [[[127.0, 0.6]], [[0.0, -254.0]]]
# Four parameters in one bucket; the ranks' gradients are far apart.
_SMALL_AND_LARGE = [[[0.03, -0.05, 0.02]], [[8.0, 3.0, -5.0]], [[1.0, -0.7, 0.4]]]


def _two_layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5))


@exercise.check(ranks=2)
def one_backward(compress_hook, rank, device):
    """The average of what both ranks sent, each in its own unit"""
    run = _Run(compress_hook, rank, device, nn.Linear(2, 1, bias=False))
    run.backward(_ONE)
    with expect.situation(*run.code):
        wanted = torch.tensor([[63.5, -126.5]], device=device)
        expect.equal(
            run.model.module.weight.grad, wanted, what="the gradient of `weight`", rtol=1e-5, atol=1e-4
        )


@exercise.check(ranks=3)
def three_ranks(compress_hook, rank, device):
    """Three ranks with small, large and middling gradients: off by half a unit at most"""
    run = _Run(compress_hook, rank, device, _two_layers())
    run.backward(_SMALL_AND_LARGE)
    run.expect_close()


@exercise.check(ranks=2)
def bytes_sent(compress_hook, rank, world_size, device):
    """One byte for each element"""
    net = nn.Linear(4, 100)
    run = _Run(compress_hook, rank, device, net)
    traffic = run.backward([[[0.5, 1.5, -2.5, 3.5]], [[7.5, -1.5, 4.5, 0.5]]])
    number = sum(p.numel() for p in net.parameters())
    # What is received does not count. Of `world_size` ranks that see a broadcast, one brings it.
    brought = traffic.bytes(backward=True) - traffic.bytes("recv", backward=True)
    brought -= traffic.bytes("broadcast", backward=True) * (world_size - 1) // world_size
    with expect.situation(*run.code):
        expect.at_most(brought, number + 16, f"for {number:,} elements, this rank brings", unit="bytes")
    run.expect_close()


@exercise.check(ranks=2)
def small_after_large(compress_hook, rank, device):
    """What a large gradient loses is more than the small ones after it, and arrives with them"""
    run = _Run(compress_hook, rank, device, nn.Linear(2, 1, bias=False))
    for first in ([100.0, 0.3], [0.1, 0.04], [0.1, 0.04]):
        run.backward([[first], [[0.5, 0.0]]])
    run.expect_close()


@exercise.check(ranks=2)
def eight_backwards(compress_hook, rank, device):
    """Eight backwards: the sum is off by no more than one of them"""
    run = _Run(compress_hook, rank, device, nn.Linear(5, 1, bias=False))
    values = [[[0.1, -9.7, 0.33, 4.45, 2.0]], [[0.02, 0.5, 0.61, -0.3, 0.007]]]
    for _ in range(8):
        run.backward(values)
    run.expect_close()


@exercise.check(ranks=2)
def regrouped(compress_hook, rank, device):
    """What was lost in the first backward reaches its own elements, in buckets of another order"""
    run = _Run(compress_hook, rank, device, _two_layers())
    for _ in range(4):
        run.backward(_SMALL_AND_LARGE[1:])
        run.expect_close()


@exercise.check(ranks=2)
def zeros(compress_hook, rank, device):
    """Gradients that are zero everywhere, and others after them"""
    run = _Run(compress_hook, rank, device, nn.Linear(3, 2, bias=False))
    for values in ([0.0, 0.0, 0.0], [0.3, 0.2, 0.0]):
        run.backward([[values], [[0.0, 0.0, 0.0]]])
        run.expect_close()


@exercise.check(ranks=2)
def not_a_number(compress_hook, rank, device):
    """A NaN in the gradients of one rank is in the average, on both"""
    run = _Run(compress_hook, rank, device, nn.Linear(2, 1, bias=False))
    run.backward([[[0.5, -2.0]], [[torch.nan, 1.0]]])
    with expect.situation(*run.code):
        expect.true(
            bool(run.model.module.weight.grad.isnan().any()),
            "the gradient of `weight` holds no NaN; that of rank 1 held one before it was sent",
            "expected: it does, so that nobody trains on without having noticed",
        )


@exercise.check(ranks=2)
def double_precision(compress_hook, rank, device):
    """The future brings a tensor like the buffer, of single and of double precision"""
    for dtype in (torch.float32, torch.float64) if device.type != "mps" else (torch.float32,):
        run = _Run(compress_hook, rank, device, nn.Linear(2, 3), dtype=dtype)
        run.backward([[[1.0, 0.25]], [[3.0, -2.0]]])
        came = [future.value() for future in run.futures]
        with expect.situation(*run.code):
            for found, (shape, kind) in zip(came, run.buffers, strict=True):
                expect.a_tensor(found, what="what the future brings")
                expect.equal(found.shape, shape, what="the shape of what the future brings")
                expect.equal(found.dtype, kind, what="the dtype of what the future brings")
        run.expect_close()


@exercise.check(ranks=2)
def does_not_wait(compress_hook, rank, device):
    """The hook returns while the other rank has not begun yet"""
    store = dist.distributed_c10d._get_default_store()

    def late(state, bucket):
        if rank == 1:
            # It begins when rank 0 has returned, or waits: nothing can have arrived before.
            while not (store.check(["returned"]) or store.check(["waits"])):
                time.sleep(0.001)
            return compress_hook(state, bucket)
        try:
            with _told_of_waits(lambda: store.set("waits", "")):
                return compress_hook(state, bucket)
        finally:  # also where it raises: rank 1 would wait in vain
            store.set("returned", "")

    run = _Run(late, rank, device, nn.Linear(2, 1, bias=False))
    run.backward(_ONE)
    with expect.situation(*run.code):
        expect.true(
            not store.check(["waits"]),
            "the hook waits: on rank 0 it had not returned when rank 1 had not called it yet",
            "expected: it returns a future, and what is left to do is done when everything has arrived",
        )


@contextlib.contextmanager
def _told_of_waits(tell):
    """Calls `tell` before this thread waits for a message or a future."""
    with contextlib.ExitStack() as stack:
        for kind in (dist.Work, torch._C.Future):
            stack.callback(setattr, kind, "wait", kind.wait)
            kind.wait = _telling(kind.wait, tell, threading.get_ident())
        yield


def _telling(wait, tell, thread):
    def told(self, *args, **kwargs):
        if threading.get_ident() == thread:
            tell()
        return wait(self, *args, **kwargs)

    return told


# --- the mistakes -----------------------------------------------------------------------------------------


def _wanted(state, bucket):
    """The gradients and what was lost of them before."""
    buffer = bucket.buffer()
    return buffer + torch.cat([state.get(p, buffer.new_zeros(p.numel())) for p in bucket.parameters()])


def _pairs(bucket):
    return zip(bucket.parameters(), bucket.gradients(), strict=True)


def _rounded(wanted):
    scale = (wanted.abs().max() / 127).clamp(min=torch.finfo(wanted.dtype).tiny).reshape(1)
    return torch.round(wanted / scale).to(torch.int8), scale


def _keep(state, bucket, lost):
    parameters = bucket.parameters()
    state.update(zip(parameters, lost.split([p.numel() for p in parameters]), strict=True))


def _gather(*mine):
    """A future of the lists of what the ranks bring, one list for each tensor."""
    lists = [[torch.empty_like(t) for _ in range(dist.get_world_size())] for t in mine]
    futures = [dist.all_gather(a, t, async_op=True).get_future() for a, t in zip(lists, mine, strict=True)]
    return torch.futures.collect_all(futures).then(lambda _: lists)


def _mean(future):
    levels, scales = future.value()
    return sum(a * b for a, b in zip(levels, scales, strict=True)) / len(levels)


def _right(state, bucket, *, keep=_keep, mean=_mean, rounded=_rounded):
    wanted = _wanted(state, bucket)
    numbers, scale = rounded(wanted)
    keep(state, bucket, wanted - numbers * scale)
    return _gather(numbers, scale).then(mean)


@exercise.mistake
def forgets_the_residual(state, bucket):
    """What rounding takes away is lost: in every backward anew, and in the same direction where the gradient
    stays the same. Keep it, and add it to the next gradient of the same elements before rounding."""
    return _right(state, bucket, keep=lambda *_: None)


@forgets_the_residual.variant
def stateless(state, bucket):
    g = bucket.buffer()
    top = torch.clamp(g.abs().amax(), min=1e-38)
    q = (g * (127 / top)).round().char()
    everyone = [torch.zeros_like(q) for _ in range(dist.get_world_size())]
    tops = [torch.zeros_like(top) for _ in everyone]
    futures = [
        dist.all_gather(everyone, q, async_op=True).get_future(),
        dist.all_gather(tops, top, async_op=True).get_future(),
    ]

    def average(_):
        parts = torch.stack([a.to(g) * b for a, b in zip(everyone, tops, strict=True)])
        return parts.mean(0) / 127

    return torch.futures.collect_all(futures).then(average)


@exercise.mistake
def residual_with_the_wrong_sign(state, bucket):
    """You keep the residual with the wrong sign: what rounding took away is taken away once more. It is what
    you wanted to send, less what your numbers stand for, and it is added."""
    return _right(state, bucket, keep=lambda *kept: _keep(*kept[:2], -kept[2]))


@residual_with_the_wrong_sign.variant
def subtracts_the_residual(state, bucket):
    wanted = torch.cat([g.flatten() - state.get(p, 0) for p, g in _pairs(bucket)])
    numbers, scale = _rounded(wanted)
    _keep(state, bucket, wanted - scale * numbers)
    return _gather(numbers, scale).then(_mean)


@exercise.mistake
def scale_without_the_residual(state, bucket):
    """You take the scale from the gradients before the residual is added. What was lost of a large gradient
    may be more than all that follow it: in units of these it does not fit into 127. Add first."""
    top = bucket.buffer().abs().max()

    def rounded(wanted):
        scale = (top / 127).clamp(min=torch.finfo(wanted.dtype).tiny).reshape(1)
        return torch.round(wanted / scale).clamp(-127, 127).to(torch.int8), scale

    return _right(state, bucket, rounded=rounded)


@scale_without_the_residual.form
def without_a_limit(state, bucket):
    top = bucket.buffer().abs().max()

    def rounded(wanted):
        scale = (top / 127).clamp(min=torch.finfo(wanted.dtype).tiny).reshape(1)
        return torch.round(wanted / scale).to(torch.int32).to(torch.int8), scale

    return _right(state, bucket, rounded=rounded)


@exercise.mistake
def own_scale_for_all(state, bucket):
    """You read the numbers of all ranks in the unit of this one. A rank with small gradients reads those of
    the others too small, and the ranks no longer agree: every rank's scale has to travel with its numbers."""
    wanted = _wanted(state, bucket)
    numbers, scale = _rounded(wanted)
    _keep(state, bucket, wanted - numbers * scale)
    return _gather(numbers).then(lambda f: sum(a * scale for a in f.value()[0]) / len(f.value()[0]))


@own_scale_for_all.form
def mean_of_the_scales(state, bucket):
    def mean(future):
        levels, scales = future.value()
        return sum(a * (sum(scales) / len(scales)) for a in levels) / len(levels)

    return _right(state, bucket, mean=mean)


@exercise.mistake
def adds_the_integers(state, bucket):
    """You add up the whole numbers of the ranks. They are in different units; and in `int8`, where 100 + 100
    is -56, there is no room for the sum. Gather them, and add up what they stand for."""
    wanted = _wanted(state, bucket)
    numbers, scale = _rounded(wanted)
    _keep(state, bucket, wanted - numbers * scale)
    future = dist.all_reduce(numbers, async_op=True).get_future()
    return future.then(lambda f: f.value()[0] * scale / dist.get_world_size())


@exercise.mistake
def does_not_divide(state, bucket):
    """You return the sum. With a hook of your own the model does not divide by the number of ranks any more:
    it takes what the future brings."""
    return _right(state, bucket, mean=lambda f: sum(a * b for a, b in zip(*f.value(), strict=True)))


@does_not_divide.variant
def adds_up(state, bucket):
    wanted = _wanted(state, bucket)
    numbers, scale = _rounded(wanted)
    _keep(state, bucket, wanted - scale * numbers)
    future = _gather(numbers, scale)
    return future.then(lambda f: torch.stack([b * a for a, b in zip(*f.value(), strict=True)]).sum(0))


@exercise.mistake
def residual_by_index(state, bucket):
    """You keep the residual under the bucket's number, or as one tensor. After the first backward the model
    sorts the parameters into other buckets and another order, and what was lost reaches other elements than
    those that lost it: keep it by parameter."""
    before = state.get(bucket.index())
    fits = before is not None and before.shape == bucket.buffer().shape
    wanted = bucket.buffer() + before if fits else bucket.buffer().clone()
    numbers, scale = _rounded(wanted)
    state[bucket.index()] = wanted - numbers * scale
    return _gather(numbers, scale).then(_mean)


@residual_by_index.variant
def one_residual(state, bucket):
    wanted = bucket.buffer() + state.get("residual", 0)
    numbers, scale = _rounded(wanted)
    state["residual"] = wanted.sub(numbers * scale)
    return _gather(numbers, scale).then(_mean)


@exercise.mistake
def residual_of_the_average(state, bucket):
    """You keep what is missing from the average. Where the ranks differ, that is far more than rounding took
    away: each rank then sends, again and again, what the others do not have. A rank keeps what its own
    numbers do not stand for."""
    wanted = _wanted(state, bucket)
    numbers, scale = _rounded(wanted)

    def mean(future):
        average = _mean(future)
        _keep(state, bucket, wanted - average)
        return average

    return _gather(numbers, scale).then(mean)


@exercise.mistake
def waits(state, bucket):
    """You wait in the hook until everything has arrived, and backward stands still for that long. Return a
    future: what is left to do belongs into the function that `then` takes."""
    future = _right(state, bucket)
    future.wait()
    return future


@waits.variant
def makes_a_future_of_what_it_has(state, bucket):
    wanted = _wanted(state, bucket)
    numbers, scale = _rounded(wanted)
    _keep(state, bucket, wanted - numbers * scale)
    all_numbers = [torch.empty_like(numbers) for _ in range(dist.get_world_size())]
    all_scales = [torch.empty_like(scale) for _ in all_numbers]
    dist.all_gather(all_numbers, numbers)
    dist.all_gather(all_scales, scale)
    future = torch.futures.Future()
    future.set_result(sum(a * b for a, b in zip(all_numbers, all_scales, strict=True)) / len(all_scales))
    return future


@exercise.mistake
def truncates(state, bucket):
    """You cut the fraction off, as `to(torch.int8)` alone does: 0.9 becomes 0, and up to a whole unit is
    taken away, always towards zero. Round to the nearest."""

    def rounded(wanted):
        _, scale = _rounded(wanted)
        # (The largest is a whole number of units, also where the division says a little less.)
        return (wanted / scale * (1 + 1e-6)).to(torch.int8), scale

    return _right(state, bucket, rounded=rounded)


@exercise.mistake
def scale_of_the_maximum(state, bucket):
    """Your scale comes from the largest gradient, and the largest in magnitude may be negative: its number is
    below -127 then, and `int8` makes something else of it. Take the absolute values first."""

    def rounded(wanted):
        scale = (wanted.max() / 127).clamp(min=1e-12).reshape(1)
        return torch.round(wanted / scale).to(torch.int32).to(torch.int8), scale

    return _right(state, bucket, rounded=rounded)


@exercise.mistake
def one_too_many(state, bucket):
    """Your largest number is 128, and `int8` ends at 127: 128 becomes -128. The scale is a 127th of the
    largest magnitude."""

    def rounded(wanted):
        scale = (wanted.abs().max() / 128).clamp(min=torch.finfo(wanted.dtype).tiny).reshape(1)
        return torch.round(wanted / scale).to(torch.int32).to(torch.int8), scale

    return _right(state, bucket, rounded=rounded)


@exercise.mistake
def divides_by_zero(state, bucket):
    """Where all gradients are zero, so is your scale, and zero divided by zero is not a number. It stays in
    the residual from then on."""

    def rounded(wanted):
        scale = (wanted.abs().max() / 127).reshape(1)
        numbers = torch.round(wanted / scale)
        # (What `int8` makes of a number that is none differs from machine to machine.)
        return numbers.nan_to_num(0.0).to(torch.int8), scale + 0 * numbers[:1]

    return _right(state, bucket, rounded=rounded)


@exercise.mistake
def hides_nan(state, bucket):
    """A NaN among the gradients is sent as a whole number, for `int8` has no NaN, and the scale beside it is
    an ordinary number: the other ranks hear nothing of it. A comparison with NaN is false, and
    `max(1e-12, nan)` is 1e-12. Let the scale be NaN then."""

    def rounded(wanted):
        scale = wanted.abs().max().reshape(1) / 127
        scale = torch.where(scale > 0, scale, 1)
        return torch.round(wanted / scale).to(torch.int8), scale

    return _right(state, bucket, rounded=rounded)


@hides_nan.variant
def python_takes_the_larger(state, bucket):
    wanted = _wanted(state, bucket)
    top = max(1e-30, wanted.abs().max().item())
    numbers = (wanted / top * 127).round().nan_to_num(0).char()
    scale = wanted.new_full((1,), top / 127)
    _keep(state, bucket, wanted - numbers * scale)
    return _gather(numbers, scale).then(_mean)


@exercise.mistake
def half_precision(state, bucket):
    """You send two bytes for each element, as torch's `fp16_compress_hook` does. One byte is enough, with a
    scale beside it and a residual that is kept."""
    world = dist.get_world_size()
    future = dist.all_reduce(bucket.buffer().div(world).half(), async_op=True).get_future()
    dtype = bucket.buffer().dtype
    return future.then(lambda f: f.value()[0].to(dtype))


@half_precision.form
def in_bfloat16(state, bucket):
    world, dtype = dist.get_world_size(), bucket.buffer().dtype
    future = dist.all_reduce(bucket.buffer().div(world).bfloat16(), async_op=True).get_future()
    return future.then(lambda f: f.value()[0].to(dtype))


@exercise.mistake
def sends_floats(state, bucket):
    """You round, and send numbers of four bytes all the same. The tensor that travels has to be one of
    `int8`."""

    def rounded(wanted):
        numbers, scale = _rounded(wanted)
        return numbers.to(wanted.dtype), scale

    return _right(state, bucket, rounded=rounded)


@sends_floats.form
def unpacks_before_sending(state, bucket):
    wanted = _wanted(state, bucket)
    numbers, scale = _rounded(wanted)
    own = numbers * scale
    _keep(state, bucket, wanted - own)
    future = dist.all_reduce(own, async_op=True).get_future()
    return future.then(lambda f: f.value()[0] / dist.get_world_size())


@exercise.mistake
def always_single_precision(state, bucket):
    """What your future brings is of single precision, also where the bucket is of double. DDP converts it
    without a word, and the digits are lost: keep the dtype of `bucket.buffer()`."""
    return _right(state, bucket, mean=lambda f: _mean(f).float())
