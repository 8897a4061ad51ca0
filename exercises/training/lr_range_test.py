"""The learning-rate range test

Train `model` on `batches`, two or more pairs `(x, y)`, with a rate for each: `low` for the first, `high` for
the last, each the same multiple of the one before, in all groups of `optimizer`. Return two lists of floats,
rates and losses: `loss_fn(model(x), y)` before each step, in training mode.

- The test ends after a loss that is not finite, or above 4 times the lowest before it. Finite ones are
  positive.
- Afterwards, also when something raises, `model` has its parameters, all buffers and modes back, `optimizer`
  its state and settings, and each `grad` is `None`. Older gradients don't count.

`lr_range_test(model, optimizer, batches, F.mse_loss, 1e-4, 1.0)` → `([0.0001, …], [0.93, …])`
"""

import copy
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from course_utils.exercise import Exercise, expect

exercise = Exercise(
    minutes=15,
    hints=[
        "Three rates from 0.01 to 1: the one in the middle is 0.1. Which power of `high / low` belongs to "
        "batch `i` of `n`?",
        "`state_dict()` holds the living tensors, of the model and of the optimizer. How do you keep what is "
        "there now?",
        "Keep clones of all parameters and buffers by name, each module's `training`, and a `copy.deepcopy` "
        "of the optimizer's `state_dict()`. Put them back in a `finally`: `copy_` into the tensors that have "
        "the names now, under `torch.no_grad()`, and `load_state_dict` for the optimizer.",
    ],
)


@exercise.starter
def lr_range_test(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Sequence[tuple[Tensor, Tensor]],
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    low: float,
    high: float,
) -> tuple[list[float], list[float]]:
    """() -> rates, losses"""
    raise NotImplementedError


_SETUP = """
torch.manual_seed(0)
x = torch.randn(80, 3).to(device)
y = 2 * x[:, :1].abs() + x[:, 1:2]
batches = [(x[i : i + 8], y[i : i + 8]) for i in range(0, 80, 8)]
model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1)).to(device)
groups = [{"params": model[0].parameters(), "lr": 0.5}, {"params": model[1:].parameters()}]
optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
loss_fn, low, high = F.mse_loss, 1e-3, 0.1
"""
_TRAINED = """
F.mse_loss(model(x), y).backward()
optimizer.step()
model[0].weight.requires_grad_(False)
model.eval()
"""
_SUMS = """
class Sums(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("sums", torch.zeros(3, device=device))
    def forward(self, x):
        self.sums = self.sums + x.detach().sum(0)
        return x
model.insert(0, Sums())
"""
_INTERRUPT = """
def loss_fn(out, y, calls=[]):
    calls.append(y)
    if len(calls) == 5: raise KeyboardInterrupt
    return F.mse_loss(out, y)
"""
_BUFFER = 'model[1].register_buffer("running_mean", torch.zeros(4, device=device), persistent=False)'
_LEVELS = """
loss_fn = lambda out, y: (out - out.detach() + y).mean()  # the mean of y
batches = [(x[:3], torch.full((3, 1), level, device=device)) for level in {}]
"""
_CALL = "lr_range_test(model, optimizer, batches, loss_fn, low, high)"


def _truth(t):
    """Rates and losses by the book, on copies."""
    model, optimizer = copy.deepcopy((t.model, t.optimizer))
    model.train()
    rates, losses, number = [], [], len(t.batches)
    for i, (x, y) in enumerate(t.batches):
        rates.append(math.exp(math.log(t.low) + (math.log(t.high) - math.log(t.low)) * i / (number - 1)))
        optimizer.zero_grad()
        loss = t.loss_fn(model(x), y)
        losses.append(loss.item())
        if not math.isfinite(losses[-1]) or losses[-1] > 4 * min(losses):
            break
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = rates[-1]
        optimizer.step()
    return rates, losses


def _state(t):
    """All that has to be as it was."""
    tensors = [*t.model.named_parameters(), *t.model.named_buffers()]
    found = {f"`{name}`": tensor.detach().clone() for name, tensor in tensors}
    found |= {f"`{name}.requires_grad`": p.requires_grad for name, p in t.model.named_parameters()}
    found |= {f"`training` of module `{name}`": module.training for name, module in t.model.named_modules()}
    state = copy.deepcopy(t.optimizer.state_dict())
    for i, group in enumerate(state["param_groups"]):
        found |= {f"`{k}` of the optimizer's group {i}": v for k, v in group.items()}
    for i, entry in state["state"].items():
        found |= {f"the optimizer's `{k}` for parameter {i}": v for k, v in entry.items()}
    return found


def _held(t):
    return [p for group in t.optimizer.param_groups for p in group["params"]]


