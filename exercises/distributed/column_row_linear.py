"""Two linear layers, split over the ranks

A model that does not fit into one process can be cut through its layers. `ColumnRowLinear(first, second,
activation)` computes `second(activation(first(x)))`, where each rank holds its share of both `nn.Linear` and
does its share of the work. All ranks are given the same pair and the same `x`; each has the whole result,
computes the same loss from it, and calls `backward`. The result, and the gradients of `x` and of the
parameters, are those of the pair, also where the loss uses `x` elsewhere too.

- A rank holds some of the *hidden* features, those that `first` gives and `second` takes: of `n` runs of
  neighbouring ones, cut as `torch.tensor_split` does, the one of its own number. `activation` acts on each
  element.
- Its parameters are `first.weight`, `first.bias`, `second.weight` and `second.bias` by the names that
  `named_parameters` gives, with the dimensions of an `nn.Linear`, (outputs, inputs). They are plain tensors
  of the size of the share; `second.bias` belongs to no hidden feature, and every rank has all of it. A bias
  that the pair does not have is left out.
- Nothing of the pair is kept, also not its memory, and the pair stays as it is.
- In forward there is one `all_reduce`, of a tensor like the result, and in backward one, of a tensor like
  `x`. Where `x` needs no gradient there is none in backward.

What torch has for this, `torch.distributed.tensor`, is not the answer here: its tensors give the sizes of the
whole. `x` has any number of dimensions, of which the last are the features. There are at least as many hidden
features as ranks.

With two ranks and `ColumnRowLinear(nn.Linear(4, 6), nn.Linear(6, 3), nn.GELU())` each rank's `first.weight`
has the shape `(3, 4)` and its `second.weight` the shape `(3, 3)`.
"""

import copy
import gc
import weakref
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from course_utils import evidence, expect, measure
from course_utils.exercise import Exercise

exercise = Exercise(
    minutes=35,
    hints=[
        "Which elements of both weights does one hidden feature need? With those alone, what can a rank "
        "compute, and what is still missing when all have computed it?",
        "The result is a sum over the hidden features, so over the ranks: one `all_reduce`. What belongs to "
        "no hidden feature is added when that sum is made. In backward every rank has the gradient of the "
        "whole result, and finds what its own hidden features contribute to the gradient of `x`.",
        "`dist.all_reduce` writes into a tensor and knows nothing of gradients. Two small "
        "`autograd.Function`s do: one stands before `first`, does nothing in forward and sums in backward; "
        "the other stands behind `second`, sums in forward and hands the gradient on as it is.",
    ],
)


@exercise.starter
class ColumnRowLinear(nn.Module):
    """(..., inputs) -> (..., outputs), the same on every rank"""

    def __init__(self, first: nn.Linear, second: nn.Linear, activation: Callable[[Tensor], Tensor]):
        super().__init__()
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        raise NotImplementedError


_PAIR = """torch.manual_seed(0)
first, second = nn.Linear(4, {hidden}{more}), nn.Linear({hidden}, 3{more})
x = torch.randn({shape}, 4{dtype}{grad})
activation = {activation}
model = ColumnRowLinear(first, second, activation)"""


def _given(answer, *, hidden=6, shape="5", activation="nn.GELU()", bias=True, double=False, grad=True):
    dtype = ", dtype=torch.float64" if double else ""
    more = ("" if bias else ", bias=False") + dtype
    grad = ", requires_grad=True" if grad else ""
    setup = _PAIR.format(hidden=hidden, shape=shape, activation=activation, more=more, dtype=dtype, grad=grad)
    return expect.given(setup, ColumnRowLinear=answer)


def _upstream(result):
    """The gradient of a loss that all ranks agree on; no two elements alike."""
    return torch.linspace(-1, 2, result.numel()).view(result.shape).to(result.dtype)


