"""Batch norm, by hand

`BatchNorm(features)` is `nn.BatchNorm1d(features)` for inputs of shape `(n, features)`.

- In training it normalises each feature by the mean and the biased variance of the batch, and moves the
  running statistics towards the mean and the **unbiased** variance: `momentum` is the weight of the new
  batch. They carry no graph. In evaluation it uses them and leaves them alone.
- Its `state_dict` and that of torch's layer fit each other, both ways: same names, same start, same counting.

Then `weight` and `bias` scale and shift. Don't use torch's own batch norm.

For `[[1.], [3.]]` a new `BatchNorm(1)` returns nearly `[[-1.], [1.]]`; then `running_mean` is `[0.2]`.
"""

import torch
from torch import Tensor, nn

from course_utils import measure
from course_utils.exercise import Exercise, Rows, expect

exercise = Exercise(
    minutes=12,
    core=True,
    hints=[
        "`nn.BatchNorm1d(3).state_dict()` shows what has to be saved, with its names and its start. Which of "
        "these tensors does the optimizer train? The others are buffers.",
        "Two variances: by `n` for the normalisation, by `n - 1` for the running one; `Tensor.var` has an "
        "argument for it. `self.training` says which mode it is, and has nothing to do with `no_grad`.",
        "A running statistic that is computed from the batch hangs in the batch's graph, and the next one in "
        "both: update it under `torch.no_grad()`, in place (`lerp_` moves a tensor a part of the way). The "
        "normalisation itself stays in the graph, mean and variance too.",
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
_SETUP = """
torch.manual_seed(0)
norm, torchs = BatchNorm({arguments}), nn.BatchNorm1d({arguments})
for layer in (norm, torchs):
    nn.init.constant_(layer.weight, -2.)
    nn.init.constant_(layer.bias, 3.)
x, y = ((torch.randn(n, 3) + 1) * torch.tensor([1., 10., 0.01]) for n in (4, 7))
"""


def _given(BatchNorm, arguments="3", more=""):
    """A layer and torch's, and two batches whose features differ."""
    return expect.given(_SETUP.format(arguments=arguments) + more, BatchNorm=BatchNorm)


def _expect_statistics(t, like=lambda name: {}):
    for name in ("running_mean", "running_var"):
        found, wanted = t.call(f"norm.{name}"), getattr(t.torchs, name)
        expect.equal(found.detach(), wanted, what=f"`norm.{name}`", like=like(name), **_NEAR)


@exercise.check
def training(BatchNorm):
    """In training a batch is normalised by its own mean and biased variance

    Before `weight` and `bias` the output has mean 0 and mean square 1: that takes the variance divided by
    `n`. `eps` is added to the variance, inside the root, and counts where a feature hardly varies.
    """

    def normalised(t, mean, var):
        return ((t.x - mean) / (var + 1e-5).sqrt() * t.norm.weight + t.norm.bias).detach()

    with Rows() as rows:
        for arguments in ("3", "3, eps=0.5"):
            with rows.of(f"`BatchNorm({arguments})`"):
                t = _given(BatchNorm, arguments)
                like = {
                    "what the unbiased variance gives": normalised(t, t.x.mean(0), t.x.var(0)),
                    "what the running statistics give": normalised(t, torch.zeros(3), torch.ones(3)),
                }
                with expect.left_alone(t.x, what="`x`"), measure.operators() as ran:
                    result = t.call("norm(x)")
                own = [name for name in ran.names if "batch_norm" in name]
                expect.true(not own, f"torch's `{''.join(own[:1])}` ran", "expected: operators of your own")
                expect.equal(expect.a_tensor(result).detach(), t.torchs(t.x).detach(), like=like, **_NEAR)


@exercise.check
def running(BatchNorm):
    """The running statistics follow the batches, by the unbiased variance

    A batch is a sample: its variance divided by `n` is too small on average, so what shall speak for all data
    is divided by `n - 1`. In torch `momentum` is the weight of the new batch. The mode of the module decides
    whether they move; grad mode has no say in it.
    """
    with Rows() as rows:
        for momentum in (0.1, 0.75, 0.0):
            for mode in ("set_grad_enabled(True)", "no_grad()"):
                with rows.of(f"momentum {momentum} in `{mode}`"):
                    t = _given(BatchNorm, f"3, momentum={momentum}")
                    like = {}
                    for name, correction, weight in (
                        ("what the biased variance gives", 0, momentum),
                        ("what momentum as the weight of the old gives", 1, 1 - momentum),
                    ):
                        mean, var = torch.zeros(3), torch.ones(3)
                        for batch in (t.x, t.y):
                            mean = mean.lerp(batch.mean(0), weight)
                            var = var.lerp(batch.var(0, correction=correction), weight)
                        like[name] = {"running_mean": mean, "running_var": var}
                    t.run(f"with torch.{mode}:\n    norm(x), norm(y)")
                    t.torchs(t.x), t.torchs(t.y)
                    _expect_statistics(t, lambda name, like=like: {k: v.get(name) for k, v in like.items()})


@exercise.check
def evaluation(BatchNorm):
    """In evaluation the running statistics are used, and left alone

    What comes out for a row must not depend on the rest of the batch, which may be a single row. `eval()`
    sets `self.training` to False, in the module and in all modules below it.
    """
    with Rows() as rows:
        for batch in ("y", "y[:1]"):
            with rows.of(f"`{batch}`"):
                t = _given(BatchNorm, more="norm(x), torchs(x)\nnorm.eval(), torchs.eval()")
                t.run(f"result, wanted = norm({batch}), torchs({batch})")
                expect.equal(t.result.detach(), t.wanted.detach(), **_NEAR)
                _expect_statistics(t)
                t.run("norm.train(), torchs.train()\nresult, wanted = norm(y), torchs(y)")
                expect.equal(t.result.detach(), t.wanted.detach(), **_NEAR)


@exercise.check
def saved(BatchNorm):
    """All that training has changed is saved, loaded and moved; two of five tensors are trained

    The running statistics are no parameters: no gradient says where they should go. As plain attributes they
    would be missing in `state_dict`, and stay behind in `.to(device)` and `.double()`. Buffers are saved and
    move along. `num_batches_tracked` counts the batches of training; torch needs it for `momentum=None`.
    """
    t = expect.given("norm, torchs = BatchNorm(3), nn.BatchNorm1d(3)", BatchNorm=BatchNorm)
    expect.equal(dict(t.call("norm.state_dict()")), dict(t.torchs.state_dict()))
    expect.equal(t.call("sorted(name for name, _ in norm.named_parameters())"), ["bias", "weight"])
    t = _given(BatchNorm, more="norm(y)\ntorchs(x)\nnorm.load_state_dict(torchs.state_dict())")
    t.run("norm.eval(), torchs.eval()\nresult, wanted = norm(x), torchs(x)")
    expect.equal(t.result.detach(), t.wanted.detach(), **_NEAR)
    t.run("norm.train(), torchs.train()\nnorm(y), torchs(y)")
    counted = t.call("norm.num_batches_tracked.item()")
    expect.true(counted == 2, f"the count of batches is {counted}", "expected: 2, of which one was loaded")
    expect.equal(dict(t.call("norm.state_dict()")), dict(t.torchs.state_dict()), **_NEAR)
    t.run("torchs.load_state_dict(norm.state_dict())\nnorm.double()\nresult = norm(x.double())")
    expect.equal(t.result.dtype, torch.float64, what="the dtype of the result")


@exercise.check
def gradients(BatchNorm):
    """Gradients go through mean and variance; the running statistics keep no graph

    Every row has a part in the mean and the variance, and so in the output of all others. A running
    statistic with a graph would hold on to every batch before: memory grows step by step.
    """
    for mode in ("train", "eval"):
        more = f"x.requires_grad_()\nfactors = torch.randn(4, 3)\nnorm.{mode}(), torchs.{mode}()"
        t = _given(BatchNorm, more=more)
        for layer in ("torchs", "norm"):
            t.run(f"x.grad = None\n({layer}(x) * factors).sum().backward()")
            if layer == "torchs":
                wanted = t.x.grad
        constant = (t.factors * t.norm.weight / (t.x.var(0, correction=0) + 1e-5).sqrt()).detach()
        like = {"what it is where mean and variance are constants": constant}
        expect.true(t.x.grad is not None, "no gradient reaches `x`", "expected: one does")
        expect.equal(t.x.grad, wanted, what="`x.grad`", like=like, **_NEAR)
        for name in ("weight", "bias"):
            expect.equal(
                t.call(f"norm.{name}.grad"), getattr(t.torchs, name).grad, what=f"`norm.{name}.grad`", **_NEAR
            )
        for name in ("running_mean", "running_var"):
            told = f"`norm.{name}` requires a gradient"
            expect.true(not t.call(f"norm.{name}").requires_grad, told, "expected: numbers without a graph")
