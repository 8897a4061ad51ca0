"""Backward adds to `.grad`, and what it adds has the scale in it. So the scale has to stay as it is until the
sum is complete, and the sum is divided once. Only then is it the gradient of anything, with a norm to clip.
`step` and `update` follow, once. An inf in one micro-batch's gradients makes their sum inf or nan, and
`unscale_` finds it.

The mean over all examples is the sum of the micro-batches' means, each times its share of the examples. The
factor belongs to the loss: the chain rule carries it to every gradient.
"""

import torch
from torch import Tensor, nn


def accumulate_with_scaler(
    model, loss_fn, optimizer, scaler, batches: list[tuple[Tensor, Tensor]], max_norm: float
) -> Tensor:
    optimizer.zero_grad()
    examples = sum(len(x) for x, _ in batches)
    total = 0.0
    for x, y in batches:
        with torch.autocast(x.device.type, dtype=torch.float16):
            loss = loss_fn(model(x), y) * (len(x) / examples)
        scaler.scale(loss).backward()
        total += loss.detach()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return total


# Other right answers

from course_utils.exercise import Edit, Wrong


def _shares_afterwards(model, loss_fn, optimizer, scaler, batches, max_norm):
    examples, losses = sum(y.numel() for _, y in batches), []
    model.zero_grad()
    for x, y in batches:
        with torch.autocast(x.device.type, torch.float16):
            losses.append(loss_fn(model(x), y))
        (scaler.scale(losses[-1]) * len(y)).backward()
        losses[-1] = losses[-1].item() * len(y)
    scaler.unscale_(optimizer)
    for w in model.parameters():
        if w.grad is not None:
            w.grad /= examples
    nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], max_norm)
    scaler.step(optimizer)
    scaler.update()
    return torch.tensor(sum(losses) / examples, device=x.device)


def _gradients_by_hand(model, loss_fn, optimizer, scaler, batches, max_norm):
    weights = [w for w in model.parameters() if w.requires_grad]
    total, sums = 0, [None] * len(weights)
    for x, y in batches:
        with torch.autocast(x.device.type, dtype=torch.float16):
            part = loss_fn(model(x), y) * len(x) / sum(len(other) for other, _ in batches)
        found = torch.autograd.grad(scaler.scale(part), weights, allow_unused=True)
        pairs = zip(sums, found, strict=True)
        sums = [old if new is None else new if old is None else old + new for old, new in pairs]
        total = total + part.detach()
    optimizer.zero_grad()
    for w, grad in zip(weights, sums, strict=True):
        w.grad = grad
    nn.utils.clip_grad_norm_(weights, max_norm * scaler.get_scale())
    scaler.step(optimizer)
    scaler.update()
    return total


also_right = [_shares_afterwards, _gradients_by_hand]


def _all_forwards_first(model, loss_fn, optimizer, scaler, batches, max_norm):
    optimizer.zero_grad()
    examples = sum(len(x) for x, _ in batches)
    with torch.autocast(batches[0][0].device.type, dtype=torch.float16):
        loss = sum(loss_fn(model(x), y) * (len(x) / examples) for x, y in batches)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()


_CLIP = "    nn.utils.clip_grad_norm_(model.parameters(), max_norm)\n"
_ADD = "total += loss.detach()\n"
mistakes = [
    Edit("every micro-batch counts the same", "len(x) / examples", "1 / len(batches)", told_by="one_batch"),
    Edit("zeros for None", "zero_grad()", "zero_grad(set_to_none=False)", told_by="fresh"),
    Edit("updates in the loop", _ADD, f"{_ADD}        scaler.update()\n", told_by="one_batch"),
    Wrong(_all_forwards_first, told_by="in_turn"),
    Edit("clips what is scaled", f"    scaler.unscale_(optimizer)\n{_CLIP}", _CLIP, told_by="clipped"),
    Edit("clips every part", _ADD, f"{_ADD}    {_CLIP.replace('norm)', 'norm * 1024)')}", told_by="clipped"),
    Edit("forgets update", "    scaler.update()\n", "", told_by="scale_moves_once"),
    Edit("the last loss", "return total", "return loss.detach()", told_by="loss"),
]

not_tried = {"hard numbers": "inf and nan are, the rest is torch's"}
equivalent = {"line 15: `loss.detach()` -> `loss.detach_()`": "backward is over, and nobody else holds it"}
