"""What a capstone's training does: its steps, losses, modes and dtypes, each asked for itself."""

import functools
import itertools
import math
import operator
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from course_utils.exercise import expect
from course_utils.exercise.kits.gpt_run import (
    CONTEXT,
    EVERY,
    LETTERS,
    PARTS,
    RATE,
    STEPS,
    Answer,
    Step,
    all_parameters,
    tiny,
    trained,
)
from course_utils.exercise.kits.whys import because, with_its_why

# --- 06: the loop ----------------------------------------------------------------------------------------


@with_its_why
def right_decay(answer: Answer) -> None:
    """Matrices decay, biases and norms don't.

    Decay pulls a parameter to 0. That keeps a matrix small; a norm's weight has its best place near 1.
    """
    model = tiny(answer)
    optimizer = model.optimizer(RATE)
    stepped = [p for group in optimizer.param_groups for p in group["params"]]
    for name, p in model.named_parameters():
        told = f"no step of the optimizer moves `{name}`"
        with because("An optimizer steps the parameters that it was given, and no others."):
            expect.true(any(p is one for one in stepped), told, "expected: every parameter of the model")
        optimizer.zero_grad()
        p.grad = torch.zeros_like(p)
        with torch.no_grad():
            p.fill_(1)
        optimizer.step()
        decay, wanted = (1 - p.mean().item()) / RATE, 0.1 if p.dim() > 1 else 0.0
        told = f"with a gradient of 0, `{name}`, of shape {tuple(p.shape)}, decays by {decay:.2g} of the rate"
        expect.true(abs(decay - wanted) < 1e-2, told, f"expected: by {wanted}")


_TOO_LATE = """An optimizer uses what is in `.grad` when it steps: what is cut, added or cleared later comes
too late."""
_THEIRS = """An optimizer uses what is in `.grad` when it steps. Backward adds to that: so it's cleared
once, after a step or before the first batch of the next, and the norm is cut once, when all batches have
added theirs."""
_MEAN = """Backward adds gradients up. For the gradient of a mean each loss is divided by the number of
batches first. The cut hides that only where the norm is above 1."""


@with_its_why
def right_steps(answer: Answer) -> None:
    """The gradient at a step is the mean of its batches', with a norm of at most 1.

    An optimizer steps what it was given. A model that is converted or copied later has other parameters.
    """
    run = trained(answer)
    ours = {p for _, p in all_parameters(run.model)}
    for number, step in enumerate(run.steps, 1):
        room = 1e-3 if all(p.dtype == torch.float32 for p in step.grads) else 2e-2  # which is told elsewhere
        for p in step.grads:
            told = f"the optimizer steps a tensor of shape {tuple(p.shape)} that is no parameter of the model"
            expect.true(p in ours, told, "expected: the model's own parameters")
        norm, whole = _norm(step.grads.values()), _norm(step.came.values())
        told = (
            f"in step {number}, with losses times {step.scale:g}, the optimizer finds a gradient with a norm"
        )
        told += f" of {norm:.3g}"
        with because(_TOO_LATE):
            expect.true(norm < 1 + room, told, "expected: at most 1, when the optimizer takes its step")
        whole /= _loss_scale(whole, norm)
        told += f"; that of the {PARTS} batches since the last step has one of {whole:.3g}"
        most = min(1.0, whole)
        if not math.isclose(norm, most, rel_tol=room):
            said = _other_gradient(run.steps, room)
            raise expect.Mismatch(told, f"expected: {most:.3g}", symptom=said, why=_THEIRS)
        share = most / max(_norm(step.came.values()), 1e-12)
        for p, grad in step.grads.items():
            far = _norm([grad.double() - share * step.came[p].double()])
            told = f"in step {number} the gradient of a parameter of shape {tuple(p.shape)} isn't that of the"
            told += f" {PARTS} batches since the last step, cut to 1"
            if not far <= room * most:
                said = _other_gradient(run.steps, room)
                raise expect.Mismatch(told, "expected: theirs, and no other's", symptom=said, why=_THEIRS)
        total, mean = sum(step.backwards) / step.scale, _mean(step) / step.scale
        told = f"in step {number} backward was called on losses that sum up to {total:.4g},"
        told += f" and the mean loss of its batches is {mean:.4g}"
        with because(_MEAN):
            right = not step.losses or math.isclose(total, mean, rel_tol=2e-2)
            expect.true(right, told, "expected: the same")


