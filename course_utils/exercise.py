"""An exercise: what the reader starts from, how an answer is checked, what goes wrong.

A file in `exercises/` makes one `Exercise` and hangs a starter, checks and mistakes on it with the
decorators below. Nothing here knows how a check is run; that is the grader's business.
"""

from __future__ import annotations

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
NEEDS = ("cuda", "mps", "compiler", "cmake")


@dataclass(frozen=True)
class Check:
    """One check of an exercise.

    `wants` are the names of the parameters after the answer; `ranks` is the number of processes the
    check runs in (0: it is not a check on ranks); `deadline` is in seconds.
    """

    name: str
    title: str
    function: Callable[..., None]
    wants: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    isolated: bool = False
    ranks: int = 0
    deadline: float = PLAIN_DEADLINE


@dataclass
class Mistake:
    """A wrong answer that people really give, with what to tell them.

    `answer` is the wrong answer itself (a function or a class), `variants` are the same
    misunderstanding written in other ways. `forms` are wrong answers from the same misunderstanding that
    do something else in some cases (one guards against empty tensors, say): an answer that behaves like
    one of them is told the same.
    """

    name: str
    diagnosis: str
    answer: Any
    variants: list[Any] = field(default_factory=list)
    forms: list[Any] = field(default_factory=list)

    def variant(self, answer: Any) -> Any:
        """Decorator: the same mistake, written independently, with the same behaviour."""
        self.variants.append(answer)
        return answer

    def form(self, answer: Any) -> Any:
        """Decorator: a wrong answer of which the diagnosis is as true, though it behaves in another way."""
        self.forms.append(answer)
        return answer

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # A mistake that calls itself finds this object under its own name.
        return self.answer(*args, **kwargs)


@dataclass
class Exercise:
    """One exercise. The fields after `hints` are filled in when its file is loaded."""

    minutes: int
    hints: list[str]
    name: str = ""
    topic: str = ""
    path: Path = Path()
    title: str = ""
    task: str = ""
    starter_object: Any = None
    starter_source: str = ""
    checks: list[Check] = field(default_factory=list)
    mistakes: list[Mistake] = field(default_factory=list)

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
        """Decorator: a check. Its docstring is the line that the reader sees.

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
        title = told.splitlines()[0]
        self.checks.append(Check(function.__name__, title, function, wants, needs, isolated, ranks, deadline))
        return function

    def mistake(self, answer: Any) -> Mistake:
        """Decorator: a wrong answer. Its docstring is the diagnosis that the reader gets."""
        # `__doc__`, not `getdoc`: a class would otherwise inherit the text of its base.
        if not answer.__doc__:
            raise TypeError(f"mistake {answer.__name__} needs a docstring: it is the diagnosis")
        found = Mistake(answer.__name__, inspect.cleandoc(answer.__doc__), answer)
        self.mistakes.append(found)
        return found


def snake_case(name: str) -> str:
    """The file name of an answer: `GatedLinearUnit` -> `gated_linear_unit`, `MiniDDP` -> `mini_ddp`."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return parted.lower()
