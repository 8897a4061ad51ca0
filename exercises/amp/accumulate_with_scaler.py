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

from course_utils.exercise import Exercise, Rows, expect
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


def _given(accumulate_with_scaler, device, sizes, *more):
    lines = amp.MODEL, f"batches = list(zip(x.split({sizes}), y.split({sizes})))", *more
    return expect.given("\n".join(lines), accumulate_with_scaler=accumulate_with_scaler, device=device)


@exercise.check
def one_batch(accumulate_with_scaler, device):
    """The gradients are those of one large batch

    A micro-batch counts by its share of the examples. Dividing by the number of micro-batches is right where
    all have one size.
    """
    with Rows() as rows:
        for sizes in [8], [4, 4], [5, 1, 2]:
            with rows.of(f"sizes `{sizes}`"):
                t = _given(accumulate_with_scaler, device, sizes)
                _, wanted = t.model.truth(t.x, t.y)
                t.call(_CALL.format(1000.0))
                batches = {"the number of micro-batches": len(sizes)} if len(sizes) > 1 else {}
                t.model.expect_step(wanted, {"the scale": 1024.0, **batches})


@exercise.check
def fresh(accumulate_with_scaler, device):
    """Gradients of an earlier step don't count

    What `.grad` holds before the first backward would be added in. With zeros, momentum and weight decay
    still move a parameter that gets no gradient; with None it is passed over.
    """
    t = _given(accumulate_with_scaler, device, [2, 2, 2, 2], amp.OLD_GRADIENTS)
    _, wanted = t.model.truth(t.x, t.y)
    t.call(_CALL.format(1000.0))
    t.model.expect_step(wanted)
    t.model.expect_no_more(wanted)


@exercise.check
def in_turn(accumulate_with_scaler, device):
    """Each micro-batch runs forward in its region, then backward outside, before the next

    Backward needs no region. A graph lives until its backward: if all forwards came first, all activations
    would be alive at once.
    """
    t = _given(accumulate_with_scaler, device, [3, 1, 4])
    with expect.left_alone(t.x, what="`x`"), expect.left_alone(t.y, what="`y`"):
        t.call(_CALL.format(1.0))
    inside = ("forward", torch.float16), ("loss", torch.float16)
    wanted = [*inside, ("backward", None)] * 3 + [("step", None)]
    for number, (came, one) in enumerate(zip(t.model.seen, wanted, strict=False), 1):
        told = [f"{what} {amp.region(dtype)}" for what, dtype in (came, one)]
        expect.true(came == one, f"number {number} of what ran was {told[0]}", f"expected: {told[1]}")
    expect.equal(len(t.model.seen), len(wanted), what="the number of forwards, losses, backwards and steps")


@exercise.check
def clipped(accumulate_with_scaler, device):
    """The sum is unscaled once and clipped once, by its true norm

    Clipped before `unscale_`, gradients come out too small by the scale. Unscaled ones can't be added to some
    that aren't. Clipped parts add up to something else than the clipped sum: they may point elsewhere.
    """
    for limit in (0.125, 100.0):
        t = _given(accumulate_with_scaler, device, [3, 1, 4])
        _, wanted = t.model.truth(t.x, t.y, limit)
        t.call(_CALL.format(limit))
        t.model.expect_step(wanted, {"the scale": 1024.0})


@exercise.check
def scale_moves_once(accumulate_with_scaler, device):
    """One inf skips the whole step, and the scale moves once

    `update` between two micro-batches would change the scale of those that follow. What is inf or nan in
    `.grad` stays so, and is found at the end.
    """
    with Rows() as rows:
        for bad in (None, 0, 1, 2):
            good = bad is None
            with rows.of("good micro-batches" if good else f"inf in micro-batch {bad}"):
                more = "" if good else f"batches[{bad}][0][0] = torch.inf"
                t = _given(accumulate_with_scaler, device, [3, 1, 4], more)
                t.call(_CALL.format(1.0))
                expect.equal(len(t.model.steps), int(good), what="the number of steps of the optimizer")
                expect.equal(t.call("scaler.get_scale()"), 2048.0 if good else 512.0)


@exercise.check
def loss(accumulate_with_scaler, device):
    """What comes back is the loss of the whole batch, without a graph

    It weighs every example the same. A sum of losses that aren't detached holds on to every graph.
    """
    t = _given(accumulate_with_scaler, device, [5, 1, 2])
    wanted, _ = t.model.truth(t.x, t.y)
    means = [t.model.truth(x, y)[0] for x, y in t.batches]
    like = {"the mean of the micro-batches' losses": sum(means) / 3, "the last micro-batch's": means[-1]}
    came = t.call(_CALL.format(1.0))
    expect.equal(came, wanted, rtol=0.01, like=like, factors={"the scale": 1024.0})
    expect.true(not came.requires_grad, "the loss has a graph", "expected: detached")
