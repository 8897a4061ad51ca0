"""Compiles a small function when it is imported, in a process of which others are then forked.

What torch sets up for the first compilation in a process takes longer than most checks that compile.
"""

import contextlib
from typing import Any

import torch

from course_utils import torch_private


def _one_more(x: torch.Tensor) -> torch.Tensor:
    return x + 1


class _Branch(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, _one_more, torch.neg, (x,))


def _compile_once() -> None:
    """Leaves no thread, which a fork would not take along, and nothing compiled."""
    progress_bar: Any = torch.hub.tqdm
    interval = getattr(progress_bar, "monitor_interval", None)
    if interval is not None:
        progress_bar.monitor_interval = 0
    try:
        with torch.no_grad():
            torch.compile(_one_more, backend="eager")(torch.ones(1))
            torch.compile(_one_more, backend="eager", dynamic=True)(torch.ones(2))
            torch.export.export(_Branch(), (torch.ones(2),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
        # Where there could be a GPU, autograd starts threads for it.
        if not torch.backends.cuda.is_built():
            torch.compile(_one_more, backend="aot_eager")(torch.ones(1, requires_grad=True))
    finally:
        if interval is not None:
            progress_bar.monitor_interval = interval
    torch.compiler.reset()
    torch_private.compiler_counters.clear()


# After every compilation torch writes 32 MB, so that no cache is warm, and takes the time of the new guards
# for its log: more than half of what a small graph costs. No check looks at that number.
with contextlib.suppress(torch_private.Gone):
    torch_private.dynamo_guards.profile_guard_manager = lambda *_: 0.0
# Dynamo asks CUDA for a GPU that is there, and after that no fork of this process could use it.
if not torch.cuda.device_count():
    with contextlib.suppress(Exception):  # where nothing can be compiled, the checks will say so
        _compile_once()
