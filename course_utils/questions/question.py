"""A question of a family: made, with its truth from torch, and as plain data."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from course_utils.questions.family import RAISES, Belief, Family, Run, run, text_of

MOST_CHOICES, LEAST_CHOICES, TRIES = 5, 3, 4  # programs are tried


@dataclass(frozen=True)
class Choice:
    """One answer to choose. `beliefs`: the names of those that give exactly it, none of the truth; a wrong
    one that no single belief gives is made from two beliefs, or is a near miss, made from the truth."""

    text: str
    beliefs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Question:
    """A question as it is asked. `said`: what torch printed, an error with its message; `mistaken`: the
    beliefs that don't give the truth, be their answers among the choices or not."""

    family: str
    level: int
    seed: int
    code: str
    asked: str
    choices: tuple[Choice, ...]
    right: int
    said: str
    mistaken: tuple[str, ...] = ()

    def plain(self) -> dict[str, Any]:
        """As data that travels between processes."""
        return asdict(self)

    @property
    def separated(self) -> dict[str, int]:
        """Which choice somebody takes who holds a belief, by its name; without those that give the truth."""
        return {name: i for i, choice in enumerate(self.choices) for name in choice.beliefs}


def from_plain(data: dict[str, Any]) -> Question:
    """A question that was sent as data."""
    choices = tuple(Choice(one["text"], tuple(one["beliefs"])) for one in data["choices"])
    return Question(**{**data, "choices": choices, "mistaken": tuple(data["mistaken"])})


def make(family: Family, level: int, seed: int) -> Question:
    """Always the same question, where torch is. Of a few programs the first that tells two beliefs apart."""
    draw = random.Random(f"{family.name} {level} {seed}")
    for _ in range(1 if family.slow else TRIES):
        code = family.generate(draw, level).strip("\n")
        ran, said = _outcome(family, code)
        truth = text_of(ran.value)
        answers = _wrong_answers(family, ran, truth)
        if len(answers) > 1:
            break
    texts = found = draw.sample([*answers], min(len(answers), MOST_CHOICES - 1))
    for many in (2, MOST_CHOICES - 2):
        some = {text: answers[text] for text in found[:many]}
        both = next(_both(family, ran, truth, some), None)
        if both and (texts is found or not _leads(truth, [*some, both])):
            texts = [*some, both]
    for text in _near_misses(draw, family, ran.value):
        if len(texts) < LEAST_CHOICES - 1 and text not in (truth, *texts):
            texts.append(text)
    draw.shuffle(texts := [truth, *texts])
    choices = tuple(Choice(text, tuple(one.name for one in answers.get(text, []))) for text in texts)
    mistaken = tuple(one.name for held in answers.values() for one in held)
    return Question(family.name, level, seed, code, family.asked, choices, texts.index(truth), said, mistaken)


def _both(family: Family, ran: Run, truth: str, answers: dict[str, list[Belief]]) -> Iterator[str]:
    """Where answers have several entries, what the mistakes of two wrong ones give together: without it the
    right answer would be the one with the commonest entries."""
    lists = {text: _entries(text) for text in (truth, *answers) if text[0] == truth[0] in "(["}
    for pair in itertools.combinations([*lists][1:], 2):
        a, b = (answers[text][0].answer for text in pair)
        told = [] if family.slow else [_held(a, b, ran), _held(b, a, ran)]
        if all(one in (None, alone) for one, alone in zip(told, pair, strict=False)):
            told = [_mixed(truth, lists, *pair)]
        yield from (text for text in told if text and text not in (truth, *answers))


def _held(first: Any, second: Any, ran: Run) -> str | None:
    """What somebody answers who holds both: what the second says of the program that the first sees here."""

    class Believing(Run):
        def again(self, code: str) -> Any:
            return second(run(code))

    answer = _answered(first, Believing(ran.code, ran.names, ran.value))
    return None if answer is None else text_of(answer)


def _mixed(truth: str, lists: dict[str, list[str]], *pair: str) -> str:
    """The truth with what two answers have that it hasn't. Lists of different lengths say what belongs to
    something; where all are permutations, it is one."""
    right, a, b = (lists[text] for text in (truth, *pair))
    mixed = right
    once = all(len({*one}) == len(one) for one in lists.values())
    if once and truth[0] == "[" and len({*map(len, lists.values())}) > 1:
        order: list[str] = []
        for one in sorted(lists.values(), key=len, reverse=True):
            for i, entry in enumerate(one):
                if entry not in order:
                    order.insert(order.index(one[i - 1]) + 1 if i else 0, entry)
        mixed = [one for one in order if one in (b if (one in a) == (one in right) else a)]
    elif len(right) == len(a) == len(b):
        mixed = [x if x != r else y for x, y, r in zip(a, b, right, strict=True)]
        if once and sorted(right) == sorted(a) == sorted(b) != sorted(mixed):
            mixed = [a[right.index(x)] for x in b]
    return truth[0] + ", ".join(mixed) + truth[-1]


def _entries(text: str) -> list[str]:
    return [one for one in re.split(r", (?![^(\[]*[)\]])", text[1:-1]) if one]


def _leads(truth: str, texts: list[str]) -> bool:
    """Whether the truth is nearest to all others, entry by entry."""
    lists = [_entries(text) for text in (truth, *texts) if text[0] == truth[0]]
    placed = len({*map(len, lists)}) == 1
    entries = [{*enumerate(one)} if placed else {*one} for one in lists]
    first, *others = (sum(len(one ^ other) for other in entries) for one in entries)
    return first < min(others)


def _wrong_answers(family: Family, ran: Run, truth: str) -> dict[str, list[Belief]]:
    """What beliefs give that isn't the truth, each with those that give it."""
    answers: dict[str, list[Belief]] = {}
    for belief in family.beliefs:
        answer = _answered(belief.answer, ran)
        if answer is not None and (text := text_of(answer)) != truth:
            answers.setdefault(text, []).append(belief)
    return answers


def _outcome(family: Family, code: str) -> tuple[Run, str]:
    """The program as it ran, and what was printed."""
    try:
        return (ran := run(code)), text_of(ran.value)
    except Exception as error:
        if not family.may_raise:
            raise
        return Run(code, {}, RAISES), f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"


def _answered(belief: Any, ran: Run) -> Any:
    """What who holds a belief answers; None where it has no answer to this program."""
    try:
        return belief(ran)
    except Exception:  # another program that it looks at raises, or a name isn't there since this one did
        return None


def _near_misses(draw: random.Random, family: Family, value: Any) -> Iterator[str]:
    """Answers that look like the truth and differ from it, the likeliest first. Of a list: with an entry
    changed, in another order, with an entry less."""
    if isinstance(value, str):
        yield from draw.sample([*family.words], len(family.words))
    elif isinstance(value, (list, tuple)):
        values, places = [*value], draw.sample(range(len(value)), len(value))
        changed = [[*values[:i], new, *values[i + 1 :]] for i in places for new in _others(values[i])[:1]]
        changed += [values[::-1], [*values[1:], *values[:1]], values[1:], values[:-1]]
        yield from (text_of(type(value)(one)) for one in changed)
    else:
        yield from map(text_of, _others(value))
    yield from [RAISES] * family.may_raise


def _others(value: Any) -> list[Any]:
    """Values beside this one."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value - 1, value * 2]
    return [value * 2 or 1.0, value / 2 or -1.0] if isinstance(value, float) else []
