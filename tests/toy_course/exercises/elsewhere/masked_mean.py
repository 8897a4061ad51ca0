"""A mean that nobody waits for

Return the mean of the elements that `mask` selects, and 0 where it selects none. What is not selected does
not matter, not even `nan`. The function never waits for the device: no value of a tensor reaches Python.

`masked_mean(torch.tensor([1.0, 5.0, 9.0]), torch.tensor([True, False, True]))` → `5.0`
"""

import torch
from torch import Tensor

from course_utils import expect, measure
from course_utils.exercise import Exercise

exercise = Exercise(
    minutes=10,
    hints=[
        "How many elements has `x[mask]`, and who needs to know that before it can be made?",
        "0 times `nan` is `nan`. What chooses instead of multiplying?",
        "A count that is at least 1 can always be divided by.",
    ],
)


@exercise.starter
def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Two tensors of one shape -> ()"""
    raise NotImplementedError


@exercise.check
def selected(masked_mean, device):
    """The mean is that of the selected elements"""
    x = torch.tensor([[1.0, 5.0], [9.0, -4.0]], device=device)
    mask = torch.tensor([[True, False], [True, True]], device=device)
    t = expect.given("", x=x, mask=mask, masked_mean=masked_mean)
    before = x.clone()
    expect.equal(t.call("masked_mean(x, mask)"), torch.tensor(2.0, device=device))
    expect.unchanged(x, before, what="`x`")


@exercise.check
def none_selected(masked_mean):
    """Where nothing is selected the mean is 0"""
    t = expect.given("x = torch.ones(3)\nmask = x > 2", masked_mean=masked_mean)
    expect.equal(t.call("masked_mean(x, mask)"), torch.tensor(0.0))


@exercise.check
def nan_beside(masked_mean):
    """What is not selected may be `nan`"""
    t = expect.given("x = torch.tensor([2.0, float('nan')])\nmask = ~x.isnan()", masked_mean=masked_mean)
    expect.equal(t.call("masked_mean(x, mask)"), torch.tensor(2.0))


@exercise.check
def no_number_for_python(masked_mean):
    """No value of a tensor reaches Python"""
    x = torch.ones(4)
    with expect.situation("masked_mean(x, x > 0)"):
        with measure.syncs() as waits:
            masked_mean(x, x > 0)
        count = len(waits.found)
        expect.true(count == 0, f"on a GPU it would wait, {count} times", "expected: never")


@exercise.check
def without_values(masked_mean):
    """It runs on a device that has no values at all"""
    t = expect.given("x = torch.ones(4, device='meta')\nmask = x > 0", masked_mean=masked_mean)
    expect.equal(t.call("masked_mean(x, mask)"), torch.ones((), device="meta"))


@exercise.check(needs="cuda")
def never_waits(masked_mean, device):
    """On a GPU nothing waits"""
    x = torch.ones(1000, device=device)
    mask = x > 0
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with expect.situation("masked_mean(x, mask)"):
            came = masked_mean(x, mask)
    finally:
        torch.cuda.set_sync_debug_mode(before)
    expect.equal(came, torch.ones((), device=device))


@exercise.mistake
def selects(x, mask):
    """`x[mask]` has as many elements as the mask has ones, so Python waits until they are counted."""
    return x[mask].sum() / mask.sum().clamp(min=1)


@selects.variant
def selects_by_place(x, mask):
    places = mask.flatten().nonzero().squeeze(1)
    return x.flatten()[places].sum() / mask.sum().clamp(min=1)


@exercise.mistake
def takes_the_count(x, mask):
    """`.item()` waits for the device, to give you a number that a tensor held already."""
    total = torch.where(mask, x, torch.zeros_like(x)).sum()
    return total / max(mask.sum().item(), 1)


@takes_the_count.variant
def makes_an_int(x, mask):
    count = int(mask.sum())
    return torch.where(mask, x, 0.0).sum() / (count or 1)


@exercise.mistake
def nothing_by_nothing(x, mask):
    """Where nothing is selected you divide 0 by 0."""
    return torch.where(mask, x, 0.0).sum() / mask.sum()


@nothing_by_nothing.variant
def fills_and_divides(x, mask):
    return x.masked_fill(~mask, 0).sum() / mask.to(x.dtype).sum()


@exercise.mistake
def multiplies(x, mask):
    """You multiply by the mask, and 0 times `nan` is `nan`."""
    return (x * mask).sum() / mask.sum().clamp(min=1)


@multiplies.variant
def sums_products(x, mask):
    weights = mask.to(x.dtype)
    return (weights * x).sum() / torch.maximum(weights.sum(), torch.ones_like(weights.sum()))


@exercise.mistake
def divides_by_all(x, mask):
    """You divide by the number of all elements, selected or not."""
    return torch.where(mask, x, 0.0).mean()