def _compare(t):
    rates, losses = _truth(t)
    steps = []  # the rates of all groups, in each step of whichever optimizer

    def note(optimizer, *_):
        steps.append([group["lr"] for group in optimizer.param_groups])

    with expect.left_alone(t.x, what="`x`"), register_optimizer_step_pre_hook(note):
        came = t.call(_CALL)
    for i, (groups, rate) in enumerate(zip(steps, rates, strict=False)):
        for group, one in enumerate(groups):
            expect.equal(float(one), rate, what=f"the rate of group {group} in step {i}", rtol=1e-4)
    told = f"the result is {expect.show(came)}", "expected: two lists, rates and losses"
    expect.true(isinstance(came, (tuple, list)) and len(came) == 2, *told)
    for what, found, wanted in (("rates", came[0], rates), ("losses", came[1], losses)):
        expect.equal(len(found), len(wanted), what=f"the number of {what}")
        for i in (-1, *range(len(wanted))):
            one, name = found[i], f"`{what}[{i}]`"
            expect.true(isinstance(one, float), f"{name} is {expect.show(one)}", "expected: a float")
            expect.equal(one, wanted[i], what=name, rtol=1e-4)


@exercise.check(
    given=_SETUP,
    cases={
        "`low=0.001, high=0.1`, a new optimizer": "",
        "`low=0.0001, high=0.01`, a new optimizer": "low, high = 1e-4, 0.01",
        "a model in evaluation mode, with old gradients and momentum": _TRAINED,
    },
)
def rises(t, device):
    """Rates rise by equal factors, and each batch is trained with its own

    The test looks at several orders of magnitude; equal differences would spend nearly all batches near
    `high`. From the first of `n` rates to the last there are `n - 1` factors. Each group of `optimizer`
    has an `lr`, here 0.5 and 0.1. What `backward` finds in `grad` it adds to. Batch norm and dropout compute
    something else in training mode.
    """
    _compare(t)


@exercise.check(
    given=lambda levels: _SETUP + _LEVELS.format(levels),
    cases={
        f"losses of {levels}": levels
        for levels in (
            "(1.0, 3.75, 4.0, 4.25, 1.0)",
            "(8.0, 2.0, 7.5, 8.5, 1.0)",
            "(1.0, 2.0, float('nan'), 1.0)",
            "(1.0, float('-inf'), 1.0)",
            "(float('inf'), 1.0)",
        )
    },
)
def diverges(t, device):
    """It ends at a loss that is not finite, or above 4 times the lowest

    Beyond that the weights may be ruined, and then the losses say little about the rate. The loss that shows
    it belongs to the result. `<` and `>` with NaN are false, so it has to be asked for by itself.
    """
    _compare(t)


@exercise.check(
    given=_SETUP,
    cases={
        "new": ("", None),
        "trained before, a part in training mode": (_TRAINED + "model[1].train()", None),
        "a part that two modules hold": ("model.insert(2, nn.Sequential(model[1].eval()))", None),
        "a buffer that isn't persistent": (_BUFFER, None),
        "a buffer that `forward` binds anew": (_SUMS, None),
        "layers without an optimizer": ("optimizer = torch.optim.SGD(model[3:].parameters(), 0.1)", None),
        "a test that ends early": ("batches[2] = x[:3], 100 * y[:3]", None),
        "a batch of the wrong shape, which raises": (
            f"{_TRAINED}batches[5] = x[:3, :2], y[:3]",
            RuntimeError,
        ),
        "an interrupt": (_TRAINED + _INTERRUPT, KeyboardInterrupt),
    },
)
def restored(t, device, error):
    """Model and optimizer are as they were, also when something raises

    A step changes parameters and the optimizer's state, a forward in training mode the buffers of batch norm;
    `state_dict` leaves out buffers that aren't persistent, and what it holds, the optimizer's too, are the
    living tensors: a step changes them unless you copy. `self.sums = self.sums + 1` makes another tensor the
    buffer. Each module has a mode of its own. The optimizer holds the parameters themselves, so they have to
    stay the same tensors, and it clears no others. What stands after a loop that raises doesn't run;
    `finally` does.
    """
    before, parameters, held = _state(t), list(t.model.parameters()), _held(t)
    expect.raises(error, lambda: t.call(_CALL)) if error else t.call(_CALL)
    after = _state(t)
    for what in before | after:
        told = f"{what} is {'there' if what in after else 'gone'} afterwards"
        expect.true(what in before and what in after, told, "expected: as before the call")
        expect.equal(after[what], before[what], what=f"{what} afterwards", rtol=0, atol=0)
    pairs = {"model": (list(t.model.parameters()), parameters), "optimizer": (_held(t), held)}
    for where, (now, old) in pairs.items():
        same = [*map(id, now)] == [*map(id, old)]
        expect.true(same, f"the parameters of the {where} are other tensors", "expected: the same")
    for name, p in t.model.named_parameters():
        expect.true(p.grad is None, f"`{name}.grad` is a tensor afterwards", "expected: None")
