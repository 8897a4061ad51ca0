"""Padding that counts in the loss."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from course_utils.diagnosis.changed import data, labels
from course_utils.diagnosis.finding import Finding
from course_utils.diagnosis.steps import SEED, Seen
from course_utils.diagnosis.subject import Subject
from course_utils.measure.storage import tensors_in
from course_utils.measure.uncompiled import uncompiled

_LONG = 3  # so many equal values at the end of a row are a tail


def padded_loss(seen: Seen) -> Iterator[Finding]:
    """The loss has a gradient at places that are only there to make rows equally long."""
    for target in labels(seen.subject):
        if target.dim() < 2 or (target.dim() > 2 and not target.is_floating_point()):
            continue
        found = _padding(target, data(seen.subject))
        if found is None:
            continue
        padding, how = found
        counted = _counted(seen.subject, *padding.shape)
        if counted is None or not bool((wrong := counted & padding).any()):
            continue
        yield Finding(
            "fault",
            "padded_loss",
            f"Of {int(counted.sum()):,} places that the loss counts {int(wrong.sum()):,} are padding.",
            "For a loss a place is a place. Only those are left out whose target is `ignore_index` "
            "(-100 unless you say otherwise), or that a mask of yours takes out of the sum and the count.",
            "07_bugs",
            "Patient 16",
            [how, f"rows: {len(padding)}, places in a row: {padding.shape[1]}"],
        )
        return


def _padding(target: Tensor, inputs: list[Tensor]) -> tuple[Tensor, str] | None:
    """Where a target is padding, its edges left out, and how that is known. None where it isn't known."""
    rows, width = target.shape[:2]
    beside = [one for one in inputs if one.dim() > 1 and one.shape[:2] == (rows, width)]
    content = [one for one in beside if not _is_mask(one)]
    for mask in (one for one in beside if _is_mask(one)):
        for padding in (mask == 0, mask != 0):
            if _at_an_end(padding) and content and _constant(content[0], padding):
                inner = _without_edges(padding)
                if bool(inner.any()):
                    return inner, "known from the mask in the batch, and the input is the same there"
    place = torch.arange(width, device=target.device)
    ends = _lengths(target)
    for one in content:
        begins = _lengths(one)
        if begins is None:
            continue
        padding = place > begins[:, None]
        if ends is not None and bool(((ends - begins).abs() <= 1).all()):
            return padding & (place > ends[:, None]), "input and target end in a value that is nowhere else"
        if bool(padding.any()) and _constant(target, padding):
            return padding, "the input ends in a value that is nowhere else, and the target is the same there"
    if ends is not None and not target.is_floating_point():
        last = target[ends < width][0, -1]
        for one in (i for i in inputs if i.dim() == 2 and not i.is_floating_point() and len(i) == rows):
            begins = _lengths(one)
            if begins is not None and one[begins < one.shape[1]][0, -1] == last:
                return place > ends[:, None], f"target and input end in {int(last)}, which is nowhere else"
    return None


def _lengths(rows: Tensor) -> Tensor | None:
    """How long each row is without its tail: the value that it ends in, repeated. None where these are no
    tails: their values or lengths say something else, or the value stands elsewhere too."""
    width = rows.shape[1]
    flat = rows.flatten(2) if rows.dim() > 2 else rows[..., None]
    same = (flat == flat[:, -1:]).all(-1)
    tails = same.flip(1).cumprod(1).sum(1)
    padded = tails > 1
    if int(tails.max()) < _LONG or bool((tails == tails[0]).all()):
        return None
    values = flat[padded, -1]
    one = values[0]
    lengths = torch.where((flat[:, -1] == one).all(-1), width - tails, width)
    real = torch.arange(width, device=rows.device) < lengths[:, None]
    elsewhere = (flat == one).all(-1) & real
    return None if bool((values != one).any()) or bool(elsewhere.any()) else lengths


def _is_mask(tensor: Tensor) -> bool:
    return tensor.dim() == 2 and bool(((tensor == 0) | (tensor == 1)).all())


def _at_an_end(padding: Tensor) -> bool:
    """Whether what is marked lies at the same end of each row, and is not all of it."""
    marks = padding.int()
    return any(
        bool((torch.cummin(one, 1).values == one).all()) and not bool(one.all(1).any()) and bool(one.any())
        for one in (marks, marks.flip(1))
    )


def _without_edges(padding: Tensor) -> Tensor:
    """The place beside what is real may be an end that is to be predicted."""
    inner = padding.clone()
    inner[:, 1:] &= padding[:, :-1]
    inner[:, :-1] &= padding[:, 1:]
    return inner


def _constant(rows: Tensor, padding: Tensor) -> bool:
    values = rows[padding]
    return len(values) > 0 and bool((values == values[0]).all())


def _counted(subject: Subject, rows: int, width: int) -> Tensor | None:
    """The places of the output that the loss has a gradient at."""
    torch.manual_seed(SEED)
    with uncompiled():
        output = subject.output()
        loss = subject.loss(output)
    candidates = [
        one for one in tensors_in(output) if one.requires_grad and one.dim() > 1 and len(one) == rows
    ]
    candidates = [one for one in candidates if width in one.shape[1:] and one is not loss]
    if not candidates or not loss.requires_grad:
        return None
    grads = torch.autograd.grad(loss.sum(), candidates, allow_unused=True)
    for grad in grads:
        if grad is not None:
            along = 1 if grad.shape[1] == width else list(grad.shape).index(width, 1)
            others = [dim for dim in range(1, grad.dim()) if dim != along]
            return (grad != 0).sum(others) > 0 if others else grad != 0
    return None


LOOKS: list[Callable[[Seen], Iterator[Finding]]] = []
TRIALS: list[Callable[[Seen], Iterator[Finding]]] = [padded_loss]
