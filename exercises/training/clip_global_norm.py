"""One norm for all gradients

Do what `nn.utils.clip_grad_norm_(parameters, max_norm, error_if_nonfinite=True)` does, without calling it.
All gradients together are one long vector. If it is longer than `max_norm`, above 0, scale it down to that
length.
Return the length that it had, as a 0-d tensor.

`parameters` may be a generator. A `.grad` may be `None` (all of them: the length is 0), non-contiguous or
float16.

- The gradients are scaled in place.
- An infinite or NaN length raises a `RuntimeError`, and no gradient is written to.
- Python waits for the device at most once, however many gradients there are.

`clip_global_norm(model.parameters(), 1.0)` → `tensor(5.)`
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from course_utils import measure
from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import numbers

exercise = Exercise(
    minutes=10,
    hints=[
        "Two gradients have the lengths 3 and 4. How long is the vector made of both?",
        "The square of 300 is more than float16 can hold. `torch.linalg.vector_norm` adds up the squares of "
        "float16 in float32. How do you put its results for the gradients together?",
        "List the gradients that aren't `None`. The total is the norm of the stacked norms. Raise if it "
        "isn't finite. Then multiply each gradient in place by `max_norm / total`, clamped to at most 1.",
    ],
)


@exercise.starter
def clip_global_norm(parameters: Iterable[Tensor], max_norm: float) -> Tensor:
    """() -> the norm before"""
    raise NotImplementedError


_SETUP = """
torch.manual_seed(0)
parameters = [nn.Parameter(torch.zeros(n, 3, device=device)) for n in (1, 4, 2)]
for p in parameters:
    p.grad = torch.randn_like(p)
"""
_CALL = "clip_global_norm(parameters, max_norm)"
_CASES = {
    "longer than `max_norm`": "max_norm = 0.5",
    "shorter than `max_norm`": "max_norm = 50.0",
    "one long gradient, two short ones": "parameters[1].grad *= 100\nmax_norm = 2.0",
    "a gradient that is `None`": "parameters[0].grad = None\nmax_norm = 0.5",
    "no gradient at all": "parameters[:] = [nn.Parameter(torch.ones(2, device=device))]\nmax_norm = 1.0",
    "a frozen parameter's gradient": "parameters[1].requires_grad_(False)\nmax_norm = 0.5",
    "all gradients are 0": "for p in parameters:\n    p.grad.zero_()\nmax_norm = 1.0",
    "a transposed gradient": "parameters[1].grad = torch.randn(3, 4, device=device).t()\nmax_norm = 0.5",
    "float16": "for p in parameters:\n    p.data = p.data.half()\n"
    "    p.grad = torch.full_like(p, 300)\nmax_norm = 8.0",
}
for _label, _code in numbers.hard("4, 3", "large numbers", "one giant", "a tiny scale").items():
    _CASES[_label] = (
        f"parameters = parameters[1:2]\nparameters[0].grad = ({_code}).to(device)\nmax_norm = 1.0"
    )


def _grads(t):
    return [p.grad for p in t.parameters]


def _norm(grads):
    """The length of all gradients, in float64."""
    whole = [grad.cpu().double().flatten() for grad in grads if grad is not None]
    return torch.cat(whole).norm() if whole else torch.tensor(0.0, dtype=torch.float64)


@exercise.check(given=_SETUP, cases=_CASES)
def norm(t, device):
    """The norm before is returned

    All gradients are one vector: its length is the root of the sum of **all** squares. In float16 the
    square of 300 is infinite, so squares are added up in float32. Without any gradient the length is 0.
    """
    wanted = _norm(_grads(t))
    longest = max((_norm([g]) for g in _grads(t)), default=wanted)
    came = expect.a_tensor(t.call(_CALL)).to(t.parameters[0].dtype)
    like = {"the longest gradient alone": longest, "the square": wanted**2}
    expect.close(came, wanted, like=like, factor=8)


@exercise.check(given=_SETUP, cases=_CASES)
def clipped(t, device):
    """Afterwards the norm is at most `max_norm`, and the direction as before

    One positive factor for all gradients keeps the direction, up to rounding; clipping each gradient by
    itself, or each element, can turn it. A generator can be walked once only, and `flatten` may
    copy a transposed gradient.
    """
    factor = min(1.0, t.max_norm / max(_norm(_grads(t)).item(), 1e-9))
    before = [None if g is None else g.clone() for g in _grads(t)]
    with expect.left_alone(t.parameters, what="`parameters`"):
        t.run("clip_global_norm((p for p in parameters), max_norm)")
    for i, (came, old) in enumerate(zip(_grads(t), before, strict=True)):
        what, like = f"`parameters[{i}].grad`", {"what it was before the call": old}
        if old is None:
            expect.equal(came, None, what=what)
        else:  # torch's own divides by 1e-6 more than the norm
            room = 8 if came.dtype == torch.float16 else 40
            expect.close(came, old.double() * factor, what=what, like=like, factor=room)


@exercise.check(
    given=f"{_SETUP}bucket = torch.ones(6, device=device)\nparameters[2].grad = bucket.view(2, 3)",
)
def in_place(t, device):
    """The gradients are scaled in place

    Others may hold the same tensors: `DistributedDataParallel(…, gradient_as_bucket_view=True)` makes
    gradients views of its buckets, and a captured CUDA graph reads from fixed addresses.
    """
    before = _grads(t)
    t.run("clip_global_norm(iter(parameters), 0.5)")
    for i, (grad, old) in enumerate(zip(_grads(t), before, strict=True)):
        expect.true(grad is old, f"`parameters[{i}].grad` is another tensor now", "expected: the same one")
    expect.equal(t.bucket, t.parameters[2].grad.flatten(), what="`bucket`")


@exercise.check(
    given=_SETUP,
    cases=[f"parameters[{i}].grad[0, 1] = float({bad!r})" for bad in ("inf", "-inf", "nan") for i in (0, 2)],
)
def not_finite(t, device):
    """An infinite or NaN norm raises, and no gradient has changed

    A finite number divided by infinity is 0, and infinity times 0 is NaN. Scaling by such a norm would spoil
    the good gradients too.
    """
    with expect.left_alone(t.parameters, what="`parameters`", gradients=True):
        expect.raises(RuntimeError, lambda: t.call("clip_global_norm(parameters, 0.5)"))


@exercise.check(given=_SETUP, cases=["max_norm = 0.5", "max_norm = 50.0"])
def waits(t, device):
    """Python waits at most once

    `.item()` and `if norm > max_norm` wait for the device. One look, whether the norm is finite, is needed to
    raise an error.
    """
    with measure.syncs() as found:
        t.run(_CALL)
    told = f"Python waited {found.count()} times for {len(t.parameters)} gradients, expected: at most 1"
    expect.true(found.count() <= 1, told, *(f"  {line}" for line in found.where[:3]))
