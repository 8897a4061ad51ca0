"""A batch norm in training does two things: it normalizes with the statistics of the batch, and it writes
them into its buffers. The recomputation needs the first, and must not do the second. So its context puts the
buffers back. It does so in `finally`, because the recomputation is left by an exception as soon as all saved
tensors are there.

That works for other modules too, if they write their state into buffers. `track_running_stats = False` for
the recomputation would not: such a norm saves no running statistics for backward, and the checkpoint misses
them. With a `momentum` of 0 the statistics stay, the count goes on, and so does whatever other modules count.
"""

import contextlib
from collections.abc import Iterator

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


def repair_checkpoint_batch_norm(block: nn.Module, x: Tensor) -> Tensor:
    @contextlib.contextmanager
    def buffers_put_back() -> Iterator[None]:
        before = {buffer: buffer.clone() for buffer in block.buffers()}
        try:
            yield
        finally:
            for buffer, old in before.items():
                buffer.data.copy_(old)  # uncounted: a graph without a checkpoint may have saved it

    return checkpoint(
        block, x, use_reentrant=False, context_fn=lambda: (contextlib.nullcontext(), buffers_put_back())
    )


# Other right answers

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from course_utils.exercise import Edit, Wrong


@contextlib.contextmanager
def _no_momentum(block):
    norms = [m for m in block.modules() if isinstance(m, _BatchNorm) and m.training and m.track_running_stats]
    before = [(m.momentum, m.num_batches_tracked.clone()) for m in norms]
    for m in norms:
        m.momentum = 0.0
    try:
        yield
    finally:
        for m, (momentum, count) in zip(norms, before, strict=True):
            m.momentum = momentum
            m.num_batches_tracked.copy_(count)


def _momentum(block, x):
    contexts = contextlib.nullcontext(), _no_momentum(block)
    return checkpoint(block, x, use_reentrant=False, context_fn=lambda: contexts)


def _other_buffers(block, x):
    runs = []

    def run(x):
        runs.append(None)
        if len(runs) == 1:
            return block(x)
        copies = {name: b.clone() for name, b in block.named_buffers()}
        return torch.func.functional_call(block, copies, (x,))

    return checkpoint(run, x, use_reentrant=False)


class _Back(contextlib.AbstractContextManager):
    def __init__(self, block):
        self.block = block

    def __enter__(self):
        self.before = {name: b.detach().clone() for name, b in self.block.named_buffers()}

    def __exit__(self, *raised):
        for name, buffer in self.block.named_buffers():
            buffer.copy_(self.before[name])


class _Replaces(_Back):
    def __exit__(self, *raised):
        for name, buffer in self.before.items():
            module, _, leaf = name.rpartition(".")
            setattr(self.block.get_submodule(module), leaf, buffer)


def _by_name(block, x, back=_Back):
    contexts = contextlib.nullcontext(), back(block)
    return checkpoint(block, x, use_reentrant=False, context_fn=lambda: contexts)


also_right = [_by_name, _other_buffers]


def _other_tensors(block, x):
    return _by_name(block, x, _Replaces)


def _as_after_the_forward(block, x):
    wanted = []

    @contextlib.contextmanager
    def put_back():
        try:
            yield
        finally:
            for buffer, old in zip(block.buffers(), wanted, strict=True):
                buffer.copy_(old)

    def contexts():
        return contextlib.nullcontext(), put_back()

    y = checkpoint(block, x, use_reentrant=False, context_fn=contexts)
    wanted += [buffer.clone() for buffer in block.buffers()]
    return y


_CONTEXTS = "contextlib.nullcontext(), buffers_put_back()"

mistakes = [
    Edit("evaluates", "before = {buffer", "block.eval()\n        before = {buffer", told_by="statistics"),
    Wrong(_as_after_the_forward, told_by="statistics"),
    Wrong(_other_tensors, told_by="statistics"),
    Wrong(_momentum, told_by="statistics"),
    Edit(
        "not in a finally",
        "        try:\n            yield\n        finally:\n            for",
        "        yield\n        if True:\n            for",
        told_by="statistics",
    ),
    Edit("the other order", _CONTEXTS, "buffers_put_back(), contextlib.nullcontext()", told_by="statistics"),
    Edit("no checkpoint", "checkpoint(\n", "(lambda f, x, **_: f(x))(\n", told_by="still_checkpointed"),
]

equivalent = {"line 16: `buffer.data` -> `buffer`": "counted writes trouble other graphs of the block alone"}
not_tried = {
    "hard numbers": "what is computed is the block's own",
    "dtypes": "the buffers of a norm have two dtypes",
    "left alone": "a check of its own compares the modules",
}
