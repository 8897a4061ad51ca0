"""Data parallel training, by hand

`MiniDDP(module)` wraps a module on every rank of the process group. Every rank trains on its own share of
the batch, and the model that comes out is the one that a single process would have trained on the whole
batch.

- Construction: the ranks may have seeded differently. Every parameter and every buffer takes the values that
  it has on rank 0. The tensors themselves stay the ones that they were: an optimizer may hold them already.
- `ddp(...)` calls the module, with any arguments, and returns what it returns. `ddp.module` is the module
  itself; parameters, `state_dict()` (keys begin with `module.`), `train()` and `eval()` go through to it.
- When `loss.backward()` returns, every `.grad` is the mean over all ranks of what the ranks computed. A
  second backward adds its mean to the first. This happens in hooks: nobody calls a method of yours.
- Each gradient is sent once in a backward, also where one parameter stands at two places, and little
  else is sent.
- A frozen parameter (`requires_grad=False` at construction) gets no `.grad`.
- A rank may leave out parameters that others use; it counts there as a gradient of zero, and the mean
  reaches that rank too. Where no rank used a parameter, its `.grad` stays what it was, `None` for one. Every
  rank uses at least one parameter in each backward.

`torch.autograd.Variable._execution_engine.queue_callback(f)`, called in a hook while backward runs, has `f()`
called when all gradients are there, before `backward()` returns.

`torch.nn.parallel.DistributedDataParallel` does all of this, and is the one thing not to use here.

Two ranks, `ddp = MiniDDP(nn.Linear(1, 1))` on each, and `ddp(x).sum().backward()` with `x = [[1.]]` on rank 0
and `x = [[5.]]` on rank 1: `ddp.module.weight.grad` is `[[3.]]` on both.
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
    minutes=40,
    hints=[
        "A rank that does not use a parameter never sees its hook run. If the other ranks start a collective "
        "in theirs, for whom do they wait? Which moment comes on every rank, whatever it used?",
        "`register_post_accumulate_grad_hook` calls you when `.grad` is filled. The first call of a backward "
        "can queue a callback, and each call can note which parameter it was. In the callback all ranks go "
        "through the same parameters in the same order.",
        "Before the means, the ranks have to agree on which parameters anybody used: add up a tensor of "
        "zeros and ones, one entry for each parameter. For those with a sum above zero, a rank without a "
        "`.grad` puts zeros there first. Forget at the end what was noted; the next backward starts afresh.",
    ],
)


@exercise.starter
class MiniDDP(nn.Module):
    """Averages gradients over all ranks."""

    def __init__(self, module: nn.Module):
        raise NotImplementedError

    def forward(self, *args, **kwargs):
        raise NotImplementedError


# Tied: one weight at two places. Frozen: the last bias.
_TIED_AND_FROZEN = """torch.manual_seed(rank)
model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), nn.Linear(3, 2))
model[2].weight = model[0].weight
model[3].bias.requires_grad_(False)"""
_BRANCHES = """torch.manual_seed(rank)
model = nn.ModuleList([nn.Linear(3, 2) for _ in range(3)])
model.forward = lambda x, *branches: sum(model[i](x) for i in branches)"""
_BATCH = """torch.manual_seed(9)
x, y = torch.randn({n}, 3{on}), torch.randn({n}, 2{on})"""


def _refused(*args, **kwargs):
    evidence.record("torch's own", True)
    raise RuntimeError("DistributedDataParallel is the one thing not to use here: write hooks of your own")


def _given(MiniDDP, setup, rank, device, n=8, share="x.chunk(2)[rank], y.chunk(2)[rank]"):
    """The model, this rank's share of a batch of `n` rows, and the wrapper."""

    def wrapped(module):
        with mock.patch.object(DistributedDataParallel, "__init__", _refused):
            return MiniDDP(module)

    to = "" if device.type == "cpu" else f"\nmodel = model.to('{device.type}')"
    batch = _BATCH.format(n=n, on=expect.on(device))
    then = f"x, y = {share}\nddp = MiniDDP(model)" if share else ""
    return expect.given(f"{setup}{to}\n{batch}\n{then}", MiniDDP=wrapped, rank=rank)


