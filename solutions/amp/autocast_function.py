"""`custom_fwd` with `cast_inputs` does nothing outside a region. In one it casts the floating-point inputs
(float64 stays) and runs forward with autocast off. What `save_for_backward` gets are the float32 tensors. The
gradient of a float32 result is float32 too, so in backward all dtypes fit together.

`custom_bwd` gives backward the state that forward ran in, which is "off" here. Without it, backward runs in
the state of its caller. In most training loops that is "off" as well, so the mistake shows late: in a loop
that calls `backward()` inside its region."""

import torch
from torch import Tensor


class AutocastFunction(torch.autograd.Function):
    """(n, d), (m, d) -> (n, m)"""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a.square().sum(1)[:, None] + b.square().sum(1) - 2 * (a @ b.t())

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        by_a = grad.sum(1)[:, None] * a - grad @ b
        by_b = grad.sum(0)[:, None] * b - grad.t() @ a
        return 2 * by_a, 2 * by_b


# Other right answers

from course_utils.exercise import Edit, Wrong


class _ByHand(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        if torch.is_autocast_enabled(a.device.type):
            a, b = a.float(), b.float()
        ctx.save_for_backward(a, b)
        with torch.autocast(a.device.type, enabled=False):
            return a.square().sum(1)[:, None] + b.square().sum(1) - 2 * (a @ b.t())

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        with torch.autocast(grad.device.type, enabled=False):
            by_a = grad.sum(1)[:, None] * a - grad @ b
            by_b = grad.sum(0)[:, None] * b - grad.t() @ a
        return 2 * by_a, 2 * by_b


class _KeepsWhatCameIn(torch.autograd.Function):
    """Saves the inputs themselves, and casts again in backward. Autocast casts nothing where no `@` is."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        dtype = torch.float32 if torch.is_autocast_enabled("cpu") else a.dtype
        return (a.to(dtype)[:, None] - b.to(dtype)).square().sum(-1)

    @staticmethod
    def backward(ctx, grad):
        a, b = (x.to(grad.dtype) for x in ctx.saved_tensors)
        slope = 2 * grad[..., None] * (a[:, None] - b)
        return slope.sum(1), -slope.sum(0)


also_right = [_ByHand, _KeepsWhatCameIn]

# Mistakes


class _SwitchesOffAndDoesNotCast(_ByHand):
    @staticmethod
    @torch.autocast("cpu", enabled=False)
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a.square().sum(1)[:, None] + b.square().sum(1) - 2 * (a @ b.t())


class _SwitchesOffForGood(_ByHand):
    @staticmethod
    def forward(ctx, a, b):
        if torch.is_autocast_enabled("cpu"):
            a, b = a.float(), b.float()
            torch.set_autocast_enabled("cpu", False)
        ctx.save_for_backward(a, b)
        return a.square().sum(1)[:, None] + b.square().sum(1) - 2 * (a @ b.t())


_SAVE = "ctx.save_for_backward(a, b)"

mistakes = [
    Edit("casts outside too", _SAVE, f"a, b = a.float(), b.float()\n        {_SAVE}", told_by="outside"),
    Edit("keeps the state", ", cast_inputs=torch.float32", "", told_by="forward_in_a_region"),
    Wrong(_SwitchesOffAndDoesNotCast, told_by="forward_in_a_region"),
    Edit("backward as it comes", '    @torch.amp.custom_bwd(device_type="cpu")\n', "", "backward"),
    Wrong(_SwitchesOffForGood, told_by="state"),
]
