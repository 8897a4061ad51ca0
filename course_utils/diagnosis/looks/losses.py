"""What the loss is given, what it makes of it, and what it depends on."""

import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from course_utils.diagnosis.calls import Calls, LossCall, Pairing, Pairs
from course_utils.diagnosis.changed import calls_again, data, disturb, labels, with_data, with_labels
from course_utils.diagnosis.finding import Finding
from course_utils.diagnosis.steps import SEED, Seen, loss_again
from course_utils.diagnosis.subject import Subject
from course_utils.measure.uncompiled import uncompiled

_SCALES = (1.0, 2.0, 4.0)  # of other weights


def scalar_loss(seen: Seen) -> Iterator[Finding]:
    """The loss is nothing that a backward can start from."""
    what = seen.calls.loss
    if not what:
        return
    trained = any(parameter.requires_grad for _, parameter in seen.subject.parameters())
    yield Finding(
        "fault",
        "scalar_loss",
        f"The loss is {what}, and no backward can start from it."
        + ("" if trained else " No parameter of the model asks for a gradient."),
        "`loss.backward()` wants one floating-point number that has a graph behind it: a mean or a sum over "
        "the examples, made of tensors that ask for gradients, outside `no_grad`, without `.item()`.",
        "02_autograd",
        "A vector goes in" if "shape" in what else "Out of the graph",
    )


def broadcast_loss(seen: Seen) -> Iterator[Finding]:
    """Each prediction is compared with each target: (N, 1) against (N,)."""
    sizes = {one.numel() for one in labels(seen.subject)}
    for pairing in seen.calls.pairings:
        if pairing.meant or (sizes and not sizes & set(map(math.prod, pairing.shapes))):
            continue
        before, other = _in_order(seen.subject, pairing, rolled=""), None
        whole = _in_order(seen.subject, pairing, rolled="none")
        if math.isclose(before, whole, rel_tol=1e-3):
            continue  # nothing depends on what is compared here
        for rolled in ("targets", "predictions"):
            other = _in_order(seen.subject, pairing, rolled)
            if math.isclose(whole, other, rel_tol=1e-5):
                yield _broadcast(pairing, rolled, whole, other)
                return


def _broadcast(pairing: Pairing, rolled: str, whole: float, other: float) -> Finding:
    first, second = pairing.shapes
    return Finding(
        "fault",
        "broadcast_loss",
        f"Each prediction is compared with each target: {first} against {second} gives {pairing.result}.",
        "Broadcasting aligns shapes from the right: `(N, 1)` with `(N,)` gives `(N, N)`. The mean over all "
        "pairs is smallest where every prediction is the mean of all targets.",
        "07_bugs",
        "Patient 4",
        [
            *([f"at `{pairing.line}`"] if pairing.line else []),
            f"with the {rolled} in another order the loss is the same: {whole:.6g} and {other:.6g}",
        ],
    )


def _in_order(subject: Subject, pairing: Pairing, rolled: str) -> float:
    """The loss with other numbers for the targets at this place, and with an operand in another order."""

    def change(*pair: Tensor) -> tuple[Tensor, ...]:
        at = 0 if pair[0].requires_grad else 1
        prediction, target = pair[at], pair[1 - at]
        generator = torch.Generator().manual_seed(SEED)
        noise = torch.rand(target.shape, generator=generator).to(prediction.device, prediction.dtype)
        target = target.to(prediction.dtype)
        target = target + noise * (target.std(correction=0) + 1)
        if rolled == "targets":
            target = target.roll(1, _crossed(target, prediction))
        if rolled == "predictions":
            prediction = prediction.roll(1, _crossed(prediction, target))
        return (prediction, target) if at == 0 else (target, prediction)

    watch = Pairs(pairing.number, change if rolled else None)
    torch.manual_seed(SEED)
    with uncompiled(), watch:
        output = subject.output()
        watch.in_loss = True
        return float(subject.loss(output).detach().sum())


def _crossed(one: Tensor, other: Tensor) -> int:
    """The dimension of `one`, counted from the right, in which all of it meets a single number of `other`."""
    for dim in range(1, one.dim() + 1):
        if one.shape[-dim] > 1 and (dim > other.dim() or other.shape[-dim] == 1):
            return -dim
    return 0


