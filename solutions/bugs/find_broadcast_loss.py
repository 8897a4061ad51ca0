"""A sum over all pairs has the same terms in whatever order the targets come; a sum over examples has not. So
the loss is asked twice, with the targets in two orders. The shapes say less: some losses want different ones.

The test must be able to tell. Where the predictions are equal, or all lie on one side of the targets, the
order makes no difference to some good losses. So the predictions are drawn from where the targets are.
`roll` by one moves something unless all targets are equal, as one alone is, and there no loss could tell.
Rounding is relative to the loss: without `atol=0`, `isclose` takes any two tiny losses for the same.
"""

import torch
from torch import nn

from course_utils.exercise.kits.bugs import copied  # `copy.deepcopy`, also of what has a graph


def find_broadcast_loss(model: nn.Module, batch, loss_fn) -> list[str]:
    """The shapes of prediction and target, if each prediction meets every target"""
    twin, (x, y) = copied(model, batch)
    with torch.random.fork_rng(), torch.no_grad():
        out = twin(x)
        if not isinstance(out, torch.Tensor) or torch.equal(y, y.roll(1, 0)):
            return []
        out = torch.rand_like(out) * (y.max() - y.min()) + y.min()
        loss, other = loss_fn(out, y), loss_fn(out, y.roll(1, 0))
    if torch.isclose(loss, other, atol=0):
        return [f"{tuple(out.shape)} against {tuple(y.shape)}"]
    return []


# Other right answers

from course_utils.exercise import Edit, Wrong


def _every_order(model, batch, loss_fn):
    x, y = batch[0].detach().clone(), batch[1]
    with torch.random.fork_rng():
        out = copied(model)(x)
        if not torch.is_tensor(out) or len(y.unique(dim=0)) == 1:
            return []
        shape = out.shape
        steps = torch.linspace(float(y.min()), float(y.max()), shape.numel(), dtype=x.dtype)
        out = steps[torch.randperm(len(steps))].reshape(shape)
        losses = [loss_fn(out, y.roll(k, 0)) for k in range(len(y))]
    all_same = max(losses) - min(losses) < 1e-4 * max(abs(one) for one in losses)
    return [f"{tuple(shape)} against {tuple(y.shape)}"] if all_same else []


def _asks_gradients(model, batch, loss_fn):
    state = torch.get_rng_state()
    model, (x, y) = copied(model, batch)
    with torch.no_grad():
        out = model(x)
    if isinstance(out, dict) or (y == y[:1]).all():
        torch.set_rng_state(state)
        return []
    low, high = y.min().item(), y.max().item()
    out = (torch.rand_like(out) * (high - low) + low).requires_grad_()
    (grad,) = torch.autograd.grad(loss_fn(out, y), out)
    (other,) = torch.autograd.grad(loss_fn(out, y.roll(1, 0)), out)
    torch.set_rng_state(state)
    found = f"{tuple(out.shape)} against {tuple(y.shape)}"
    return [found] if torch.allclose(grad, other, 1e-4, 1e-6 * grad.abs().max()) else []


also_right = [_every_order, _asks_gradients]


# Mistakes


def _compares_shapes(model, batch, loss_fn):
    model, (x, y) = copied(model, batch)
    with torch.random.fork_rng(), torch.no_grad():
        out = model(x)
    return [f"{tuple(out.shape)} against {tuple(y.shape)}"] if out.shape != y.shape else []


_DRAWN = "torch.rand_like(out) * (y.max() - y.min()) + y.min()"
mistakes = [
    Wrong(_compares_shapes, told_by="shapes"),
    Edit("the predictions of the model", _DRAWN, "out", told_by="values"),
    Edit("predictions around zero", _DRAWN, "torch.randn_like(out)", told_by="values"),
    Edit("to the last digit", "isclose(loss, other, atol=0)", "equal(loss, other)", told_by="broadcast"),
    Edit("a tolerance for all sizes", ", atol=0", "", told_by="any_size"),
    Edit("targets that are equal", " or torch.equal(y, y.roll(1, 0))", "", told_by="values"),
    Edit("one random order", "(out, y.roll(1, 0))", "(out, y[torch.randperm(len(y))])", told_by="values"),
    Edit("draws", "torch.random.fork_rng(), ", "", told_by="left_alone"),
]