def _one_process(setup, device, n=8):
    """The model of rank 0 and the whole batch, for a single process."""
    with evidence.silent(), expect.situation():
        return _given(None, setup, 0, device, n, share="")


def _expect_gradients(model, oracle, when="after backward"):
    """Every `.grad` is what it is in one process: all are looked at before one is told."""
    wanted = {name: p.grad for name, p in oracle.named_parameters()}
    found = {name: p.grad for name, p in model.named_parameters()}
    evidence.record("gradients", found)
    for name, grad in found.items():
        what = f"`.grad` of `{name}` {when}"
        if wanted[name] is None:
            expect.true(grad is None, f"{what} is {expect.show(grad)}", "expected: None")
        else:
            expect.equal(grad, wanted[name], what=what, rtol=1e-4, atol=1e-6)


@exercise.check(ranks=2, deadline=10)
def same_start(MiniDDP, rank, device):
    """After construction all tensors hold what they hold on rank 0, and are the ones they were"""
    setup = """torch.manual_seed(rank)
model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
model[0].bias.requires_grad_(False)
model[1].running_mean.normal_()
model[1].num_batches_tracked.fill_(10 + rank)
model.register_buffer('table', torch.randn(2, 3).t())
model.register_buffer('mask', torch.randn(2), persistent=False)"""
    t = _given(MiniDDP, f"{setup}\nbefore = [*model.parameters(), *model.buffers()]", rank, device)
    oracle = _one_process(setup, device).model
    t.call("ddp")
    after = [*t.model.parameters(), *t.model.buffers()]
    expect.true(
        len(after) == len(t.before) and all(a is b for a, b in zip(after, t.before, strict=True)),
        "some of the module's tensors are other objects than before",
        "expected: the same ones, with other values; an optimizer may hold them",
    )
    wanted = {**dict(oracle.named_parameters()), **dict(oracle.named_buffers())}
    found = {**dict(t.model.named_parameters()), **dict(t.model.named_buffers())}
    evidence.record("at the start", found)
    for name, tensor in found.items():
        expect.equal(tensor.detach(), wanted[name].detach(), what=f"`{name}` after construction")
    requires = [name for name, p in t.model.named_parameters() if p.requires_grad]
    expect.equal(requires, ["0.weight", "1.weight", "1.bias"], what="the parameters that require gradients")


@exercise.check(ranks=2, deadline=10)
def is_a_module(MiniDDP, rank, device):
    """It is called like the module, and its parameters, state and modes are those of the module"""
    setup = """torch.manual_seed(rank)
model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
model.forward = lambda x, *more, scale=1: {'out': model[0](x) * scale, 'more': more}"""
    t = _given(MiniDDP, setup, rank, device)
    expect.true(isinstance(t.call("ddp"), nn.Module), "`ddp` is no `nn.Module`", "expected: it is one")
    expect.true(t.call("ddp.module") is t.model, "`ddp.module` is another module", "expected: `model` itself")
    ids = [id(p) for p in t.call("list(ddp.parameters())")]
    number = len(list(t.model.parameters()))
    evidence.record("parameters", len(ids))
    expect.true(
        ids == [id(p) for p in t.model.parameters()],
        f"`ddp.parameters()` gives {len(ids)} parameters, of which not all are those of the module",
        f"expected: the {number} of the module, each once",
    )
    keys = [f"module.{key}" for key in t.model.state_dict()]
    expect.equal(t.call("list(ddp.state_dict())"), keys, what="the keys of `ddp.state_dict()`")
    t.call("ddp.eval()")
    expect.equal([m.training for m in t.model.modules()], [False] * 3, what="`training` of the modules")
    t.call("ddp.train()")
    expect.equal([m.training for m in t.model.modules()], [True] * 3, what="`training` of the modules")
    result = t.call("ddp(x, 'a', 7, scale=2)")
    expect.equal(result, {"out": t.model[0](t.x) * 2, "more": ("a", 7)})


