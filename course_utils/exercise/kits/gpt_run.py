"""A short training run of a capstone's class, recorded: what each forward saw, what each step found."""

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from course_utils import measure
from course_utils.exercise.once import done_before

# A text in which each character comes once tells from where a window is.
LETTERS, CONTEXT, SIZE, PARTS, RATE, EVERY, STEPS = 200, 8, 4, 2, 4e-3, 8, 40
# What the losses of steps are multiplied with in turn, so that some gradients need a cut and others don't,
# whatever else is wrong.
SCALES = (1000.0, 1e-3)
Answer = Callable[..., nn.Module]


def tiny(answer: Answer, layers: int = 2, dropout: float = 0.0, letters: int = LETTERS) -> nn.Module:
    """The reader's class, small."""
    torch.manual_seed(0)
    return answer(letters, context=CONTEXT, width=16, heads=2, layers=layers, dropout=dropout)


def all_parameters(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Those of the model, and those of modules that only a list of it holds; each once."""
    found = list(model.named_parameters())
    for name, value in vars(model).items():
        if isinstance(value, list | tuple):
            for i, part in enumerate(value):
                if isinstance(part, nn.Module):
                    found += [(f"{name}[{i}].{inner}", p) for inner, p in part.named_parameters()]
    return list({id(p): (name, p) for name, p in reversed(found)}.values())[::-1]


@dataclass(eq=False)
class Forward:
    """One call of the model. `ids`: the characters that it saw; `of_now`: whether its weights of that moment
    give the same scores."""

    step: int
    training: bool
    grad: bool
    ids: set[int]
    of_now: bool


@dataclass(eq=False)
class Step:
    """One step of the optimizer. `grads`: as it found them; `came`: what the backwards since the last step
    brought, in all, and `parts`, each by itself; `backwards`: what these were called on; `losses`: what
    `loss` returned, times `scale`; `exact`: in float32."""

    rate: float
    grads: dict[Tensor, Tensor]
    came: dict[Tensor, Tensor]
    parts: list[dict[Tensor, Tensor]]
    losses: list[float]
    scale: float
    exact: bool
    backwards: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Evaluated:
    """What `loss` got and returned where there was no gradient."""

    ids: Tensor
    targets: Tensor
    loss: float
    exact: bool


@dataclass(eq=False)
class Trained:
    """What `fit` did to this model and its text, and returned. `evaluated`: by how many steps were over."""

    model: nn.Module
    text: Tensor
    losses: list[float] = field(default_factory=list)
    held: list[float] = field(default_factory=list)
    forwards: list[Forward] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    evaluated: dict[int, list[Evaluated]] = field(default_factory=dict)
    run: Any = None


def trained(answer: Answer, dropout: float = 0.0) -> Trained:
    """A short run of the class on a text in which each character comes once, recorded. Checks of one report
    share it."""
    done, key = done_before(), (id(answer), dropout)
    if key not in done:
        done[key] = _trained(answer, dropout)
    return done[key]


def _trained(answer: Answer, dropout: float) -> Trained:
    model = tiny(answer, dropout=dropout)
    found = Trained(model, torch.arange(LETTERS))
    came: list[dict[Tensor, Tensor]] = []
    losses: list[Tensor] = []
    now = {"scale": SCALES[0]}
    with torch.no_grad():
        for _, p in all_parameters(model):
            p.mul_(2)  # scores that differ by more than bfloat16 rounds

    def arrives(p: Tensor, grad: Tensor) -> None:
        if not came or p in came[-1]:  # a backward brings one gradient to each
            came.append({})
        came[-1][p] = grad.clone()

    def forward(module: nn.Module, args: tuple[Any, ...], scores: Tensor) -> None:
        ids, grad = args[0], scores.requires_grad
        # The second step tells; a third is there for what steps twice as often.
        of_now = bool(dropout) or len(found.steps) > 2 or _gives(module, ids, scores)
        found.forwards.append(
            Forward(len(found.steps), module.training, grad, set(ids.flatten().tolist()), of_now)
        )

    def loss(*args: Any, **kwargs: Any) -> Tensor:
        value = own_loss(*args, **kwargs)
        if value.requires_grad:
            value = value * now["scale"]
            losses.append(value.detach())
        else:
            ids, targets = [*args, *kwargs.values()]
            one = Evaluated(ids.clone(), targets.clone(), value.item(), value.dtype == torch.float32)
            found.evaluated.setdefault(len(found.steps), []).append(one)
        return value

    def step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        held = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        grads = {p: p.grad.clone() for p in held}
        parts = [{p: one.get(p, torch.zeros_like(p)) for p in held} for one in came]
        brought = {p: sum((one[p] for one in parts), torch.zeros_like(p)) for p in held}
        rate = float(optimizer.param_groups[0]["lr"])
        exact = all(one.dtype == torch.float32 for one in losses)
        told = [one.item() for one in losses]
        found.steps.append(Step(rate, grads, brought, parts, told, now["scale"], exact))
        now["scale"] = SCALES[len(found.steps) % 2]
        came.clear()
        losses.clear()

    own_loss, model.loss = model.loss, loss
    with contextlib.ExitStack() as stack:
        for handle in (
            model.register_forward_hook(forward),
            register_optimizer_step_pre_hook(step),
            *(p.register_hook(functools.partial(arrives, p)) for _, p in all_parameters(model)),
        ):
            stack.callback(handle.remove)
        steps = EVERY + 2 if dropout else STEPS  # modes tell themselves after the first evaluation
        found.run = measure.record_run(model.fit, found.text, steps, SIZE, PARTS, RATE, EVERY)
    found.losses, found.held = found.run.result
    ends = [one.backwards for one in found.run.steps]
    for one, start, end in zip(found.steps, [0, *ends], ends, strict=False):
        one.backwards = found.run.losses[start:end]
    return found


def _gives(model: nn.Module, ids: Tensor, scores: Tensor) -> bool:
    """Whether the model's weights, cast anew where products are in bfloat16, give these scores."""
    cast = torch.is_autocast_enabled("cpu")
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=cast, cache_enabled=False):
        again = model.forward(ids)
    return bool((again - scores).abs().max() <= 0.02 * again.abs().max())
