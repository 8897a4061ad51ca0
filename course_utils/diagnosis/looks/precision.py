"""Numbers that are none any more: where a NaN is born, and what float16 loses."""

import math
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from course_utils.diagnosis.finding import Finding
from course_utils.diagnosis.module_calls import called_modules
from course_utils.diagnosis.steps import SEED, Seen, as_tensor, backward_again
from course_utils.diagnosis.words import counted, listed
from course_utils.measure.frames import readers_line
from course_utils.measure.modes import Noting, in_backward, packet
from course_utils.measure.storage import tensors_in, values
from course_utils.measure.uncompiled import uncompiled
from course_utils.stacks import is_readers

_SCALE = 1024.0
_LOST = 0.01  # the share of gradient elements whose loss counts
_RULE = (
    "A NaN comes out of `inf - inf`, `0 * inf`, `0 / 0` and roots or logs of negative numbers. Most of what "
    "is computed with it is NaN too, forward and backward, and after a step so are weights."
)


def nan_loss(seen: Seen) -> Iterator[Finding]:
    """A loss or a gradient is not finite: the operator in which that begins."""
    if seen.losses and not math.isfinite(seen.losses[0]):
        said, evidence = _in_forward(seen)
    elif bad := [name for name, norms in seen.grads.items() if norms and not _finite(norms[0])]:
        said, evidence = _in_backward(seen, bad)
    elif not all(map(math.isfinite, seen.losses)):
        said, evidence = _after_steps(seen)
    else:
        return
    losses = ", ".join(f"{one:.4g}" for one in seen.losses)
    evidence.append(f"the loss of each step: {losses}")
    yield Finding("fault", "nan_loss", said, _RULE, "07_bugs", "Where a NaN is born", evidence)


def half_without_scaler(seen: Seen) -> Iterator[Finding]:
    """In float16 small gradients become 0 on their way back, which a scaled loss would prevent."""
    if not seen.half or (seen.raised is not None and seen.raised.step == 0):
        return
    parameters = dict(seen.subject.parameters())
    plain = _nonzero(seen, 1.0)
    scaled = _nonzero(seen, _SCALE)
    there = sum(int(one.sum()) for one in scaled.values())
    lost = sum(int((one & ~plain[name]).sum()) for name, one in scaled.items() if name in plain)
    share = lost / there if there else 0.0
    half = any(p.dtype is torch.float16 for p in parameters.values())
    yield Finding(
        "fault" if half and share >= _LOST else "doubt" if share >= _LOST else "note",
        "half_without_scaler",
        f"Gradients go through float16 and the loss is not scaled: {share:.1%} of them are lost as zeros."
        if lost
        else "Gradients go through float16 and the loss is not scaled; in this batch none is lost as zero.",
        "float16 has no numbers between 0 and 5e-8. A `GradScaler` multiplies the loss, so that gradients "
        "are larger on their way, and divides before the step.",
        "09_amp",
        "float16, and a scale for the loss",
        [f"elements that are 0, and not with the loss times {_SCALE:g}: {lost:,} of {there:,}"],
    )


def _finite(norm: float | None) -> bool:
    return norm is None or math.isfinite(norm)


@dataclass(frozen=True)
class _Birth:
    operator: str
    inside: str | None  # None outside the model, "" in its own forward
    line: str
    bad: int
    size: int
    least: float
    most: float


def _in_forward(seen: Seen) -> tuple[str, list[str]]:
    """What is said of a loss that is not finite at the first step, and the evidence."""
    inputs = {"model's input": seen.subject.inputs, "target": list(tensors_in(seen.subject.target))}
    for what, tensors in inputs.items():
        if bad := sum(int(_wrong(one).sum()) for one in tensors):
            return f"The batch has NaN or inf in the {what}: {bad:,} of its numbers.", []
    if bad_weights := [name for name, p in seen.subject.parameters() if bool(_wrong(p.detach()).any())]:
        return f"{counted(bad_weights, 'parameter')} had NaN or inf before the first step.", [
            listed(bad_weights)
        ]
    birth = _first_wrong(seen, _wrong) or _first_wrong(seen, lambda one: ~one.isfinite())
    if birth is None:
        return "The loss is not finite.", []
    own = "in the loss" if birth.inside is None else "in the model's own forward"
    where = f"in `{birth.inside}`" if birth.inside else own
    evidence = [
        f"its inputs are finite, between {birth.least:.4g} and {birth.most:.4g}",
        f"not finite in its result: {birth.bad:,} of {birth.size:,} numbers",
    ]
    if birth.line:
        evidence.append(f"at `{birth.line}`")
    return f"The first numbers that are not finite come out of `{birth.operator}`, {where}.", evidence


