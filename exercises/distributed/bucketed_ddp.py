"""Buckets that leave while backward runs

`BucketedDDP(module, bucket_bytes)` averages gradients over all ranks as `MiniDDP` does, in few messages that
leave early. All ranks hold equal parameters already, and in each backward every parameter that requires a
gradient gets one, on every rank.

- Buckets are made at construction. Take the parameters that require a gradient, each once, in the *reverse*
  order of `module.parameters()`: backward reaches the last layers first. A bucket takes the next parameter
  as long as its gradients are together at most `bucket_bytes` bytes; one that does not fit opens the next
  bucket. A parameter with more bytes than that has a bucket of its own.
- For each bucket there is one all-reduce, of all its gradients in one tensor, and nothing else is sent.
- Buckets are launched in their order, on every rank. Each is launched as soon as it can be: its gradients are
  in `.grad`, and the bucket before it is launched. The ranks may get their gradients in different orders.
- A launch does not wait (`async_op=True`). When all are launched, this rank waits for each of them, by
  `wait()` of what the launch returned.
- When `loss.backward()` returns, every `.grad` is the mean over all ranks; a second backward adds its mean to
  the first. `torch.autograd.Variable._execution_engine.queue_callback(f)`, called in a hook, has `f()` called
  when all gradients are there, before `backward()` returns.
- `ddp(...)` calls the module, with any arguments; `ddp.module` is the module.

`torch.nn.parallel.DistributedDataParallel` is the one thing not to use here.

For `nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))` and 16 bytes the buckets are `1.bias 1.weight`, `0.bias`
and `0.weight`, of 12, 8 and 16 bytes.
"""

from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from course_utils import evidence, expect, measure
from course_utils.exercise import Exercise

exercise = Exercise(
    minutes=30,
    hints=[
        "Make the buckets in `__init__`, as lists of parameters, and print them for a small model. What has "
        "to be known of a bucket for a hook to tell that this gradient was the last one missing?",
        "A hook of each parameter counts down in its bucket. Then, from the first bucket that is not "
        "launched yet: while the next one is complete, put its gradients into one flat tensor and launch "
        "that. Keep what the launch returned, with the flat tensor, for later.",
        "The launch of the last bucket queues the callback. There, bucket by bucket: wait, divide, cut the "
        "flat tensor into pieces of `numel()` elements and copy each into its `.grad`. At the end set the "
        "counters back, for the next backward.",
    ],
)


@exercise.starter
class BucketedDDP(nn.Module):
    """Averages gradients over all ranks, bucket by bucket."""

    def __init__(self, module: nn.Module, bucket_bytes: int):
        raise NotImplementedError

    def forward(self, *args, **kwargs):
        raise NotImplementedError


# Buckets for 80 bytes: 3.bias 2.bias 1.bias (40), 1.weight 0.bias (80), 0.weight (48).
_MODEL = """torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
model[2].weight = model[1].weight
model[3].weight.requires_grad_(False)"""
_BUCKETS = ["3.bias", "2.bias", "1.bias"], ["1.weight", "0.bias"], ["0.weight"]
_CALL = "nn.functional.mse_loss(ddp(x), y).backward()"
_LAUNCH = "launch"


def _refused(*args, **kwargs):
    evidence.record("torch's own", True)
    raise RuntimeError("DistributedDataParallel is the one thing not to use here: write hooks of your own")


def _given(BucketedDDP, setup, limit, rank, device, n=2, more=""):
    """The model, this rank's share of a batch of 4 rows for each of `n` ranks, and the wrapper. Every
    gradient that arrives is noted, before a hook of the answer is called."""
    watch = []

    def wrapped(module, bucket_bytes):
        for name, p in module.named_parameters():
            if p.requires_grad:
                p.register_hook(lambda _, name=name: watch[-1].note(name) if watch else None)
        with mock.patch.object(DistributedDataParallel, "__init__", _refused):
            return BucketedDDP(module, bucket_bytes)

    lines = [setup, f"x, y = torch.randn({4 * n}, 3), torch.randn({4 * n}, 2)"]
    if device.type != "cpu":
        lines.append(f"model, x, y = (one.to('{device.type}') for one in (model, x, y))")
    if BucketedDDP is not None:
        lines += [f"x, y = x.chunk({n})[rank], y.chunk({n})[rank]", f"ddp = BucketedDDP(model, {limit})"]
    return expect.given("\n".join([*lines, more]), BucketedDDP=wrapped, rank=rank, watch=watch)


