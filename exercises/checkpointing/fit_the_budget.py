"""Fit into a budget

Which blocks of a stack have to be checkpointed, so that a step fits into a number of bytes? Return their
indices, in order. The starter holds the step.

- Its peak, `measure.peak_bytes(step, chosen).total`, is at most `budget`, if it begins without gradients
  (`.grad` is None).
- Of the choices that fit, yours has the least `measure.flops(step, chosen)`. If none fits, raise a
  `ValueError`.
- The blocks come without gradients, and leave without.

There are one to four blocks, of different sizes. You may try every choice.

`fit_the_budget(blocks, x, 10**9)` → `[]`
"""

import contextlib
import functools
import itertools

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from course_utils import measure
from course_utils.exercise import Exercise, Rows, expect

exercise = Exercise(
    minutes=15,
    hints=[
        "Measure the peak. In which order of the choices is the first that fits the answer?",
        "In the order of their FLOP. A step leaves gradients, and the next one adds to them in place: its "
        "peak can be lower than that of a first step. What has to happen in between?",
        "Sort all `itertools.combinations` by their FLOP. For each measure the peak, set `.grad` of every "
        "parameter to None, and return the first that fits. Measuring FLOP runs a step too.",
    ],
)


@exercise.starter
def fit_the_budget(blocks: nn.ModuleList, x: Tensor, budget: int) -> list[int]:
    def step(chosen):
        out = x
        for i, block in enumerate(blocks):
            kept = i not in chosen
            out = block(out) if kept else checkpoint(block, out, use_reentrant=False)
        out.square().mean().backward()

    raise NotImplementedError


_SETUP = """
class Block(nn.Module):
    def __init__(self, hidden, width=16):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.up, self.down = nn.Linear(width, hidden, bias=False), nn.Linear(hidden, width, bias=False)
    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        x = x + (q @ k.t()).softmax(-1) @ v
        return x + self.down(F.gelu(self.up(x)))
x = torch.randn(tokens, 16, device=device)
blocks = nn.ModuleList(Block(hidden) for hidden in sizes).to(x.device)
"""
# For the size 0, a block that keeps several results as large as its own: with it the peak is in the loss.
_SMALL = "Block(hidden) if hidden else nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.GELU())"


def _given(sizes, tokens, device, fit_the_budget=None):
    setup = _SETUP if all(sizes) else _SETUP.replace("Block(hidden)", _SMALL)
    setup = f"sizes, tokens = {sizes}, {tokens}{setup}"
    return expect.given(setup, fit_the_budget=fit_the_budget, device=device)


@functools.cache
def _measured(sizes, tokens, device):
    """A function that measures the peak of a choice, and the FLOP of every choice, the least first: what is
    run again adds up."""
    t, every = _given(sizes, tokens, device), range(len(sizes))

    def step(chosen):
        t.blocks.zero_grad()
        out = t.x
        for i, block in enumerate(t.blocks):
            out = checkpoint(block, out, use_reentrant=False) if i in chosen else block(out)
        out.square().mean().backward()

    plain = measure.flops(step, ())
    again = [measure.flops(step, (i,)) - plain for i in every]
    choices = [c for n in range(len(sizes) + 1) for c in itertools.combinations(every, n)]
    flops = {c: plain + sum(again[i] for i in c) for c in choices}
    peak = functools.cache(lambda chosen: measure.peak_bytes(step, chosen).total)
    return peak, dict(sorted(flops.items(), key=lambda item: item[1]))


def _expect_best(fit_the_budget, device, sizes, choice, more=0, tokens=48):
    """The budget: the peak of a choice, and so many bytes more."""
    peak_of, flops_of = _measured(sizes, tokens, device)
    t = _given(sizes, tokens, device, fit_the_budget)
    budget = peak_of(choice) + more
    fitting = next((c for c in flops_of if peak_of(c) <= budget), None)
    fits = fitting is not None
    wanted = "a list of indices, in order" if fits else "a `ValueError`, as no choice fits"
    try:
        found = t.call(f"fit_the_budget(blocks, x, {budget})")
    except ValueError:
        expect.true(not fits, "a `ValueError` is raised", f"expected: {wanted}")
        return
    known = isinstance(found, (list, tuple)) and tuple(found) in flops_of
    expect.true(known, f"the result is {expect.show(found)}", f"expected: {wanted}")
    peak, flops = peak_of(tuple(found)), flops_of[tuple(found)]
    none = f"the peak of a step with {found}: {peak:,} bytes, which is above {budget:,}"
    expect.true(fits, none, f"expected: {wanted}")
    expect.at_most(peak, budget, f"the peak of a step with {found}", unit="bytes")
    expect.at_most(flops, flops_of[fitting], f"FLOP of a step with {found}")


@exercise.check(deadline=60)
def least_flop(fit_the_budget, device):
    """Of the choices that fit, the one with the least FLOP

    A checkpoint costs what its block costs to compute again. What it frees depends on the block and on its
    place, and the peak may come in backward or in the loss, so a whole step has to be measured. The best
    choice need not have the fewest blocks, nor the first ones or the largest. It may have a gap, and it may
    be all of them.
    """
    three, gap = (64, 32, 128), (64, 128, 32, 256)
    cheaper = (256, 64, 32, 128)  # than the first block alone, which fits too
    with Rows() as rows:
        for sizes, best in (three, (0,)), (three, (1,)), (gap, (0, 2)), (cheaper, (1, 2)), ((0,), (0,)):
            with rows.of(f"a budget for {[*best]} of {len(sizes)} blocks"):
                _expect_best(fit_the_budget, device, sizes, best, 1000)


@exercise.check(deadline=60)
def limits(fit_the_budget, device):
    """A peak of exactly the budget fits; if no choice fits, a `ValueError` is raised

    A budget may be used up, to the last byte. Below some number no choice helps: the inputs of all blocks are
    there, and one block in full.
    """
    _expect_best(fit_the_budget, device, (16, 32), ())
    _expect_best(fit_the_budget, device, (16, 32), (0, 1), -10_000)


@exercise.check(deadline=60)
def without_gradients(fit_the_budget, device):
    """The peak is that of a step that begins without gradients

    Where parameters are many and tokens few, gradients are much of the peak. A step that finds some adds to
    them, and keeps nothing new. So `.grad` has to be None before each peak is measured.
    """
    _expect_best(fit_the_budget, device, (96, 64), (0,), -1, tokens=20)


@exercise.check(deadline=60)
def leaves_no_gradients(fit_the_budget, device):
    """The blocks have no gradients afterwards, whether something fits or not

    What a trial leaves in `.grad` would be added to the first real gradients.
    """
    for budget in (10**9, 1):
        t = _given((16,), 48, device, fit_the_budget)
        with contextlib.suppress(ValueError), expect.left_alone(t.x, what="`x`"):
            t.call(f"fit_the_budget(blocks, x, {budget})")
        left = [name for name, p in t.blocks.named_parameters() if p.grad is not None]
        expect.true(not left, f"these parameters have gradients: {', '.join(left)}", "expected: none has")