def _other_gradient(steps: list[Step], room: float) -> str:
    """What the gradients of all steps are instead of those of their batches, in a sentence. One step doesn't
    tell: beside a large gradient a small one is lost."""
    fitting: set[str] | None = None
    before: dict[Tensor, Tensor] = {}
    for step in steps:
        came = [[one[p].double() for p in step.grads] for one in step.parts]
        if len(came) < 2:
            return ""
        left = [before.get(p, torch.zeros_like(p)).double() for p in step.grads]
        grads, before = [grad.double() for grad in step.grads.values()], step.grads
        others = {
            "that of the last batch alone": came[-1],
            "that of the first batch alone": came[0],
            "what it is when that of each batch is cut by itself": _added(map(_cut, came)),
            "what it is when it's cut after the backward of each batch": functools.reduce(_add_and_cut, came),
            "that of the batches with that of the step before added": _added([left, *came]),
        }
        here = {
            name
            for name, other in others.items()
            if _norm([a - b for a, b in zip(grads, _cut(other), strict=True)]) <= room * _norm(_cut(other))
        }
        fitting = here if fitting is None else fitting & here
    return f"In each step the gradient is {min(fitting)}." if fitting else ""


def _cut(grads: list[Tensor]) -> list[Tensor]:
    return [grad * min(1.0, 1 / max(_norm(grads), 1e-12)) for grad in grads]


def _added(parts: Iterable[list[Tensor]]) -> list[Tensor]:
    return [sum(some) for some in zip(*parts, strict=True)]


def _add_and_cut(some: list[Tensor], others: list[Tensor]) -> list[Tensor]:
    return _cut(_added([_cut(some), others]))


def _mean(step: Step) -> float:
    return sum(step.losses) / max(len(step.losses), 1)


def _loss_scale(whole: float, norm: float) -> float:
    """What a `GradScaler` multiplied the loss with, where the optimizer found the gradient without it."""
    scale = 2.0 ** round(math.log2(max(whole, 1e-12) / max(norm, 1e-12)))
    return scale if scale >= 256 and math.isclose(whole / scale, norm, rel_tol=1e-3) else 1.0


def _norm(tensors: Iterable[Tensor]) -> float:
    return math.sqrt(sum(float(one.double().square().sum()) for one in tensors))


@with_its_why
def right_rates(answer: Answer) -> None:
    """The rate rises for a tenth of the steps, then falls along a cosine to a tenth.

    A schedule says which share of the first rate a step has: here two pieces, of which the smaller counts.
    """
    rates = [step.rate / RATE for step in trained(answer).steps]
    told = f"`fit(ids, {STEPS}, …)` takes {len(rates)} steps"
    expect.true(len(rates) == STEPS, told, f"expected: {STEPS}")
    warm, half = STEPS // 10, STEPS // 2
    shown = [1, 2, warm, warm + 2, half, STEPS]
    told = f"as shares of `rate`, the rates in steps {_listed(shown)} of {STEPS} are "
    told += _listed([f"{rates[step - 1]:.2g}" for step in shown])
    top = rates.index(max(rates))
    right = warm - 2 <= top <= warm and rates[: top + 1] == sorted(rates[: top + 1]) and 0 < rates[0] <= 0.5
    right &= 0.95 <= max(rates) <= 1.001
    # The cosine may begin with the first step or after the rise, and be read a step earlier or later.
    for step in range(warm + 2, STEPS + 1):
        early, late = (0.55 + 0.45 * math.cos(math.pi * part) for part in _parts_of_the_fall(step, warm))
        right &= early - 0.02 <= rates[step - 1] <= late + 0.02
    if not right:
        wanted = f"expected: up to 1 in the first {warm}, 0.55 half way, 0.1 at the end"
        shares = [min(i / warm, 0.55 + 0.45 * math.cos(math.pi * i / STEPS)) for i in range(1, STEPS + 1)]
        symptom = why = ""
        if _near(rates, list(itertools.accumulate(shares, operator.mul))):
            symptom, why = "Each is a share of the rate before.", _MULTIPLIED
        elif rates[0] == 0:
            late = _near(rates, [0.0, *shares[:-1]])
            symptom = f"In step 1 it is 0{', and each step has the share of the one before' * late}."
            why = _FROM_ZERO
        elif rates[warm - 1] <= min(rates[warm:]):
            symptom = "After the rise no rate is smaller."
        raise expect.Mismatch(told, wanted, symptom=symptom, why=why)
    expect.looked()


_MULTIPLIED = """A schedule says which share of the first rate a step has. Who multiplies the rate of the
step before multiplies all shares."""
_FROM_ZERO = """With a rate of 0 a step moves nothing. The steps of `fit` count from 1. A scheduler of
torch's counts from 0: when it's made it sets the rate of the first step, by the number 0."""


def _near(rates: list[float], others: list[float]) -> bool:
    return all(math.isclose(a, b, rel_tol=1e-3, abs_tol=1e-9) for a, b in zip(rates, others, strict=True))