def _one_process(setup, device, n=2):
    """The model and the whole batch, for a single process."""
    with evidence.silent(), expect.situation():
        return _given(None, setup, 0, 0, device, n)


def _backward(t, call=_CALL, *, waited=True):
    """What this rank called in one backward, and in the forward before it. With `waited`, each call was
    waited for."""
    with measure.traffic() as seen:
        t.watch.append(seen)
        t.call(call)
    if not waited:
        return seen
    order = _order(seen)
    left = [i for i in range(len(seen.calls)) if not {"wait", f"wait {i}"} & set(order)]
    evidence.record("not waited for", bool(left))
    expect.true(
        not left,
        f"{len(left)} of {len(seen.calls)} collectives were not waited for when `backward()` returned",
        "expected: each was, by `wait()` of what its launch returned. Until then nobody knows what is in its "
        "tensor",
    )
    return seen


def _order(seen):
    with evidence.silent():  # which wait came first is a matter of how it is written
        return seen.order


def _launches(seen):
    """The gradients that arrived and the launches, in order."""
    order = [text for text in _order(seen) if not text.startswith("wait")]
    return [text if "." in text else _LAUNCH for text in order]


def _early(seen, buckets):
    """What should have come: each bucket launched when it is complete and the one before it is launched."""
    found, there, buckets = [], set(), list(buckets)
    for name in _launches(seen):
        if name != _LAUNCH:
            found.append(name)
            there.add(name)
            while buckets and there.issuperset(buckets[0]):
                found.append(_LAUNCH)
                buckets.pop(0)
    return found


def _expect_early(seen, buckets):
    came, wanted = _launches(seen), _early(seen, buckets)
    evidence.record("order", came)
    expect.true(
        came == wanted,
        f"gradients as they arrive, and launches: {', '.join(came)}",
        f"expected: {', '.join(wanted)}",
        f"the buckets are: {'; '.join(' '.join(bucket) for bucket in buckets)}",
    )


def _expect_gradients(t, oracle, when="after backward"):
    wanted = {name: p.grad for name, p in oracle.model.named_parameters()}
    found = {name: p.grad for name, p in t.model.named_parameters()}
    evidence.record("gradients", found)
    for name, grad in found.items():
        what = f"`.grad` of `{name}` {when}"
        if wanted[name] is None:
            expect.true(grad is None, f"{what} is {expect.show(grad)}", "expected: None")
        else:
            expect.equal(grad, wanted[name], what=what, rtol=1e-4, atol=1e-6)


@exercise.check(ranks=2, deadline=10)
def means(BucketedDDP, rank, device):
    """When backward returns, every gradient is the mean; a second backward adds to it"""
    t, oracle = _given(BucketedDDP, _MODEL, 80, rank, device), _one_process(_MODEL, device)
    for when in ("after backward", "after two backwards"):
        _backward(t)
        F.mse_loss(oracle.model(oracle.x), oracle.y).backward()
        _expect_gradients(t, oracle, when)


@exercise.check(ranks=2, deadline=10)
def one_each(BucketedDDP, rank, device):
    """One all-reduce for each bucket, also for the last one, and nothing else"""
    t = _given(BucketedDDP, _MODEL, 80, rank, device)
    for _ in range(2):
        seen = _backward(t)
        came = [(call.name, call.bytes) for call in seen.calls]
        expect.equal(
            [f"{name} of {size} bytes" for name, size in came],
            [f"all_reduce of {size} bytes" for size in (40, 80, 48)],
            what="what was called",
        )


