"""A question of a family: made, with its truth from torch, and as plain data."""

from __future__ import annotations

import ast
import itertools
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from course_utils.questions.family import RAISES, Family, Run, run, text_of

MOST_CHOICES, LEAST_CHOICES = 5, 3
TRIES = 4  # programs


@dataclass(frozen=True)
class Choice:
    """One answer to choose. `beliefs`: the names of those that give exactly it, none of the truth; a wrong
    one that no belief gives is a near miss, made from the truth."""

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
        """Which choice somebody takes who holds a belief, by its name; those that give the truth are not in
        it."""
        return {name: i for i, choice in enumerate(self.choices) for name in choice.beliefs}


def from_plain(data: dict[str, Any]) -> Question:
    """A question that was sent as data."""
    choices = tuple(Choice(one["text"], tuple(one["beliefs"])) for one in data["choices"])
    return Question(**{**data, "choices": choices, "mistaken": tuple(data["mistaken"])})


def make(family: Family, level: int, seed: int) -> Question:
    """The question of this family, level and seed: always the same one, where torch is. Of a few programs the
    first is taken that tells two beliefs apart."""
    draw = random.Random(f"{family.name} {level} {seed}")
    for _ in range(1 if family.slow else TRIES):
        code = family.generate(draw, level).strip("\n")
        ran, said = _outcome(family, code)
        truth = text_of(ran.value)
        answers = _wrong_answers(family, ran, truth)
        if len(answers) > 1:
            break
    wrong = [Choice(text, tuple(names)) for text, names in answers.items()]
    both = _both(truth, [one.text for one in wrong])
    if len(wrong) > MOST_CHOICES - 1 - len(both):
        wrong = draw.sample(wrong, MOST_CHOICES - 1 - len(both))
    for text in (*both, *_near_misses(draw, family, ran.value)):
        if len(wrong) >= LEAST_CHOICES - 1 + len(both):
            break
        if text != truth and text not in {one.text for one in wrong}:
            wrong.append(Choice(text))
    choices = [Choice(truth), *wrong]
    draw.shuffle(choices)
    right = next(i for i, one in enumerate(choices) if one.text == truth)
    mistaken = tuple(name for names in answers.values() for name in names)
    return Question(family.name, level, seed, code, family.asked, tuple(choices), right, said, mistaken)


def _both(truth: str, wrong: list[str]) -> list[str]:
    """Where answers have several entries, the one that makes the mistakes of two wrong ones: without it the
    right answer would be the one with the commonest entry at each place."""
    try:
        right = ast.literal_eval(truth)
        entries = [ast.literal_eval(text) for text in wrong]
    except (ValueError, SyntaxError):  # an answer is a word
        return []
    if not isinstance(right, (list, tuple)):
        return []
    fitting = [one for one in entries if type(one) is type(right) and len(one) == len(right)]
    for a, b in itertools.combinations(fitting, 2):
        changed = [x if x != r else y for x, y, r in zip(a, b, right, strict=True)]
        if (text := text_of(type(right)(changed))) not in (truth, *wrong):
            return [text]
    return []


def _wrong_answers(family: Family, ran: Run, truth: str) -> dict[str, list[str]]:
    """What beliefs give that isn't the truth, each with the names of those that give it."""
    answers: dict[str, list[str]] = {}
    for belief in family.beliefs:
        answer = _answered(belief.answer, ran)
        if answer is not None and (text := text_of(answer)) != truth:
            answers.setdefault(text, []).append(belief.name)
    return answers


def _outcome(family: Family, code: str) -> tuple[Run, str]:
    """The program as it ran, and what was printed."""
    try:
        ran = run(code)
    except Exception as error:
        if not family.may_raise:
            raise
        return Run(code, {}, RAISES), f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
    return ran, text_of(ran.value)


def _answered(belief: Any, ran: Run) -> Any:
    """What who holds a belief answers; None where it has no answer to this program."""
    try:
        return belief(ran)
    except Exception:  # another program that it looks at raises, or a name isn't there since this one did
        return None


def _near_misses(draw: random.Random, family: Family, value: Any) -> Iterator[str]:
    """Answers that look like the truth and differ from it, the likeliest first."""
    if isinstance(value, str):
        yield from draw.sample([*family.words], len(family.words))
    elif isinstance(value, (list, tuple)):
        for changed in _changed(draw, value):
            yield text_of(type(value)(changed))
    elif isinstance(value, dict):
        for key in draw.sample([*value], len(value)):
            for one in _others(value[key]):
                yield text_of({**value, key: one})
    else:
        yield from map(text_of, _others(value))
    if family.may_raise:
        yield RAISES


def _others(value: Any) -> list[Any]:
    """Values beside this one."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value - 1, value * 2]
    return [value * 2 or 1.0, value / 2 or -1.0] if isinstance(value, float) else []


def _changed(draw: random.Random, values: Any) -> Iterator[list[Any]]:
    """The sequence with an entry changed, with two neighbours of one kind swapped, with an entry less."""
    values = [*values]
    places = draw.sample(range(len(values)), len(values))
    for i in places:
        yield from ([*values[:i], other, *values[i + 1 :]] for other in _others(values[i])[:1])
    for i in places:
        if i + 1 < len(values) and type(values[i]) is type(values[i + 1]):
            yield [*values[:i], values[i + 1], values[i], *values[i + 2 :]]
    if len(values) > 1:
        yield [*values[: places[0]], *values[places[0] + 1 :]]
