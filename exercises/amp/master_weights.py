"""Weights kept in float32

`model` is all bfloat16, and small updates of it get lost. Build `MasterWeights(model, make_optimizer)`.

- `make_optimizer` is called once, with a list of float32 copies of the parameters that require grad: the
  *masters*. It returns the optimizer.
- `zero_grad()` sets the gradients of those parameters to `None`.
- `step()` brings each gradient to its master in float32, steps the optimizer, and writes each master back,
  rounded, into its parameter: the same tensor, in bfloat16. A parameter without a gradient is not updated.

`weights = MasterWeights(model, lambda masters: torch.optim.SGD(masters, lr=0.1))`, then in each iteration
`weights.zero_grad()`, forward, backward, `weights.step()`.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from course_utils.exercise import Exercise, expect

exercise = Exercise(
    minutes=12,
    core=True,
    hints=[
        "What goes from parameters to masters before the optimizer steps, and what goes back afterwards?",
        "Make the masters once, `p.detach().float()`: what was rounded away is gone from the model.",
        "`master.grad = None if p.grad is None else p.grad.float()` for each pair, `optimizer.step()`, and "
        "then under `no_grad` a copy into the parameter. Which method copies in place, and rounds?",
    ],
)


@exercise.starter
class MasterWeights:
    def __init__(
        self,
        model: nn.Module,
        make_optimizer: Callable[[list[Tensor]], torch.optim.Optimizer],
    ):
        raise NotImplementedError

    def zero_grad(self) -> None: ...
    def step(self) -> None: ...


_ONE = """
p = nn.Parameter(torch.ones(2, dtype=torch.bfloat16, device=device))
model = nn.ParameterList([p])
weights = MasterWeights(model, lambda masters: torch.optim.SGD(masters, lr=0.0005))
"""
_MODEL = """
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(device, torch.bfloat16)
x = torch.randn(32, 4, device=device).bfloat16()
y = x[:, :1] * x[:, 1:2]
def of_all():
    return F.mse_loss(model(x).float(), y.float())
def of_one():
    return 100 * model[2].bias.sum()
def train(loss):
    weights.zero_grad()
    loss().backward()
    weights.step()
"""
_SGD = "torch.optim.SGD(masters, lr=0.002, momentum=0.9, weight_decay=0.5)"
_WITH_SGD = f"{_MODEL}weights = MasterWeights(model, lambda masters: {_SGD})"


def _follow(t, *losses):
    """After a step with each of these losses the model is what masters of our own are, rounded."""
    parameters = dict(t.model.named_parameters())
    ours = {name: p.detach().float() for name, p in parameters.items()}
    optimizer = eval(_SGD, {"torch": torch, "masters": list(ours.values())})
    for loss in losses:
        grads = torch.autograd.grad(t.call(f"{loss}()"), list(parameters.values()), allow_unused=True)
        for w, grad in zip(ours.values(), grads, strict=True):
            w.grad = None if grad is None else grad.float()
        optimizer.step()
        t.run(f"train({loss})")
        for name, w in ours.items():
            what = f"`model.get_parameter({name!r})`"
            expect.equal(parameters[name].detach(), w.bfloat16(), what=what, rtol=0.0, atol=0.0)


@exercise.check(given=f"{_ONE}p.sum().backward()")
def cleared(t, device):
    """`zero_grad` sets the gradients of the parameters to None

    Backward adds to the `.grad` of the model's parameters, and knows of no master. Zeros are a gradient, too.
    """
    t.run("weights.zero_grad()")
    expect.equal(t.p.grad, None, what="`p.grad`")


@exercise.check(given=_ONE)
def small_updates(t, device):
    """Updates that are too small for bfloat16 add up

    Right below 1 the numbers of bfloat16 are 1/256 apart, and less than half of that is rounded away. A
    float32 master keeps these, if nothing rounded is written into it. Its gradient is that of one step.
    """
    t.run("for _ in range(400):\n    weights.zero_grad()\n    p.sum().backward()\n    weights.step()")
    wanted = torch.full_like(t.p.detach(), 0.8)
    expect.equal(t.p.detach(), wanted, what="`p`", like={"the weight at the start": torch.ones_like(wanted)})


@exercise.check(given=_WITH_SGD)
def follows(t, device):
    """Each step is the optimizer's step in float32, and the model has it rounded

    The optimizer works on the masters alone, with this step's gradients. The copy is rounded, not cut off.
    """
    _follow(t, *["of_all"] * 5)


@exercise.check(
    given=f"""{_MODEL}model[0].bias.requires_grad_(False)
given = []
weights = MasterWeights(model, lambda masters: given.append([*masters]) or torch.optim.Adam(given[-1]))"""
)
def masters(t, device):
    """The optimizer has the float32 copies, and the model its own tensors

    A frozen parameter has no master. Other code holds the model's parameters and views of them, so they keep
    their storage. Adam's running means have the dtype of what it is given, and are lost if it's made anew.
    """
    expect.equal(len(t.given), 1, what="the number of calls of `make_optimizer`")
    wanted = [(tuple(p.shape), torch.float32) for p in t.model.parameters() if p.requires_grad]
    came = [(tuple(p.shape), p.dtype) for p in t.given[0]]
    expect.equal(came, wanted, what="what `make_optimizer` is given")
    before = [(id(p), p.data_ptr(), p.dtype) for p in t.model.parameters()]
    t.run("train(of_all)\ntrain(of_all)")
    after = [(id(p), p.data_ptr(), p.dtype) for p in t.model.parameters()]
    expect.true(before == after, "the model has other tensors after a step", "expected: the same ones")


@exercise.check(given=_WITH_SGD)
def without_gradient(t, device):
    """A parameter that got no gradient this time stays as it is

    Optimizers like SGD pass over a parameter whose `.grad` is None. With zeros, momentum and weight decay go
    on, and a master's `.grad` from an earlier step is used again. What moves a master shows when it's copied.
    """
    _follow(t, *["of_all", "of_one"] * 4, "of_all")