@exercise.check(ranks=2, deadline=10)
def gradients(MiniDDP, rank, device):
    """After backward the gradients are those of the whole batch; a second one adds to them"""
    t = _given(MiniDDP, _TIED_AND_FROZEN, rank, device)
    oracle = _one_process(_TIED_AND_FROZEN, device)
    for k in range(2):
        t.call("nn.functional.mse_loss(ddp(x), y).backward()")
        F.mse_loss(oracle.model(oracle.x), oracle.y).backward()
        _expect_gradients(t.model, oracle.model, when=("after backward", "after two backwards")[k])


@exercise.check(ranks=3, deadline=10)
def a_row_each(MiniDDP, rank, device):
    """Three ranks with one row each, and a gradient that two places share"""
    # The gradient that reaches `shift` is the very tensor that goes on to the first layer.
    setup = f"""{_TIED_AND_FROZEN}
model.shift = nn.Parameter(torch.zeros(3))
model.forward = lambda x: model[3](model[2](model[1](model[0](x) + model.shift)))"""
    t = _given(MiniDDP, setup, rank, device, n=3, share="x[rank], y[rank]")
    oracle = _one_process(setup, device, n=3)
    t.call("nn.functional.mse_loss(ddp(x), y).backward()")
    F.mse_loss(oracle.model(oracle.x), oracle.y).backward()
    _expect_gradients(t.model, oracle.model)


@exercise.check(ranks=2, deadline=10)
def five_steps(MiniDDP, rank, device):
    """Five steps with momentum: after each, every rank has the parameters of one process"""
    t = _given(MiniDDP, _TIED_AND_FROZEN, rank, device)
    oracle = _one_process(_TIED_AND_FROZEN, device)
    optimizers = [
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
        for model in (t.model, oracle.model)
    ]
    wanted = dict(oracle.model.named_parameters())
    for k in range(1, 6):
        t.call("nn.functional.mse_loss(ddp(x), y).backward()")
        F.mse_loss(oracle.model(oracle.x), oracle.y).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=k % 2 == 0)
        for name, p in t.model.named_parameters():
            what = f"`{name}` after step {k}"
            expect.equal(p.detach(), wanted[name].detach(), what=what, rtol=1e-4, atol=1e-6)


@exercise.check(ranks=2, deadline=10)
def sent_once(MiniDDP, rank, device):
    """Each gradient is sent once, also that of a weight at two places, and none of a frozen one"""
    setup = """torch.manual_seed(rank)
model = nn.Sequential(nn.Linear(3, 40), nn.Linear(40, 40), nn.Linear(40, 40), nn.Linear(40, 2))
model[2].weight = model[1].weight
model[3].weight.requires_grad_(False)"""
    t = _given(MiniDDP, setup, rank, device)
    trained = [p for p in t.model.parameters() if p.requires_grad]
    size = sum(p.numel() * p.element_size() for p in trained)
    for _ in range(2):
        with measure.traffic() as seen:
            t.call("nn.functional.mse_loss(ddp(x), y).backward()")
        # Beside the gradients the ranks may tell each other what they used.
        allowed = size + 64 * len(trained)
        sent = sum(call.bytes for call in seen.calls)
        evidence.record("too much", sent > allowed)
        expect.true(
            sent <= allowed,
            f"bytes brought to collectives in forward and backward: {sent:,}",
            f"expected: {size:,} for {len(trained)} gradients, and at most {allowed - size} beside them",
        )


def _each_its_branches(MiniDDP, rank, device, *steps):
    """Backward after backward; a step says which branches each rank uses. The rest is one process."""
    t, oracle = _given(MiniDDP, _BRANCHES, rank, device), _one_process(_BRANCHES, device)
    for k, branches in enumerate(steps, 1):
        names = ", ".join(map(str, branches[rank]))
        t.call(f"nn.functional.mse_loss(ddp(x, {names}), y).backward()")
        losses = [
            F.mse_loss(oracle.model(x, *mine), y)
            for x, y, mine in zip(oracle.x.chunk(2), oracle.y.chunk(2), branches, strict=True)
        ]
        (sum(losses) / 2).backward()
        _expect_gradients(t.model, oracle.model, f"after backward {k}")


