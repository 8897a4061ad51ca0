"""Two linear layers, split over the ranks

`ColumnRowLinear(first, second, activation)` computes `second(activation(first(x)))` for two `nn.Linear` with
biases. Each rank holds an equal share of the *hidden* features, those between the layers, as `chunk` cuts
them. `activation` works element by element. All ranks get the same arguments and compute the same loss.

- All gradients are those of the pair in one process, that of `x` too, which the loss may also use elsewhere.
- The parameters are `first.weight`, `first.bias`, `second.weight` and `second.bias`, the last one whole on
  each rank. Keep nothing else of the pair.
- Forward takes one `all_reduce`, backward one.

Two ranks, `nn.Linear(4, 6)`, `nn.Linear(6, 3)` → weights of shapes `(3, 4)` and `(3, 3)`
"""

import copy
import gc
import weakref
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from course_utils import measure
from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import ranks

exercise = Exercise(
    minutes=30,
    hints=[
        "Which elements of both weights does one hidden feature need? With those alone, what can a rank "
        "compute, and what is missing when all have computed it?",
        "The result is a sum over the hidden features, so over the ranks. Add what belongs to no hidden "
        "feature after that sum. In backward every rank has the gradient of the whole result, and finds "
        "what its own hidden features contribute to the gradient of `x`.",
        "You need two small `autograd.Function`s: one before `first` that does nothing in forward and "
        "sums in backward, and one after `second` that sums in forward and returns the gradient "
        "unchanged.",
    ],
)


@exercise.starter
class ColumnRowLinear(nn.Module):
    """(n, inputs) -> (n, outputs), the same on every rank"""

    def __init__(
        self,
        first: nn.Linear,
        second: nn.Linear,
        activation: Callable[[Tensor], Tensor],
    ):
        super().__init__()
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        raise NotImplementedError


_SETUP = """torch.manual_seed(0)
first, second, activation = nn.Linear(4, 6), nn.Linear(6, 3), nn.GELU()
x = torch.randn(6, 4, requires_grad=True)
weights = torch.arange(18.).view(6, 3)"""
_ALONE, _BESIDE = "(model(x) * weights).sum().backward()", "((model(x) * weights).sum() + x.sum()).backward()"
_CUT = {"first.weight": 0, "first.bias": 0, "second.weight": 1}
_NEAR = {"rtol": 1e-4, "atol": 1e-5}


def _made(t):
    """Makes the module. A copy of the pair as it was."""
    pair = copy.deepcopy(nn.ModuleDict({"first": t.first, "second": t.second}))
    t.run("model = ColumnRowLinear(first, second, activation)")
    return pair


def _in_one_process(t, pair):
    """The oracle: a function like the module, with all gradients in the pair and in a copy of `x`."""
    x = t.x.detach().clone().requires_grad_()
    return (lambda x: pair["second"](t.activation(pair["first"](x)))), x


def _shares(tensors):
    """What this rank has of each tensor of the pair, by name."""
    n, rank = dist.get_world_size(), dist.get_rank()
    return {k: v.chunk(n, _CUT[k])[rank] if k in _CUT else v for k, v in tensors.items()}


def _summand(t, pair, x):
    """What the hidden features of this rank add to the result."""
    w, b, v, _ = _shares(dict(pair.named_parameters())).values()
    return F.linear(t.activation(F.linear(x, w, b)), v)


@exercise.check(ranks=3, given=_SETUP)
def values(t):
    """Each of three ranks has the whole result

    The product with the second weight is a sum over the hidden features, so over the ranks. The bias of the
    second layer belongs to no feature: if you add it before that sum, every rank adds it.
    """
    pair = _made(t)
    result, _ = ranks.all_through(t, "model(x)")
    with torch.no_grad():
        model, x = _in_one_process(t, pair)
        wanted, bias, own = model(x), pair["second"].bias, _summand(t, pair, x)
    like = {
        "what was expected with `second.bias` added three times": wanted + 2 * bias,
        "what was expected without `second.bias`": wanted - bias,
        "what the hidden features of this rank add to it": own,
        "what the hidden features of this rank add to it, and `second.bias`": own + bias,
    }
    factors = {"the number of ranks": 3}
    expect.equal(expect.a_tensor(result).detach(), wanted, like=like, factors=factors, **_NEAR)


@exercise.check(ranks=2, given=_SETUP)
def shares(t):
    """The parameters are this rank's shares: rows of the first weight, columns of the second

    `nn.Linear` holds its weight as (outputs, inputs). A hidden feature is an output of the first layer and an
    input of the second. Split the other way round, a rank has parts of sums, and `activation` needs the
    whole. `chunk` cuts pieces of neighbours: rank 0 has the first features, not every n-th one.
    """
    pair = _made(t)
    found = dict(t.model.named_parameters())
    expect.equal(sorted(found), sorted(dict(pair.named_parameters())), what="the names of the parameters")
    for name, wanted in _shares(dict(pair.named_parameters())).items():
        expect.equal(found[name].detach(), wanted.detach(), what=f"`{name}`")


