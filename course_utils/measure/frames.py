"""The frames that an operator comes from, without those of the instruments, and of modes that only pass on
what they were given."""

import linecache
import re
import sys
from collections.abc import Iterator
from types import FrameType

from course_utils import torch_private
from course_utils.stacks import is_readers

# Between the instruments, or a mode, and the operator.
_OWN = (
    *("course_utils.measure", "course_utils.torch_private", "course_utils.wrong_use"),
    *(f"{torch_private.DYNAMO}.", torch_private.COMPILE, torch_private.OPERATORS),
)
_HANDLERS = ("__torch_dispatch__", "__torch_function__")


def frames() -> Iterator[FrameType]:
    """From the innermost to the outermost; none in a thread of autograd's own."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        own = frame.f_globals.get("__name__", "").startswith(_OWN)
        if not own and not (frame.f_code.co_name in _HANDLERS and _passes_on(frame)):
            yield frame
        frame = frame.f_back


def caller() -> FrameType | None:
    """The innermost one."""
    return next(frames(), None)


def readers_line() -> str:
    """The text of the reader's innermost line; "" where there is none."""
    frame = next((frame for frame in frames() if is_readers(frame.f_code.co_filename)), None)
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip() if frame else ""


def _passes_on(frame: FrameType) -> bool:
    """Whether a mode is in a call of the function that it was given, and not in one of its own."""
    code = frame.f_code
    first, last, begin, end = list(code.co_positions())[frame.f_lasti // 2]
    if None in (first, last, begin, end) or code.co_argcount < 2:
        return False
    lines = [linecache.getline(code.co_filename, number).encode() for number in range(first, last + 1)]
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][begin:]
    given = re.escape(code.co_varnames[1])
    return re.match(rf"({given}|super\(.*\.__torch_\w+__)\(", b"".join(lines).decode()) is not None
