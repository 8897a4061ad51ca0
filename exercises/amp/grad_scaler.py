"""A gradient scaler, by hand

Build `GradScaler`, whose methods do what those of `torch.amp.GradScaler("cpu", ...)` do.

- `unscale_(optimizer)` divides its gradients by the scale, in place, and looks for inf and nan in them.
  Called twice before `update`, it raises a `RuntimeError`.
- `step(optimizer)` calls `unscale_` if you haven't. It skips the step if `unscale_` found inf or nan.
- `update()` multiplies the scale by `backoff_factor` if any optimizer since the last update found inf or nan,
  and by `growth_factor` after `growth_interval` updates in a row without.

`scale` takes one tensor. State dicts can be exchanged with torch's scaler. Don't use its code. Not asked for:
a scale beyond float32, tensors that aren't dense float32, a second `step`, `update` without `unscale_`.

`GradScaler(init_scale=4.0).scale(torch.tensor(3.0))` → `tensor(12.)`
"""

import torch
from torch import Tensor

from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import amp

exercise = Exercise(
    minutes=20,
    hints=[
        "What has to be known from one call to the next? Two things for each optimizer, until `update`.",
        "A dict from optimizers to what was found says both: whether one is in it, and with what. `update` "
        "looks at all values, and clears it. Print torch's `state_dict()` for the number.",
        "The tracker counts updates without inf; a skip and growing set it to 0. `gradient.isfinite().all()` "
        "asks for inf and nan at once; remember the answer. Return a copy as `state_dict`.",
    ],
)


@exercise.starter
class GradScaler:
    def __init__(
        self,
        init_scale=65536.0,
        growth_factor=2.0,
        backoff_factor=0.5,
        growth_interval=2000,
    ):
        raise NotImplementedError

    def get_scale(self) -> float: ...
    def scale(self, loss: Tensor) -> Tensor: ...
    def unscale_(self, optimizer: torch.optim.Optimizer) -> None: ...
    def step(self, optimizer: torch.optim.Optimizer) -> None: ...
    def update(self) -> None: ...
    def state_dict(self) -> dict[str, float]: ...
    def load_state_dict(self, state: dict[str, float]) -> None: ...


_STATE = ["scaler.get_scale()", "scaler.state_dict()['_growth_tracker']"]
_WEIGHTS = ["p.tolist()", "q.tolist()"]
_STEP = "scaler.scale(loss)\np.grad, q.grad = torch.tensor([{}], device=device)\n"
_STEP += "scaler.step(both)\nscaler.update()"
_ODD = "inf, 1.", "1., -inf", "1., nan", "inf, -inf", "3e38, 3e38"
_PAIRS = [pair for odd in _ODD for pair in (f"[{odd}], [1., 1.]", f"[1., 1.], [{odd}]")]


@exercise.check
def scales(GradScaler, device):
    """`scale` multiplies the loss, and with it the gradients

    The chain rule carries the factor to the gradients. The loss itself stays as it is, to be logged.
    """
    expect.true(not issubclass(GradScaler, torch.amp.GradScaler), "it is torch's own", "expected: your own")
    lines = ["scaled = scaler.scale(loss)\nscaled.backward()"]
    questions = ["scaler.get_scale()", "loss.item()", "scaled.detach()", "p.grad.tolist()"]
    amp.follow(GradScaler, lines, questions, device, amp.ONE_OPTIMIZER)


@exercise.check
def unscales(GradScaler, device):
    """`unscale_` divides each gradient in place, once, and passes over those that are None

    In place, because others may hold the same tensors: with `gradient_as_bucket_view`, DDP's buckets do. A
    parameter that took no part may have no gradient.
    """
    lines = ["scaler.scale(loss).backward()\nheld = p.grad", "scaler.unscale_(both)"]
    amp.follow(GradScaler, lines, ["p.grad.tolist()", "held.tolist()", "q.grad"], device, amp.ONE_OPTIMIZER)
    t = expect.given("\n".join([amp.ONE_OPTIMIZER, *lines]), GradScaler=GradScaler, device=device)
    with expect.left_alone(t.held, what="`p.grad` in the second call of `unscale_`"):
        expect.raises(RuntimeError, lambda: t.call("scaler.unscale_(both)"))
    t.run("scaler.update()\nscaler.unscale_(both)")
    expect.equal(t.p.grad, torch.full_like(t.p, 3 / 16), what="`p.grad`, unscaled again after `update`")


