"""What a checkpointed function does on the side, it may do in each recomputation too. The cleanest way out
is to do nothing on the side: the function returns what is to be logged, and the caller logs it. Of the
recomputation only the saved tensors are looked at.

Where that is not possible, `context_fn` tells the two runs apart: one context manager is entered around the
forward, another around the recomputation.

Asking `torch.is_grad_enabled()` doesn't tell: here it is on in both. Counting entries does not either, as
soon as there is a second call before the backward of the first.
"""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


def repair_checkpoint_side_effect(blocks: Sequence[nn.Module], x: Tensor, seen: list) -> Tensor:
    def run(block, x):
        hidden = block.up(x).relu()
        return block.down(hidden), hidden.detach().max()

    for block in blocks:
        x, largest = checkpoint(run, block, x, use_reentrant=False)
        seen.append(largest)
    return x


# Other right answers

import contextlib
from contextlib import nullcontext

from course_utils.exercise import Edit, Wrong


def _told_apart(blocks, x, seen):
    recomputing = False

    @contextlib.contextmanager
    def again():
        nonlocal recomputing
        recomputing = True
        try:
            yield
        finally:
            recomputing = False

    def run(block, x):
        hidden = block.up(x).relu()
        if not recomputing:
            seen.append(hidden.detach().max().item())
        return block.down(hidden)

    for block in blocks:
        x = checkpoint(run, block, x, use_reentrant=False, context_fn=lambda: (nullcontext(), again()))
    return x


def _a_list_of_each_call(blocks, x, seen):
    for block in blocks:
        found = []

        def run(x, block=block, found=found):
            hidden = block.up(x).relu()
            found.append(hidden.detach().amax().clone())
            return block.down(hidden)

        x = checkpoint(run, x, use_reentrant=False)
        seen.append(found[0])
    return x


also_right = [_told_apart, _a_list_of_each_call]


def _computed_twice(blocks, x, seen):
    for block in blocks:
        seen.append(block.up(x).relu().detach().max())
        x = checkpoint(lambda x, block=block: block.down(block.up(x).relu()), x, use_reentrant=False)
    return x


def _counts_entries(blocks, x, seen):
    before = len(seen)

    def run(block, x):
        hidden = block.up(x).relu()
        if len(seen) < before + len(blocks):
            seen.append(hidden.detach().max())
        return block.down(hidden)

    for block in blocks:
        x = checkpoint(run, block, x, use_reentrant=False)
    return x


mistakes = [
    Wrong(_counts_entries, told_by="once"),
    Edit(
        "no checkpoint",
        "checkpoint(run, block, x, use_reentrant=False)",
        "run(block, x)",
        told_by="still_checkpointed",
    ),
    Edit("reentrant", "use_reentrant=False", "use_reentrant=True", told_by="gradients"),
    Edit("entries with a graph", "hidden.detach().max()", "hidden.max()", told_by="once"),
    Edit(
        "a view of all",
        "hidden.detach().max()",
        "hidden.detach().flatten().sort().values[-1]",
        told_by="still_checkpointed",
    ),
    Edit(
        "logs inside too",
        "return block",
        "seen.append(hidden.max().item())\n        return block",
        told_by="once",
    ),
    Wrong(_computed_twice, told_by="still_checkpointed"),
]

equivalent = {
    "line 10: `hidden.detach()` -> `hidden.detach_()`": "`down` has run by then, and has kept what it needs"
}
not_tried = {
    "hard numbers": "the blocks alone compute",
    "dtypes": "the blocks alone compute",
    "left alone": "a write would show in the gradients",
}
