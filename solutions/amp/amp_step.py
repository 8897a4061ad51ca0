"""The region holds the forward and the loss. The casts are part of the graph, so backward follows the dtypes
of this forward and needs no region.

After backward the gradients are the true ones times the scale. `unscale_` makes them true, and only then
their norm means something. `scaler.step` knows that they are unscaled, and steps if neither inf nor nan was
found. `update` ends the iteration: it moves the scale and forgets what was found, so that `unscale_` can be
called again.
"""

import torch
from torch import Tensor, nn


def amp_step(model, loss_fn, optimizer, scaler, x: Tensor, y: Tensor, max_norm: float) -> Tensor:
    optimizer.zero_grad()
    with torch.autocast(x.device.type, dtype=torch.float16):
        loss = loss_fn(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()


# Other right answers

from course_utils.exercise import Edit, Wrong


def _clips_scaled_gradients(model, loss_fn, optimizer, scaler, x, y, max_norm):
    with torch.amp.autocast(device_type=x.device.type, dtype=torch.float16):
        loss = loss_fn(model(x), y)
    model.zero_grad()
    scaler.scale(loss).backward()
    nn.utils.clip_grad_norm_(model.parameters(), max_norm * scaler.get_scale())
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()


def _by_torch_autograd(model, loss_fn, optimizer, scaler, x, y, max_norm):
    @torch.autocast(x.device.type, dtype=torch.float16)
    def forward():
        return loss_fn(model(x), y)

    loss = forward()
    optimizer.zero_grad()
    weights = [w for w in model.parameters() if w.requires_grad]
    grads = torch.autograd.grad(scaler.scale(loss), weights, allow_unused=True)
    for w, grad in zip(weights, grads, strict=True):
        w.grad = grad
    scaler.unscale_(optimizer)
    grads = [grad for grad in grads if grad is not None]
    norm = torch.stack([grad.norm() for grad in grads]).norm()
    torch._foreach_mul_(grads, (max_norm / norm).clamp(max=1.0))
    scaler.step(optimizer)
    scaler.update()
    with torch.no_grad():
        return loss * 1


also_right = [_clips_scaled_gradients, _by_torch_autograd]


def _loss_outside(model, loss_fn, optimizer, scaler, x, y, max_norm):
    with torch.autocast(x.device.type, dtype=torch.float16):
        out = model(x)
    optimizer.zero_grad()
    loss = loss_fn(out, y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()


mistakes = [
    Wrong(_loss_outside, told_by="region"),
    Edit(
        "backward in the region",
        "    scaler.scale(loss).backward()",
        "        scaler.scale(loss).backward()",
        told_by="region",
    ),
    Edit("clips what is scaled", "    scaler.unscale_(optimizer)\n", "", told_by="clipped"),
    Edit("old gradients count", "    optimizer.zero_grad()\n", "", told_by="fresh"),
    Edit("zeros for None", "zero_grad()", "zero_grad(set_to_none=False)", told_by="fresh"),
    Edit("steps by itself", "scaler.step(optimizer)", "optimizer.step()", told_by="overflow"),
    Edit("forgets update", "    scaler.update()\n", "", told_by="overflow"),
    Edit("returns the scaled loss", "return loss", "return scaler.scale(loss)", told_by="returned"),
]

not_tried = {"hard numbers": "inf and nan are, the rest is torch's"}
equivalent = {
    "line 14: `loss.detach()` -> `loss.detach_()`": "nobody else holds this loss",
}
