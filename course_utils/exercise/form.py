"""What an exercise is made of: a starter, checks, hints; and the mistakes that its solution lists.

A file in `exercises/` makes one `Exercise` and hangs a starter and checks on it with the decorators below.
Nothing here knows how a check is run.
"""

import inspect
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from course_utils.words import full_name

# Seconds. A plain check runs in the reader's kernel, an isolated one in a warm process of its own,
# where a first compilation may take a while.
PLAIN_DEADLINE = 10.0
ISOLATED_DEADLINE = 30.0

FIXTURES = ("device", "tmp_path", "rank", "world_size")
EXAMPLE = "t"
NEEDS = ("cuda", "mps", "compiler", "cmake", "onnxruntime", "safetensors", "triton")


@dataclass(frozen=True)
class Case:
    """One call of a check: the code that is set up as `t`, and values, by the name of the parameter.
    `label`: what a report calls it; none where it is the only one. `known`: whether `t` knows the values."""

    label: str = ""
    setup: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    known: bool = True


@dataclass(frozen=True)
class Check:
    """One check of an exercise.

    `why` is the rule of torch's that it is about, told where it is the first to fail. `wants` are the names
    of the parameters after the answer; `ranks` is the number of processes the check runs in (0: it is not a
    check on ranks); `deadline` is in seconds, for all `cases` together. `answer_name`: what the answer is
    called in an example.
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
    answer_name: str = ""
    cases: tuple[Case, ...] = field(default=(Case(),), compare=False)


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
    """One exercise. `core`: on the shortest way through its lesson. `copies`: where each reader starts from a
    copy of their own, the source of the copy with a number, in which a line says `copy = ` and the number.
    The fields after it are filled in when its file is loaded."""

    minutes: int
    hints: list[str]
    core: bool = False
    copies: Callable[[int], str] | None = None
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

    @property
    def full_name(self) -> str:
        return full_name(self.title, self.answer_name)

    def started_from(self, source: str) -> str:
        """The starter that this source of an answer was made from: of the copy that it says it is."""
        copy = re.search(r"^\s+copy = (\d+)", source, re.MULTILINE)
        return self.copies(int(copy[1])) if self.copies and copy else self.starter_source

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
        given: str | Callable[..., str] = "",
        cases: Mapping[str, Any] | Iterable[Any] = ((),),
    ) -> Callable[..., Any]:
        """Decorator: a check. The first line of its docstring is what the reader sees in the list; the rest
        is the why.

        The first parameter is the answer, or `t`; the others are asked for by name (`FIXTURES`, `t`, and what
        `cases` hold: see `cases_of`). `given`: code that is set up as `t`, before that of each case, or
        what makes the code of a case out of all its parts, such as `TEMPLATE.format`. `deadline`: seconds.
        Raises `TypeError` for a check without a docstring, with a parameter of an unknown name, or whose
        cases do not hold what it asks for, and `ValueError` for a need that no machine can have.
        """
        if function is None:
            options = {"needs": needs, "deadline": deadline, "given": given, "cases": cases}
            return lambda f: self.check(f, isolated=isolated, ranks=ranks, **options)
        name, needs = function.__name__, (needs,) if isinstance(needs, str) else tuple(needs)
        if unknown_needs := set(needs) - set(NEEDS):
            raise ValueError(f"check {name}: no such need: {', '.join(sorted(unknown_needs))}")
        told = inspect.getdoc(function)
        if not told:
            raise TypeError(f"check {name} needs a docstring: it is what the reader sees")
        parameters = parameters_of(function)
        wants = parameters[parameters[0] != EXAMPLE :]
        own = [one for one in wants if one not in (*FIXTURES, EXAMPLE)]
        allowed = (*(FIXTURES if ranks else FIXTURES[:2]), EXAMPLE)
        if unknown := [one for one in wants if one not in allowed and (one in FIXTURES or cases == ((),))]:
            raise TypeError(f"check {name} asks for {unknown[0]!r}; it may ask for {', '.join(allowed)}")
        if given and EXAMPLE not in wants:
            raise TypeError(f"check {name} is given an example, and does not ask for `{EXAMPLE}`")
        answer_name = self.answer_name if EXAMPLE in wants else ""
        try:
            found = cases_of(cases, own, given, sets_up=EXAMPLE in wants)
        except TypeError as error:
            raise TypeError(f"check {name}: {error}") from error
        if deadline is None:
            deadline = ISOLATED_DEADLINE if isolated or ranks else PLAIN_DEADLINE
        title, _, why = told.partition("\n")
        how = (needs, isolated, ranks, deadline, why.strip(), answer_name, found)
        self.checks.append(Check(name, title, function, wants, *how))
        return function


def parameters_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """The names of its parameters, in order."""
    code = function.__code__
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def cases_of(
    cases: Mapping[str, Any] | Iterable[Any],
    own: list[str],
    given: str | Callable[..., str] = "",
    sets_up: bool = False,
) -> tuple[Case, ...]:
    """The cases of a check, from labels and what each holds, or a list of what each holds: a tuple of parts,
    or one part.

    The last parts are the values of the parameters `own`. Where the check `sets_up` a `t`, its code is that
    of `given` and then the parts before the values, which are known in it by name; or it is what the function
    `given` makes of all parts. A case without a label is called by its first part where that is code, else
    by its values. Raises `TypeError` where a case has too few parts, or too many, and where two are called
    the same.
    """
    found = []
    labelled = cases.items() if isinstance(cases, Mapping) else (("", held) for held in cases)
    for label, held in labelled:
        parts = held if isinstance(held, tuple) and (sets_up or len(own) != 1) else (held,)
        at = len(parts) - len(own)
        if at < 0 or (at > 0 and not sets_up):
            raise TypeError(f"a case has {len(parts)} parts, for the parameters {', '.join(own) or 'none'}")
        values = dict(zip(own, parts[at:], strict=True))
        setup = given(*parts) if callable(given) else lines_of(given, *parts[:at])
        found.append(Case(label or _label(parts, values), setup, values, not callable(given)))
    if not found:
        raise TypeError("there is no case")
    for label, count in Counter(case.label for case in found).items():
        if count > 1:
            raise TypeError(f"{count} cases are called {label or 'nothing'}: give them labels, by a dict")
    return tuple(found)


def lines_of(*codes: str) -> str:
    """Pieces of code, each indented as it likes, as the lines of one."""
    return "\n".join(code for one in codes if (code := textwrap.dedent(one).strip()))


def _label(parts: tuple[Any, ...], values: dict[str, Any]) -> str:
    if parts and isinstance(parts[0], str):
        return f"`{'; '.join(lines_of(parts[0]).splitlines())}`"
    return f"`{', '.join(f'{name}={value}' for name, value in values.items())}`" if values else ""


def snake_case(name: str) -> str:
    """The file name of an answer: `GatedLinearUnit` -> `gated_linear_unit`, `MiniDDP` -> `mini_ddp`."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return parted.lower()