@exercise.check(ranks=2, deadline=10)
def unused_everywhere(MiniDDP, rank, device):
    """A parameter that no rank uses keeps the `.grad` that it had"""
    _each_its_branches(MiniDDP, rank, device, ([0], [0]), ([2], [2]))


@exercise.check(ranks=2, deadline=10)
def unused_on_one(MiniDDP, rank, device):
    """A parameter that one rank leaves out counts there as zero, and the mean reaches all"""
    _each_its_branches(MiniDDP, rank, device, ([0, 1], [1]), ([1], [2, 0]))


# --- the mistakes -----------------------------------------------------------------------------------------


def _queue(callback):
    torch.autograd.Variable._execution_engine.queue_callback(callback)


class _Right(nn.Module):
    """A right answer with holes, each of which a mistake fills in its way."""

    def __init__(self, module):
        super().__init__()
        self.module = module
        for tensor in self.sent(module):
            dist.broadcast(tensor.data, 0)
        self.hooked = self.trained(module)
        self.arrived = set()
        for p in self.hooked:
            p.register_post_accumulate_grad_hook(self.note)

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def sent(self, module):
        return [*module.parameters(), *module.buffers()]

    def trained(self, module):
        return [p for p in module.parameters() if p.requires_grad]

    def note(self, p):
        if not self.arrived:
            _queue(self.finish)
        self.arrived.add(p)

    def users(self):
        """For each parameter on how many ranks its gradient has arrived."""
        found = torch.tensor([float(p in self.arrived) for p in self.hooked], device=self.hooked[0].device)
        dist.all_reduce(found)
        self.arrived.clear()
        return found.tolist()

    def finish(self):
        for p, users in zip(self.hooked, self.users(), strict=True):
            if users:
                if p.grad is None:
                    p.grad = torch.zeros_like(p)
                self.average(p, users)

    def average(self, p, users):
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def _means_by_gathering(wrapper):
    """The same in another way: for each gradient that somebody has, those of all ranks."""
    n = dist.get_world_size()
    mine = torch.tensor([p in wrapper.seen for p in wrapper.trained], device=wrapper.trained[0].device).int()
    theirs = [torch.empty_like(mine) for _ in range(n)]
    dist.all_gather(theirs, mine)
    wrapper.seen = set()
    for p, used in zip(wrapper.trained, torch.stack(theirs).sum(0).tolist(), strict=True):
        if used:
            grad = torch.zeros_like(p) if p.grad is None else p.grad
            found = [torch.empty_like(p) for _ in range(n)]
            dist.all_gather(found, grad)
            yield p, found


class _Gathering(nn.Module):
    """Another right answer, for the variants."""

    def __init__(self, module):
        super().__init__()
        self.add_module("module", module)
        self.send(module)
        self.seen = set()
        self.trained = list(filter(lambda p: p.requires_grad, module.parameters()))
        for p in self.trained:
            p.register_post_accumulate_grad_hook(self.hook)

    def send(self, module):
        for tensor in (*module.parameters(), *module.buffers()):
            dist.broadcast(tensor.detach(), src=0)

    def hook(self, p):
        if len(self.seen) == 0:
            _queue(self.write)
        self.seen.add(p)

    def write(self):
        for p, found in _means_by_gathering(self):
            p.grad = sum(found) / len(found)

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)


@exercise.mistake
class NoBroadcast(_Right):
    """The ranks start from different parameters. Averaged gradients move them all by the same amount, so they
    stay as far apart as they were. Send those of rank 0 to all, and its buffers, at construction."""

    def sent(self, module):
        return []


@NoBroadcast.variant
class TrustsTheSeeds(_Gathering):
    def send(self, module):
        pass


@NoBroadcast.form
class BroadcastsOnlyBuffers(_Right):
    def sent(self, module):
        return module.buffers()


