"""One step in mixed precision

Train `model` for one step, and return the loss, detached.

- The forward and the loss run under autocast in float16, on the device of `x`; the backward runs outside.
- `scaler` scales the loss. The optimizer steps with the true gradients, clipped so that the norm of them all
  is at most `max_norm`.
- If the gradients have inf or nan, nothing is trained, and the scale falls. Then the next call works again.

Old gradients don't count. `optimizer` has all parameters of `model`; those that are frozen or unused have the
gradient `None` in the step. Torch's own functions may do the work.

`amp_step(model, F.cross_entropy, optimizer, scaler, x, y, 1.0)` → `tensor(0.6931)`
"""

import torch
from torch import Tensor

from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import amp

exercise = Exercise(
    minutes=10,
    core=True,
    hints=[
        "Which of the calls after the region find gradients times the scale, and which the true ones?",
        "`nn.utils.clip_grad_norm_` takes `.grad` as it is. And who decides whether a step is skipped: the "
        "optimizer, or the scaler?",
        "Forward and loss in the region. Outside: scale and backward, unscale, clip, step by the scaler, "
        "update. Old gradients have to go before backward.",
    ],
)


@exercise.starter
def amp_step(
    model, loss_fn, optimizer, scaler, x: Tensor, y: Tensor, max_norm: float
) -> Tensor:
    raise NotImplementedError


_CALL = "amp_step(model, model.loss_fn, optimizer, scaler, x, y, {})"


@exercise.check(given=amp.MODEL)
def region(t, device):
    """Forward and loss run under autocast in float16, backward outside

    The loss is cast up to float32 there. Backward follows the dtypes of this forward without a region; inside
    one, operators that ran in float32 may run backward in float16.
    """
    with expect.left_alone(t.x, what="`x`"), expect.left_alone(t.y, what="`y`"):
        t.call(_CALL.format(1.0))
    for what, wanted in {"forward": torch.float16, "loss": torch.float16, "backward": None}.items():
        found = [dtype for kind, dtype in t.model.seen if kind == what]
        expect.equal(len(found), 1, what=f"how often {what} ran")
        told = f"{what} ran {amp.region(found[0])}", f"expected: {amp.region(wanted)}"
        expect.true(found[0] == wanted, *told)
    for name, w in t.model.named_parameters():
        expect.equal(w.dtype, torch.float32, what=f"the dtype of `{name}` after the call")


@exercise.check(
    given=amp.MODEL,
    cases={
        f"`scale={scale}, max_norm={limit}`": (
            f"scaler = torch.amp.GradScaler('cpu', init_scale={scale})",
            scale,
            limit,
        )
        for scale in (1024.0, 65536.0)
        for limit in (0.125, 100.0)
    },
)
def clipped(t, device, scale, limit):
    """The step is made with the true gradients, clipped by their true norm

    Before `unscale_` all gradients are too large by the scale: what is clipped then is far too small once
    it's divided. There is one norm, over all gradients, and one factor.
    """
    _, wanted = t.model.truth(t.x, t.y, limit)
    t.call(_CALL.format(limit))
    t.model.expect_step(wanted, {"the scale": scale})


@exercise.check(given=f"{amp.MODEL}\n{amp.OLD_GRADIENTS}")
def fresh(t, device):
    """Gradients of an earlier step don't count

    Backward adds to what is in `.grad`. What other code has left there must go before. The optimizer steps
    with any gradient that it finds, that of a frozen parameter too. With zeros, momentum and weight decay
    still move a parameter; with None it is passed over.
    """
    _, wanted = t.model.truth(t.x, t.y)
    t.call(_CALL.format(1000.0))
    t.model.expect_step(wanted)
    t.model.expect_no_more(wanted)


@exercise.check(
    given=amp.MODEL,
    cases={
        "overflow": ("scaler = torch.amp.GradScaler('cpu', init_scale=2.0**60, growth_interval=1)", 0, 0.5),
        "good steps": ("", 1, 2.0),
    },
)
def overflow(t, device, steps, factor):
    """On overflow nothing is trained and the scale falls; after a good step it grows

    `scaler.step` calls the optimizer where neither inf nor nan was found. `update` moves the scale, and lets
    `unscale_` be called again. Without it a scale that is too large stays too large.
    """
    for number in (1, 2):
        scale = t.scaler.get_scale()
        t.run(_CALL.format(1.0))
        expect.equal(len(t.model.steps), steps * number, what="the number of steps of the optimizer")
        expect.equal(t.call("scaler.get_scale()"), factor * scale)


@exercise.check(given=amp.MODEL)
def returned(t, device):
    """What comes back is the loss itself, without its graph

    A scaled loss moves with the scale, which is no help in a log. A loss with a graph keeps the graph alive.
    """
    loss, _ = t.model.truth(t.x, t.y)
    came = t.call(_CALL.format(1.0))
    expect.equal(came, loss, rtol=0.01, factors={"the scale": 1024.0})
    expect.true(not came.requires_grad, "the loss has a graph", "expected: detached")