@exercise.check(ranks=2, deadline=10)
def limits(BucketedDDP, rank, device):
    """Buckets exactly full, larger parameters, one bucket for all, double precision"""
    setup = "model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)){}"
    double = "\nx, y = x.double(), y.double()"
    cases = [
        ("", 32, [32, 12, 36], ""),  # the first two are 8 and 24 bytes
        ("", 20, [8, 24, 12, 36], ""),
        ("", 1000, [80], ""),
        ("", 7, [8, 24, 12, 36], ""),
        (".double()", 84, [64, 24, 72], double),
    ]
    found = []
    for made, limit, wanted, more in cases if device.type != "mps" else cases[:-1]:
        t = _given(BucketedDDP, setup.format(made), limit, rank, device, more=more)
        came = [call.bytes for call in _backward(t, waited=False).calls]
        evidence.record(f"{limit} bytes", came)
        found.append((t, limit, came, wanted))
    for t, limit, came, wanted in found:
        with expect.situation(*t._setup):
            expect.true(
                came == wanted,
                f"bytes of the collectives: {came}, expected {wanted}",
                "the gradients, in the order of the buckets, have "
                f"{[p.numel() * p.element_size() for p in reversed(list(t.model.parameters()))]} bytes, "
                f"a bucket at most {limit}",
            )


@exercise.check(ranks=2, deadline=10)
def early(BucketedDDP, rank, device):
    """Each bucket is launched as soon as its last gradient is there"""
    t = _given(BucketedDDP, _MODEL, 80, rank, device)
    for _ in range(2):
        _expect_early(_backward(t), _BUCKETS)


@exercise.check(ranks=2, deadline=10)
def waits_at_the_end(BucketedDDP, rank, device):
    """Nobody waits before all buckets are launched"""
    t = _given(BucketedDDP, _MODEL, 80, rank, device)
    seen = _backward(t)
    # What is launched together may be seen as one call.
    order = [text for text in _order(seen) if text not in dict(t.model.named_parameters())]
    first = next((i for i, text in enumerate(order) if text.startswith("wait")), len(order))
    later = [text for text in order[first:] if not text.startswith("wait")]
    evidence.record("launched after waiting", len(later))
    expect.true(
        not later,
        f"this rank waited after {first} of {first + len(later)} launches: {', '.join(order)}",
        "expected: it waits when all are launched. Until then backward goes on",
    )


@exercise.check(ranks=2, deadline=10)
def other_orders(BucketedDDP, rank, device):
    """The ranks go through the layers in different orders"""
    setup = """torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
model.forward = lambda x, *, order: model[order[2]](model[order[1]](model[order[0]](x))).tanh()[:, :2]"""
    orders = [0, 1, 2], [2, 1, 0]
    t, oracle = _given(BucketedDDP, setup, 48, rank, device), _one_process(setup, device)
    result = t.call("ddp(x, order=[1, 0, 2])")
    expect.equal(result, t.model(t.x, order=[1, 0, 2]))
    expect.strides(result, (3, 1))
    seen = _backward(t, f"nn.functional.mse_loss(ddp(x, order={orders[rank]}), y).backward()")
    for x, y, order in zip(oracle.x.chunk(2), oracle.y.chunk(2), orders, strict=True):
        (F.mse_loss(oracle.model(x, order=order), y) / 2).backward()
    _expect_gradients(t, oracle)
    _expect_early(seen, [[f"{i}.bias", f"{i}.weight"] for i in (2, 1, 0)])


@exercise.check(ranks=3, deadline=10)
def five_steps(BucketedDDP, rank, device):
    """Three ranks, five steps with momentum: after each all have the parameters of one process"""
    t, oracle = _given(BucketedDDP, _MODEL, 80, rank, device, n=3), _one_process(_MODEL, device, n=3)
    wanted = dict(oracle.model.named_parameters())
    expect.true(t.ddp.module is t.model, "`ddp.module` is another module", "expected: `model` itself")
    optimizers = [
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in (t.model, oracle.model)
    ]
    for k in range(1, 6):
        _backward(t)
        F.mse_loss(oracle.model(oracle.x), oracle.y).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=k % 2 == 0)
        for name, p in t.model.named_parameters():
            what = f"`{name}` after step {k}"
            expect.equal(p.detach(), wanted[name].detach(), what=what, rtol=1e-4, atol=1e-6)


