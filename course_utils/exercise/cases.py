"""Many cases at once: a `Table` of up to thousands of small ones, or `Rows` of a few labelled examples, which
the cases of a check are.

All run every case, show the simplest that differs (the first, for rows), and say where else it does.
"""

import contextlib
import copy
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch

from course_utils import torch_private
from course_utils.exercise.compare import show
from course_utils.exercise.form import EXAMPLE, Check, parameters_of
from course_utils.exercise.given import SHOWN, Given, situation
from course_utils.exercise.mismatch import CannotCheck, Mismatch, looked
from course_utils.words import with_article

# How a symptom begins that is about all cases of a table.
OF_ALL_CASES = "You are wrong"


@dataclass(frozen=True)
class Trait:
    """Something that holds in some cases. `says`: a clause about such a case; `holds(*arguments, wanted)`;
    `why`: the rule behind it, told where an answer is wrong in such cases alone.
    """

    says: str
    holds: Callable[..., bool]
    why: str


class Table:
    """`cases`: (arguments, what torch says); `name`: the answer's, for the example in a message. The same
    case twice counts once."""

    def __init__(
        self, name: str, cases: Sequence[tuple[tuple[Any, ...], Any]], traits: Sequence[Trait] = ()
    ) -> None:
        self.name, self.traits = name, traits
        self.cases = list({repr(case): case for case in cases}.values())

    def compare(
        self,
        answer: Callable[..., Any],
        judge: Callable[[Any, Any], str],
        *,
        simplest: Callable[[tuple[Any, ...]], Any] = lambda arguments: 0,
        like: Mapping[str, Callable[..., Any]] = {},
    ) -> None:
        """Runs all cases. `judge(came, wanted)`: what is wrong, as a clause about "you", the same for the
        same kind of fault; no text where nothing is. `like`, of numbers: by how that clause goes on, what
        then holds in every wrong case, `holds(came, *arguments, wanted)`.

        What the answer raises counts as a wrong case; where it raises the same in every case that is raised.
        """
        looked()
        wrong: dict[int, tuple[Any, str]] = {}
        for number, (arguments, wanted) in enumerate(self.cases):
            try:
                came = answer(*arguments)
            except Mismatch:
                raise
            except Exception as error:
                came, said = error, f"your function raises {type(error).__name__}"
            else:
                said = _judged(judge, came, wanted)
            if said:
                wrong[number] = came, said
        if not wrong:
            return
        number = min(wrong, key=lambda one: simplest(self.cases[one][0]))
        (arguments, wanted), (came, _) = self.cases[number], wrong[number]
        with situation(f"{self.name}({', '.join(map(repr, arguments))})"):
            if isinstance(came, Exception):
                if len(wrong) == len(self.cases) and len({how for _, how in wrong.values()}) == 1:
                    raise came
                told = f"`{type(came).__name__}: {came}` is raised"
            else:
                told = f"the result is {show(came)}"
            lines = [f"{told}, expected {show(wanted)}"]
            if len(self.cases) > 1:
                lines.append(f"{len(wrong):,} of {len(self.cases):,} cases differ")
            raise Mismatch(*lines, symptom=self._symptom(wrong, like))

    @functools.cached_property
    def _members(self) -> list[tuple[Trait, frozenset[int]]]:
        numbered = list(enumerate(self.cases))
        return [(t, frozenset(i for i, (a, w) in numbered if t.holds(*a, w))) for t in self.traits]

    def _symptom(self, wrong: dict[int, tuple[Any, str]], like: Mapping[str, Callable[..., Any]]) -> str:
        """Where the wrong cases are: inside the smallest trait, or pair of traits, that holds in all."""
        hows = {how for _, how in wrong.values()}
        there = "in all of them" if len(wrong) > 1 else "there"
        how = f"; {there} {hows.pop()}" if len(hows) == 1 else ""
        there = [(came, *self.cases[number]) for number, (came, _) in wrong.items()]
        fits = (text for text, f in like.items() if all(f(came, *a, wanted) for came, a, wanted in there))
        numbers = all(isinstance(came, (int, float)) for came, _, _ in there)
        how += next(fits, "") if how and numbers else ""
        differ = frozenset(wrong)
        best = self._smallest(differ)
        if best is None:
            all_of_them = f"{OF_ALL_CASES} in {len(differ):,} of {len(self.cases):,} cases{how}."
            return all_of_them if how and self.traits else ""
        traits, word, inside = best
        says = word.join(trait.says for trait in traits)
        everywhere = inside == differ
        where = f"wherever {says}, and nowhere else" if everywhere else f"only where {says}"
        cases = f"{'' if everywhere else 'such '}case{'s' if len(inside) > 1 else ''}"
        count = f"{len(differ):,} {cases}" if everywhere else f"{len(differ):,} of {len(inside):,} {cases}"
        return " ".join([f"{OF_ALL_CASES} {where} ({count}){how}.", *(trait.why for trait in traits)])

    def _smallest(self, differ: frozenset[int]) -> tuple[tuple[Trait, ...], str, frozenset[int]] | None:
        pairs = list(itertools.combinations(self._members, 2))
        groups = (
            [((t,), "", inside) for t, inside in self._members],
            [((a, b), " and ", x & y) for (a, x), (b, y) in pairs],
            [((a, b), ", or ", x | y) for (a, x), (b, y) in pairs],
        )
        best = None
        for number, group in enumerate(groups):
            fitting = [one for one in group if differ <= one[2] and len(one[2]) < len(self.cases)]
            found = min(fitting, key=lambda one: len(one[2]), default=None)
            # Two traits are told instead of one only where they leave much less over.
            if found and (best is None or len(found[2]) * 3 < len(best[2])):
                best = found
            if best is not None and number > 0:
                break
        return best


