"""The 2-norm of a vector is the norm of the norms of its parts, up to rounding: squares are added up either
way. `vector_norm` adds the squares of float16 in float32, so they don't overflow.

The factor stays a tensor on the device, clamped to 1, and no `if` asks for its value. Python waits once, to
learn whether to raise. Nothing has been written by then.
"""

from collections.abc import Iterable

import torch
from torch import Tensor


def clip_global_norm(parameters: Iterable[Tensor], max_norm: float) -> Tensor:
    grads = [p.grad for p in parameters if p.grad is not None]
    if not grads:
        return torch.tensor(0.0)
    total = torch.stack([torch.linalg.vector_norm(grad) for grad in grads]).norm()
    if not total.isfinite():
        raise RuntimeError(f"the norm of the gradients is {total}")
    factor = (max_norm / total).clamp(max=1.0)
    for grad in grads:
        grad.mul_(factor)
    return total


# Other right answers

from course_utils.exercise import Edit, Wrong


@torch.no_grad()
def _squares_in_float32(parameters, max_norm):
    grads = [p.grad for p in parameters if p.grad is not None]
    squares = sum(((grad.float() ** 2).sum() for grad in grads), torch.zeros(()))
    norm = torch.sqrt(squares)
    if torch.isnan(norm) | torch.isinf(norm):
        raise RuntimeError("not finite")
    for grad in grads:
        grad *= torch.where(norm > max_norm, max_norm / norm, torch.ones_like(norm)).to(grad.dtype)
    return norm


def _python_number(parameters, max_norm):
    grads = [p.grad for p in parameters]
    grads = [grad for grad in grads if grad is not None]
    norms = torch._foreach_norm(grads) if grads else [torch.zeros(1)]
    total = torch.linalg.vector_norm(torch.stack(norms).double())
    value = total.item()
    if value != value or value == float("inf"):
        raise RuntimeError(value)
    if value > max_norm:
        torch._foreach_mul_(grads, max_norm / value)
    return total.float()


also_right = [_squares_in_float32, _python_number]


def _each_by_itself(parameters, max_norm):
    grads = [p.grad for p in parameters if p.grad is not None]
    norms = [torch.linalg.vector_norm(grad) for grad in grads]
    total = torch.stack(norms).norm() if norms else torch.tensor(0.0)
    if not total.isfinite():
        raise RuntimeError("not finite")
    for grad, norm in zip(grads, norms, strict=True):
        grad.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))
    return total


def _new_gradients(parameters, max_norm):
    parameters = [p for p in parameters if p.grad is not None]
    total = torch.stack([p.grad.norm() for p in parameters]).norm() if parameters else torch.tensor(0.0)
    if not total.isfinite():
        raise RuntimeError("not finite")
    for p in parameters:
        p.grad = p.grad * (max_norm / (total + 1e-6)).clamp(max=1.0)
    return total


mistakes = [
    Edit("squares overflow", "torch.linalg.vector_norm(grad)", "grad.pow(2).sum().sqrt()", told_by="norm"),
    Edit("adds the norms", ".norm()", ".sum()", told_by="norm"),
    Wrong(_each_by_itself, told_by="clipped"),
    Edit("makes short gradients longer", ".clamp(max=1.0)", "", told_by="clipped"),
    Wrong(_new_gradients, told_by="in_place"),
    Edit("scales copies", "grads = [p.grad for", "grads = [p.grad.flatten() for", told_by="clipped"),
    Edit("hides NaN", "not total.isfinite()", "total.isinf()", told_by="not_finite"),
    Edit(
        "asks for the value",
        "    factor = ",
        "    if total <= max_norm:\n        return total\n    factor = ",
        told_by="waits",
    ),
]

equivalent = {
    "the result of `clip_global_norm` of another dtype": "the task says nothing of it: float64 is right too",
}
not_tried = {"seeds": "the gradients are compared with the same ones, scaled in float64"}