# --- the mistakes -----------------------------------------------------------------------------------------


def _queue(callback):
    torch.autograd.Variable._execution_engine.queue_callback(callback)


class _Right(nn.Module):
    """A right answer with holes, each of which a mistake fills in its way."""

    def __init__(self, module, bucket_bytes):
        super().__init__()
        self.module = module
        self.buckets = self.fill(self.order(module), bucket_bytes)
        for k, bucket in enumerate(self.buckets):
            for p in bucket:
                self.hook(p, k)
        self.begin()

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def order(self, module):
        return [p for p in reversed(list(module.parameters())) if p.requires_grad]

    def size(self, p):
        return p.numel() * p.element_size()

    def fill(self, parameters, limit):
        buckets = [[]]
        for p in parameters:
            if buckets[-1] and sum(map(self.size, buckets[-1])) + self.size(p) > limit:
                buckets.append([])
            buckets[-1].append(p)
        return buckets

    def hook(self, p, k):
        p.register_post_accumulate_grad_hook(lambda p: self.arrived(k))

    def begin(self):
        self.missing = [len(bucket) for bucket in self.buckets]
        self.launched = {}

    def arrived(self, k):
        self.missing[k] -= 1
        while len(self.launched) < len(self.buckets) and not self.missing[len(self.launched)]:
            self.launch(len(self.launched))
        if len(self.launched) == len(self.buckets):
            _queue(self.finish)

    def launch(self, k):
        flat = torch.cat([p.grad.flatten() for p in self.buckets[k]])
        self.launched[k] = flat, dist.all_reduce(flat, async_op=True)

    def finish(self):
        for k, (flat, work) in self.launched.items():
            work.wait()
            self.write(k, flat / dist.get_world_size())
        self.begin()

    def write(self, k, mean):
        for p, part in zip(self.buckets[k], mean.split([p.numel() for p in self.buckets[k]]), strict=True):
            p.grad.copy_(part.view_as(p))


class _Copies(nn.Module):
    """Another right answer, for the variants: a flat tensor for each bucket, filled as gradients arrive."""

    def __init__(self, module, bucket_bytes):
        super().__init__()
        self.add_module("module", module)
        self.limit, self.groups = bucket_bytes, []
        self.divisor = dist.get_world_size()
        for p in self.in_turn([p for p in module.parameters() if p.requires_grad]):
            if not self.groups or not self.takes(self.groups[-1], p):
                self.groups.append([])
            self.groups[-1].append(p)
        self.flats = [group[0].new_empty(sum(map(torch.numel, group))) for group in self.groups]
        self.left = {p: k for k, group in enumerate(self.groups) for p in group}
        for p in list(self.left):
            p.register_post_accumulate_grad_hook(self.note)
        self.there, self.works = set(), []

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def in_turn(self, parameters):
        return parameters[::-1]

    def takes(self, group, p):
        return sum(q.nbytes for q in (*group, p)) <= self.limit

    def note(self, p):
        self.there.add(p)
        for group, flat in list(zip(self.groups, self.flats, strict=True))[len(self.works) :]:
            if not self.there.issuperset(group):
                return
            torch.cat([q.grad.reshape(-1) for q in group], out=flat)
            self.works.append(self.send(flat))
        _queue(self.end)

    def send(self, flat):
        return dist.all_reduce(flat, async_op=True)

    def end(self):
        for work, flat, group in zip(self.works, self.flats, self.groups, strict=True):
            work.wait()
            flat /= self.divisor
            self.read(group, flat)
        self.there, self.works = set(), []

    def read(self, group, flat):
        start = 0
        for p in group:
            p.grad = flat[start : start + p.numel()].reshape(p.shape).clone()
            start += p.numel()


@exercise.mistake
class WaitsAtOnce(_Right):
    """You wait for a bucket before all are launched. Backward stands still meanwhile, and nothing is won
    over sending all at the end: keep what the launch returns, and wait when all are launched."""

    def launch(self, k):
        super().launch(k)
        self.launched[k][1].wait()


