"""Batch norm, by hand

`BatchNorm(features)` is `nn.BatchNorm1d(features)` for inputs of shape `(n, features)`, with `n` of 2 or more
in training. A large mean costs it no more digits than torch's.

- In training it normalises each feature by the mean and the biased variance of the batch, and moves the
  running statistics towards the mean and the **unbiased** variance: `momentum` is the weight of the new
  batch. They carry no graph. In evaluation it uses them and leaves them alone.
- Its `state_dict` is like that of torch's layer: same names, same start, same counting.

Then `weight` and `bias` scale and shift. Don't use torch's own batch norm.

For `[[1.], [3.]]` a new `BatchNorm(1)` returns nearly `[[-1.], [1.]]`; then `running_mean` is `[0.2]`.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_utils import measure
from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import modules, numbers

exercise = Exercise(
    minutes=12,
    core=True,
    hints=[
        "`nn.BatchNorm1d(3).state_dict()` shows what has to be saved, and how it starts. Which of these "
        "tensors does the optimizer train? The others are buffers.",
        "Two variances: by `n` for the normalisation, by `n - 1` for the running one; `Tensor.var` has an "
        "argument for it. `self.training` says which mode it is.",
        "A running statistic that is computed from the batch hangs in its graph: update it under "
        "`torch.no_grad()`, in place (`lerp_` moves a tensor a part of the way). The normalisation stays in "
        "the graph.",
    ],
)


@exercise.starter
class BatchNorm(nn.Module):
    """(n, features) -> (n, features)"""

    def __init__(self, features: int, eps: float = 1e-5, momentum: float = 0.1):
        super().__init__()
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        raise NotImplementedError


_NEAR = {"rtol": 1e-4, "atol": 1e-5}


def _setup(options="", more=""):
    """A layer and torch's, and two batches whose features differ."""
    return f"""
torch.manual_seed(0)
norm, torchs = BatchNorm(3{options}), nn.BatchNorm1d(3{options})
for layer in (norm, torchs):
    nn.init.constant_(layer.weight, -2.)
    nn.init.constant_(layer.bias, 3.)
x, y = ((torch.randn(n, 3) + 1) * torch.tensor([1., 10., 0.01]) for n in (4, 7))
{more}"""


def _expect_statistics(t, near=_NEAR):
    for name in ("running_mean", "running_var"):
        found, wanted = t.call(f"norm.{name}"), getattr(t.torchs, name)
        expect.equal(found.detach(), wanted, what=f"`norm.{name}`", **near)


@exercise.check(given=_setup, cases={"the usual `eps`": "", "`eps=0.5`": ", eps=0.5"})
def training(t):
    """In training a batch is normalised by its own mean and biased variance

    Before `weight` and `bias` the output has mean 0 and, but for `eps`, mean square 1: that takes the
    variance divided by `n`. `eps` is added to the variance, inside the root, and counts where a feature
    hardly varies.
    """
    unbiased = (t.x - t.x.mean(0)) / (t.x.var(0) + t.torchs.eps).sqrt() * -2 + 3
    with measure.operators() as ran, expect.left_alone(t.x, what="`x`"):
        result = t.call("norm(x)")
    own = [name for name in ran.names if "batch_norm" in name]
    expect.true(not own, f"torch's `{''.join(own[:1])}` ran", "expected: operators of your own")
    like = {"what the unbiased variance gives": unbiased}
    expect.equal(expect.a_tensor(result).detach(), t.torchs(t.x).detach(), like=like, **_NEAR)


@exercise.check(given=_setup(", eps=0.5, momentum=0.75"), cases=["enable_grad", "no_grad"])
def running(t, mode):
    """The running statistics follow the batches, by the unbiased variance

    A batch is a sample: its variance divided by `n` is too small on average, so what shall speak for all data
    is divided by `n - 1`; `eps` has no part in it. Here `momentum` is the weight of the new batch. The mode
    of the module decides whether they move; grad mode has no say in it.
    """
    t.run(f"with torch.{mode}():\n    norm(x), norm(y)")
    t.torchs(t.x), t.torchs(t.y)
    _expect_statistics(t)


