"""What a diagnosis looks for.

Each look is a function that takes what was seen of a few steps and yields findings. `LOOKS` read what was
seen; `TRIALS` run the model again, which is then as it was before the first step, with the reader's modes and
without gradients; `OF_LOOPS` read what was recorded of the reader's own loop. Findings of one rank are told
in this order.
"""

from collections.abc import Callable, Iterable

from course_utils.diagnosis.finding import Finding
from course_utils.diagnosis.looks import gradients, loops, losses, optimizers, padding, registration
from course_utils.diagnosis.steps import Seen

Look = Callable[[Seen], Iterable[Finding]]
LOOKS: list[Look] = [*gradients.LOOKS, *registration.LOOKS, *optimizers.LOOKS, *losses.LOOKS]
TRIALS: list[Look] = [*gradients.TRIALS, *registration.TRIALS, *losses.TRIALS, *padding.TRIALS]
OF_LOOPS: list[Look] = loops.LOOKS