def _wrong(tensor: Tensor) -> Tensor:
    """Where it is NaN or inf; -inf is what masks are made of."""
    return (tensor.isnan() | tensor.isposinf()) if tensor.is_floating_point() else torch.zeros(0)


def _first_wrong(seen: Seen, wrong: Callable[[Tensor], Tensor]) -> _Birth | None:
    found: list[_Birth] = []
    inside: list[str] = []

    def note(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        if found or in_backward() or "empty" in packet(func):
            return
        came = [one for one in tensors_in(out) if one.is_floating_point()]
        given = [one for one in tensors_in((args, kwargs)) if one.is_floating_point()]
        given = [one for one in given if one.numel() and all(one is not other for other in came)]
        if not any(bool(wrong(one).any()) for one in came) or any(bool(wrong(one).any()) for one in given):
            return
        bad, size = sum(int(wrong(one).sum()) for one in came), sum(one.numel() for one in came)
        least = min((float(one.min()) for one in given), default=math.nan)
        most = max((float(one.max()) for one in given), default=math.nan)
        name = packet(func).removeprefix("aten.")
        found.append(_Birth(name, inside[-1] if inside else None, readers_line(), bad, size, least, most))

    torch.manual_seed(SEED)
    enter, leave = (lambda name, *_: inside.append(name)), (lambda *_: inside.pop())
    with uncompiled(), called_modules(seen.subject, enter, leave), Noting(note):
        as_tensor(seen.subject.loss(seen.subject.output()))
    return found[0] if found else None


def _in_backward(seen: Seen, bad: list[str]) -> tuple[str, list[str]]:
    """What is said where the loss is finite and gradients are not."""
    evidence = [f"gradients that are not finite: {listed(bad)}"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with torch.autograd.detect_anomaly():
                backward_again(seen.subject)
        except RuntimeError as error:
            told = str(error)
        else:
            return "Gradients are infinite though the loss is finite.", evidence
    node = (re.findall(r"Function '(\w+)'", told) or ["a node"])[0]
    for one in caught:
        if "forward call" in str(one.message) and (line := _readers(str(one.message))):
            evidence.append(f"made by {line}")
    return f"The loss is finite; in backward the first NaN comes out of `{node}`.", evidence


def _readers(trace: str) -> str:
    """The reader's innermost line in the text of a stack."""
    lines = re.findall(r'File "(.+?)", line (\d+), in .*\n\s*(.*)', trace)
    own = [(file, number, code) for file, number, code in lines if is_readers(file)]
    return f"`{own[-1][2].strip()}`, line {own[-1][1]} of {own[-1][0]}" if own else ""


def _after_steps(seen: Seen) -> tuple[str, list[str]]:
    """What is said where the first steps were finite."""
    step = next(number for number, loss in enumerate(seen.losses) if not math.isfinite(loss))
    largest = max(
        ((norms[step - 1] or 0.0, name) for name, norms in seen.grads.items() if len(norms) >= step),
        default=(0.0, ""),
    )
    said = f"The loss is finite for {step} step{'s' * (step > 1)}, and then {seen.losses[step]:.4g}."
    weight = seen.norms.get(largest[1], 0.0)
    evidence = [
        f"before, the largest gradient: {largest[0]:.4g}, of `{largest[1]}`, whose norm was {weight:.4g}"
    ]
    optimizer = seen.subject.optimizer
    if optimizer is not None:
        rates = sorted({float(group["lr"]) for group in optimizer.param_groups if "lr" in group})
        evidence.append(f"learning rate: {', '.join(f'{rate:g}' for rate in rates)}")
    return said, evidence


def _nonzero(seen: Seen, scale: float) -> dict[str, Tensor]:
    """By name, which elements of a gradient are not 0, with the loss times `scale`."""
    for _, parameter in seen.subject.parameters():
        parameter.grad = None
    backward_again(seen.subject, scale)
    grads = {name: values(p.grad) for name, p in seen.subject.parameters()}
    return {name: grad != 0 for name, grad in grads.items() if grad is not None}


LOOKS: list[Callable[[Seen], Iterator[Finding]]] = []
TRIALS: list[Callable[[Seen], Iterator[Finding]]] = [nan_loss, half_without_scaler]