def _parts_of_the_fall(step: int, warm: int) -> tuple[float, float]:
    """How much of the cosine is over in this step, by the two readings: at most, and at least."""
    return min((step + 1) / STEPS, 1), max(step - 1 - warm, 0) / (STEPS - warm)


def _listed(parts: Sequence[object]) -> str:
    return ", ".join(map(str, parts[:-1])) + f" and {parts[-1]}"


# --- 07: the loss and the modes --------------------------------------------------------------------------


@with_its_why
def right_loss(answer: Answer) -> None:
    """`loss` is the mean cross-entropy of the model's scores.

    It is the mean over all places. `cross_entropy` takes scores, and makes probabilities of them itself.
    Probabilities lie between 0 and 1; taken as scores they differ so little that the loss can't fall far.
    """
    model = tiny(answer).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(3)
        ids = torch.randint(LETTERS, (3, CONTEXT + 1))
        came = float(model.loss(ids[:, :-1], ids[:, 1:]))
        scores = model(ids[:, :-1])
    wanted = F.cross_entropy(scores.double().flatten(0, 1), ids[:, 1:].flatten()).item()
    told = f"`loss` is {came:.4g}, and the mean cross-entropy of the model's scores {wanted:.4g}"
    expect.true(math.isclose(came, wanted, rel_tol=2e-2), told, "expected: the same, up to bfloat16")
    sums = scores.double().sum(-1)
    told = f"the scores are between 0 and 1 and sum up to {float(sums.mean()):.3g} at each place"
    probable = bool((scores >= 0).all()) and torch.allclose(sums, torch.ones_like(sums), atol=1e-2)
    expect.true(not probable, told, "expected: scores; the cross-entropy makes probabilities of them")


@with_its_why
def right_modes(answer: Answer) -> None:
    """It trains in training mode and evaluates in evaluation mode.

    `eval()` holds until somebody calls `train()`, and the other way round.
    """
    for forward in trained(answer, dropout=0.1).forwards:
        wanted = "training" if forward.grad else "evaluation"
        mode = "training" if forward.training else "evaluation"
        when = f"in step {forward.step + 1}" if forward.grad else f"in `evaluate` after {forward.step} steps"
        told = f"{when} the model is in {mode} mode"
        expect.true(mode == wanted, told, f"expected: {wanted} mode")
    model, modes = tiny(answer, letters=20).train(), []
    with model.register_forward_pre_hook(lambda module, _: modes.append(module.training)):
        model.evaluate(torch.arange(2 * CONTEXT + 1) % 20)
    told = "`evaluate`, called for a model in training mode, leaves it in training mode"
    expect.true(not any(modes), told, "expected: evaluation mode")


_OF_THE_STEP = """A curve is read as what happened in each step: the mean loss of the batches that it is
made of, as `loss` gave them."""
_ROUNDED = """`loss` returns float32, with 24 bits. bfloat16 keeps 8 of them: between 4 and 8 it has steps
of 1/32, and a loss may fall by less than that from step to step."""