def double_softmax(seen: Seen) -> Iterator[Finding]:
    """A loss that takes scores, or logs of probabilities, is given probabilities."""
    told = set()
    for number, call in enumerate(seen.calls.losses):
        of = "softmax" if call.made_by == "Softmax" else "sigmoid" if call.made_by == "Sigmoid" else ""
        like = _like_probabilities(call)
        if call.name not in _WANTED or (call.name, of) in told:
            continue
        if of and call.name not in ("nll_loss", "kl_div"):
            how = f"what it is given comes from a {of}"
        elif like and _stays(seen, number):
            how = f"so it is with {len(_SCALES)} other sets of weights in the model"
        else:
            continue
        told.add((call.name, of))
        rows = "each row sums to 1" if call.rows else "all are between 0 and 1"
        wanted, best = _WANTED[call.name]
        yield Finding(
            "fault",
            "double_softmax",
            f"`{call.name}` wants {wanted}, and is given probabilities of shape {call.input}.",
            best,
            "07_bugs",
            "Patient 3",
            [
                *([f"at `{call.line}`"] if call.line else []),
                _range(call) + (f"; {rows}" if like else ""),
                how,
            ],
        )


_WANTED = {
    "cross_entropy": (
        "scores",
        "`cross_entropy` applies log-softmax to what it gets. Numbers between 0 and 1 are at most 1 "
        "apart: with C classes the loss can't fall below log(1 + (C - 1)/e).",
    ),
    "binary_cross_entropy_with_logits": (
        "scores",
        "`binary_cross_entropy_with_logits` applies a sigmoid to what it gets. Of a number between 0 and 1 "
        "that is between 0.5 and 0.73, so it can't be certain of either answer.",
    ),
    "nll_loss": (
        "logs of probabilities",
        "`nll_loss` takes the negative of the right class's number and applies no logarithm: of "
        "probabilities that is between -1 and 0.",
    ),
    "kl_div": (
        "logs of probabilities",
        "`kl_div` takes its first argument as logs and applies no logarithm to it; given probabilities it "
        "measures no divergence, and may be negative.",
    ),
}


def _like_probabilities(call: LossCall) -> bool:
    if call.name == "binary_cross_entropy_with_logits":
        return 0 <= call.least < call.most <= 1
    return call.rows == "probabilities"


def _stays(seen: Seen, number: int) -> bool:
    """Whether that call's input looks like probabilities with other weights in the model too."""
    for scale in _SCALES:
        found = calls_again(seen, partial(disturb, seen.subject, scale)).losses
        if len(found) <= number or not _like_probabilities(found[number]):
            return False
    return True


def _range(call: LossCall) -> str:
    return f"from {call.least:.3g} to {call.most:.3g}"


def scores_for_logs(seen: Seen) -> Iterator[Finding]:
    """`nll_loss` is given what are no logs of probabilities."""
    for call in seen.calls.losses:
        if call.name == "nll_loss" and call.classes > 1 and not call.rows and call.made_by != "LogSoftmax":
            yield Finding(
                "doubt",
                "scores_for_logs",
                f"`nll_loss` is given numbers of shape {call.input} whose exponentials don't sum to 1.",
                "`nll_loss` takes the negative of the right class's number. Of scores without a log-softmax "
                "it has no lower bound: it falls as long as they grow.",
                "07_bugs",
                "Patient 3",
                [*([f"at `{call.line}`"] if call.line else []), _range(call)],
            )
            return


def initial_loss(seen: Seen) -> Iterator[Finding]:
    """The first cross-entropy is far above what a model pays that gives all classes the same chance."""
    for call in seen.calls.losses:
        if call.name not in ("cross_entropy", "nll_loss") or call.value is None or call.classes < 2:
            continue
        even = math.log(call.classes)
        if call.name == "nll_loss" and call.rows != "logs":
            continue
        if call.value > even + max(1.0, 0.5 * even) and call.spread > 2:
            yield Finding(
                "doubt",
                "initial_loss",
                f"The first cross-entropy is {call.value:.4g}; the same chance for each of "
                f"{call.classes:,} classes would cost {even:.4g}.",
                "Of C classes with equal chances, the right one has the cross-entropy log C. A model pays "
                "more where it is certain and wrong.",
                "07_bugs",
                "Two tests before a long run",
                [f"scores {_range(call)}, with a standard deviation of {call.spread:.3g}"],
            )
            return