def _whole(t):
    """The oracle: the pair in one process, in double precision. The result, and the gradients by name."""
    parameters = {
        f"{name}.{key}": p.detach().double().requires_grad_()
        for name, layer in (("first", t.first), ("second", t.second))
        for key, p in layer.named_parameters()
    }
    x = t.x.detach().double().requires_grad_()
    hidden = t.activation(F.linear(x, parameters["first.weight"], parameters.get("first.bias")))
    result = F.linear(hidden, parameters["second.weight"], parameters.get("second.bias"))
    asked = {"x": x, **parameters}
    grads = torch.autograd.grad(result, list(asked.values()), _upstream(result))
    return result.detach(), dict(zip(asked, grads, strict=True))


def _backward(result):
    """As far as a gradient goes."""
    if evidence.is_tensor(result) and result.requires_grad:
        result.backward(_upstream(result.detach()))


def _expect_result(result, oracle):
    expect.close(result, oracle, factor=16)


def _expect_gradient(found, oracle, what):
    evidence.record(f"no gradient of {what}", found is None)
    expect.true(found is not None, f"no gradient reaches `{what}`", "expected: one does")
    expect.close(found, oracle, what=f"the gradient of `{what}`", factor=16)


def _shares(t, rank, world_size):
    """The module's parameters by name, and for each the part of the pair's that it has to be."""
    found = {name: p for name, p in t.model.named_parameters() if evidence.is_tensor(p)}
    names = [
        f"{name}.{key}" for name in ("first", "second") for key, _ in getattr(t, name).named_parameters()
    ]
    expect.equal(sorted(found), sorted(names), what="the names of the parameters")
    mine = torch.arange(t.first.out_features).tensor_split(world_size)[rank]
    parts = {
        "first.weight": lambda w: w[mine],
        "first.bias": lambda b: b[mine],
        "second.weight": lambda w: w[:, mine],
        "second.bias": lambda b: b,
    }
    return found, parts


def _expect_gradients_of_shares(t, grads, rank, world_size):
    found, parts = _shares(t, rank, world_size)
    for name, p in found.items():
        _expect_gradient(p.grad, parts[name](grads[name]), name)


@exercise.check(ranks=2, deadline=10)
def values(ColumnRowLinear):
    """Each of two ranks has the whole result, for an `x` of one, two and three dimensions"""
    cases = [_given(ColumnRowLinear, shape=shape) for shape in ("5", "2, 3")]
    cases.append(_given(ColumnRowLinear, activation="torch.tanh"))
    calls = [*((t, "model(x)") for t in cases), (cases[0], "model(x[0])")]
    results = [t.call(call) for t, call in calls]
    for (t, call), result in zip(calls, results, strict=True):
        oracle, _ = _whole(t)
        with expect.situation(*t._setup, call):
            _expect_result(result, oracle[0] if "[0]" in call else oracle)


@exercise.check(ranks=2, deadline=10)
def gradient_of_x(ColumnRowLinear):
    """Each rank has the whole gradient of `x`, also where `x` is used elsewhere too"""
    t, beside = _given(ColumnRowLinear), _given(ColumnRowLinear)
    _backward(t.call("model(x)"))
    result = beside.call("model(x) + x.sum()")
    _backward(result)
    _expect_gradient(t.x.grad, _whole(t)[1]["x"], "x")
    with expect.situation(*beside._setup, "(model(x) + x.sum()).backward(...)"):
        # Each element of `x` is in each of the sum's, once more.
        more = _upstream(expect.a_tensor(result).detach()).double().sum()
        _expect_gradient(beside.x.grad, _whole(beside)[1]["x"] + more, "x")


@exercise.check(ranks=2, deadline=10)
def gradients_of_the_shares(ColumnRowLinear, rank, world_size):
    """The parameters are shares of the pair's, and so are their gradients"""
    t = _given(ColumnRowLinear)
    _backward(t.call("model(x)"))
    found, parts = _shares(t, rank, world_size)
    for name, p in found.items():
        whole = t.first if name.startswith("first") else t.second
        wanted = parts[name](getattr(whole, name.split(".")[1]))
        expect.equal(p.detach(), wanted.detach(), what=f"`{name}`")
    _expect_gradients_of_shares(t, _whole(t)[1], rank, world_size)


