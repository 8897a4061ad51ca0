"""What a healthy step of the capstone's GPT is, and what else one may turn out to be."""

import itertools
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.optimizer import register_optimizer_step_pre_hook

from course_utils.exercise import expect
from course_utils.exercise.kits import gpt
from course_utils.exercise.kits.whys import because

RATE = 1e-3
# Several times what bfloat16 makes of losses, gradients and weights in eight steps.
LOSS_APART, GRADIENT_APART, WEIGHTS_APART = 0.015, 0.03, 0.1
_FLOAT32 = """bfloat16 keeps 8 bits of a number: between 8 and 16 it has steps of 1/16, and a loss may change
by less from step to step."""
_GRAPH = "A loss that requires a gradient holds all that its graph kept for backward."
_LESS = "A step that reads less text is faster, and learns less."
_WEIGHED = """The batches of a step count the same, also one that is smaller because its epoch ends. So in
a merged batch each row is weighed by the size of the batch that it came in."""
_MERGED = """With `size * parts` windows a batch, the last one of an epoch has what is left of it. A step
takes `parts` batches of `size`, and where the epoch ends among them, it goes on in the next one."""
_NEXT = """Each call takes the next batches of `model.batches`. That draws a new order for each epoch, when
the one before has ended."""
_HELD_BACK = """The second part of `model.split` says how the model does on text that it hasn't seen. So it
isn't trained on."""
_WHOLE = "A step trains the whole model."
_OWN = "A call returns the loss of its own step."
_FROZEN = "A frozen weight, or one that the loss doesn't depend on, gets no gradient and learns nothing."
_ALL_AT_ONCE = """`clip_grad_norm_` takes the norm over all parameters, and leaves a shorter gradient as it
is. It comes after the last backward of a step, and before the optimizer's step."""
_BACKWARD = """The gradient is that of what backward was called on, whatever is returned: of the mean of
the losses of all batches, each counted the same."""
_LARGE = """In bfloat16 a step that is small against the weight is rounded away. Autocast casts a copy for
each product; the weights stay in float32."""
_COPY = "A frozen weight learns nothing, and a copy that is trained leaves `model` as it was."
_ITS_OWN = """`model.optimizer(1e-3)` says what each weight's rate and decay are: matrices decay, biases
and norms don't. AdamW makes steps of about the rate, however large the gradient is."""
_SETTINGS = {"lr": RATE, "betas": (0.9, 0.95), "eps": 1e-8}


def model(dropout: float = 0.0, spread: float = 1.0, seed: int = 0, **sizes: int) -> gpt.GPT:
    """A small GPT. `spread`: how much larger than usual the vectors of the characters are, so that the losses
    of two batches differ by far more than rounding makes."""
    torch.manual_seed(seed)
    made = gpt.GPT(len(gpt.alphabet()), dropout=dropout, **{"width": 32, "layers": 2, "context": 32, **sizes})
    with torch.no_grad():
        made.token.weight *= spread
    return made


def text(start: int, letters: int) -> Tensor:
    """A piece of the course's text, as ids."""
    return gpt.encode(gpt.text()[start : start + letters])


def number(loss: Any, call: int) -> float:
    """What this call of `step` returned: checks that it is a number or a float32 tensor without a graph."""
    told = f"what call {call} of `step` returns"
    if not isinstance(loss, Tensor):
        wanted = "expected: a number, or a tensor"
        expect.true(isinstance(loss, Real), f"{told} is {expect.show(loss)}", wanted)
        return float(loss)
    expect.equal(loss.numel(), 1, what=f"the number of elements of {told}")
    exact = loss.dtype in (torch.float32, torch.float64)
    with because(_FLOAT32):
        said = f"{told} is in {loss.dtype}".replace("torch.", "")
        expect.true(exact, said, "expected: float32, or a number")
    with because(_GRAPH):
        said = f"{told} keeps the graph of the step"
        expect.true(not loss.requires_grad, said, "expected: one without a graph")
    return float(loss)


def near(loss: float, other: float) -> bool:
    """Whether they differ by no more than what bfloat16 makes of one."""
    return abs(loss - other) < LOSS_APART


@dataclass(frozen=True)
class Moment:
    """What a step from these weights is: its batches, its loss, its gradient as the optimizer gets it, and
    that gradient's norm before the cut."""

    weights: dict[str, Tensor]
    batches: list[tuple[Tensor, Tensor]]
    loss: float
    gradients: dict[str, Tensor]
    norm: float


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """A copy of its weights, by name."""
    return {name: one.detach().clone() for name, one in model.named_parameters()}


