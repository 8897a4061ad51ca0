"""Accumulate with a scaler

Train `model` for one step on a list of micro-batches `(x, y)`, as if they were one batch. Return its loss,
detached.

- `loss_fn` returns a mean over its examples. Micro-batches may differ in size.
- Each has its forward and loss under autocast in float16, and its backward outside, before the next forward.
- The optimizer steps once, with the true gradients of the whole batch, their norm clipped to `max_norm`. One
  inf or nan skips the whole step. The scale moves once.

Old gradients don't count. `optimizer` has all parameters of `model`; those that are frozen or unused have the
gradient `None` in the step.

Two micro-batches of 1 and 3 examples with losses 4 and 8 → `tensor(7.)`
"""

import torch
from torch import Tensor

from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import amp

exercise = Exercise(
    minutes=15,
    hints=[
        "`.grad` holds a sum over the micro-batches so far. What runs for each of them, and what once?",
        "A mean over all examples is a sum of the micro-batches' means, each times its share of the "
        "examples. All the summands in `.grad` must have one scale.",
        "In the loop: forward, `loss * len(x) / total` in the region, then `scaler.scale(...).backward()` "
        "outside. After it unscale, clip, step and update. Add up the loss detached.",
    ],
)


@exercise.starter
def accumulate_with_scaler(
    model,
    loss_fn,
    optimizer,
    scaler,
    batches: list[tuple[Tensor, Tensor]],
    max_norm: float,
) -> Tensor:
    raise NotImplementedError


_CALL = "accumulate_with_scaler(model, model.loss_fn, optimizer, scaler, batches, {})"


_SETUP = f"{amp.MODEL}\nbatches = list(zip(x.split({{0}}), y.split({{0}})))".format


@exercise.check(given=_SETUP, cases={f"sizes `{sizes}`": sizes for sizes in ([8], [4, 4], [5, 1, 2])})
def one_batch(t, device, sizes):
    """The gradients are those of one large batch

    A micro-batch counts by its share of the examples. Dividing by the number of micro-batches is right where
    all have one size.
    """
    _, wanted = t.model.truth(t.x, t.y)
    t.call(_CALL.format(1000.0))
    batches = {"the number of micro-batches": len(sizes)} if len(sizes) > 1 else {}
    t.model.expect_step(wanted, {"the scale": 1024.0, **batches})


@exercise.check(given=f"{_SETUP([2, 2, 2, 2])}\n{amp.OLD_GRADIENTS}")
def fresh(t, device):
    """Gradients of an earlier step don't count

    What `.grad` holds before the first backward would be added in. With zeros, momentum and weight decay
    still move a parameter that gets no gradient; with None it is passed over.
    """
    _, wanted = t.model.truth(t.x, t.y)
    t.call(_CALL.format(1000.0))
    t.model.expect_step(wanted)
    t.model.expect_no_more(wanted)


@exercise.check(given=_SETUP([3, 1, 4]))
def in_turn(t, device):
    """Each micro-batch runs forward in its region, then backward outside, before the next

    Backward needs no region here. A forward's activations wait for its backward: if all forwards came first,
    all activations would be alive at once.
    """
    with expect.left_alone(t.x, what="`x`"), expect.left_alone(t.y, what="`y`"):
        t.call(_CALL.format(1.0))
    inside = ("forward", torch.float16), ("loss", torch.float16)
    wanted = [*inside, ("backward", None)] * 3 + [("step", None)]
    for number, (came, one) in enumerate(zip(t.model.seen, wanted, strict=False), 1):
        told = [f"{what} {amp.region(dtype)}" for what, dtype in (came, one)]
        expect.true(came == one, f"number {number} of what ran was {told[0]}", f"expected: {told[1]}")
    expect.equal(len(t.model.seen), len(wanted), what="the number of forwards, losses, backwards and steps")


@exercise.check(given=_SETUP([3, 1, 4]), cases=[0.125, 100.0])
def clipped(t, device, max_norm):
    """The sum is unscaled once and clipped once, by its true norm

    Clipped before `unscale_`, gradients come out far too small. A sum of unscaled ones and some that aren't
    means nothing. Clipped parts add up to something else than the clipped sum: they may point elsewhere.
    """
    _, wanted = t.model.truth(t.x, t.y, max_norm)
    t.call(_CALL.format(max_norm))
    t.model.expect_step(wanted, {"the scale": 1024.0})


@exercise.check(
    given=_SETUP([3, 1, 4]),
    cases={"good micro-batches": ("", 1, 2048.0)}
    | {f"inf in micro-batch {i}": (f"batches[{i}][0][0] = torch.inf", 0, 512.0) for i in (0, 1, 2)},
)
def scale_moves_once(t, device, steps, scale):
    """One inf skips the whole step, and the scale moves once

    If the scale moved between two micro-batches, their gradients in `.grad` would have different scales. What
    is inf or nan in `.grad` stays so, and is found at the end.
    """
    t.call(_CALL.format(1.0))
    expect.equal(len(t.model.steps), steps, what="the number of steps of the optimizer")
    expect.equal(t.call("scaler.get_scale()"), scale)


@exercise.check(given=_SETUP([5, 1, 2]))
def loss(t, device):
    """What comes back is the loss of the whole batch, without a graph

    It weighs every example the same. A sum of losses that aren't detached holds on to every graph.
    """
    wanted, _ = t.model.truth(t.x, t.y)
    means = [t.model.truth(x, y)[0] for x, y in t.batches]
    like = {"the mean of the micro-batches' losses": sum(means) / 3, "the last micro-batch's": means[-1]}
    came = t.call(_CALL.format(1.0))
    expect.equal(came, wanted, rtol=0.01, like=like, factors={"the scale": 1024.0})
    expect.true(not came.requires_grad, "the loss has a graph", "expected: detached")
