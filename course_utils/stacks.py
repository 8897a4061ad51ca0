"""Where code was, and what it raised, as plain data that can cross a process boundary.

A reader wants one line of a long stack: the innermost one that they wrote. `is_readers` draws that border.
"""

from __future__ import annotations

import ast
import functools
import linecache
import re
import sysconfig
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any

from course_utils.words import cause

LONGEST_MESSAGE = 2_000  # characters of an error's message that are kept
# Frames of a stack that are kept, at its outer end and at its inner one: a recursion may have made a million.
_OUTER, _INNER = 50, 150
_COURSE = str(Path(__file__).parent)
_KITS = f"{_COURSE}/exercise/kits"
# Parts of torch in which a process waits for other processes, or is about to.
_MEETING_PLACES = ("torch/distributed/", "torch/nn/parallel/", "torch/autograd/", "torch/_tensor.py")
# What stands for a wait that begins in a line of the reader's own, in a rank.
_WAIT = (f"{_COURSE}/processes/ranks.py", "wait")
# Wrappers that stand between the call that a reader wrote and the function it names.
_WRAPPERS = ("wrapper", "inner", "decorate_context", "inner_fn")


@dataclass(frozen=True)
class Frame:
    """One line of a stack. `readers`: it is not of the course, of torch, of a package or of Python."""

    file: str
    line: int
    function: str
    source: str
    readers: bool


@dataclass
class Raised:
    """What was raised. `type` is the name of its class; `frames` go from the outermost to the innermost."""

    type: str
    message: str
    frames: list[Frame] = field(default_factory=list)

    @property
    def frame(self) -> Frame | None:
        """The reader's innermost line, or None where no line of theirs was involved."""
        return _innermost_of_reader(self.frames)

    def as_plain(self) -> dict[str, Any]:
        """As data that JSON can hold."""
        return asdict(self)

    @classmethod
    def of_plain(cls, data: dict[str, Any]) -> Raised:
        """From what `as_plain` gave. Raises `TypeError`, `KeyError` or `ValueError` for anything else."""
        of = {"file": str, "line": int, "function": str, "source": str, "readers": bool}
        frames = [Frame(**{name: kind(one[name]) for name, kind in of.items()}) for one in data["frames"]]
        return cls(str(data["type"]), str(data["message"]), frames)

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type


@dataclass
class Position:
    """Where a process was when it was asked. `frames` go from the outermost to the innermost; `waiting`: it
    was in the `wait` of something that other processes complete; `in_kit`: a kit of exercises called what it
    was in, and not the reader."""

    frames: list[Frame] = field(default_factory=list)
    waiting: bool = False
    in_kit: bool = False

    @property
    def frame(self) -> Frame | None:
        """The reader's innermost line."""
        return _innermost_of_reader(self.frames)

    @property
    def call(self) -> str | None:
        """The function of torch that the reader's line is in, such as `all_reduce`; None outside torch."""
        last = max((i for i, f in enumerate(self.frames) if f.readers), default=-1)
        inside = self.frames[last + 1 :]
        if self.waiting and not inside:
            return "wait"
        if not inside or not in_torch(inside[-1].file):
            return None
        named = [f.function for f in inside if in_torch(f.file) and f.function not in _WRAPPERS]
        public = [name for name in named if not name.startswith("_")]
        return (public or named or [None])[0]

    @property
    def meets_others(self) -> bool:
        """Whether it is in a part of torch that waits for other processes."""
        if not self.frames or self.waiting:
            return self.waiting
        file = self.frames[-1].file
        return in_torch(file) and any(place in file for place in _MEETING_PLACES)

    def describe(self, ignoring: Collection[tuple[str, str]] = ()) -> str:
        """`waits in all_reduce at your line 12 (`dist.all_reduce(x)`)`; `ignoring`: see `loop_of`. In an
        endless loop chance decides on which line it is found, so there it is the loop that is named."""
        if not self.meets_others and (loop := loop_of(self.frames, ignoring)):
            return f"is in the loop at {place(loop)}"
        frame, call = self.frame, self.call
        doing = f"{'waits' if self.meets_others else 'is'} in {call}" if call else "is"
        if frame is None:
            return doing if call else "is not in a line of yours"
        return f"{doing} at {place(frame)}"


def loop_of(frames: list[Frame], ignoring: Collection[tuple[str, str]] = ()) -> Frame | None:
    """The first line of the outermost loop of the reader's that these frames are in; None outside loops.
    `ignoring`: (file, function) of the frames that do not count."""
    for frame in frames:
        if not frame.readers or (frame.file, frame.function) in ignoring:
            continue
        if line := _outermost_loop(frame.file, frame.line):
            return _frame(frame.file, line, frame.function)
    return None