@exercise.check(
    given=f"{_setup()}torch.manual_seed({{}})\nx = {numbers.hard('8, 3')['a large mean']}".format,
    cases={f"seed {seed}": seed for seed in numbers.SEEDS},
)
def large_mean(t):
    """A large mean leaves digits for the variance

    `mean(x²) - mean(x)²` is a difference of two large numbers: at a mean of 10,000 in float32 both are
    rounded to multiples of 8. Subtract the mean first, then square, as `var` does.
    """
    near = {"rtol": 0.01, "atol": 0.05}
    scale, shift = t.torchs.weight.double(), t.torchs.bias.double()
    wanted = F.batch_norm(t.x.double(), None, None, scale, shift, training=True)
    expect.equal(expect.a_tensor(t.call("norm(x)")).detach(), wanted.detach().float(), **near)
    t.torchs(t.x)
    _expect_statistics(t, near)


@exercise.check(given=_setup(more="norm(x), torchs(x)\nnorm.eval(), torchs.eval()"))
def evaluation(t):
    """In evaluation the running statistics are used, and left alone

    What comes out for a row must not depend on the rest of the batch, which may be a single row. `eval()`
    sets `self.training` to False, in the module and in the registered modules below it.
    """
    with expect.left_alone(t.norm, what="`norm`"):
        result, wanted = t.call("norm(y[:1])"), t.torchs(t.y[:1])
    expect.equal(expect.a_tensor(result).detach(), wanted.detach(), **_NEAR)
    _expect_statistics(t)


@exercise.check
def saved(BatchNorm):
    """All that training has changed is saved, loaded and moved; two of five tensors are trained

    The running statistics are no parameters: no gradient says where they should go. As plain attributes they
    would be missing in `state_dict`, and stay behind in `.to(device)`. Buffers are saved and move along.
    `num_batches_tracked` counts the batches of training; torch needs it for `momentum=None`.
    """
    t = expect.given("norm, torchs = BatchNorm(3), nn.BatchNorm1d(3)", BatchNorm=BatchNorm)
    expect.equal(dict(t.call("norm.state_dict()")), dict(t.torchs.state_dict()))
    expect.equal(t.call("sorted(name for name, _ in norm.named_parameters())"), ["bias", "weight"])
    more = "norm(y), torchs(x)\nnorm.load_state_dict(torchs.state_dict())\nnorm(y), torchs(y)"
    t = expect.given(_setup(more=more), BatchNorm=BatchNorm)
    counted = t.call("norm.num_batches_tracked.item()")
    expect.true(counted == 2, f"the count of batches is {counted}", "expected: 2, of which one was loaded")
    expect.equal(dict(t.call("norm.state_dict()")), dict(t.torchs.state_dict()), **_NEAR)
    t = expect.given(_setup(more="norm, x = norm.double(), x.double()"), BatchNorm=BatchNorm)
    expect.equal(t.call("norm(x)").detach(), t.torchs.double()(t.x).detach(), rtol=1e-12, atol=1e-12)


@exercise.check(
    given=_setup(more="x.requires_grad_()\nfactors = torch.randn(4, 3)"),
    # The weight of a new layer is ones, and its bias zeros.
    cases={"other weights": "", "a new layer": "norm = BatchNorm(3)"},
)
def gradients(t):
    """Gradients go through mean and variance; the running statistics keep no graph

    Every row has a part in the mean and the variance, and so in the output of all others. A running
    statistic with a graph would hold on to every batch before: memory grows step by step.
    """
    named = {"weight": t.norm.weight, "bias": t.norm.bias}
    wanted = (torch.func.functional_call(t.torchs, named, t.x) * t.factors).sum()
    scale = t.norm.weight.detach() / (t.x.detach().var(0, correction=0) + 1e-5).sqrt()
    how = {"like": {"what it is where mean and variance are constants": t.factors * scale}}
    loss = "loss = (norm(x) * factors).sum()"
    modules.expect_gradients(t, loss, wanted, "x", "norm.weight", "norm.bias", **how, **_NEAR)
    for name in ("running_mean", "running_var"):
        told = f"`norm.{name}` requires a gradient"
        expect.true(not t.call(f"norm.{name}").requires_grad, told, "expected: numbers without a graph")
