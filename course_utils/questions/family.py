"""What a family of questions is made of: what its file in `practice/` imports.

A question is a short program whose last line is an expression; what it shows is asked for. A family writes
such programs, and says what somebody would answer who believes something that isn't so.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import random
import textwrap
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from typing import Any

import torch

RAISES = "it raises an error"  # the answer of a program that does, and of a belief that it would
LEVELS = (1, 2, 3, 4, 5)
PRELUDE = "import torch\nfrom torch import nn\nimport torch.nn.functional as F"
_FILE = "<question>"


@dataclass(frozen=True)
class Run:
    """A program that has run: its `code`, the `names` that it left, and what its last line gave."""

    code: str
    names: dict[str, Any]
    value: Any

    def again(self, code: str) -> Any:
        """What another program gives: how a belief says that torch did something else here."""
        return run(code).value


@dataclass(frozen=True)
class Belief:
    """What somebody may hold who answers wrongly. `claim`: as they would say it; `why` it isn't so; `cell`:
    a program that shows it; `answer`: what they answer to a program that has run."""

    name: str
    claim: str
    why: str
    cell: str
    answer: Callable[[Run], Any]


@dataclass
class Family:
    """A family of questions about one skill.

    `section`: the heading in the lesson of its topic that explains it. `asked`: the question below a program.
    `words`: all answers there are, where answers are words: near misses are taken from them. `may_raise`:
    whether an error is an answer. `slow`: whether a question takes over a tenth of a second, as one does that
    compiles or starts processes.
    """

    section: str
    asked: str = "What does the last line show?"
    words: Sequence[str] = ()
    may_raise: bool = False
    slow: bool = False
    beliefs: list[Belief] = field(default_factory=list)
    title: str = ""  # these three are set when the file is loaded
    topic: str = ""
    name: str = ""
    generate: Callable[[random.Random, int], str] | None = None

    def program(self, function: Callable[[random.Random, int], str]) -> Callable[[random.Random, int], str]:
        """A decorator for what writes a program: of a `random.Random` and a level from 1 to 5."""
        self.generate = function
        return function

    def belief(self, function: Callable[[Run], Any]) -> Callable[[Run], Any]:
        """A decorator for a belief: what who holds it answers. Its docstring is the claim, an empty line,
        why it isn't so, and, indented, a program that shows it."""
        claim, _, rest = inspect.cleandoc(function.__doc__ or "").partition("\n")
        lines = rest.strip("\n").splitlines()
        start = next((i for i, line in enumerate(lines) if line.startswith("    ")), len(lines))
        why, cell = " ".join(" ".join(lines[:start]).split()), textwrap.dedent("\n".join(lines[start:]))
        self.beliefs.append(Belief(function.__name__, claim.strip(), why, cell.strip(), function))
        return function


def run(code: str) -> Run:
    """Runs a program as a cell that shows its last line, with one thread: its tensors are small. Raises what
    the program raises."""
    names: dict[str, Any] = {"__name__": "__main__"}
    # Where the source of a function is looked up, as compilers do, it is found.
    linecache.cache[_FILE] = (len(code), None, code.splitlines(keepends=True), _FILE)
    tree = ast.parse(code, _FILE)
    last = ast.Expression(tree.body.pop().value)
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            exec(compile(PRELUDE, _FILE, "exec"), names)
            exec(compile(tree, _FILE, "exec"), names)
            return Run(code, names, eval(compile(last, _FILE, "eval"), names))
    finally:
        torch.set_num_threads(threads)


def text_of(value: Any) -> str:
    """An answer as it is shown: words as they are, a tensor as the list of its elements, a number with at
    most four digits behind the point."""
    if isinstance(value, str):
        return value
    if isinstance(value, torch.Tensor):
        value = value.tolist()
    return repr(_rounded(value))


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    if isinstance(value, tuple):
        return tuple(_rounded(one) for one in value)
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return value