def _outermost_loop(file: str, line: int) -> int | None:
    """The first line of the outermost loop around a line, within the innermost function around it."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:  # a cell with magics in it
        return None
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, (ast.While, ast.For, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        and node.lineno <= line <= (node.end_lineno or 0)
    ]
    around.sort(key=lambda node: (node.lineno, -(node.end_lineno or 0)))
    is_loop = [isinstance(node, (ast.While, ast.For)) for node in around]
    inner = len(is_loop) - is_loop[::-1].index(False) if False in is_loop else 0
    return around[inner].lineno if inner < len(around) else None


def place(frame: Frame) -> str:
    """`your line 12 (`dist.all_reduce(x)`)`; a file that a reader can open is named too."""
    # What was typed into a notebook has a file name that means nothing to a reader; an answer taken out of
    # one is called after its cell.
    in_notebook = frame.file.startswith("<") or "/ipykernel_" in frame.file
    where = "" if in_notebook else f" of {Path(frame.file).name}"
    code = f" (`{frame.source}`)" if frame.source else ""
    return f"your line {frame.line}{where}{code}"


def raised(error: BaseException) -> Raised:
    """Describes an exception. Never raises, whatever the exception's own methods do."""
    try:
        message = cause(str(error))
    except Exception:  # an exception whose own text fails is still reported
        message = "<its message cannot be shown>"
    if (more := len(message) - LONGEST_MESSAGE) > 0:
        message = f"{message[:LONGEST_MESSAGE]}… ({more} characters more)"
    return Raised(type(error).__name__, message, frames_of(error.__traceback__))


def frames_of(tb: TracebackType | None) -> list[Frame]:
    """The frames of a traceback, outermost first, without the course's own at the outer end."""
    found, rest = [], []
    while tb is not None:
        rest.append(tb)
        tb = tb.tb_next
    for tb in rest[:_OUTER] + rest[_OUTER:][-_INNER:]:
        code = tb.tb_frame.f_code
        found.append(_frame(code.co_filename, tb.tb_lineno or _line_before(code, tb.tb_lasti), code.co_name))
    while found and _under(found[0].file, _COURSE):
        found.pop(0)
    return found


def _line_before(code: CodeType, instruction: int) -> int:
    """Of an instruction that has no line, as the jump at the end of a loop: that of the last one that has."""
    lines = [line for start, _, line in code.co_lines() if line and start <= instruction]
    return lines[-1] if lines else code.co_firstlineno


def parse_dump(text: str) -> Position | None:
    """The position in what `faulthandler` wrote; None where it wrote no stack."""
    found = re.findall(r'^  File "(.*)", line (\d+) in (.*)$', text, re.MULTILINE)
    frames = [_frame(file, int(line), function) for file, line, function in reversed(found)]
    # The outermost frames are the command line that started the course's server, and the course's own. Its
    # instruments may stand further in, even between torch's function and what that waits for.
    while frames and (_under(frames[0].file, _COURSE) or frames[0].file == "<string>"):
        frames.pop(0)
    waiting = bool(frames) and (frames[-1].file, frames[-1].function) == _WAIT
    last = max((i for i, frame in enumerate(frames) if frame.readers), default=-1)
    in_kit = any(_under(frame.file, _KITS) for frame in frames[last + 1 :])
    return Position([f for f in frames if not _under(f.file, _COURSE)], waiting, in_kit) if found else None


def is_readers(file: str) -> bool:
    """Whether code of this file was written by the reader."""
    if file.startswith("<"):
        # Code made by Python or torch has names such as `<string>`; what a reader typed has lines to show. So
        # has what FX generates.
        return file == "<stdin>" or file in linecache.cache and not file.startswith("<eval_with_key>")
    # A package may also be in the folder of a user, or in one that a `.pth` file names.
    installed = "/site-packages/" in file or "/dist-packages/" in file
    return not installed and not file.startswith(_foreign_folders())


@functools.cache
def _foreign_folders() -> tuple[str, ...]:
    paths = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return tuple(f"{folder}/" for folder in (_COURSE, _torch_folder(), *sorted(filter(None, paths))))


@functools.cache
def _torch_folder() -> str:
    import torch  # here: this module is also imported where torch is not wanted yet

    return str(Path(torch.__file__).parent)


def in_torch(file: str) -> bool:
    """Whether this file is torch's."""
    return _under(file, _torch_folder())


def is_ours(file: str) -> bool:
    """Whether it is a file of the course's own package."""
    return _under(file, _COURSE)


def _under(file: str, folder: str) -> bool:
    return file.startswith(folder + "/")


def of_frame(frame: FrameType) -> Frame:
    """A frame that is being run."""
    return _frame(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def _frame(file: str, line: int, function: str) -> Frame:
    return Frame(file, line, function, linecache.getline(file, line).strip(), is_readers(file))


def _innermost_of_reader(frames: list[Frame]) -> Frame | None:
    return next((frame for frame in reversed(frames) if frame.readers), None)
