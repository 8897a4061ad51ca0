"""How a call in another process ended."""

import re
import signal
from dataclasses import dataclass, field
from typing import Any

from course_utils.processes.stacks import Position, Raised


@dataclass
class Result:
    """How a call ended. `state` is "returned" (see `value`), "raised" (see `error`), "timed out" (see
    `position`, None where it could not be found) or "died". `told`: the plain data that came before the end
    (`worker_process.tell`). `how` says how it died, why it was stopped, or which limit made it raise.
    `output` is what was printed, at most its first 64 KiB; `output_cut` is the number of bytes that came
    after them."""

    state: str
    value: Any = None
    told: list[Any] = field(default_factory=list)
    error: Raised | None = None
    how: str = ""
    position: Position | None = None
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


def how_it_ended(code: int) -> str:
    """An exit code, as `os.waitstatus_to_exitcode` gives it, in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"signal {-code}"


# What to look for where a process has ended as it must not, by a word of how it did.
_LOOK_FOR = {
    "exit code": "it ended itself: look for `os._exit`, and for `exit` in native code",
    "SIGABRT": "`abort()` was called, as C++ does where nobody catches an exception: look for a tensor that "
    "doesn't fit the message or the native call that it is given to",
    "SIGSEGV": "memory was touched that isn't there: look for a pointer, an address or a stride that leads "
    "out of its storage, and for native code that uses what is freed",
    "SIGBUS": "memory was touched that isn't there: look for a file that is mapped and has become shorter",
    "SIGFPE": "a whole number was divided by zero in native code: look for a size that is 0",
    "SIGKILL": "somebody killed it: look for `os.kill`, and for memory that grows until the system has none",
    "signal": "it was sent this signal: look for `os.kill`, `signal.alarm` and `terminate()`",
}
_SAID = re.compile(r"^terminate called .*\n *what\(\): *(.*)", re.MULTILINE)


def what_to_look_for(how: str, output: str = "") -> list[str]:
    """Lines for somebody whose process ended, who knows `how` and no more: where C++ ended it by an exception
    that nobody caught, what that said; then what such an end comes from."""
    said = _SAID.findall(output)
    looks = [told for word, told in _LOOK_FOR.items() if word in how]
    # All that are no exit code have the word `signal`, the least that can be said.
    return [*(f"it said: `{line}`" for line in said[:1]), *looks[:1]]


def gigabytes(size: int) -> str:
    """`8.0 GiB`."""
    return f"{size / (1 << 30):.1f} GiB"