@exercise.check(ranks=3, deadline=10)
def shares_of_unequal_size(ColumnRowLinear, rank, world_size):
    """Three ranks and seven hidden features; layers without a bias; double precision"""
    for options in ({}, {"bias": False, "double": True}):
        t = _given(ColumnRowLinear, hidden=7, **options)
        result = t.call("model(x)")
        _backward(result)
        oracle, grads = _whole(t)
        _expect_result(result, oracle)
        expect.equal(result.dtype, t.x.dtype, what="the dtype of the result")
        _expect_gradient(t.x.grad, grads["x"], "x")
        _expect_gradients_of_shares(t, grads, rank, world_size)


@exercise.check(ranks=2, deadline=10)
def five_steps(ColumnRowLinear):
    """Five steps of SGD on the shares; after each step the result is that of the pair"""
    t = _given(ColumnRowLinear)
    given = nn.ModuleDict({"first": t.first, "second": t.second})
    before = copy.deepcopy(given)
    pair = nn.Sequential(before["first"], t.activation, before["second"])
    pair = copy.deepcopy(pair).double()
    shares = torch.optim.SGD(t.model.parameters(), lr=0.1)
    whole = torch.optim.SGD(pair.parameters(), lr=0.1)
    results, wanted = [], []
    for _ in range(5):
        for model, optimizer, x, kept in (
            (t.model, shares, t.x, results),
            (pair, whole, t.x.double(), wanted),
        ):
            result = model(x.detach())
            kept.append(result)
            optimizer.zero_grad()
            _backward(result)
            optimizer.step()
    lines = [*t._setup, "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)"]
    for step, (result, oracle) in enumerate(zip(results, wanted, strict=True)):
        with expect.situation(*lines, "model(x)"):
            expect.close(result, oracle.detach(), what=f"the result in step {step + 1}", factor=64)
    with expect.situation(*lines):
        for (name, p), value in zip(given.named_parameters(), before.parameters(), strict=True):
            expect.unchanged(p.detach(), value.detach(), what=f"`{name}` of the pair")
            expect.equal(p.requires_grad, True, what=f"`{name}.requires_grad` of the pair")


@exercise.check(ranks=4, deadline=10)
def bytes_kept(ColumnRowLinear):
    """Each of four ranks keeps a quarter of both weights, and nothing of the pair's memory"""
    first, second = nn.Linear(8, 64), nn.Linear(64, 8)
    lines = "first, second = nn.Linear(8, 64), nn.Linear(64, 8)", "ColumnRowLinear(first, second, nn.GELU())"
    with expect.situation(*lines):
        model = ColumnRowLinear(first, second, nn.GELU())
        kept = {name: t.detach() for name, t in (*model.named_parameters(), *model.named_buffers())}
        size = sum(t.numel() * t.element_size() for t in kept.values())
        limit = 4 * (16 * 8 + 16 + 8 * 16 + 8)
        expect.at_most(size, limit, "bytes of parameters and buffers on this rank")
        of_pair = {p.untyped_storage().data_ptr() for p in (*first.parameters(), *second.parameters())}
        shared = sorted(name for name, t in kept.items() if t.untyped_storage().data_ptr() in of_pair)
        evidence.record("shared with the pair", shared)
        expect.true(
            not shared,
            f"`{shared and shared[0]}` reads the memory of the pair's, all of which stays for its sake",
            "expected: memory of its own, of the size of the share",
        )
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in kept.values()}
        expect.at_most(sum(storages.values()), limit, "bytes of memory behind them")
        ends = [weakref.ref(p) for p in (first.weight, second.weight)]
        del first, second, kept
        gc.collect()
        alive = [end() is not None for end in ends]
        evidence.record("pair kept", alive)
        expect.true(
            not any(alive),
            "a weight of the pair is still there when nobody else holds it any more",
            "expected: the module keeps its shares only",
        )