@WaitsAtOnce.variant
class DoesNotGoOn(_Copies):
    def send(self, flat):
        work = dist.all_reduce(flat, async_op=True)
        work.get_future()
        work.wait()
        return work


@WaitsAtOnce.variant
class WaitsForTheOneBefore(_Right):
    def launch(self, k):
        for _, work in self.launched.values():
            work.wait()
        super().launch(k)


@exercise.mistake
class NeverWaits(_Right):
    """You read flat tensors without having waited for each of them. A launch returns before anything was
    sent, and what it returns has a `wait()`. That of one bucket says nothing about the others."""

    def finish(self):
        for k, (flat, _) in self.launched.items():
            self.write(k, flat / dist.get_world_size())
        self.begin()


@NeverWaits.variant
class WaitsForTheLast(_Right):
    def finish(self):
        self.launched[len(self.buckets) - 1][1].wait()
        for k, (flat, _) in self.launched.items():
            self.write(k, flat / dist.get_world_size())
        self.begin()


@exercise.mistake
class ForwardOrder(_Right):
    """Your buckets follow the order of `parameters()`. Backward reaches the first layers last, so the first
    bucket is complete when all is over, and all the others wait for it. Reverse the order."""

    def order(self, module):
        return [p for p in module.parameters() if p.requires_grad]


@ForwardOrder.variant
class FromTheFirst(_Copies):
    def in_turn(self, parameters):
        return list(parameters)


@ForwardOrder.form
class ReversesTheBuckets(_Right):
    def fill(self, parameters, limit):
        return super().fill(parameters[::-1], limit)[::-1]


@exercise.mistake
class AllAtTheEnd(_Right):
    """The buckets are launched when backward has computed everything. They are as many as they should be,
    but nothing is on its way while there is still something to compute. A hook can tell when its bucket is
    complete."""

    def arrived(self, k):
        self.missing[k] -= 1
        if not any(self.missing):
            _queue(self.finish)

    def finish(self):
        for k in range(len(self.buckets)):
            self.launch(k)
        super().finish()


@AllAtTheEnd.variant
class SendsInTheCallback(_Copies):
    def note(self, p):
        if not self.there:
            _queue(self.end)
        self.there.add(p)

    def end(self):
        for group, flat in zip(self.groups, self.flats, strict=True):
            torch.cat([q.grad.reshape(-1) for q in group], out=flat)
            self.works.append(self.send(flat))
        super().end()


@exercise.mistake
class FillsAsTheyArrive(_Right):
    """You fill buckets with the gradients as they arrive, and a bucket leaves when the next gradient does not
    fit. It could have left a gradient earlier; and ranks whose gradients come in different orders fill their
    buckets differently, and average what does not belong together. Make the buckets at construction."""

    def fill(self, parameters, limit):
        self.limit, self.number = limit, len(parameters)
        return [parameters]

    def hook(self, p, k):
        p.register_post_accumulate_grad_hook(self.arrived)

    def begin(self):
        self.buckets, self.launched, self.came = [[]], {}, 0

    def arrived(self, p):
        self.came += 1
        bucket = self.buckets[-1]
        if bucket and sum(map(self.size, bucket)) + self.size(p) > self.limit:
            self.launch(len(self.buckets) - 1)
            self.buckets.append([])
        self.buckets[-1].append(p)
        if self.came == self.number:
            self.launch(len(self.buckets) - 1)
            _queue(self.finish)


@exercise.mistake
class LaunchesWhenReady(_Right):
    """A bucket is launched when it is complete, whether the one before it is or not. Collectives have no
    names: the first of one rank meets the first of the other. Where ranks complete their buckets in different
    orders, gradients of different parameters are averaged. Keep to the order of the buckets."""

    def arrived(self, k):
        self.missing[k] -= 1
        if not self.missing[k]:
            self.launch(k)
        if len(self.launched) == len(self.buckets):
            _queue(self.finish)


