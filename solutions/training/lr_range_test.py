"""The steps are real, so all that they touch is kept first: clones of parameters and buffers, the modes, and
a deep copy of the optimizer's state, because `state_dict()` holds the living tensors. `finally` puts it back,
by name: a forward may have made another tensor the buffer. The model clears the gradients of all its layers.

The comparison reads each loss, so Python waits for the device once a batch. Here that is the point.
"""

import copy
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn


def lr_range_test(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Sequence[tuple[Tensor, Tensor]],
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    low: float,
    high: float,
) -> tuple[list[float], list[float]]:
    def tensors() -> dict[str, Tensor]:
        return dict([*model.named_parameters(), *model.named_buffers()])

    kept = {name: tensor.detach().clone() for name, tensor in tensors().items()}
    modes = [(module, module.training) for module in model.modules()]
    state = copy.deepcopy(optimizer.state_dict())
    rates, losses = [], []
    try:
        model.train()
        for i, (x, y) in enumerate(batches):
            rates.append(low * (high / low) ** (i / (len(batches) - 1)))
            loss = loss_fn(model(x), y)
            lowest = min(losses, default=math.inf)
            losses.append(loss.item())
            if not math.isfinite(losses[-1]) or losses[-1] > 4 * lowest:
                break
            optimizer.zero_grad()
            loss.backward()
            for group in optimizer.param_groups:
                group["lr"] = rates[-1]
            optimizer.step()
    finally:
        model.zero_grad()
        optimizer.load_state_dict(state)
        for module, training in modes:
            module.training = training
        with torch.no_grad():
            for name, tensor in tensors().items():
                tensor.copy_(kept[name])
    return rates, losses


# Other right answers

from course_utils.exercise import Edit


def _on_copies(model, optimizer, batches, loss_fn, low, high):
    model.zero_grad()
    model, optimizer = copy.deepcopy((model, optimizer))
    model.train()
    losses = []
    rates = torch.logspace(math.log10(low), math.log10(high), len(batches), dtype=torch.float64).tolist()
    for rate, (x, y) in zip(rates, batches, strict=True):
        for group in optimizer.param_groups:
            group["lr"] = rate
        model.zero_grad()
        loss = loss_fn(model(x), y)
        lowest = min(losses, default=math.inf)
        losses.append(float(loss))
        if loss.isnan() or loss.isinf() or losses[-1] > 4 * lowest:
            break
        loss.backward()
        optimizer.step()
    return rates[: len(losses)], losses


def _copies_back(model, optimizer, batches, loss_fn, low, high):
    before = copy.deepcopy(model)
    saved = copy.deepcopy(optimizer.state_dict())
    rates, losses, rate = [], [], low
    try:
        for x, y in batches:
            [group.update(lr=rate) for group in optimizer.param_groups]
            optimizer.zero_grad(set_to_none=True)
            loss = loss_fn(model.train()(x), y)
            rates.append(rate)
            losses.append(float(loss.detach()))
            if not losses[-1] <= 4 * min(losses) or abs(losses[-1]) == math.inf:
                return rates, losses
            loss.backward()
            optimizer.step()
            rate *= (high / low) ** (1 / (len(batches) - 1))
        return rates, losses
    finally:
        model.zero_grad()
        for mine, old in zip(model.modules(), before.modules(), strict=True):
            mine.training = old.training
            for kind in ("_parameters", "_buffers"):
                for name, tensor in getattr(old, kind).items():
                    getattr(mine, kind)[name].data.copy_(tensor.data)
        optimizer.load_state_dict(saved)


also_right = [_on_copies, _copies_back]

mistakes = [
    Edit(
        "equal steps",
        "low * (high / low) ** (i / (len(batches) - 1))",
        "low + (high - low) * i / (len(batches) - 1)",
        told_by="rises",
    ),
    Edit("one group", "in optimizer.param_groups:", "in optimizer.param_groups[:1]:", told_by="rises"),
    Edit("NaN goes on", "not math.isfinite(losses[-1]) or ", "", told_by="diverges"),
    Edit("4 times the first", "4 * lowest", "4 * losses[0]", told_by="diverges"),
    Edit(
        "keeps the living state",
        "copy.deepcopy(optimizer.state_dict())",
        "optimizer.state_dict()",
        told_by="restored",
    ),
    Edit(
        "forgets buffers that aren't persistent",
        "dict([*model.named_parameters(), *model.named_buffers()])",
        "model.state_dict()",
        told_by="restored",
    ),
    Edit(
        "no finally, and an interrupt is no Exception",
        "    finally:\n",
        "    except Exception:\n        pass\n    if True:\n",
        told_by="restored",
    ),
    Edit(
        "clears what it holds",
        "model.zero_grad()\n        opt",
        "optimizer.zero_grad()\n        opt",
        told_by="restored",
    ),
]

equivalent = {
    "line 20: `tensor.detach()` -> `tensor`": "the clones have a graph that nobody uses",
}
not_tried = {
    "hard numbers": "losses are compared with those of the same run on copies",
    "dtypes": "floats are returned; tensors are copied, not computed with",
    "seeds": "both runs draw the same",
}
