"""What an exercise is made of: a starter, checks, hints; and the mistakes that its solution lists.

A file in `exercises/` makes one `Exercise` and hangs a starter and checks on it with the decorators below.
Nothing here knows how a check is run.
"""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Seconds. A plain check runs in the reader's kernel, an isolated one in a warm process of its own,
# where a first compilation may take a while.
PLAIN_DEADLINE = 10.0
ISOLATED_DEADLINE = 30.0

FIXTURES = ("device", "tmp_path", "rank", "world_size")
NEEDS = ("cuda", "mps", "compiler", "cmake", "onnxruntime", "safetensors")


@dataclass(frozen=True)
class Check:
    """One check of an exercise.

    `why` is the rule of torch's that it is about, told where it is the first to fail. `wants` are the names
    of the parameters after the answer; `ranks` is the number of processes the check runs in (0: it is not a
    check on ranks); `deadline` is in seconds.
    """

    name: str
    title: str
    function: Callable[..., None]
    wants: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    isolated: bool = False
    ranks: int = 0
    deadline: float = PLAIN_DEADLINE
    why: str = ""


@dataclass(frozen=True)
class Edit:
    """A mistake as a small change of the reference: `old`, which stands there once, becomes `new`.

    `told_by` is the check that is the first to reject it.
    """

    label: str
    old: str
    new: str
    told_by: str


@dataclass(frozen=True)
class Wrong:
    """A mistake as a whole answer, where no edit will do."""

    answer: Any
    told_by: str

    @property
    def label(self) -> str:
        return self.answer.__name__


Mistake = Edit | Wrong


@dataclass
class Exercise:
    """One exercise. `core`: on the shortest way through its lesson. The fields after it are filled in when
    its file is loaded."""

    minutes: int
    hints: list[str]
    core: bool = False
    name: str = ""
    topic: str = ""
    path: Path = Path()
    title: str = ""
    task: str = ""
    starter_object: Any = None
    starter_source: str = ""
    checks: list[Check] = field(default_factory=list)

    @property
    def answer_name(self) -> str:
        """The name of the function or class that the reader writes."""
        return self.starter_object.__name__

    def starter(self, answer: Any) -> Any:
        """Decorator: the code that the reader starts from."""
        if self.starter_object is not None:
            raise TypeError(f"{self.answer_name} is the starter already; an exercise has one")
        self.starter_object = answer
        return answer

    def check(
        self,
        function: Callable[..., None] | None = None,
        *,
        isolated: bool = False,
        ranks: int = 0,
        needs: str | tuple[str, ...] = (),
        deadline: float | None = None,
    ) -> Callable[..., Any]:
        """Decorator: a check. The first line of its docstring is what the reader sees in the list; the rest
        is the why.

        The first parameter is the answer; the others are asked for by name (`FIXTURES`).
        Raises `TypeError` for a check without a docstring or with a parameter of an unknown name,
        and `ValueError` for a need that no machine can have.
        """
        if function is None:
            return lambda f: self.check(f, isolated=isolated, ranks=ranks, needs=needs, deadline=deadline)
        needs = (needs,) if isinstance(needs, str) else tuple(needs)
        unknown_needs = set(needs) - set(NEEDS)
        if unknown_needs:
            raise ValueError(f"check {function.__name__}: no such need: {', '.join(sorted(unknown_needs))}")
        told = inspect.getdoc(function)
        if not told:
            raise TypeError(f"check {function.__name__} needs a docstring: it is what the reader sees")
        code = function.__code__
        wants = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
        allowed = FIXTURES if ranks else FIXTURES[:2]
        if unknown := [name for name in wants if name not in allowed]:
            may = ", ".join(allowed)
            raise TypeError(f"check {function.__name__} asks for {unknown[0]!r}; it may ask for {may}")
        if deadline is None:
            deadline = ISOLATED_DEADLINE if isolated or ranks else PLAIN_DEADLINE
        title, _, why = told.partition("\n")
        self.checks.append(
            Check(function.__name__, title, function, wants, needs, isolated, ranks, deadline, why.strip())
        )
        return function


def snake_case(name: str) -> str:
    """The file name of an answer: `GatedLinearUnit` -> `gated_linear_unit`, `MiniDDP` -> `mini_ddp`."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return parted.lower()
