"""The loss without its logits

Return `F.cross_entropy(hidden @ weight.T, target, ignore_index=ignore_index)` without ever having all logits:
at most `chunk` rows of them at a time, in the forward and in the backward.

- Loss and gradients of `hidden` and `weight` are those of the one large call, up to rounding, in its dtype.
  The mean is over the rows that count, at least one. The last chunk may be smaller.
- Between forward and backward nothing is kept that grows with rows times classes.

`torch.utils.checkpoint` is allowed, and so is an `autograd.Function` of your own.

`chunked_cross_entropy(torch.zeros(4, 2), torch.zeros(8, 2), torch.arange(4), 3)` → `tensor(2.0794)`
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from course_utils import measure
from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import numbers

exercise = Exercise(
    minutes=15,
    core=True,
    hints=[
        "The loss is a sum over rows, divided by one number. Which number, and when do you know it?",
        "A sum of the chunks' losses has a graph that keeps all chunks. What runs a part of the forward "
        "without keeping anything of it?",
        "Either `checkpoint` around a function of one chunk that returns its sum. Or a Function whose "
        "forward adds up each chunk's gradient at once, and whose backward multiplies by what arrives.",
    ],
)


@exercise.starter
def chunked_cross_entropy(
    hidden: Tensor, weight: Tensor, target: Tensor, chunk: int, ignore_index: int = -100
) -> Tensor:
    """(rows, width), (classes, width), (rows,) -> ()"""
    raise NotImplementedError


_LARGE = numbers.hard("10, 4", "large numbers")["large numbers"]
_CALL = "loss = chunked_cross_entropy(hidden, weight, target, {chunk}{ignore})"


def _setup(rows=10, width=4, classes=7):
    return f"""
torch.manual_seed(0)
hidden = torch.randn({rows}, {width}, device=device, requires_grad=True)
weight = torch.randn({classes}, {width}, device=device, requires_grad=True)
target = torch.randint({classes}, ({rows},), device=device)
"""


def _compare(t, chunk, ignore=-100, factor=1.0):
    """The loss and both gradients against float64."""
    twins = [x.detach().double().requires_grad_() for x in (t.hidden, t.weight)]
    logits = twins[0] @ twins[1].T
    wanted = F.cross_entropy(logits, t.target, ignore_index=ignore)
    grads = torch.autograd.grad(factor * wanted, twins)
    with torch.no_grad():
        chunks = zip(logits.split(chunk), t.target.split(chunk), strict=True)
        means = torch.stack([F.cross_entropy(a, b, ignore_index=ignore) for a, b in chunks]).mean()
    with expect.left_alone({name: getattr(t, name) for name in ("hidden", "weight", "target")}):
        t.run(_CALL.format(chunk=chunk, ignore="" if ignore == -100 else f", {ignore}"))
        like = {"the mean of the chunks' means": means}
        expect.close(t.loss.detach(), wanted.detach(), what="the loss", like=like, factor=16)
        expect.equal(t.loss.dtype, t.hidden.dtype, what="the dtype of the loss")
        if t.hidden.requires_grad or t.weight.requires_grad:
            t.run(f"({factor} * loss).backward()" if factor != 1 else "loss.backward()")
    for name, grad in zip(("hidden", "weight"), grads, strict=True):
        if (x := getattr(t, name)).requires_grad:
            expect.true(x.grad is not None, f"`{name}.grad` is None", "expected: a tensor")
            expect.close(x.grad, grad, what=f"`{name}.grad`", factor=64)


@exercise.check(given=_setup(), cases={f"chunks of {chunk}": chunk for chunk in (5, 3, 1, 64)})
def values(t, device, chunk):
    """Loss and gradients are those of the one large call

    Each row's loss needs its own logits only, and each row counts once. A mean of the chunks' means gives the
    rows of a smaller last chunk too much weight, and `len(hidden) // chunk` chunks leave them out.
    """
    _compare(t, chunk)


@exercise.check(
    given=_setup(),
    cases={
        "large logits": f"hidden = ({_LARGE}).to(device).requires_grad_()",
        "float64": "hidden, weight = (x.detach().double().requires_grad_() for x in (hidden, weight))",
    },
)
def exact(t, device):
    """As exact as the one large call, for large logits and in float64

    `exp` of a large logit is inf in float32 from 89 on: `logsumexp` and `log_softmax` take the maximum off
    first. A sum that begins as `torch.zeros(())` is float32, and so is what is added to it in place. An
    integer tensor divided by another is float32, too.
    """
    _compare(t, 4)


@exercise.check(given=_setup(), cases={f"`ignore_index={i}`": (f"target[:5] = {i}", i) for i in (-100, 2)})
def ignored(t, device, index):
    """Rows that don't count are in no sum, and not in the number that divides

    `ignore_index` takes rows out of the mean. A chunk may have few rows that count, or none: its own mean is
    nan then.
    """
    _compare(t, 3, index)


@exercise.check(
    given=_setup(),
    cases={
        "3 times the loss": ("", 3.0),
        "a `hidden` that needs no gradient": ("hidden.requires_grad_(False)", 1.0),
        "a `weight` that needs no gradient": ("weight.requires_grad_(False)", 1.0),
        "neither needs one": ("hidden, weight = hidden.detach(), weight.detach()", 1.0),
    },
)
def chain(t, device, factor):
    """The loss is a part of a larger graph

    Backward multiplies by the gradient that arrives. It is 1 where the loss itself is what you call
    `backward` on, and elsewhere may be another number. A tensor that needs no gradient gets none.
    """
    _compare(t, 4, factor=factor)
    for name in ("hidden", "weight"):
        if not (x := getattr(t, name)).requires_grad:
            expect.equal(x.grad, None, what=f"`{name}.grad`, which needs no gradient,")


@exercise.check(given=_setup(128, 8, 500))
def kept(t, device):
    """Nothing of the chunks is kept for backward

    Log-softmax keeps its result for its derivative. A loss that is added up over chunks in the ordinary way
    keeps that of every chunk.
    """
    held = measure.live_bytes(t.call, "chunked_cross_entropy(hidden, weight, target, 16)").held
    expect.at_most(held, 2 * 4 * 8 * (500 + 128) + 4096, "what the loss keeps for backward", unit="bytes")


@exercise.check
def peak(chunked_cross_entropy, device):
    """There are never more logits than those of a chunk

    In the backward, too: one `checkpoint` around all chunks keeps no logits at first, and has the logits of
    all of them when backward runs it again. In chunks, the peak grows with the rows as `hidden` does, not as
    the logits would.
    """
    found = {}
    for rows in (256, 64):
        setup = _setup(rows, 8, 500)
        t = expect.given(setup, chunked_cross_entropy=chunked_cross_entropy, device=device)
        run = _CALL.format(chunk=8, ignore="") + "; loss.backward()"
        found[rows] = measure.peak_bytes(t.run, run).total
    chunk, own = 8 * 500 * 4, 500 * 8 * 4
    expect.at_most(found[64], 5 * chunk + 4 * own + 3 * 64 * 8 * 4, "the peak for 64 rows", unit="bytes")
    expect.at_most(found[256] - found[64], 6 * 192 * 8 * 4, "what 192 rows add to the peak", unit="bytes")
