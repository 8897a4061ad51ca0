"""Placement: which question tells most, and what the answers say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from course_utils.practice.answers import Answer
from course_utils.practice.readers import HELD, Reader
from course_utils.questions.family import Family
from course_utils.questions.question import LEAST_CHOICES, MOST_CHOICES

MOST, MOST_OF_A_FAMILY, LEVEL = 15, 3, 2  # questions, and of which level
SURE = 0.8  # from which probability on something is said of a lesson
NAMED = 0.2  # and a belief named, with the answers that are exactly what it gives
TELLS_NOTHING = 0.05  # bits

KNOWN, REFRESH, START, LATER, NOT_SURE = "known", "refresh", "start here", "later", "not sure"


@dataclass(frozen=True)
class Found:
    """A belief that was found: its family and name, the answer that showed it last, and in how many of how
    many questions that tell it from the truth the answer was exactly what it gives."""

    family: str
    belief: str
    answer: Answer
    shown: int
    of: int


@dataclass(frozen=True)
class Result:
    """What a placement says. By topic: a word, and how likely it is that the lesson is known; which families
    to look at again where the word is "refresh"; the beliefs that were found."""

    words: dict[str, str]
    known: dict[str, float]
    again: dict[str, list[str]]
    found: list[Found]


class Placement:
    """A placement in the course. `needs`: by topic, in the order of the course, what its lesson builds on."""

    def __init__(self, families: Mapping[str, Family], needs: Mapping[str, Sequence[str]]) -> None:
        self.families = {name: one for name, one in families.items() if one.topic in needs}
        topics = {one.topic for one in self.families.values()}
        self.needs = {topic: tuple(some) for topic, some in needs.items() if topic in topics}
        self.answers: list[Answer] = []
        self.left_out: set[str] = set()
        names = {name: [belief.name for belief in one.beliefs] for name, one in self.families.items()}
        self._reader = Reader(self.needs, names)

    def hear(self, answers: Iterable[Answer]) -> None:
        """Takes answers in."""
        for answer in answers:
            if answer.family in self.families:
                self._reader.hear(answer)
                self.answers.append(answer)

    def after(self, answer: Answer) -> Placement:
        """The placement as it would be after one more answer; this one stays as it is."""
        other = Placement(self.families, self.needs)
        other.left_out = self.left_out
        other.hear([*self.answers, answer])
        return other

    def next(self) -> tuple[str, str | None] | None:
        """The family to ask of, and the belief to ask about where one is suspected; None where enough is
        known."""
        if len(self.answers) >= MOST:
            return None
        asked = Counter(answer.family for answer in self.answers)
        left = [n for n in self.families if n not in self.left_out and asked[n] < MOST_OF_A_FAMILY]
        if self.answers and len(left) > 1:  # what was told just now is no knowledge yet
            left = [name for name in left if name != self.answers[-1].family]
        worth = {name: self._worth(name) for name in left}
        best = max(worth, key=worth.get, default=None)
        if best is None or worth[best] < TELLS_NOTHING:
            return None
        return best, self._suspected(best)

    def _worth(self, name: str) -> float:
        """Of a question that tells as many beliefs apart as fit."""
        family = self.families[name]
        choices = min(max(1 + len(family.beliefs), LEAST_CHOICES), MOST_CHOICES)
        separated = {belief.name: 1 + i % (choices - 1) for i, belief in enumerate(family.beliefs)}
        return self._reader.worth(Answer(name, choices, 0, separated))

    def _suspected(self, name: str) -> str | None:
        held = self._reader.held(name)
        likeliest = max(held, key=held.get, default=None)
        return likeliest if likeliest and held[likeliest] > 2 * HELD else None

    def result(self) -> Result:
        """What the answers say by now."""
        known, found = self._reader.known(), self._found()
        again: dict[str, list[str]] = {}
        for answer in self.answers:
            family = self.families[answer.family]
            if not answer.is_right and known[family.topic] >= SURE:
                again.setdefault(family.topic, [])
                if answer.family not in again[family.topic]:
                    again[family.topic].append(answer.family)
        words = dict.fromkeys(self.needs, NOT_SURE)
        for topic, some in self.needs.items() if self.answers else ():
            ready = all(words.get(one, KNOWN) in (KNOWN, REFRESH) for one in some)
            if known[topic] >= SURE:
                words[topic] = REFRESH if topic in again else KNOWN
            elif known[topic] <= 1 - SURE:
                words[topic] = START if ready and START not in words.values() else LATER
        return Result(words, known, again, found)

    def _found(self) -> list[Found]:
        found = []
        for name in dict.fromkeys(answer.family for answer in self.answers):
            for belief, likely in self._reader.held(name).items():
                told = [one for one in self.answers if one.family == name and belief in one.separated]
                shown = [one for one in told if one.chosen == one.separated[belief]]
                if likely >= NAMED and shown:
                    found.append(Found(name, belief, shown[-1], len(shown), len(told)))
        return found