def moments(
    model: gpt.GPT, starts: list[dict[str, Tensor]], ids: Tensor, size: int, parts: int, seed: int
) -> list[Moment]:
    """What each step is from the weights that it started from, in float32, with what GPT itself has."""
    source, found = model.batches(model.split(ids)[0], size, torch.Generator().manual_seed(seed)), []
    for weights in starts:
        model.load_state_dict(weights, strict=False)  # the weight of the head is that of the table
        batches = list(itertools.islice(source, parts))
        model.zero_grad()
        loss = sum(exact_loss(model, *batch) for batch in batches) / parts
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        gradients = {name: one.grad.clone() for name, one in model.named_parameters()}
        found.append(Moment(weights, batches, loss.item(), gradients, norm.item()))
    return found


def healthy_end(
    model: gpt.GPT, steps: int, ids: Tensor, size: int, parts: int, seed: int
) -> dict[str, Tensor]:
    """The weights after so many steps in float32."""
    optimizer = model.optimizer(RATE)
    source = model.batches(model.split(ids)[0], size, torch.Generator().manual_seed(seed))
    for _ in range(steps):
        for _ in range(parts):
            (exact_loss(model, *next(source)) / parts).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return weights_of(model)


def exact_loss(model: nn.Module, x: Tensor, y: Tensor, **how: Any) -> Tensor:
    """The mean cross-entropy, all in float32."""
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten(), **how)


