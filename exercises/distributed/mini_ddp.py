"""Data parallel training, by hand

`MiniDDP(module)` wraps a module on every rank. Each rank trains on its share, and the model that comes out is
that of a single process with the whole batch.

- At construction all parameters and buffers, frozen ones too, take rank 0's values, in place.
- Hooks average: after `backward()` every `.grad` is the mean over all ranks; a second backward adds its mean.
  All ranks use all parameters.
- Each gradient is sent once, even if a weight is used twice, and little else is sent.

`ddp(...)` calls the module; `ddp.module` is it. Don't use `DistributedDataParallel`.

`MiniDDP(nn.Linear(1, 1))(x).sum().backward()`, `x = [[1.]]` on rank 0, `[[5.]]` on rank 1 → on both
`weight.grad` is `[[3.]]`
"""

import torch
from torch import nn
from torch.nn import functional as F

from course_utils.exercise import Exercise, Rows, expect
from course_utils.exercise.kits import ranks

exercise = Exercise(
    minutes=20,
    core=True,
    hints=[
        "There are two moments: construction, where all ranks take the same values, and backward, where "
        "gradients arrive one after another. Which collective suits which?",
        "`broadcast` and `all_reduce` write into the tensor that they get: pass the module's own. Which "
        "hook of a parameter runs when `.grad` has been filled, and what does it get?",
        "`parameters()` gives each parameter once, wherever it's used; not all of them require a "
        "gradient. After the sum over the ranks, divide. What `.grad` held before is equal on all ranks.",
    ],
)


@exercise.starter
class MiniDDP(nn.Module):
    """Averages gradients over all ranks."""

    def __init__(self, module: nn.Module):
        raise NotImplementedError

    def forward(self, *args, **kwargs):
        raise NotImplementedError


def _given(MiniDDP, *setup):
    code = "\n".join(("rank = dist.get_rank()", *setup))
    return ranks.given(code, MiniDDP=ranks.without_torchs_own(MiniDDP))


def _tensors(model):
    return [*model.named_parameters(), *model.named_buffers()]


@exercise.check(ranks=2, deadline=6)
def same_start(MiniDDP):
    """After construction every tensor holds what it holds on rank 0

    Equal gradients don't bring models together that start apart. A module computes with its `parameters()`
    and `buffers()`, frozen and unsaved ones too. A collective writes into the tensor that it gets, and
    `contiguous()` may have copied it.
    """
    setup = """model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
model[0].bias.requires_grad_(False)
model.register_buffer('table', torch.empty(3, 2).t())
model.register_buffer('mask', torch.empty(2), persistent=False)
for tensor in (*model.parameters(), *model.buffers()):
    tensor.data.copy_(torch.arange(tensor.numel()).view_as(tensor) + 100 * rank)"""
    t = _given(MiniDDP, setup)
    before = [(tensor, tensor.data_ptr()) for _, tensor in _tensors(t.model)]
    wanted = dict(_tensors(ranks.on_rank_0(setup).model))
    t.run("ddp = MiniDDP(model)")
    for (name, tensor), (was, place) in zip(_tensors(t.model), before, strict=True):
        told = f"`{name}` is another tensor than before"
        expect.true(tensor is was, told, "expected: the same one, since others may hold it already")
        told = f"`{name}` lies in other memory than before"
        expect.true(tensor.data_ptr() == place, told, "expected: the same, since others may share it")
        expect.equal(tensor.detach(), wanted[name].detach(), what=f"`{name}` after construction")


@exercise.check(ranks=2, deadline=6)
def is_a_module(MiniDDP):
    """It is called like the module, and reaches its parameters and modes

    `parameters()`, `state_dict()`, `train()` and `eval()` find a module that is assigned to an attribute; in
    a list they don't. `*args` and `**kwargs` pass on all arguments. Calling a module runs its forward hooks,
    too; calling its `forward` doesn't.
    """
    forward = "model.forward = lambda x, *more, scale=1: {'out': x * scale, 'more': more}"
    hook = "ran = []\nmodel.register_forward_hook(lambda *_: ran.append(1))"
    t = _given(MiniDDP, "model = nn.Linear(2, 2)", forward, hook, "ddp = MiniDDP(model)")
    expect.true(isinstance(t.ddp, nn.Module), "`ddp` is no `nn.Module`", "expected: it is one")
    expect.true(t.call("ddp.module") is t.model, "`ddp.module` is another module", "expected: `model` itself")
    same = [id(p) for p in t.call("list(ddp.parameters())")] == [id(p) for p in t.model.parameters()]
    expect.true(same, "`ddp.parameters()` are not those of `model`", "expected: the same two")
    t.call("ddp.eval()")
    expect.equal(t.model.training, False, what="`model.training` after that")
    result = t.call("ddp(torch.ones(2), 'a', 7, scale=2)")
    expect.equal(result, {"out": 2 * torch.ones(2), "more": ("a", 7)})
    expect.equal(len(t.ran), 1, what="how often a forward hook of `model` ran in that call")


