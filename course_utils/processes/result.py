"""How a call in another process ended."""

import math
from dataclasses import dataclass, field
from typing import Any

from course_utils.stacks import Position, Raised


@dataclass
class Result:
    """How a call ended. `state` is "returned" (see `value`), "raised" (see `error`), "timed out" (see
    `position`, None where it could not be found) or "died". `told`: the plain data that came before the end
    (`worker_process.tell`). `how` says how it died, why it was stopped, or which limit made it raise;
    `server_ended`: it died with the warm server, perhaps by no fault of its own; `stopped`: when a call that
    had not ended was, on the monotonic clock.
    `output` is what was printed, at most its first 64 KiB; `output_cut` is the number of bytes that came
    after them."""

    state: str
    value: Any = None
    told: list[Any] = field(default_factory=list)
    error: Raised | None = None
    how: str = ""
    server_ended: bool = False
    position: Position | None = None
    stopped: float = math.inf
    output: str = ""
    output_cut: int = 0
    seconds: float = 0.0

    def describe(self) -> str:
        """What became of it, as the end of a sentence: `raised ValueError: no`, `has returned`."""
        if self.state == "returned":
            return "has returned"
        if self.state == "raised":
            return f"raised {self.error}"
        if self.state == "died":
            return f"died: {self.how}"
        return self.position.describe() if self.position else "did not say where it was"