@exercise.mistake
class ForgetsBuffers(_Right):
    """The buffers stay those of each rank. What a module computes with, running statistics and tables, is not
    only in its parameters: `module.buffers()` gives the rest."""

    def sent(self, module):
        return module.parameters()


@ForgetsBuffers.variant
class SendsTheParameters(_Gathering):
    def send(self, module):
        with torch.no_grad():
            for _, p in module.named_parameters():
                dist.broadcast(p, 0)


@exercise.mistake
class ForgetsWhatIsNotSaved(_Right):
    """You send what is in `state_dict()`, in which a buffer registered with `persistent=False` is missing.
    The module computes with it all the same: `module.buffers()` gives it."""

    def sent(self, module):
        return module.state_dict().values()


@exercise.mistake
class SendsCopies(_Right):
    """Where the elements of a tensor do not lie in order, `contiguous()` makes a copy, and rank 0's values
    arrive in that copy alone. Copy them back into the tensor, or send the tensor itself."""

    def sent(self, module):
        return [t.data.contiguous() for t in super().sent(module)]


@exercise.mistake
class ForgetsFrozen(_Right):
    """Only what is trained is sent at construction. A frozen parameter takes part in every forward, and stays
    different on every rank for ever."""

    def sent(self, module):
        return [*self.trained(module), *module.buffers()]


@ForgetsFrozen.variant
class SendsWhatIsTrained(_Gathering):
    def send(self, module):
        for tensor in [p for p in module.parameters() if p.requires_grad] + list(module.buffers()):
            dist.broadcast(tensor.data, src=0)


@exercise.mistake
class HooksOnFrozen(_Right):
    """You register a hook on every parameter. One that requires no gradient takes none: leave it out."""

    def trained(self, module):
        return list(module.parameters())


@exercise.mistake
class ZerosForFrozen(_Right):
    """A frozen parameter gets a `.grad` of zeros. For an optimizer that is not the same as None: weight decay
    and momentum move the parameter then."""

    def finish(self):
        super().finish()
        for p in self.module.parameters():
            if not p.requires_grad:
                p.grad = torch.zeros_like(p)


@exercise.mistake
class StartsFromTheMean(_Right):
    """The ranks start from the mean of what they drew. A mean of random weights is smaller
    than they are: all are to start from those of rank 0, which one process would have had."""

    def sent(self, module):
        for t in [*module.parameters(), *module.buffers()]:
            if t.is_floating_point():
                dist.all_reduce(t.data)
                t.data /= dist.get_world_size()
            else:
                dist.broadcast(t.data, 0)
        return []


@exercise.mistake
class Sums(_Right):
    """You add the gradients up and do not divide. Each rank's loss is a mean over its own share already, and
    the mean over the whole batch is the mean of these: divide by the number of ranks."""

    def average(self, p, users):
        dist.all_reduce(p.grad)


@Sums.variant
class AddsUp(_Gathering):
    def write(self):
        for p, found in _means_by_gathering(self):
            p.grad = torch.stack(found).sum(0)


@exercise.mistake
class DividesByTwo(_Right):
    """You divide by 2, whatever the number of ranks. `dist.get_world_size()` says how many there are."""

    def average(self, p, users):
        dist.all_reduce(p.grad)
        p.grad /= 2


@exercise.mistake
class DividesByItsUsers(_Right):
    """You divide by the number of ranks that used the parameter. In one process on the whole batch the
    samples that do not use it count as well, with a gradient of zero: divide by the number of all ranks."""

    def average(self, p, users):
        dist.all_reduce(p.grad)
        p.grad /= users


@DividesByItsUsers.variant
class MeanOfThoseThatHave(_Gathering):
    def write(self):
        for p, found in _means_by_gathering(self):
            users = sum(bool(grad.any()) for grad in found)
            p.grad = sum(found) / max(users, 1)


