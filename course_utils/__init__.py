"""PyTorch Inside Out: what a lesson imports.

Importing this costs little over `import torch`: notebooks, figures and processes are imported by what
uses them.
"""

import os
import sys
from typing import Any

from course_utils.notebook import (
    answer,
    check,
    device,
    hint,
    placement,
    practice,
    progress,
    resume,
    run_ranks,
    show_error,
    solution,
    starter,
)
from course_utils.reader.folded import reveal
from course_utils.watching.compiled import watch_compile

__all__ = [
    "answer",
    "check",
    "device",
    "diagnose",
    "hint",
    "placement",
    "practice",
    "progress",
    "resume",
    "reveal",
    "run_ranks",
    "show_error",
    "solution",
    "starter",
    "watch_compile",
]

# torch's profiler writes of its own start and stop to stderr: below every cell that profiles.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

if "torch" in sys.modules:
    # What decides a check is kept as it is now, before a cell of the reader's can replace it.
    from course_utils.grading import tampering  # noqa: F401


def __getattr__(name: str) -> Any:
    """`diagnose` is fetched when it is first asked for: it imports torch."""
    if name != "diagnose":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from course_utils.diagnosis import diagnose

    return diagnose
