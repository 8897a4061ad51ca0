"""What an optimizer steps, and what its steps change."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from course_utils import torch_private
from course_utils.diagnosis.finding import Finding
from course_utils.diagnosis.steps import Seen, modules
from course_utils.diagnosis.words import counted, listed
from course_utils.measure.saved import parameters_behind

_NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, torch_private.BatchNorm)
_STRONG = 1e-3  # the share of a weight that decay takes at one step


def stale_optimizer(seen: Seen) -> Iterator[Finding]:
    """The optimizer has tensors that the model does not have, or the model parameters that it does not."""
    optimizer = seen.subject.optimizer
    if optimizer is None or not seen.grads:
        return
    held = [p for group in optimizer.param_groups for p in group["params"]]
    parameters = dict(seen.subject.parameters())
    known = {id(p) for p in parameters.values()} | {id(leaf) for leaf in seen.leaves}
    known |= {id(p) for p in parameters_behind(seen.subject.loss_fn)}
    strange = [p for p in held if id(p) not in known]
    there = {id(p) for p in held}
    if seen.run is not None:  # another optimizer may step them in the reader's own loop
        there |= {id(p) for step in seen.run.steps for p in step.parameters}
    missing = [name for name, p in parameters.items() if id(p) not in there and _trains(seen, name)]
    if strange and missing:
        shapes = ", ".join(str(tuple(p.shape)) for p in strange[:4])
        yield Finding(
            "fault",
            "stale_optimizer",
            f"The optimizer has {len(strange)} tensors that are not in the model, and lacks "
            f"{counted(missing, 'parameter')} of it with a gradient.",
            "An optimizer keeps the tensors that it was given and does not know the model. Parameters that "
            "are put in later are others, and no step changes them.",
            "07_bugs",
            "Patient 5",
            [f"not in the optimizer: {listed(missing)}", f"only in the optimizer: shapes {shapes}"],
        )
    elif missing:
        yield Finding(
            "doubt",
            "missing_from_optimizer",
            f"The optimizer lacks {counted(missing, 'parameter')} with a gradient.",
            "A step changes the parameters that the optimizer was given, and no others. What needs no "
            "gradient costs none with `requires_grad_(False)`.",
            "06_training",
            "What an optimizer keeps",
            [f"not in the optimizer: {listed(missing)}"],
        )
    elif strange:
        yield Finding(
            "note",
            "stale_optimizer",
            f"The optimizer has {len(strange)} tensors that are not in the model.",
            "An optimizer keeps the tensors that it was given; most skip those without a gradient.",
            "07_bugs",
            "Patient 5",
        )


def unmoved(seen: Seen) -> Iterator[Finding]:
    """A gradient came, the optimizer stepped, and values are what they were."""
    optimizer = seen.subject.optimizer
    if optimizer is None or not seen.moved:
        return
    parameters, settings = dict(seen.subject.parameters()), _settings(optimizer)
    held = {name: share for name, share in seen.moved.items() if id(parameters[name]) in settings}
    still = [name for name, share in held.items() if share == 0]
    unset = [name for name in still if float(settings[id(parameters[name])].get("lr", 1)) == 0]
    rounded = [
        name
        for name, share in held.items()
        if share < 0.5 and name not in unset and _narrow(parameters[name])
    ]
    if unset:
        begins = any(float(settings[id(parameters[name])].get("initial_lr", 0)) > 0 for name in unset)
        yield Finding(
            "note" if begins else "doubt",  # a scheduler has put it there
            "unmoved",
            f"{counted(unset, 'parameter')} did not change at the first step: the learning rate is 0.",
            "A step changes a parameter by its learning rate times a direction. Where a schedule begins at "
            "0, the first step changes nothing.",
            "06_training",
            "The rate over time",
            [f"unchanged: {listed(unset)}"],
        )
    if rounded:
        elements = sum(parameters[name].numel() for name in held)
        lost = sum((1 - held[name]) * parameters[name].numel() for name in rounded) / elements
        yield Finding(
            "fault" if len(still) == len(held) else "doubt",
            "unmoved",
            f"In {counted(rounded, 'parameter')} of 16 bits most first updates were rounded away.",
            "A number of 16 bits keeps 8 (bfloat16) or 11 (float16) digits in base 2. An update that is "
            "smaller than half of the last of them leaves the number as it was.",
            "09_amp",
            "bfloat16, and what it loses",
            [
                f"of all elements with a gradient {lost:.0%} are unchanged",
                *(f"`{name}`: {1 - held[name]:.0%} unchanged" for name in rounded[:3]),
            ],
        )
    others = [name for name in still if name not in unset and name not in rounded]
    # Of a few a gradient may be 0 but for rounding: of a bias before a softmax.
    if others and len(others) == len(held):
        yield Finding(
            "doubt",
            "unmoved",
            f"{counted(others, 'parameter')} did not change at the first step though a gradient came.",
            "A step changes a parameter by its learning rate times a direction. What is smaller than half of "
            "a number's last digit leaves it as it was.",
            "09_amp",
            "What the bits are for",
            [f"unchanged: {listed(others)}"],
        )


def decayed_norms(seen: Seen) -> Iterator[Finding]:
    """Weight decay pulls at biases and at the weights of norms."""
    optimizer = seen.subject.optimizer
    if optimizer is None:
        return
    settings = _settings(optimizer)
    flat = {
        id(p): f"{name}.{key}" if name else key
        for name, m in modules(seen.subject)
        for key, p in m.named_parameters(recurse=False)
        if isinstance(m, _NORMS) or key == "bias" or ("Norm" in type(m).__name__ and p.ndim == 1)
    }
    trained = {id(p) for _, p in seen.subject.parameters() if p.requires_grad}
    decayed = [
        one for one in flat if one in trained and float(settings.get(one, {}).get("weight_decay", 0)) > 0
    ]
    if not decayed:
        return
    decays = {_decay(group) for group in optimizer.param_groups}
    pull = max(_pull(optimizer, settings[one]) for one in decayed)
    evidence = [f"with decay: {listed([flat[one] for one in decayed])}"]
    if pull:
        evidence.append(f"it takes {pull:.2g} of each number at a step: (1 - {pull:.2g})^1000 = "
                        f"{max(0.0, 1 - pull) ** 1000:.2g}")  # fmt: skip
    sorted_out = len(decays) > 1 and 0 in decays
    doubtful = sorted_out or pull >= _STRONG
    if not doubtful and all(flat[one].endswith("bias") for one in decayed):
        return  # a little, of biases alone: so it is wherever somebody leaves the settings as they are
    yield Finding(
        "doubt" if doubtful else "note",
        "decayed_norms",
        f"Weight decay pulls {len(decayed)} biases and weights of norms to 0"
        + (", though another group has a decay of 0." if sorted_out else "."),
        "Decay pulls the parameters of its group that have a gradient to 0 at every step. A norm's weight "
        "says how large its result is, and a bias where a threshold lies: many loops give them a group "
        "with a decay of 0.",
        "07_bugs",
        "Patient 19",
        evidence,
    )


def _trains(seen: Seen, name: str) -> bool:
    return any(seen.grads.get(name) or [])


def _settings(optimizer: Optimizer) -> dict[int, dict[str, Any]]:
    """The group of each parameter that an optimizer has."""
    return {id(p): group for group in optimizer.param_groups for p in group["params"]}


def _decay(group: dict[str, Any]) -> float:
    return float(group.get("weight_decay", 0))


def _narrow(p: torch.Tensor) -> bool:
    return p.dtype in (torch.float16, torch.bfloat16)


def _pull(optimizer: Optimizer, group: dict[str, Any]) -> float:
    """The share of a parameter that decay takes at a step; 0 where it goes through Adam's division."""
    apart = isinstance(optimizer, (torch.optim.AdamW, torch.optim.SGD)) or group.get("decoupled_weight_decay")
    return float(group.get("lr", 0)) * float(group["weight_decay"]) if apart else 0.0


LOOKS = [stale_optimizer, unmoved, decayed_norms]
TRIALS: list[Callable[[Seen], Iterator[Finding]]] = []
