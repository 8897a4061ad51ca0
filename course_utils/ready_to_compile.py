"""Compiles a small function when it is imported, in a process of which others are then forked.

What torch sets up for the first compilation in a process takes longer than most checks that compile.
"""

import contextlib
from typing import Any

import torch
from torch._dynamo.utils import counters


def _one_more(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def _compile_once() -> None:
    """Leaves no thread, which a fork would not take along, and nothing compiled."""
    progress_bar: Any = torch.hub.tqdm
    interval = getattr(progress_bar, "monitor_interval", None)
    if interval is not None:
        progress_bar.monitor_interval = 0
    try:
        with torch.no_grad():
            torch.compile(_one_more, backend="eager")(torch.ones(1))
        # Where there could be a GPU, autograd starts threads for it.
        if not torch.backends.cuda.is_built():
            torch.compile(_one_more, backend="aot_eager")(torch.ones(1, requires_grad=True))
    finally:
        if interval is not None:
            progress_bar.monitor_interval = interval
    torch.compiler.reset()
    counters.clear()


with contextlib.suppress(Exception):  # where nothing can be compiled, the checks will say so
    _compile_once()