def frozen_loss(seen: Seen) -> Iterator[Finding]:
    """The loss stays the same whatever the input, or whatever the target."""
    if not all(map(math.isfinite, seen.losses)) or seen.calls.loss:
        return
    torch.manual_seed(SEED)
    subject = seen.subject
    changed = {
        "input": with_data(subject, _other_data),
        "target": with_labels(subject, partial(_other_labels, seen.calls)),
    }
    same = [data(subject), data(changed["input"])], [labels(subject), labels(changed["target"])]
    changed = {
        what: other for (what, other), pair in zip(changed.items(), same, strict=True) if _differ(*pair)
    }
    before = loss_again(subject)
    frozen = [what for what, other in changed.items() if loss_again(other) == before]
    if "input" in frozen and _is_connected(subject):
        frozen.remove("input")  # what arrives is too small to be seen: that has causes of its own
    # At first a head may be zeros, or all predictions the same: with other weights they are not.
    for scale in _SCALES if frozen else ():
        disturb(subject, scale)
        again = loss_again(subject)
        frozen = [what for what in frozen if loss_again(changed[what]) == again]
    for what in frozen:
        yield Finding(
            "fault" if what == "input" else "doubt",
            "frozen_loss",
            f"The loss does not depend on the {what}: with other numbers there it is {before:.6g} too.",
            "A model can learn only what its loss depends on. Where other numbers leave the loss as "
            "it is, they reach no operator behind it, or are made equal on the way.",
            "07_bugs",
            "Two tests before a long run",
            [f"so it is with {len(_SCALES)} other sets of weights in the model"],
        )


def _is_connected(subject: Subject) -> bool:
    """Whether the graph of the loss leads back to the numbers that the model is given."""
    leaves: list[Tensor] = []

    def leaf(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        leaves.append(tensor.detach().clone().requires_grad_())
        return leaves[-1].clone()  # which a model may write to

    torch.manual_seed(SEED)
    with uncompiled():
        loss = (other := with_data(subject, leaf)).loss(other.output())
    if not leaves or not loss.requires_grad:
        return False
    return any(grad is not None for grad in torch.autograd.grad(loss, leaves, allow_unused=True))


def _differ(before: list[Tensor], after: list[Tensor]) -> bool:
    return any(not torch.equal(one, other) for one, other in zip(before, after, strict=True))


def _other_data(tensor: Tensor) -> Tensor:
    """Other values; masks, lengths and what is the same everywhere stay."""
    if tensor.is_floating_point():
        return tensor.mean() + (torch.randn_like(tensor) * (tensor.std(correction=0) + 1))
    if tensor.dim() < 2 or tensor.dtype is torch.bool or tensor.is_complex() or int(tensor.max()) < 2:
        return tensor
    return tensor.flatten()[torch.randperm(tensor.numel(), device=tensor.device)].view(tensor.shape)


def _other_labels(calls: Calls, tensor: Tensor) -> Tensor:
    """Other values of the same kind; negative ones, which mean that there is no label, stay."""
    least, most = tensor.min(), tensor.max()
    if tensor.is_floating_point():
        if least < most:
            return least + torch.rand_like(tensor) * (most - least)
        # What may be a probability stays one.
        return (tensor + 0.5) % 1 if 0 <= least <= 1 else tensor + 1
    if tensor.dtype is torch.bool:
        return ~tensor
    # One class for all: another order of the same classes may have the same mean.
    value = tensor[tensor >= 0].flatten()[:1] if bool((tensor >= 0).any()) else tensor.new_zeros(1)
    if least == most:
        classes = max((call.classes for call in calls.losses), default=0)
        value = (value + 1) % classes if classes > 1 else (value == 0).to(value.dtype)
    return torch.where(tensor < 0, tensor, value)


LOOKS: list[Callable[[Seen], Iterator[Finding]]] = [scalar_loss, scores_for_logs, initial_loss]
TRIALS: list[Callable[[Seen], Iterator[Finding]]] = [broadcast_loss, double_softmax, frozen_loss]
