"""One epoch, and its mean

Train `model` on each batch `(x, y)` of `loader`, once and in order. Return the mean loss over all
**examples**, a 0-d tensor of the loss's dtype, without a graph. Batches differ in size and width;
`loss_fn(model(x), y)` is the mean over one batch.

- The model trains in training mode, whatever its mode was. Older gradients don't count, not even
  a frozen parameter's.
- Python never waits for the device, nor for the result.
- No loss is kept with its graph for longer than its own batch.

`loader` is anything that a `for` loop takes. Its batches, at least one, are on the model's device.

`train_epoch(model, loader, optimizer, F.mse_loss)` → `tensor(0.4821)`
"""

import copy
import weakref
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_utils import measure
from course_utils.exercise import Exercise, expect

exercise = Exercise(
    minutes=12,
    core=True,
    hints=[
        "A batch of 2 and a batch of 4: how much does each loss count in the mean over 6 examples?",
        "The sum can be a tensor on the device. What must be cut off before you add a loss to it?",
        "For each batch: zero_grad, forward, loss, backward, step. Add the detached loss times the number of "
        "examples to one sum, and that number to another. Divide at the end.",
    ],
)


@exercise.starter
def train_epoch(
    model: nn.Module,
    loader: Iterable[tuple[Tensor, Tensor]],
    optimizer: torch.optim.Optimizer,
    loss_fn: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """() -> the mean loss over all examples"""
    raise NotImplementedError


_SETUP = """
torch.manual_seed(0)
x = torch.randn(10, 3, device=device)
y = torch.tensor([[0.0], [1.0]] * 4 + [[1.0]] * 2, device=device)
loader = [(x[:4], y[:4]), (x[4:8], y[4:8]), (4 * x[8:], y[8:])]
model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
"""
_OLD = "for p in model.parameters():\n    p.grad = torch.ones_like(p)\n"
_WIDTHS = """
model = nn.Conv1d(1, 1, 3, padding=1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
sizes = [(4, 1, 2), (4, 1, 5), (2, 1, 9)]
loader = [(torch.randn(n).to(device), torch.ones(n).to(device)) for n in sizes]
"""
_CALL = "train_epoch(model, iter(loader), optimizer, F.binary_cross_entropy_with_logits)"


class _Mark:
    """Lives as long as the node that has it in its `metadata`."""


def _truth(t) -> tuple[list[float], dict[str, Tensor]]:
    """The loss of each batch, and the state of the model afterwards, by five calls in a row, on copies."""
    model, optimizer = copy.deepcopy((t.model, t.optimizer))
    losses = []
    model.train()
    for x, y in t.loader:
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model.state_dict()


@exercise.check(
    given=_SETUP,
    cases={
        "no gradients before": "",
        "old gradients": _OLD,
        "a frozen weight with an old gradient": f"{_OLD}model[0].weight.requires_grad_(False)",
    },
)
def trained(t, device):
    """Each batch is one step with its own gradient

    `backward` adds to `.grad`, so old gradients have to go before it. They must not go between `backward` and
    `step`: SGD skips parameters whose gradient is `None`.
    """
    _, state = _truth(t)
    with expect.left_alone(t.x, what="`x`"):
        t.run(_CALL)
    for name, wanted in state.items():
        expect.equal(t.model.state_dict()[name], wanted, what=f"`{name}` after the epoch")


@exercise.check(given=f"{_SETUP}model.insert(1, nn.BatchNorm1d(4).to(device)).eval()")
def mode(t, device):
    """The model trains in training mode

    A new module is in training mode, but evaluation switches it off. Batch norm then normalizes by its
    running statistics, if it has any, and stops updating them. By default `train()` switches a module with
    all its registered parts.
    """
    modes = []
    t.model[1].register_forward_pre_hook(lambda module, args: modes.append(module.training))
    t.run(_CALL)
    expect.equal(modes, [True] * max(3, len(modes)), what="`model[1].training` in the three batches")


@exercise.check(given=_SETUP)
def waits(t, device):
    """Python doesn't wait for the device

    `.item()`, `float(loss)` and `if loss > 0` need a value, so they wait until the device has computed it.
    """
    with measure.syncs() as found:
        t.run(_CALL)
    told = [f"  {line}" for line in found.where[:3]]
    expect.true(found.count() == 0, f"Python waited {found.count()} times, expected: 0", *told)


@exercise.check(
    given=_SETUP,
    cases={
        "one width": "",
        "batches of three widths": _WIDTHS,
        # MPS has no float64.
        "a float64 model": "model.cpu().double()\n"
        "loader = [(x.cpu().double(), y.cpu().double()) for x, y in loader]",
    },
)
def mean(t, device):
    """The mean is over examples, of the losses as they were in training

    A mean of batch means gives the last, smaller batch the weight of a full one. A forward after the step
    gives the loss of other weights. And if `total` is a tensor, `total += loss` keeps its dtype.
    """
    losses, _ = _truth(t)
    came, dtype = expect.a_tensor(t.call(_CALL)), next(t.model.parameters()).dtype
    sizes = [[1] * 3, [y.numel() for _, y in t.loader], [len(y) for _, y in t.loader]]
    means = [sum(n * x for n, x in zip(s, losses, strict=True)) / sum(s) for s in sizes]
    *others, wanted = (torch.tensor(x, dtype=dtype, device=came.device) for x in means)
    like = dict(zip(("the mean of the batch means", "the mean over the elements"), others, strict=True))
    like["the loss of the last batch"] = torch.tensor(losses[-1])
    factors = {"the examples": 10, "the batches": 3}
    expect.equal(came.detach(), wanted, rtol=1e-5, like=like, factors=factors)


@exercise.check(given=_SETUP)
def graphs(train_epoch, t, device):
    """No loss outlives its batch with its graph

    A tensor with a `grad_fn` keeps its graph. A sum of such losses has a graph that reaches through all
    batches.
    """
    seen: list[weakref.ref[_Mark]] = []
    most = 0

    def loss_fn(out, y):
        nonlocal most
        most = max(most, sum(one() is not None for one in seen[:-1]))
        loss = F.binary_cross_entropy_with_logits(out, y)
        if loss.requires_grad:
            loss.grad_fn.metadata["mark"] = mark = _Mark()
            seen.append(weakref.ref(mark))
        return loss

    came = train_epoch(t.model, t.loader, t.optimizer, loss_fn)
    expect.true(not came.requires_grad, "the result has a graph", "expected: none")
    expect.at_most(most, 0, "graphs of earlier batches that are still there in the third")