def _names(traffic):
    return [call.name for call in traffic.calls]


@exercise.check(ranks=2, deadline=10)
def collectives(ColumnRowLinear):
    """One `all_reduce` in forward, like the result, and one in backward, like `x`"""
    t = _given(ColumnRowLinear, shape="5")
    with measure.traffic() as forward:
        result = t.call("model(x)")
    with measure.traffic() as backward:
        _backward(result)
    expect.equal(_names(forward), ["all_reduce"], what="what is called in forward")
    expect.at_most(forward.bytes("all_reduce"), 5 * 3 * 4, "bytes of the `all_reduce` in forward")
    expect.equal(_names(backward), ["all_reduce"], what="what is called in backward")
    expect.at_most(backward.bytes("all_reduce"), 5 * 4 * 4, "bytes of the `all_reduce` in backward")


@exercise.check(ranks=2, deadline=10)
def input_without_gradient(ColumnRowLinear, rank, world_size):
    """An `x` without a gradient: nothing is sent in backward; also without a graph"""
    t = _given(ColumnRowLinear, grad=False)
    result = t.call("model(x)")
    with measure.traffic() as backward:
        _backward(result)
    with torch.no_grad():
        without = t.call("model(x)")
    oracle, grads = _whole(t)
    expect.equal(_names(backward), [], what="what is called in backward")
    _expect_gradients_of_shares(t, grads, rank, world_size)
    _expect_result(without, oracle)


# --- the mistakes -----------------------------------------------------------------------------------------


def _mine(features):
    n, rank = dist.get_world_size(), dist.get_rank()
    size, rest = divmod(features, n)
    begin = size * rank + min(rank, rest)
    return slice(begin, begin + size + (rank < rest))


class _Sum(torch.autograd.Function):
    """Sums over the ranks in forward, in backward, or in both."""

    @staticmethod
    def forward(ctx, t, forward, backward):
        ctx.sums = backward
        return _summed(t) if forward else t.view_as(t)

    @staticmethod
    def backward(ctx, grad):
        return _summed(grad) if ctx.sums else grad, None, None


def _summed(t):
    t = t.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(t)
    return t


def _linear(weight, bias):
    """An `nn.Linear` that holds these values in memory of its own."""
    outputs, inputs = weight.shape
    layer = nn.Linear(inputs, outputs, bias is not None, dtype=weight.dtype)
    layer.load_state_dict({"weight": weight.detach()} | ({} if bias is None else {"bias": bias.detach()}))
    return layer


class _Right(nn.Module):
    """A right answer with holes, each of which a mistake fills in its way."""

    def __init__(self, first, second, activation):
        super().__init__()
        mine = self.mine(first.out_features)
        self.first = _linear(first.weight[mine], None if first.bias is None else first.bias[mine])
        self.second = _linear(second.weight[:, mine], second.bias)
        self.activation = activation

    def mine(self, hidden):
        return _mine(hidden)

    def enter(self, x):
        return _Sum.apply(x, False, True)

    def between(self, hidden):
        return hidden

    def leave(self, part):
        total = _Sum.apply(part, True, False)
        return total if self.second.bias is None else total + self.second.bias

    def forward(self, x):
        hidden = self.between(self.activation(self.first(self.enter(x))))
        return self.leave(F.linear(hidden, self.second.weight))


@exercise.mistake
class BiasOnEveryRank(_Right):
    """Every rank adds the bias of the second layer before the sum over the ranks, so the result holds it as
    often as there are ranks. It belongs behind the sum, once."""

    def leave(self, part):
        part = part if self.second.bias is None else part + self.second.bias
        return _Sum.apply(part, True, False)