@torch.no_grad()
def other_losses(
    model: gpt.GPT, past: list[Moment], came: list[float], ids: Tensor, numbers: tuple[int, int, int]
) -> dict[str, str]:
    """What the last loss that came is instead of that of the last of these moments, and the rule for it."""
    size, parts, seed = numbers
    if parts > 1 and all(map(near, came, _merged_losses(model, past, ids, size * parts, seed))):
        return {"that of a batch of `size * parts` windows: as many as its epoch has left": _MERGED}
    now, found = past[-1], {}
    model.load_state_dict(now.weights, strict=False)  # the head's weight is the table's

    def mean(batches: Any) -> float:
        return statistics.fmean(exact_loss(model, x, y).item() for x, y in batches)

    for count in range(1, parts):
        name = f"the mean over {count} of its {parts} batches"
        name = name if count > 1 else "that of its first batch alone"
        found[name] = mean(now.batches[:count]), _LESS
    found["the mean over one of its batches, the last"] = mean(now.batches[-1:]), _LESS
    x, y = (torch.cat(both) for both in zip(*now.batches, strict=True))
    half = model.context // 2
    found["the mean over all characters at once: its batches differ in size"] = mean([(x, y)]), _WEIGHED
    found["that of the first half of each window"] = mean([(x[:, :half], y[:, :half])]), _LESS
    name = "that of the second half of each window, read alone"
    found[name] = mean([(x[:, half:], y[:, half:])]), _LESS
    each = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="none").view_as(y)
    found["that of the last character of each window alone"] = each[:, -1].mean().item(), _LESS
    found["that of the second half of each window alone"] = each[:, half:].mean().item(), _LESS
    found["that of every second character"] = each[:, ::2].mean().item(), _LESS
    for back, moment in enumerate(reversed(past[:-1]), 1):
        name = f"that of the batches of {back} step{'s' * (back > 1)} before, used again"
        found[name] = mean(moment.batches), _NEXT
    held = model.split(ids)[1]
    done, windows = (len(past) - 1) * parts, (len(ids) - len(held) - 1) // model.context
    source = model.batches(model.split(ids)[0], size, torch.Generator().manual_seed(seed))
    epoch = list(itertools.islice(source, -(-windows // size)))
    if done + parts > len(epoch):
        again = [epoch[(done + part) % len(epoch)] for part in range(parts)]
        found["that of batches in the order of the first epoch"] = mean(again), _NEXT
    texts = {"the text that is held back": held, "the whole text, what is held back with it": ids}
    for name, some in texts.items():
        source = model.batches(some, size, torch.Generator().manual_seed(seed))
        skipped = itertools.islice(source, done, None)
        found[f"that of batches of {name}"] = mean(itertools.islice(skipped, parts)), _HELD_BACK
    left, model.blocks = model.blocks, model.blocks[:-1]
    found["that of the model without its last block"] = mean(now.batches), _WHOLE
    model.blocks = left
    fitting = {name: why for name, (loss, why) in found.items() if near(loss, came[-1])}
    if all(map(near, came[1:], [one.loss for one in past[:-1]])):
        fitting["that of the call before, from call 2 on"] = _OWN
    return fitting


def _merged_losses(model: gpt.GPT, past: list[Moment], ids: Tensor, size: int, seed: int) -> list[float]:
    """The losses of these moments with one batch of this size each."""
    source, found = model.batches(model.split(ids)[0], size, torch.Generator().manual_seed(seed)), []
    for moment in past:
        model.load_state_dict(moment.weights, strict=False)  # the head's weight is the table's
        found.append(exact_loss(model, *next(source)).item())
    return found


@dataclass
class Seen:
    """What an optimizer of torch's was given, at each of its steps: gradients, and its settings, by name."""

    gradients: list[dict[str, Tensor | None]]
    settings: dict[str, dict[str, Any]]


@contextmanager
def optimizers_of(model: nn.Module) -> Iterator[Seen]:
    """Notes what reaches an optimizer of torch's that has parameters of `model`."""
    names, seen = {one: name for name, one in model.named_parameters()}, Seen([], {})

    def note(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        every = [(p, group) for group in optimizer.param_groups for p in group["params"]]
        found = [(names[p], p, group) for p, group in every if p in names]
        if found:
            grads = {name: None if p.grad is None else p.grad.detach().clone() for name, p, _ in found}
            seen.gradients.append(grads)
            kept = (*_SETTINGS, "weight_decay")
            settings = {name: {key: group.get(key) for key in kept} for name, _, group in found}
            seen.settings |= settings

    handle = register_optimizer_step_pre_hook(note)
    try:
        yield seen
    finally:
        handle.remove()


def expect_gradient(came: dict[str, Tensor | None], moment: Moment, step: int) -> None:
    """Checks what the optimizer got in the call with this number."""
    expect.looked()
    for name, wanted in moment.gradients.items():
        if wanted.any() and (came.get(name) is None or not came[name].any()):
            told = f"in call {step} of `step` the optimizer gets no gradient of `{name}`"
            raise expect.Mismatch(told, "expected: one", why=_FROZEN)
    got = torch.cat([came[name].float().flatten() for name in moment.gradients])
    wanted = torch.cat([one.flatten() for one in moment.gradients.values()])
    norm, right = got.norm().item(), wanted.norm().item()
    if abs(norm / right - 1) > GRADIENT_APART:
        told = f"in call {step} of `step` the norm of the gradient is {norm:.2f} when the optimizer gets it"
        uncut = abs(norm / moment.norm - 1) < GRADIENT_APART
        symptom = "It is the norm before the cut." if uncut else f"It is {norm / right:.2g} times as large."
        why = _ALL_AT_ONCE if uncut else ""
        raise expect.Mismatch(told, f"expected: {right:.2f}", symptom=symptom, why=why)
    if (got - wanted).norm() > GRADIENT_APART * right:
        raise expect.Mismatch(
            f"in call {step} of `step` the optimizer gets another gradient than that of the loss",
            f"expected: they differ by at most {GRADIENT_APART:.0%} of its norm",
            why=_BACKWARD,
        )


def expect_weights(model: nn.Module, start: dict, end: dict, steps: int, seen: Seen) -> None:
    """Checks the weights of a model after so many steps, and what its optimizer was told."""
    now = dict(model.named_parameters())
    for name, one in now.items():
        with because(_LARGE):
            expect.equal(one.dtype, torch.float32, what=f"the dtype of `model.{name}`")
    still = [name for name, one in now.items() if torch.equal(one, start[name])]
    told = f"after {steps} steps {len(still)} weights are as they were, `{(still or [''])[0]}` the first"
    with because(_COPY):
        expect.true(not still, told, "expected: all have changed")
    for name, found in seen.settings.items():
        for key, value in found.items():
            wanted = 0.1 * (now[name].dim() > 1) if key == "weight_decay" else _SETTINGS[key]
            with because(_ITS_OWN):
                expect.equal(value, wanted, what=f"`{key}` of the optimizer for `{name}`")
    # The bias of the keys has no gradient but rounding, and AdamW makes steps of that: matrices decide.
    for name, one in now.items():
        right, went = end[name] - start[name], one.detach() - start[name]
        if one.dim() > 1 and (went - right).norm() > WEIGHTS_APART * right.norm():
            told = f"after {steps} steps `model.{name}` is elsewhere than after healthy ones"
            times = (went.norm() / right.norm()).item()
            raise expect.Mismatch(told, symptom=f"It has moved {times:.2g} times as far.")
