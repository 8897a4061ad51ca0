"""What learns is what gets a gradient, so a copy of the model is trained for a moment. A parameter outside of
the graph keeps `.grad` at `None`; one that the graph reaches through a zero gets zeros. One step is too few:
where a product of two factors begins at zero, as in LoRA, one of them gets its gradient in the second step.

No tolerance is needed. A gradient that is cut off is exactly zero or is not there, while a small one has
elements that are not zero, unless it underflows; whether it is enough depends on the optimizer. `backward`
raises for a loss that requires no gradient, and SGD for an empty list: both are answers here, and no errors.
"""

import torch
from torch import nn

from course_utils.exercise.kits.bugs import copied  # `copy.deepcopy`, also of what has a graph


def find_frozen_parameters(model: nn.Module, batch, loss_fn) -> list[str]:
    """Names of the parameters that ask for training and get no gradient"""
    model, (x, y) = copied(model, batch)
    model.train()
    waiting = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not waiting:
        return []
    optimizer = torch.optim.SGD(waiting.values())
    with torch.random.fork_rng():
        for _ in range(3):
            optimizer.zero_grad()
            loss = loss_fn(model(x), y)
            if loss.requires_grad:
                loss.backward()
            optimizer.step()
            waiting = {name: p for name, p in waiting.items() if p.grad is None or not p.grad.any()}
    return list(waiting)


# Other right answers

from course_utils.exercise import Edit


def _asks_autograd(model, batch, loss_fn):
    twin, (x, y) = copied(model).train(), batch
    named = [(name, p) for name, p in twin.named_parameters() if p.requires_grad]
    learned, state = set(), torch.get_rng_state()
    for _ in range(3):
        loss = loss_fn(twin(x.detach().clone()), y)
        if not named or loss.grad_fn is None:
            continue
        grads = torch.autograd.grad(loss, [p for _, p in named], allow_unused=True)
        for (name, p), grad in zip(named, grads, strict=True):
            if grad is not None and torch.count_nonzero(grad) > 0:
                learned.add(name)
                p.data -= 0.1 * grad
    torch.set_rng_state(state)
    return [name for name, _ in named if name not in learned]


def _catches_the_error(model, batch, loss_fn):
    model, (x, y) = copied(model, batch)
    reached = set()
    with torch.random.fork_rng():
        for _ in range(3):
            model.train().zero_grad()
            try:
                loss_fn(model(x), y).backward()
            except RuntimeError:
                continue
            for name, p in model.named_parameters():
                if p.grad is not None:
                    reached |= {name} if (p.grad != 0).any() else set()
                    p.data.add_(p.grad, alpha=-0.1)
    return [name for name, p in model.named_parameters() if p.requires_grad and name not in reached]


also_right = [_asks_autograd, _catches_the_error]


mistakes = [
    Edit("each name", "named_parameters()", "named_parameters(remove_duplicate=False)", told_by="cut_off"),
    Edit("backward all the same", "if loss.requires_grad:", "if True:", told_by="nothing_left"),
    Edit("zeros will do", "p.grad is None or not p.grad.any()", "p.grad is None", told_by="zeros"),
    Edit(
        "the last step alone",
        "waiting.items() if p.grad is None or",
        "model.named_parameters() if p.requires_grad and p.grad is None or p.requires_grad and",
        told_by="healthy",
    ),
    Edit("a norm", "not p.grad.any()", "p.grad.norm() == 0", told_by="any_gradient"),
    Edit("larger than zero", "not p.grad.any()", "not p.grad.abs().sum() > 0", told_by="any_gradient"),
    Edit("in the mode it is in", "    model.train()\n", "", told_by="healthy"),
    Edit("on the model itself", "copied(model, batch)", "model, batch", told_by="left_alone"),
]

equivalent = {
    "line 16: `3` -> `4`": "no more than three steps are asked for, and what a fourth one finds is rare",
    "line 17: `optimizer.zero_grad()` removed": "a sum of gradients that begins without any is zero where "
    "all of them are, and the copy begins without any",
}