def _judged(judge: Callable[[Any, Any], str], came: Any, wanted: Any) -> str:
    """What the judge says; of what it cannot judge, such as None for a number: what that is."""
    try:
        return judge(came, wanted)
    except Mismatch:
        raise
    except Exception:
        return f"your function returns {'None' if came is None else with_article(type(came).__name__)}"


def _listed(labels: list[str]) -> str:
    more = [f"{len(labels) - 4} more"] if len(labels) > 4 else []
    return ", ".join(labels[:4] + more)


class Rows:
    """A few labelled examples: all are run, the first failure is told, with the labels that fail and those
    that do not.

    with Rows() as rows:
        for label, setup in EXAMPLES.items():
            with rows.of(label):
                t = expect.given(setup, answer=answer)
                expect.equal(t.call("answer(x)"), …)
    """

    def __init__(self) -> None:
        self._labels: set[str] = set()
        self._right: list[str] = []
        self._wrong: list[tuple[str, Exception, Any]] = []  # the last: what was shown then

    @contextlib.contextmanager
    def of(self, label: str) -> Iterator[None]:
        """What is raised inside belongs to this example. Labels are code in backticks, or words. Raises
        `ValueError` for a label that another example has: nobody could tell which of them is wrong."""
        if label in self._labels:
            raise ValueError(f"two examples have the label {label}")
        self._labels.add(label)
        before = SHOWN.get()
        try:
            yield
            self._right.append(label)
        except Exception as error:
            self._wrong.append((label, error, SHOWN.get()))
        SHOWN.set(before)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is not None or not self._wrong:
            return
        # What is wrong is told, and not what could not be checked before it.
        unsure = (CannotCheck, torch_private.Gone)
        known = (one for one in self._wrong if not isinstance(one[1], unsure))
        _, error, example = next(known, self._wrong[0])
        SHOWN.set(example)
        if self._right and isinstance(error, Mismatch):
            wrong, right = _listed([label for label, _, _ in self._wrong]), _listed(self._right)
            error.lines.append(f"wrong for {wrong}; right for {right}")
        raise error


def call(check: Check, answer: Any, fixtures: Mapping[str, Any]) -> None:
    """Calls the check on the answer, once for each of its cases, and raises what the first failure raised.
    `fixtures`: what it asks for beside its cases, by name; they are known in `t` too, and on ranks `dist`."""
    known = {check.answer_name: answer} | ({"dist": torch.distributed} if check.ranks else {})
    first = () if parameters_of(check.function)[0] == EXAMPLE else (answer,)
    with Rows() as rows:
        for case in check.cases:
            with rows.of(case.label):
                wanted = {**fixtures, **copy.deepcopy(case.values)}  # an answer may write to them
                if EXAMPLE in check.wants:
                    wanted[EXAMPLE] = Given(case.setup, {**known, **(wanted if case.known else fixtures)})
                check.function(*first, **wanted)