@LaunchesWhenReady.variant
class LeavesWhenFull(_Copies):
    def note(self, p):
        self.there.add(p)
        k = self.left[p]
        if self.there.issuperset(self.groups[k]):
            torch.cat([q.grad.reshape(-1) for q in self.groups[k]], out=self.flats[k])
            self.works.append(self.send(self.flats[k]))
        if len(self.works) == len(self.groups):
            _queue(self.end)

    def end(self):
        for work in self.works:
            work.wait()
        super().end()


@exercise.mistake
class OneForEachParameter(_Right):
    """You launch a collective for each parameter. Each costs a fixed time however few its bytes are, which is
    why gradients travel in buckets: put those of a bucket into one tensor."""

    def fill(self, parameters, limit):
        return [[p] for p in parameters]


@OneForEachParameter.form
class OneForEachInABucket(_Right):
    def launch(self, k):
        self.launched[k] = [dist.all_reduce(p.grad, async_op=True) for p in self.buckets[k]]

    def finish(self):
        for k, works in self.launched.items():
            for work, p in zip(works, self.buckets[k], strict=True):
                work.wait()
                p.grad /= dist.get_world_size()
        self.begin()


@exercise.mistake
class Sums(_Right):
    """You do not divide by the number of ranks. An all-reduce adds up, and gradients are to be means."""

    def write(self, k, mean):
        super().write(k, mean * dist.get_world_size())


@Sums.variant
class DoesNotDivide(_Copies):
    def __init__(self, module, bucket_bytes):
        super().__init__(module, bucket_bytes)
        self.divisor = 1


@exercise.mistake
class DividesByTwo(_Right):
    """You divide by 2, whatever the number of ranks. `dist.get_world_size()` says how many there are."""

    def write(self, k, mean):
        super().write(k, mean * dist.get_world_size() / 2)


@exercise.mistake
class NotCopiedBack(_Right):
    """The means stay in the flat tensors. `torch.cat` makes a copy: what the collective writes into it is
    in no `.grad` before you copy it there."""

    def write(self, k, mean):
        pass


@NotCopiedBack.variant
class LeavesThemFlat(_Copies):
    def read(self, group, flat):
        flat.clone()


@exercise.mistake
class ForgetsTheLast(_Right):
    """The last bucket, which is not full, is missing: its parameters keep the gradients of their own rank. A
    bucket that is still open when the parameters have ended counts as well."""

    def fill(self, parameters, limit):
        return super().fill(parameters, limit)[:-1]


@ForgetsTheLast.form
class OnlyFullOnes(_Right):
    def fill(self, parameters, limit):
        buckets = super().fill(parameters, limit)
        return buckets if sum(map(self.size, buckets[-1])) >= limit else buckets[:-1]


@exercise.mistake
class CountsElements(_Right):
    """You count elements and compare them with bytes. An element has `element_size()` bytes, 4 in float32:
    `numel() * element_size()`, or `nbytes`."""

    def size(self, p):
        return p.numel()


@CountsElements.variant
class ByNumel(_Copies):
    def takes(self, group, p):
        return sum(map(torch.numel, group)) + torch.numel(p) <= self.limit


@exercise.mistake
class FourBytesEach(_Right):
    """You take 4 bytes for an element, whatever its dtype. `element_size()` says how many there are, 8 in
    float64."""

    def size(self, p):
        return 4 * p.numel()


@exercise.mistake
class Overfull(_Right):
    """A bucket is closed after it has become full, so that it may hold more than `bucket_bytes`. Look whether
    the next parameter still fits before you take it."""

    def fill(self, parameters, limit):
        buckets = [[]]
        for p in parameters:
            if sum(map(self.size, buckets[-1])) >= limit:
                buckets.append([])
            buckets[-1].append(p)
        return buckets


@Overfull.form
class BeyondTheLimit(_Right):
    def fill(self, parameters, limit):
        buckets = [[]]
        for p in parameters:
            if sum(map(self.size, buckets[-1])) > limit:
                buckets.append([])
            buckets[-1].append(p)
        return buckets


@exercise.mistake
class NeverQuiteFull(_Right):
    """A bucket that is exactly full is closed a parameter too early: at most `bucket_bytes` means that they
    may be reached."""

    def fill(self, parameters, limit):
        return super().fill(parameters, limit - 1)


