"""What has been done to a tensor, step by step. Every step is a real operation on the tensor before it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import torch
from torch import Tensor

from course_utils.draw.layout import must_be_drawable, same_storage
from course_utils.explore.reasons import why_no_view

STRIDED = ".as_strided("
_VIEW = re.compile(r"\.view\(((?:-?\d+(?:, )?)*|\(\))\)")


@dataclass(frozen=True)
class Step:
    """One operation: the code after the tensor's name, and what came of it."""

    code: str
    result: Tensor


@dataclass
class History:
    """The way from `start`, which is called `name`, to `tensor`."""

    start: Tensor
    name: str = "x"
    steps: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        must_be_drawable(self.start)

    @property
    def tensor(self) -> Tensor:
        return self.steps[-1].result if self.steps else self.start

    @property
    def code(self) -> str:
        """The expression whose value `tensor` is."""
        return self.name + "".join(step.code for step in self.steps)

    @property
    def copied_at(self) -> Step | None:
        """The last step that made a new storage; None while the storage is that of the start."""
        before = [self.start, *(step.result for step in self.steps)]
        for step, earlier in zip(reversed(self.steps), reversed(before[:-1]), strict=True):
            if not same_storage(step.result, earlier):
                return step
        return None

    def apply(self, code: str) -> None:
        """Does what `code` says, such as `.t()` or `[1:]`, to the tensor. Raises what torch raises, and
        `TypeError` or `ValueError` where the result has no strides to show; the history stays as it was.

        An `as_strided` directly after another takes its place: it says all that the first one said.
        """
        again = code.startswith(STRIDED) and self.steps and self.steps[-1].code.startswith(STRIDED)
        kept = self.steps[:-1] if again else self.steps
        before = kept[-1].result if kept else self.start
        # What is shown is what is run: one text, no second account of the operation beside it.
        result = eval(f"tensor{code}", {"torch": torch, "tensor": before})
        must_be_drawable(result)
        self.steps = [*kept, Step(code, result)]

    def undo(self) -> None:
        self.steps = self.steps[:-1]

    def reset(self) -> None:
        self.steps = []

    def why_not(self, code: str) -> str | None:
        """Why `code` fails on the tensor, where it is a `view` that does."""
        call = _VIEW.fullmatch(code)
        shape = [int(n) for n in re.findall(r"-?\d+", call[1])] if call else None
        return None if shape is None else why_no_view(self.tensor.size(), self.tensor.stride(), shape)