def _linear(MiniDDP, world_size, *more):
    """A model of two numbers. A digit of the mean is a rank."""
    x = f"x = torch.tensor([[{world_size}. * 10**rank]])"
    return _given(MiniDDP, "model = nn.Linear(1, 1)", x, *more, "ddp = MiniDDP(model)")


def _expect_linear(t, world_size, when="after backward", weight=1, bias=1):
    numbers = int("1" * world_size), world_size * 10**t.rank
    both = ({"weight": t.x.new_full((1, 1), n * weight), "bias": t.x.new_full((1,), bias)} for n in numbers)
    ranks.expect_gradients(t.model, *both, when)


@exercise.check(ranks=3, deadline=6)
def means(MiniDDP, world_size):
    """When `backward()` returns, every `.grad` is the mean over three ranks

    If each rank's loss is a mean over its share, and shares are equal, the mean of these is that over the
    whole batch. The gradient has to be averaged when `backward()` returns, since the optimizer comes next:
    wait for what is launched with `async_op=True`. A module's backward hook may run before its parameters
    have their gradients. And a gradient that travels in a dtype of fewer bits may lose digits.
    """
    with Rows() as rows:
        for label, more, weight in (
            ("float32", [], 1),
            ("float64", ["model, x = model.double(), x.double() / 7"], 1 / 7),
        ):
            with rows.of(label):
                t = _linear(MiniDDP, world_size, *more)
                ranks.all_through(t, "ddp(x).sum().backward()")
                _expect_linear(t, world_size, weight=weight)


@exercise.check(ranks=2, deadline=6)
def adds_up(MiniDDP, world_size):
    """A second backward adds its mean to the first

    `.grad` keeps what it has until somebody clears it. After the first backward that is the same on all
    ranks, so the mean of old plus new is old plus the mean of new.
    """
    t = _linear(MiniDDP, world_size)
    t.run("ddp(x).sum().backward()\nddp(5 * x).sum().backward()")
    _expect_linear(t, world_size, "after two backwards", weight=1 + 5, bias=2)


@exercise.check(ranks=2, deadline=6)
def on_its_way(MiniDDP, rank):
    """A gradient that goes on to other places of the graph arrives there as it was

    The gradient that a tensor hook gets may be the same tensor that another place of the graph gets; change
    it in place, and it changes there too. What a post-accumulate hook finds in `.grad` belongs to the
    parameter.
    """
    t = _given(
        MiniDDP,
        "model = nn.Linear(1, 1, bias=False)",
        "model.shift = nn.Parameter(torch.zeros(1, 1))",
        "model.forward = lambda x: x @ model.weight + model.shift",
        "x, factor = torch.tensor([[1.], [5.]])[rank, None], [1, 2][rank]",
        "ddp = MiniDDP(model)",
    )
    t.call("(ddp(x) * factor).sum().backward()")
    whole = {"weight": torch.tensor([[(1 * 1 + 5 * 2) / 2]]), "shift": torch.tensor([[(1 + 2) / 2]])}
    alone = {"weight": t.x * t.factor, "shift": torch.ones(1, 1) * t.factor}
    ranks.expect_gradients(t.model, whole, alone)


@exercise.check(ranks=2, deadline=6)
def sent_once(MiniDDP):
    """A weight at two places has one gradient, sent once a step; a frozen one has none

    `module.parameters()` gives a parameter once, even if it's used twice. A frozen one takes no hook, and its
    `.grad` stays None: to an optimizer zeros are a gradient, and weight decay would move the parameter. A
    hook that is registered in every forward is called once more in each step.
    """
    setup = """torch.manual_seed(rank)
model = nn.Sequential(nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 20))
model[2].weight = model[0].weight
model[2].bias.requires_grad_(False)
torch.manual_seed(9)
x, y = torch.randn(6, 20), torch.randn(6, 20)"""
    t = _given(MiniDDP, setup, "x, y = x.chunk(2)[rank], y.chunk(2)[rank]", "ddp = MiniDDP(model)")
    step = "F.mse_loss(ddp(x), y).backward()"
    t.run(step)
    expect.equal(t.call("model[2].bias.grad"), None, what="the `.grad` of the frozen bias")
    t.run("model.zero_grad()")
    _, calls = ranks.all_through(t, step)
    one, alone = ranks.on_rank_0(setup), ranks.on_rank_0(setup)
    F.mse_loss(one.model(one.x), one.y).backward()
    F.mse_loss(alone.model(t.x), t.y).backward()
    ranks.expect_gradients(t.model, ranks.gradients(one.model), ranks.gradients(alone.model))
    limit = 100 + sum(p.nbytes for p in one.model.parameters() if p.requires_grad)
    expect.at_most(sum(call.bytes for call in calls), limit, "bytes sent in the second step")