@BiasOnEveryRank.variant
class CallsTheSecondLayer(nn.Module):
    def __init__(self, first, second, activation):
        super().__init__()
        rank, n = dist.get_rank(), dist.get_world_size()
        rows = first.weight.tensor_split(n)[rank]
        self.first = nn.Linear(rows.size(1), len(rows), bias=first.bias is not None, dtype=rows.dtype)
        self.second = nn.Linear(len(rows), second.out_features, second.bias is not None, dtype=rows.dtype)
        with torch.no_grad():
            self.first.weight.copy_(rows)
            self.second.weight.copy_(second.weight.tensor_split(n, dim=1)[rank])
            if first.bias is not None:
                self.first.bias.copy_(first.bias.tensor_split(n)[rank])
            if second.bias is not None:
                self.second.bias.copy_(second.bias)
        self.act = activation

    def forward(self, x):
        y = self.second(self.act(self.first(_Sum.apply(x, False, True))))
        return _Sum.apply(y, True, False)


@exercise.mistake
class AShareOfTheBias(_Right):
    """Every rank adds the `n`-th part of the bias of the second layer before the sum. The result is right,
    but the gradient of that bias is an `n`-th of what it is in the pair, so it learns too slowly. Added
    behind the sum, once, it gets the gradient of the result."""

    def leave(self, part):
        bias = self.second.bias
        part = part if bias is None else part + bias / dist.get_world_size()
        return _Sum.apply(part, True, False)


@exercise.mistake
class BiasOnRankZero(_Right):
    """Only rank 0 adds the bias of the second layer. The result is right, but on the other ranks the bias
    gets no gradient, and after one step the ranks no longer have the same. Every rank adds it, behind the
    sum."""

    def leave(self, part):
        if self.second.bias is not None and dist.get_rank() == 0:
            part = part + self.second.bias
        return _Sum.apply(part, True, False)