@exercise.mistake
class AnEmptyBucket(_Right):
    """You open a bucket for a parameter that does not fit, also where the one before it is still empty. An
    empty bucket is complete before anything has arrived, and there is nothing in it to send."""

    def fill(self, parameters, limit):
        buckets = [[]]
        for p in parameters:
            if sum(map(self.size, buckets[-1])) + self.size(p) > limit:
                buckets.append([])
            buckets[-1].append(p)
        return buckets


@exercise.mistake
class FrozenInBuckets(_Right):
    """You count frozen parameters in. No gradient of theirs ever comes: they take no hook, and a bucket that
    waits for one is never launched."""

    def order(self, module):
        return list(module.parameters())[::-1]


@FrozenInBuckets.form
class WaitsForFrozen(_Right):
    def order(self, module):
        return list(module.parameters())[::-1]

    def hook(self, p, k):
        if p.requires_grad:
            super().hook(p, k)


@exercise.mistake
class TiedTwice(_Right):
    """A parameter that stands at two places of the module is in your buckets twice. It has one gradient, and
    `module.parameters()` gives it once."""

    def order(self, module):
        found = [p for _, p in module.named_parameters(remove_duplicate=False)]
        return [p for p in reversed(found) if p.requires_grad]


@TiedTwice.form
class CountsTheLastOfTwo(_Right):
    def order(self, module):
        named = reversed(list(module.named_parameters(remove_duplicate=False)))
        return [p for _, p in named if p.requires_grad]

    def fill(self, parameters, limit):
        buckets = super().fill(parameters, limit)
        self.where = {p: k for k, bucket in enumerate(buckets) for p in bucket}
        return buckets

    def hook(self, p, k):
        super().hook(p, self.where[p])

    def arrived(self, k):
        if self.missing == [len(bucket) for bucket in self.buckets]:
            _queue(self.finish)
        self.missing[k] -= 1
        while len(self.launched) < len(self.buckets) and not self.missing[len(self.launched)]:
            self.launch(len(self.launched))


@exercise.mistake
class OnlyTheFirstBackward(_Right):
    """Only the first backward is averaged: the counters are not set back when it has ended."""

    def begin(self):
        if not hasattr(self, "missing"):
            super().begin()


@OnlyTheFirstBackward.form
class ForgetsWhatIsMissing(_Right):
    def begin(self):
        self.launched = {}
        if not hasattr(self, "missing"):
            super().begin()


@exercise.mistake
class ReplacesGradients(_Right):
    """A second backward replaces what the first one left in `.grad`. You send the gradient that arrives, and
    write its mean over all that was there; gradients add up until somebody sets them to None or zero."""

    def hook(self, p, k):
        def take(grad):
            p.grad = None

        p.register_hook(take)
        super().hook(p, k)


@exercise.mistake
class AddsToWhatIsThere(_Right):
    """You add the mean to `.grad`, where the gradient of this rank stands already. Copy it there instead."""

    def write(self, k, mean):
        for p, part in zip(self.buckets[k], mean.split([p.numel() for p in self.buckets[k]]), strict=True):
            p.grad += part.view_as(p)


@exercise.mistake
class OneArgument(_Right):
    """Your `forward` passes on one argument. A module may take any, by name too: `*args` and `**kwargs`."""

    def forward(self, x):
        return self.module(x)


@OneArgument.form
class NoArgumentsByName(_Right):
    def forward(self, *args):
        return self.module(*args)


@exercise.mistake
class TorchsOwn(DistributedDataParallel):
    """`DistributedDataParallel` is the thing itself. Here you write what it does; elsewhere, use it."""

    def __init__(self, module, bucket_bytes):
        super().__init__(module, bucket_cap_mb=bucket_bytes / 2**20)


@TorchsOwn.variant
class KeepsTorchsOwn(nn.Module):
    def __init__(self, module, bucket_bytes):
        super().__init__()
        self.module = nn.parallel.DistributedDataParallel(module)
