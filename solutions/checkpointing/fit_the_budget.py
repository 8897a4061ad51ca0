"""The peak of a step has too many causes to be added up: what each block keeps, which one is in memory in
full while it's computed again, and the gradients that are there by then. So it's measured. With n blocks
there are 2ⁿ choices; in the order of what they cost, the first that fits is the best.

Each measurement has to begin as a step of training does after `zero_grad`: without gradients. For many
blocks trying is too slow. If they are equal, one has to find only how many of the first ones it takes."""

import itertools

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from course_utils import measure


def fit_the_budget(blocks: nn.ModuleList, x: Tensor, budget: int) -> list[int]:
    def step(chosen):
        out = x
        for i, block in enumerate(blocks):
            out = checkpoint(block, out, use_reentrant=False) if i in chosen else block(out)
        out.square().mean().backward()

    def measured(instrument, chosen):
        found = instrument(step, chosen)
        blocks.zero_grad()
        return found

    every = range(len(blocks))
    flags = itertools.product((True, False), repeat=len(blocks))
    choices = [list(itertools.compress(every, some)) for some in flags]
    for chosen in sorted(choices, key=lambda chosen: measured(measure.flops, chosen)):
        if measured(measure.peak_bytes, chosen).total <= budget:
            return chosen
    raise ValueError(f"no choice fits into {budget} bytes")


# Other right answers

import torch

from course_utils.exercise import Edit, Wrong


def _from_what_each_adds(blocks, x, budget):
    """FLOP add up, so those of no block and of each alone are enough. Gradients go nowhere."""

    def step(chosen):
        out = x
        for i, block in enumerate(blocks):
            out = checkpoint(block, out, use_reentrant=False) if i in chosen else block(out)
        return torch.autograd.grad(out.square().mean(), list(blocks.parameters()))

    extra = [measure.flops(step, [i]) - measure.flops(step, []) for i in range(len(blocks))]
    best = None
    for bits in range(2 ** len(blocks)):
        chosen = [i for i in range(len(blocks)) if bits >> i & 1]
        cost = sum(extra[i] for i in chosen)
        if (best is None or cost < best[0]) and measure.peak_bytes(step, chosen).total <= budget:
            best = cost, chosen
    if best is None:
        raise ValueError("too small")
    return best[1]


def _all_at_once(blocks, x, budget):
    def step(chosen):
        for parameter in blocks.parameters():
            parameter.grad = None
        out = x
        for i, block in enumerate(blocks):
            out = checkpoint(block, out, use_reentrant=False) if i in chosen else block(out)
        out.square().mean().backward()

    found = []
    for flags in itertools.product((False, True), repeat=len(blocks)):
        chosen = [i for i, flag in enumerate(flags) if flag]
        found.append((measure.flops(step, chosen), measure.peak_bytes(step, chosen).total, chosen))
    blocks.zero_grad()
    fitting = [one for one in found if one[1] <= budget]
    if not fitting:
        raise ValueError
    return min(fitting)[2]


also_right = [_from_what_each_adds, _all_at_once]


def _by_what_is_saved(blocks, x, budget):
    """As if the peak were what the forward keeps."""

    def forward(chosen):
        out = x
        for i, block in enumerate(blocks):
            out = checkpoint(block, out, use_reentrant=False) if i in chosen else block(out)
        return out

    for chosen in [[], [0], [1], [2], [0, 1], [0, 2], [1, 2], [0, 1, 2]]:
        if measure.saved_bytes(forward, chosen).total <= budget:
            return chosen
    raise ValueError


_EACH = "[list(itertools.compress(every, some)) for some in flags]"
_SORTED = "sorted(choices, key=lambda chosen: measured(measure.flops, chosen))"

mistakes = [
    Wrong(_by_what_is_saved, told_by="least_flop"),
    Edit("the last ones", _EACH, "[[*every][n:] for n in (3, 2, 1, 0)]", told_by="least_flop"),
    Edit("the fewest", _SORTED, "sorted(choices, key=len)", told_by="least_flop"),
    Edit("the first ones", _EACH, "[[*every][:n] for n in range(4)]", told_by="least_flop"),
    Edit("gradients stay", "        blocks.zero_grad()\n", "", told_by="without_gradients"),
    Edit("less than the budget", "<= budget", "< budget", told_by="limits"),
    Edit(
        "the last resort",
        'raise ValueError(f"no choice fits into {budget} bytes")',
        "return list(every)",
        told_by="limits",
    ),
    Edit(
        "clears before, not after",
        "found = instrument(step, chosen)\n        blocks.zero_grad()\n",
        "blocks.zero_grad()\n        found = instrument(step, chosen)\n",
        told_by="leaves_no_gradients",
    ),
]

equivalent = {
    "line 14: `out.square()` -> `out`": "what the loss keeps is little beside the blocks",
}