class _Gather(torch.autograd.Function):
    """All of `features` features; backward hands on those of this rank."""

    @staticmethod
    def forward(ctx, t, features):
        ctx.mine, n = _mine(features), dist.get_world_size()
        # One size for all: gloo gathers nothing else.
        padded = t.new_zeros(*t.shape[:-1], -(-features // n))
        padded[..., : t.size(-1)] = t
        parts = [torch.empty_like(padded) for _ in range(n)]
        dist.all_gather(parts, padded)
        sizes = [len(run) for run in torch.arange(features).tensor_split(n)]
        return torch.cat([part[..., :size] for part, size in zip(parts, sizes, strict=True)], -1)

    @staticmethod
    def backward(ctx, grad):
        return grad[..., ctx.mine], None


@exercise.mistake
class GathersTheHiddenFeatures(_Right):
    """Your ranks exchange the hidden features between the layers. A rank needs none but its own: `activation`
    acts on each by itself, and the columns of the second weight that the rank holds belong to these."""

    def __init__(self, first, second, activation):
        super().__init__(first, second, activation)
        self.hidden = first.out_features

    def between(self, hidden):
        return _Gather.apply(hidden, self.hidden)[..., _mine(self.hidden)]


@GathersTheHiddenFeatures.variant
class GathersBeforeTheActivation(_Right):
    def __init__(self, first, second, activation):
        super().__init__(first, second, activation)
        self.hidden = first.out_features

    def forward(self, x):
        whole = self.activation(_Gather.apply(self.first(self.enter(x)), self.hidden))
        mine = whole.tensor_split(dist.get_world_size(), -1)[dist.get_rank()]
        return self.leave(mine @ self.second.weight.t())


@exercise.mistake
class NoSumInBackward(_Right):
    """The gradient of `x` is that of this rank's hidden features alone. All features were made from `x`, so
    its gradient is a sum over the ranks, as the result is: it takes an `all_reduce` in backward."""

    def enter(self, x):
        return x


@NoSumInBackward.variant
class SumsForwardOnly(nn.Module):
    def __init__(self, first, second, activation):
        super().__init__()
        rank, n = dist.get_rank(), dist.get_world_size()

        def share(p, dim):
            return nn.Parameter(p.detach().tensor_split(n, dim)[rank].clone().contiguous())

        self.first, self.second, self.act = nn.ParameterDict(), nn.ParameterDict(), activation
        self.first["weight"], self.second["weight"] = share(first.weight, 0), share(second.weight, 1)
        if first.bias is not None:
            self.first["bias"] = share(first.bias, 0)
        if second.bias is not None:
            self.second["bias"] = nn.Parameter(second.bias.detach().clone())

    def forward(self, x):
        hidden = x @ self.first["weight"].mT
        hidden = self.act(hidden + self.first["bias"] if "bias" in self.first else hidden)
        part = hidden @ self.second["weight"].mT
        whole = part.detach().clone()
        dist.all_reduce(whole)
        result = part + (whole - part.detach())
        return result + self.second["bias"] if "bias" in self.second else result


@exercise.mistake
class SumsTheGradientsToo(_Right):
    """Your gradients are `n` times too large: in backward you sum the gradient of the result over the ranks.
    It is the gradient of one loss, which all ranks have computed, and each has it whole already. The sum in
    forward hands it on as it is; torch's differentiable `all_reduce` is made for a loss that is the sum of
    those of all ranks."""

    def leave(self, part):
        total = _Sum.apply(part, True, True)
        return total if self.second.bias is None else total + self.second.bias


@SumsTheGradientsToo.variant
class HookOnTheSum(_Right):
    def leave(self, part):
        with torch.no_grad():
            rest = _summed(part) - part
        total = part + rest
        if total.requires_grad:
            total.register_hook(_summed)
        return total + self.second.bias if self.second.bias is not None else total


@SumsTheGradientsToo.form
class AlsoOfTheBias(_Right):
    def leave(self, part):
        bias = self.second.bias
        rest = (_summed(part) - part).detach()
        total = part + rest if bias is None else part + rest + bias
        return _Sum.apply(total, False, True)


@SumsTheGradientsToo.form
class OfTheBiasAlone(_Right):
    def __init__(self, first, second, activation):
        super().__init__(first, second, activation)
        if self.second.bias is not None:
            self.second.bias.register_hook(_summed)


@exercise.mistake
class SumsInTheWrongPlace(_Right):
    """In backward you sum the gradient of the result over the ranks, and not that of `x`. Each rank has the
    first one whole, so everything gets `n` times too large; of the second it has the part of its own hidden
    features. torch's differentiable `all_reduce` is made for a loss that is the sum of those of all ranks.
    Here the sum in forward hands the gradient on as it is, and `x` needs a sum of its own in backward."""

    def enter(self, x):
        return x

    def leave(self, part):
        total = _Sum.apply(part, True, True)
        return total if self.second.bias is None else total + self.second.bias


@exercise.mistake
class HookOnX(_Right):
    """Your sum in backward takes in the whole gradient of the caller's `x`, also what comes to it from
    elsewhere, which every rank has whole already. Only what comes back from the layers is to be summed: put
    the sum on a tensor of your own, such as `x.view_as(x)`."""

    def enter(self, x):
        if x.requires_grad:
            x.register_hook(_summed)
        return x


@exercise.mistake
class CutsTheGraph(_Right):
    """No gradient goes back through your sum: it was made in a tensor that the graph knows nothing of.
    `dist.all_reduce` has no derivative; an `autograd.Function` around it gives it one."""

    def leave(self, part):
        total = _summed(part.detach())
        return total if self.second.bias is None else total + self.second.bias


@exercise.mistake
class SplitsAsTheNamesSay(nn.Module):
    """You split the first weight along its inputs and the second along its outputs. Then each hidden feature
    is a sum of which a rank has only a part, and `activation` needs the whole. "Column" is said of the
    matrix that `x` is multiplied with; `nn.Linear` holds it transposed, as (outputs, inputs). Split the
    outputs of the first and the inputs of the second."""

    def __init__(self, first, second, activation):
        super().__init__()
        self.columns, rows = _mine(first.in_features), _mine(second.out_features)
        self.outputs = second.out_features
        self.first = _linear(first.weight[:, self.columns], first.bias)
        self.second = _linear(second.weight[rows], None if second.bias is None else second.bias[rows])
        self.activation = activation

    def forward(self, x):
        part = F.linear(_Sum.apply(x, False, True)[..., self.columns], self.first.weight)
        hidden = _Sum.apply(part, True, True)
        hidden = hidden if self.first.bias is None else hidden + self.first.bias
        return _Gather.apply(self.second(self.activation(hidden)), self.outputs)


@exercise.mistake
class ViewsOfTheWhole(_Right):
    """Your parameters are views of the pair's weights: a slice shares the storage that it was cut from, so
    every rank keeps both weights whole, and a step of the optimizer writes into the pair. `clone` a slice."""

    def __init__(self, first, second, activation):
        super().__init__(first, second, activation)
        mine = _mine(first.out_features)
        self.first.weight = nn.Parameter(first.weight[mine])
        self.second.weight = nn.Parameter(second.weight[:, mine])
        if first.bias is not None:
            self.first.bias = nn.Parameter(first.bias[mine])
        if second.bias is not None:
            self.second.bias = nn.Parameter(second.bias.detach())


@ViewsOfTheWhole.form
class OnlyTheBias(_Right):
    def __init__(self, first, second, activation):
        super().__init__(first, second, activation)
        self.second.bias = second.bias


@ViewsOfTheWhole.form
class OnlyTheWeights(_Right):
    def __init__(self, first, second, activation):
        super().__init__(first, second, activation)
        mine = _mine(first.out_features)
        self.first.weight = nn.Parameter(first.weight[mine])
        self.second.weight = nn.Parameter(second.weight[:, mine])


@exercise.mistake
class SlicesInForward(_Right):
    """Every rank keeps both layers whole and takes its share in `forward`. The work is divided so, the memory
    is not. Take the share once, in `__init__`, and keep nothing else."""

    def __init__(self, first, second, activation):
        super().__init__(first, second, activation)
        self.first, self.second = _linear(first.weight, first.bias), _linear(second.weight, second.bias)

    def forward(self, x):
        mine = _mine(self.first.out_features)
        bias = None if self.first.bias is None else self.first.bias[mine]
        hidden = self.activation(F.linear(self.enter(x), self.first.weight[mine], bias))
        return self.leave(F.linear(hidden, self.second.weight[:, mine]))


@exercise.mistake
class WholeOnEveryRank(nn.Module):
    """Nothing is split: every rank keeps both layers and computes the whole result by itself. A rank is to
    hold the rows of the first weight and the columns of the second that belong to its hidden features."""

    def __init__(self, first, second, activation):
        super().__init__()
        self.first, self.second = _linear(first.weight, first.bias), _linear(second.weight, second.bias)
        self.activation = activation

    def forward(self, x):
        return self.second(self.activation(self.first(x)))


@exercise.mistake
class KeepsThePair(_Right):
    """The module still holds the pair, out of sight of `parameters()`: its weights stay in memory on every
    rank as long as the module does."""

    def __init__(self, first, second, activation):
        super().__init__(first, second, activation)
        self.whole = [first, second]


@exercise.mistake
class TheRestIsForgotten(_Right):
    """Some hidden features belong to no rank: `hidden // n` to each are fewer than there are where the
    division has a rest. `torch.tensor_split` gives the first ranks one more."""

    def mine(self, hidden):
        size = hidden // dist.get_world_size()
        return slice(size * dist.get_rank(), size * (dist.get_rank() + 1))


@exercise.mistake
class TakesTheMean(_Right):
    """You divide by the number of ranks. Each rank has the contribution of its own hidden features to the
    result; their sum is the result."""

    def leave(self, part):
        total = _Sum.apply(part, True, False) / dist.get_world_size()
        return total if self.second.bias is None else total + self.second.bias