@with_its_why
def right_held_losses(answer: Answer) -> None:
    """Losses are those of their steps; `evaluate` gives the mean over all windows.

    One number for the held text is the mean over all of it, each window counted once.
    """
    run = trained(answer)
    told = f"`fit` returned {len(run.held)} held losses for {STEPS} steps"
    expect.true(len(run.held) == STEPS // EVERY, told, f"expected: one after every {EVERY}")
    when = sorted({forward.step for forward in run.forwards if not forward.grad})
    told = f"`fit` evaluated after the steps {_listed(when[:3])}, …"
    expect.true(when == list(range(EVERY, STEPS + 1, EVERY)), told, f"expected: after every {EVERY}")
    told = f"`fit` returned {len(run.losses)} losses for {STEPS} steps"
    expect.true(len(run.losses) == STEPS, told, "expected: one for each step")
    for number, (came, step) in enumerate(zip(run.losses, run.steps, strict=False), 1):
        told = f"with losses times {step.scale:g} `fit` returned a loss of {{}} for step {number}, and the"
        told += " mean of its batches is {}"
        means = [_mean(step), sum(step.backwards)] if step.losses else []
        _expect_loss(came, means, step.exact, told, _OF_THE_STEP)
    for number, came in enumerate(run.held):
        seen = run.evaluated.get((number + 1) * EVERY, [])
        rows = sum(len(one.ids) for one in seen)
        mean = [sum(len(one.ids) * one.loss for one in seen) / rows] if rows else []
        told = f"`fit` returned a held loss of {{}} after {(number + 1) * EVERY} steps, and the mean of what "
        told += "`loss` gave there is {}"
        _expect_loss(came, mean, all(one.exact for one in seen), told, "")
    model, windows = tiny(answer, letters=20), 80
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(3)
    rows = torch.randint(20, (windows // 2, CONTEXT))
    with torch.no_grad():
        # The other half is as unlike it as can be: what leaves windows out gets another mean.
        same = torch.arange(20)[:, None].expand(20, CONTEXT)
        scores = model.eval()(same)
        hard = F.cross_entropy(scores.transpose(1, 2), same, reduction="none").mean(1)
        ids = torch.cat([rows.flatten(), hard.argmax().expand(windows // 2 * CONTEXT + 1)])
        x, y = ids[:-1].view(windows, CONTEXT), ids[1:].view(windows, CONTEXT)
        wanted = sum(float(model.loss(x[i : i + 1], y[i : i + 1])) for i in range(windows)) / windows
    came = model.evaluate(ids)
    told = f"`evaluate` gives {came:.4g}, and the mean over all {windows} windows is {wanted:.4g}"
    expect.true(math.isclose(came, wanted, rel_tol=1e-2), told, "expected: the same")


def _expect_loss(came: float, means: list[float], exact: bool, told: str, why: str) -> None:
    """What was returned is one of these means, up to float32's rounding. Losses that aren't float32 are told
    elsewhere. `told`: with a place for each of the two."""
    if not means or any(math.isclose(came, one, rel_tol=2e-6 if exact else 1e-2) for one in means):
        expect.looked()
        return
    mean, symptom = means[0], ""
    if math.isclose(came, mean, rel_tol=1e-2):
        rounded = torch.tensor(mean).bfloat16().item()
        symptom = "It is that mean, rounded to bfloat16." if came == rounded else "It is that mean, rounded."
        why = _ROUNDED
    digits = next(n for n in range(4, 18) if f"{came:.{n}g}" != f"{mean:.{n}g}")
    told = told.format(f"{came:.{digits}g}", f"{mean:.{digits}g}")
    raise expect.Mismatch(told, "expected: the same", symptom=symptom, why=why)


# --- 09: precision ---------------------------------------------------------------------------------------


@with_its_why
def loss_in_float32(answer: Answer) -> None:
    """Scores come in bfloat16, and the loss is computed and returned in float32.

    bfloat16 keeps 8 bits of a number: between 2 and 4 it has steps of 1/64, and a loss falls by less than
    that from step to step.
    """
    model, off = tiny(answer).eval(), {}
    for _ in range(6):
        ids = torch.randint(LETTERS, (3, CONTEXT + 1))
        loss = model.loss(ids[:, :-1], ids[:, 1:])
        told = f"`loss` returns {loss.dtype}".replace("torch.", "")
        expect.true(loss.dtype == torch.float32, told, "expected: float32")
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            scores = model(ids[:, :-1])
        wanted = F.cross_entropy(scores.float().flatten(0, 1), ids[:, 1:].flatten()).item()
        off[abs(loss.item() / wanted - 1)] = loss.item(), wanted
    came, wanted = off[max(off)]
    told = f"`loss` is {came:.5g}; computed in float32 from the same scores it is {wanted:.5g}"
    # What is further off is no matter of rounding, and told elsewhere.
    expect.true(not 1e-3 < max(off) < 1.2e-2, told, "expected: the same")


@with_its_why
def weights_in_float32(answer: Answer) -> None:
    """The parameters that the optimizer moves are float32.

    bfloat16 keeps 8 bits of a number: a step of less than 1/256 of a weight may be rounded away. So
    weights stay float32, and autocast casts them where they are used.
    """
    for step in trained(answer).steps:
        for p in step.grads:
            told = f"the optimizer steps a parameter of shape {tuple(p.shape)} in {p.dtype}".replace(
                "torch.", ""
            )
            expect.true(p.dtype == torch.float32, told, "expected: float32; autocast casts at each use")


@with_its_why
def weights_of_now(answer: Answer) -> None:
    """Each forward computes with the weights as they are.

    Autocast casts a weight once and keeps the copy until its outermost region ends. A region around
    several steps computes with the first copies.
    """
    for forward in trained(answer).forwards:
        told = f"in step {forward.step + 1} a forward gives other scores than the weights of that moment do"
        expect.true(forward.of_now, told, "expected: the scores that these weights give")


@with_its_why
def products_in_bfloat16(answer: Answer) -> None:
    """`loss` keeps activations in bfloat16 for backward.

    Autocast casts what goes into a product of matrices. The copies are what backward keeps, in half the
    bytes.
    """
    kept: set[torch.dtype] = set()

    def keep(tensor: Tensor) -> Tensor:
        kept.add(tensor.dtype)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        tiny(answer).loss(torch.arange(CONTEXT)[None], torch.arange(1, CONTEXT + 1)[None])
    told = "nothing that `loss` keeps for backward is bfloat16"
    expect.true(torch.bfloat16 in kept, told, "expected: matrix products in bfloat16")
