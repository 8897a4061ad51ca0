"""The peak of a step has too many causes to be added up: what each block keeps, which one is in memory in
full while it's computed again, and the gradients that are there by then. So it's measured. Here FLOP do add
up: what each block costs to run again is measured alone. With n blocks there are 2ⁿ choices; in the order of
what they cost, the first that fits is the best.

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
    plain = measured(measure.flops, [])
    again = [measured(measure.flops, [i]) - plain for i in every]
    for chosen in sorted(choices, key=lambda chosen: sum(again[i] for i in chosen)):
        if measured(measure.peak_bytes, chosen).total <= budget:
            return chosen
    raise ValueError(f"no choice fits into {budget} bytes")


# Other right answers

import copy

import torch

from course_utils.exercise import Edit


def _from_what_each_adds(blocks, x, budget):
    """Gradients go nowhere, and there is no order."""

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
    return tuple(best[1])


def _on_copies(blocks, x, budget):
    def fresh(instrument, chosen):
        copies = copy.deepcopy(blocks)

        def step():
            out = x
            for i, block in enumerate(copies):
                out = checkpoint(block, out, use_reentrant=False) if i in chosen else block(out)
            out.square().mean().backward()

        return instrument(step)

    subsets = [list(c) for n in range(5) for c in itertools.combinations(range(len(blocks)), n)]
    fitting = [c for c in subsets if fresh(measure.peak_bytes, c).total <= budget]
    return min(fitting, key=lambda c: fresh(measure.flops, c))  # of no choice: a ValueError


also_right = [_from_what_each_adds, _on_copies]

_EACH = "[list(itertools.compress(every, some)) for some in flags]"
_SORTED = "sorted(choices, key=lambda chosen: sum(again[i] for i in chosen))"

mistakes = [
    Edit("the fewest", _SORTED, "sorted(choices, key=len)", told_by="least_flop"),
    Edit("never all of them", "in sorted(choices", "in sorted(choices[1:]", told_by="least_flop"),
    Edit(
        "no gap", _EACH, f"[c for c in {_EACH} if max(c + [0]) < min(c + [9]) + len(c)]", told_by="least_flop"
    ),
    Edit("the first ones", _EACH, "[[*every][:n] for n in range(4)]", told_by="least_flop"),
    Edit("gradients stay", "        blocks.zero_grad()\n", "", told_by="without_gradients"),
    Edit("less than the budget", "<= budget", "< budget", told_by="limits"),
    Edit("the last resort", 'raise ValueError(f"no', 'return list(every)\n    (f"no', told_by="limits"),
    Edit(
        "clears before",
        "found = instrument",
        "blocks.zero_grad()\n        return instrument",
        told_by="leaves_no_gradients",
    ),
]

not_tried = {
    "hard numbers": "bytes and FLOP are counted",
    "dtypes": "bytes and FLOP are counted",
    "seeds": "bytes hang on sizes alone",
}