@exercise.mistake
class AveragesTooLate(_Right):
    """The averages come too late: the optimizer has taken its step with the gradients of its own rank alone.
    The next forward is too late, for gradients and for parameters. So is a backward hook of the module, which
    may run before any parameter has its new gradient. The last moment is the end of backward."""

    def finish(self):
        pass

    def forward(self, *args, **kwargs):
        if self.arrived:
            super().finish()
        return self.module(*args, **kwargs)


@AveragesTooLate.variant
class HookOfTheModule(_Right):
    def __init__(self, module):
        super().__init__(module)
        self.register_full_backward_hook(self.averages)

    def note(self, p):
        pass

    def averages(self, *_):
        for p in self.hooked:
            if p.grad is not None:
                self.average(p, None)


@AveragesTooLate.variant
class AveragesParameters(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module
        self.average(lambda t: dist.broadcast(t, 0))

    def average(self, collective):
        for t in [*self.module.parameters(), *self.module.buffers()]:
            collective(t.data)

    def forward(self, *args, **kwargs):
        for p in self.module.parameters():
            dist.all_reduce(p.data)
            p.data /= dist.get_world_size()
        return self.module(*args, **kwargs)


@exercise.mistake
class SendsTiedTwice(_Right):
    """A parameter that stands at two places is sent twice. The mean of equal values is the same value,
    so nothing looks wrong, and half of that traffic is wasted. `module.parameters()` gives each once."""

    def trained(self, module):
        found = module.named_parameters(remove_duplicate=False)
        return [p for _, p in found if p.requires_grad]


@SendsTiedTwice.variant
class GoesThroughLayers(_Gathering):
    def __init__(self, module):
        super().__init__(module)
        owned = (p for m in module.modules() for p in m._parameters.values() if p is not None)
        self.trained = [p for p in owned if p.requires_grad]


@exercise.mistake
class DividesTiedTwice(_Right):
    """The gradient of a parameter that stands at two places is divided twice: two hooks hang on it.
    `module.parameters()` gives each parameter once."""

    def __init__(self, module):
        super().__init__(module)
        for _, p in module.named_parameters(remove_duplicate=False):
            if p.requires_grad:
                p.register_post_accumulate_grad_hook(self.divide)

    def divide(self, p):
        p.grad /= dist.get_world_size()

    def average(self, p, users):
        dist.all_reduce(p.grad)


@exercise.mistake
class CollectivesInHooks(_Right):
    """A rank takes part only in the collectives of parameters that it used itself, and the others wait there
    for ever. Where a parameter was left out, its hook is not called, and its `.grad` may be None: what all
    ranks call must not depend on what one of them used."""

    def note(self, p):
        self.average(p, None)


@CollectivesInHooks.variant
class ReturnsMeans(_Gathering):
    def __init__(self, module):
        super().__init__(module)
        for p in self.trained:
            p.register_hook(self.mean)

    def hook(self, p):
        pass

    def mean(self, grad):
        total = grad.clone()
        dist.all_reduce(total)
        return total / dist.get_world_size()


@CollectivesInHooks.variant
class SkipsWhatIsNone(_Right):
    def note(self, p):
        if not self.arrived:
            _queue(self.finish)
        self.arrived.add(p)

    def finish(self):
        self.arrived.clear()
        for p in self.hooked:
            if p.grad is not None:
                self.average(p, None)


@exercise.mistake
class WaitsForAll(_Right):
    """You average when as many gradients have arrived as there are parameters. Where some are left out that
    moment never comes, and nothing is averaged. The end of backward always comes."""

    def note(self, p):
        self.arrived.add(p)
        if len(self.arrived) == len(self.hooked):
            self.finish()


@WaitsForAll.variant
class CountsDown(_Gathering):
    def hook(self, p):
        self.seen.add(p)
        if not set(self.trained) - self.seen:
            for p, found in _means_by_gathering(self):
                p.grad = sum(found) / len(found)


@exercise.mistake
class ChangesWhatPassesThrough(_Right):
    """Your hook changes the gradient in place as it arrives. The same tensor may be on its way to other
    places of the graph, which then go on with a mean. A hook of the tensor returns a new one."""

    def note(self, p):
        pass

    def __init__(self, module):
        super().__init__(module)
        for p in self.hooked:
            p.register_hook(self.change)

    def change(self, grad):
        dist.all_reduce(grad)
        grad /= dist.get_world_size()


@exercise.mistake
class ZerosForAll(_Right):
    """A parameter that no rank used gets a `.grad` of zeros. For an optimizer that is not the same as None:
    weight decay and momentum move the parameter then. The ranks have to ask each other who used what."""

    def finish(self):
        self.arrived.clear()
        for p in self.hooked:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            self.average(p, None)


@ZerosForAll.variant
class FillsWithZeros(_Gathering):
    def write(self):
        for p in self.trained:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            self.seen.add(p)
        for p, found in _means_by_gathering(self):
            p.grad = torch.stack(found).mean(0)


@exercise.mistake
class OnlyTheFirstBackward(_Right):
    """Only the first backward is averaged: what you note in a backward is still noted in the next, which
    takes its callback for queued. Forget it when the callback has run."""

    def users(self):
        noted = set(self.arrived)
        found = super().users()
        self.arrived = noted
        return found


@exercise.mistake
class ForgetsTheFirstBackward(_Gathering):
    """A second backward replaces what the first one left in `.grad`. Gradients add up until somebody sets
    them to None or zero: the mean of the new ones is to be added to the old."""

    def __init__(self, module):
        super().__init__(module)
        for p in self.trained:
            p.register_hook(lambda grad, p=p: setattr(p, "grad", None))


@exercise.mistake
class CountsTheOldTwice(_Right):
    """What a second backward finds in `.grad` is counted twice: it is part of what you average, and you add
    it to the mean again. Average the new gradient alone, or what has been added up, and then add nothing."""

    def __init__(self, module):
        super().__init__(module)
        self.old = {}
        for p in self.hooked:
            p.register_hook(lambda grad, p=p: self.keep(p))

    def keep(self, p):
        self.old[p] = torch.zeros_like(p) if p.grad is None else p.grad.clone()

    def average(self, p, users):
        if (old := self.old.pop(p, None)) is None:
            old, p.grad = p.grad, torch.zeros_like(p)
        super().average(p, users)
        p.grad += old


@exercise.mistake
class WrapsACopy(_Right):
    """You wrap a copy of the module. The one that was given, and an optimizer that holds its parameters, see
    nothing of the training."""

    def __init__(self, module):
        import copy

        super().__init__(copy.deepcopy(module))


@exercise.mistake
class HidesTheModule(_Right):
    """The module is kept where `nn.Module` does not look, in a list or in an object that is no module. Then
    `parameters()`, `state_dict()`, `train()` and `eval()` do not reach it: assign it to an attribute."""

    def __init__(self, module):
        super().__init__(module)
        del self.module
        self.kept = [module]

    def __getattr__(self, name):
        return self.kept[0] if name == "module" else super().__getattr__(name)


@HidesTheModule.form
class NoModule:
    def __init__(self, module):
        self.module, self.right = module, _Right(module)

    def __call__(self, *args, **kwargs):
        return self.right(*args, **kwargs)

    def __getattr__(self, name):
        return getattr(self.module, name)


@exercise.mistake
class OneArgument(_Right):
    """Your `forward` passes on one argument, or takes what comes back for a tensor. A module may take any
    arguments, by name too: `*args` and `**kwargs`."""

    def forward(self, x):
        return self.module(x)


@OneArgument.form
class TakesItForATensor(_Right):
    def forward(self, *args, **kwargs):
        result = self.module(*args, **kwargs)
        if torch.is_grad_enabled():
            result.register_hook(lambda grad: None)
        return result


@OneArgument.form
class NoArgumentsByName(_Right):
    def forward(self, *args):
        return self.module(*args)


@exercise.mistake
class TorchsOwn(DistributedDataParallel):
    """`DistributedDataParallel` is the thing itself. Here you write what it does; elsewhere, use it."""


@TorchsOwn.variant
class KeepsTorchsOwn(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = DistributedDataParallel(module, find_unused_parameters=True)
