"""What a diagnosis looks for.

Each look is a function that takes what was seen of a few steps and yields findings. `LOOKS` read what was
seen; `TRIALS` run the model again, which is then as it was before the first step, with the reader's modes and
without gradients; `OF_LOOPS` read what was recorded of the reader's own loop. Findings of one rank are told
in this order.
"""

from collections.abc import Callable, Iterable

from course_utils.diagnosis.finding import Finding
from course_utils.diagnosis.looks import (
    batches,
    gradients,
    graphs,
    loops,
    losses,
    modes,
    optimizers,
    padding,
    precision,
    registration,
    waits,
)
from course_utils.diagnosis.steps import Seen

Look = Callable[[Seen], Iterable[Finding]]
_FILES = (
    graphs,
    precision,
    gradients,
    registration,
    optimizers,
    losses,
    padding,
    batches,
    modes,
    waits,
)
LOOKS: list[Look] = [look for file in _FILES for look in file.LOOKS]
TRIALS: list[Look] = [look for file in _FILES for look in file.TRIALS]
OF_LOOPS: list[Look] = loops.LOOKS