@exercise.check(ranks=2, given=_SETUP)
def kept(t):
    """A rank keeps its shares, and nothing of the pair's memory

    A slice is a view: it shares the storage that it was cut from, and all of that stays alive with it.
    `clone` makes a storage of the size of the slice.
    """
    pair = _made(t)
    limit = 4 * sum(share.numel() for share in _shares(dict(pair.named_parameters())).values())
    kept = [tensor.untyped_storage() for tensor in (*t.model.parameters(), *t.model.buffers())]
    memory = {storage.data_ptr(): storage.nbytes() for storage in kept}
    of_pair = {p.untyped_storage().data_ptr() for p in (*t.first.parameters(), *t.second.parameters())}
    shared = [name for name, p in t.model.named_parameters() if p.untyped_storage().data_ptr() in of_pair]
    told = f"`{shared and shared[0]}` reads the memory of the pair"
    expect.true(not shared, told, "expected: memory of its own, of the size of the share")
    expect.at_most(sum(memory.values()), limit, "bytes of memory behind the parameters and buffers")
    ends = [weakref.ref(layer.weight) for layer in (t.first, t.second)]
    t.run("del first, second")
    gc.collect()
    alive = any(end() is not None for end in ends)
    told = "a weight of the pair is still there when nobody else holds it any more"
    expect.true(not alive, told, "expected: the module keeps its shares only")


@exercise.check(ranks=2, given=_SETUP)
def gradients_of_shares(t):
    """The gradients of the shares are shares of the gradients

    All ranks compute the same loss from the same result, so each has the whole gradient of the result. A sum
    passes its gradient on to each summand unchanged: after the second layer there is nothing to add up in
    backward. torch's differentiable `all_reduce` does add up; it's made for a loss that is the sum of all
    ranks' losses.
    """
    pair = _made(t)
    ranks.all_through(t, _ALONE)
    model, x = _in_one_process(t, pair)
    (model(x) * t.weights).sum().backward()
    found = ranks.gradients(t.model)
    for name, wanted in _shares(ranks.gradients(pair)).items():
        expect.true(found[name] is not None, f"no gradient reaches `{name}`", "expected: one does")
        factors = {"the number of ranks": dist.get_world_size()}
        expect.equal(found[name], wanted, what=f"the gradient of `{name}`", factors=factors, **_NEAR)


@exercise.check(ranks=2, given=_SETUP, cases={"the module alone": _ALONE, "`x` used elsewhere too": _BESIDE})
def gradient_of_x(t, call):
    """Each rank has the whole gradient of `x`, also where `x` is used elsewhere too

    All hidden features come from `x`, so its gradient is a sum over the ranks. What comes to `x` from
    elsewhere each rank has already: a hook on the caller's `x` would sum that too, one on `x.view_as(x)` sees
    only what comes back from the layers.
    """
    pair = _made(t)
    ranks.all_through(t, call)
    model, x = _in_one_process(t, pair)
    (alone,) = torch.autograd.grad((_summand(t, pair, x) * t.weights).sum(), x)
    (wanted,) = torch.autograd.grad((model(x) * t.weights).sum(), x)
    more = 0 if call == _ALONE else 1
    like = {
        "what the hidden features of this rank give": alone + more,
        "what was expected, and 1 more": wanted + more + 1,
    }
    expect.true(t.x.grad is not None, "no gradient reaches `x`", "expected: one does")
    factors = {"the number of ranks": dist.get_world_size()}
    what = "the gradient of `x`"
    expect.equal(t.x.grad, wanted + more, what=what, like=like, factors=factors, **_NEAR)


@exercise.check(ranks=2, given=_SETUP)
def collectives(t):
    """One `all_reduce` in forward, like the result, and one in backward, like `x`

    From a feature's row of the first weight to its column of the second you need no other feature. So the
    hidden features stay where they are, and only sums travel.
    """
    _made(t)
    with measure.traffic() as seen:
        t.run(_ALONE)
    for backward, size, like in ((False, 6 * 3 * 4, "the result"), (True, 6 * 4 * 4, "`x`")):
        calls = [call for call in seen.calls if call.backward == backward]
        where = "backward" if backward else "forward"
        expect.equal([call.name for call in calls], ["all_reduce"], what=f"the list of calls in {where}")
        expect.equal(calls[0].bytes, size, what=f"bytes of the call in {where} ({size} in {like})")
