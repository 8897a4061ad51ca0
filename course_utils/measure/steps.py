"""One training step on a clock that counts operators: the bytes alive at each, by what made them.

The bytes are those of `peak_bytes`. Parameters, what became the `.grad` of a leaf, and the state of an
optimizer are left out. What is recomputed is told from the rest of backward by its grad mode: a checkpoint
runs its function again with grad on, a plain backward runs with grad off (`create_graph=True` does not, and
counts as recomputed).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from course_utils.measure.memory import Block, _Ledger
from course_utils.measure.modes import in_backward, packet
from course_utils.wrong_use import public

Phase = Literal["forward", "recompute", "backward"]
PHASES: tuple[Phase, ...] = ("forward", "recompute", "backward")
LEFT_OUT = ("parameters", "gradients", "optimizer")


@dataclass(frozen=True)
class Tick:
    """One operator that ran, and the bytes alive while it did, by the phase in which they were made."""

    op: str
    phase: Phase
    forward: int
    recompute: int
    backward: int

    @property
    def live(self) -> int:
        return self.forward + self.recompute + self.backward


@dataclass(frozen=True)
class StepTimeline:
    """A step, operator by operator; those that return a view are not counted. `left`: bytes alive at its
    end."""

    ticks: tuple[Tick, ...]
    left: int

    @property
    def peak(self) -> int:
        """The most bytes alive at one moment."""
        return max((tick.live for tick in self.ticks), default=0)

    @property
    def kept(self) -> int:
        """Bytes that forward left behind for backward."""
        return next((tick.forward for tick in self.ticks if tick.phase != "forward"), self.left)

    def operators(self, phase: Phase | None = None) -> int:
        """How many operators ran, in this phase or in all."""
        return sum(phase in (None, tick.phase) for tick in self.ticks)

    def __str__(self) -> str:
        ran = ", ".join(f"{phase} {n}" for phase in PHASES if (n := self.operators(phase)))
        return f"{self.peak:,} bytes at the peak; {len(self.ticks)} operators" + f" ({ran})" * bool(ran)


@public
def step_timeline(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> StepTimeline:
    """Runs `fn(*args, **kwargs)`, a forward with its backward, and notes the bytes alive at each operator.

        step = measure.step_timeline(lambda: model(x).square().mean().backward())
        step.peak, step.kept, step.operators("recompute")

    Where a `.grad` is there before, the gradient that is added to it counts until then.
    """
    clock = _Clock()
    with clock.open():
        fn(*args, **kwargs)
    return clock.timeline()


class _Clock(_Ledger):
    """A ledger whose entries belong to operators."""

    def __init__(self) -> None:
        super().__init__()
        self.ran: list[tuple[int, str, Phase]] = []  # where in the events its own begin

    def saw(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[[], Any]) -> Any:
        self._place_pending()
        if not getattr(func, "is_view", False):
            phase = "forward" if not in_backward() else "recompute" if torch.is_grad_enabled() else "backward"
            self.ran.append((len(self.events), packet(func), phase))
        return super().saw(func, args, kwargs, run)

    def timeline(self) -> StepTimeline:
        self._sort()
        made: dict[Block, Phase] = {}
        live: dict[Phase, int] = dict.fromkeys(PHASES, 0)
        ticks = []
        ends = [start for start, _, _ in self.ran[1:]] + [len(self.events)]
        for (start, op, phase), end in zip(self.ran, ends, strict=False):
            most = dict(live)
            for kind, block, change in self.events[start:end]:
                if block is None or block.category in LEFT_OUT:
                    continue
                if kind == "new":
                    made[block] = phase
                live[made[block]] += change
                if sum(live.values()) > sum(most.values()):
                    most = dict(live)
            ticks.append(Tick(op, phase, **most))
        return StepTimeline(tuple(ticks), sum(live.values()))