@exercise.check(cases={f"`p.grad, q.grad = {pair}`": pair for pair in (*_PAIRS, "[0., 0.], [0., 0.]")})
def skips(GradScaler, device, pair):
    """A step is skipped for one inf or nan anywhere, and for nothing else

    One such number would stay in SGD's parameters and momentum. A step with zeros isn't skipped: momentum
    goes on. A large number is not inf, but the sum of two may be, and the square of one.
    """
    setup = amp.ONE_OPTIMIZER.replace("16.0", "1.0")  # so that a sum overflows after dividing, too
    lines = [_STEP.format("[1., 2.], [3., 4.]"), _STEP.format(pair)]
    amp.follow(GradScaler, lines, [*_WEIGHTS, _STATE[0]], device, setup)


@exercise.check
def scale_and_tracker(GradScaler, device):
    """Over 200 steps, scale, tracker and parameters are those of torch's scaler

    The tracker counts updates without inf in a row. A skipped step sets it back to 0, and so does growing.
    """
    amp.follow(GradScaler, amp.script("train([{}, {}])"), [*_STATE, *_WEIGHTS], device)


@exercise.check
def two_optimizers(GradScaler, device):
    """Each optimizer skips by its own gradients; the scale follows all of them, once

    Only the optimizer with inf in its gradients must not step. But there is one scale: it falls when any of
    them found inf, and it falls once if all did. An optimizer may also rest.
    """
    script = amp.script("train([{}, {}], [{}, {}])", "train(None, [{}, {}])", "train([{}, {}], None)")
    script[50] = "train([inf, 1.], [1., nan])"
    amp.follow(GradScaler, script[:100], [*_WEIGHTS, *_STATE], device)


@exercise.check
def between(GradScaler, device):
    """Between `unscale_` and `step` the gradients may be changed

    What `unscale_` has found counts: clipping by value makes an ordinary number of inf. It counts for
    `update` even if you don't call `step` at all.
    """
    for factor in ("1", "inf"):
        for step in ("nn.utils.clip_grad_value_([p], 0.1)\nscaler.step(both)", "both.zero_grad()"):
            lines = [f"scaler.scale({factor} * loss).backward()\nscaler.unscale_(both)", step]
            lines += ["scaler.update()"]
            amp.follow(GradScaler, lines, [*_WEIGHTS, *_STATE], device, amp.ONE_OPTIMIZER)


@exercise.check
def state(GradScaler, device):
    """A loaded scaler goes on as the saved one would have

    How far the scale is from growing is a part of the state, and so are the factors. The scaler's
    `state_dict` is a snapshot: later steps don't change it.
    """
    more = [f"train({pair})" for pair in ("[1., 1.]", "[2., 1.]", "[inf, 1.]", "[1., 1.]")]
    lines = ["train([1., 1.])", "saved = scaler.state_dict()", *more]
    lines += ["torchs = torch.amp.GradScaler('cpu')\ntorchs.load_state_dict(saved)"]
    again = "saved = torchs.state_dict()\nscaler = GradScaler()\nscaler.load_state_dict(saved)"
    lines += [again, *more, "scaler.load_state_dict(saved)"]
    questions = ["saved", "scaler.state_dict()", "scaler.get_scale()", "GradScaler().state_dict()"]
    amp.follow(GradScaler, lines, questions, device, f"{amp.TWO_OPTIMIZERS}\nsaved = {{}}")
