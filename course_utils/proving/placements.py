"""Does a placement find what a reader knows? Simulated readers answer real questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from course_utils.lessons.catalog import Course
from course_utils.practice import answers
from course_utils.practice.placement import LEVEL, MOST, NOT_SURE, Placement
from course_utils.practice.readers import SLIP, UNSURE, drawn
from course_utils.questions import families
from course_utils.questions.family import Family
from course_utils.questions.maker import pick
from course_utils.questions.question import Question, from_plain

READERS = 300
# What is asked: of lessons, on the right side, and how much less of readers drawn otherwise; of what is said,
# rightly; of beliefs that are asked about, how many are named that are held and that aren't.
SIDES, WORSE, SAID, HELD_NAMED, NAMED_WRONGLY = 0.93, 0.05, 0.95, 0.8, 0.05

Needs = Mapping[str, Sequence[str]]
Pool = dict[str, list[Question]]


@dataclass
class Tally:
    """Of lessons: how many there were, how many were put on the right side, of how many something was said,
    and how often rightly. Of beliefs that were asked about: how many were held and how many of those named,
    how many were not held and how many of those named."""

    lessons: int = 0
    right: int = 0
    said: int = 0
    said_rightly: int = 0
    held: int = 0
    held_named: int = 0
    free: int = 0
    free_named: int = 0
    asked: list[int] = field(default_factory=list)  # questions, of each reader

    @property
    def sides(self) -> float:
        return self.right / self.lessons

    def __str__(self) -> str:
        return (
            f"{self.sides:.1%} on the right side; {self.said / self.lessons:.1%} said, "
            f"{self.said_rightly / self.said:.1%} of that rightly; of {self.held} beliefs held "
            f"{self.held_named / max(self.held, 1):.1%} named, of {self.free} not held "
            f"{self.free_named / max(self.free, 1):.1%}; {np.mean(self.asked):.1f} questions"
        )


def pool(families: Mapping[str, Family], each: int = 4) -> Pool:
    """Questions as a placement asks them, of each family as many as its readers will see."""
    made = {name: [pick(name, LEVEL, 100 * i) for i in range(each)] for name in families}
    return {name: [from_plain(one) for one in some] for name, some in made.items()}


def along_the_map(needs: Needs, many: int, seed: int = 1) -> np.ndarray:
    """What readers know who are drawn as a placement assumes: a row for each."""
    return drawn(needs, many, seed)


def by_ability(needs: Needs, many: int, seed: int = 2) -> np.ndarray:
    """What readers know who have an ability each, and lessons a difficulty, and nothing else (the model of
    Rasch, with a discrimination of 2)."""
    random = np.random.default_rng(seed)
    ability, difficulty = random.normal(0, 1.5, (many, 1)), np.linspace(-1.5, 1.5, len(needs))
    return random.random((many, len(needs))) < 1 / (1 + np.exp(-2 * (ability - difficulty)))


def simulate(
    families: Mapping[str, Family], needs: Needs, questions: Pool, known: np.ndarray, fixed: bool = False
) -> Tally:
    """Readers who know what stands in the rows of `known` and hold one to four beliefs answer; `fixed`: one
    list of questions for all, one a lesson, in place of chosen ones."""
    random, tally = np.random.default_rng(0), Tally()
    for row in known:
        knows = dict(zip(needs, row, strict=True))
        some = random.choice([*families], random.integers(1, 5), replace=False)
        held = {name: random.choice([one.name for one in families[name].beliefs]) for name in some}
        placement = Placement(families, needs)
        _answer_all(placement, questions, knows, held, random, _fixed(families, needs) if fixed else None)
        _count(tally, placement, knows, held)
    return tally


def _fixed(families: Mapping[str, Family], needs: Needs) -> list[str]:
    of = {topic: [name for name, one in families.items() if one.topic == topic] for topic in needs}
    firsts, seconds = ([some[i] for some in of.values() if len(some) > i] for i in (0, 1))
    return [*firsts, *seconds][:MOST]


def _answer_all(placement, questions, knows, held, random, names) -> None:
    seen = dict.fromkeys(questions, 0)
    for i in range(len(names or range(MOST))):
        wanted = (names[i], None) if names else placement.next()
        if wanted is None:
            return
        name, telling = wanted
        left = questions[name][seen[name] :] or questions[name][-1:]
        question = next((one for one in left if telling in one.separated), left[0])
        seen[name] += 1
        chosen = _answered(question, knows, held.get(name), random)
        placement.hear([answers.of(question, chosen, "", 1)])


def _answered(question: Question, knows, held: str | None, random) -> int | None:
    count = len(question.choices)
    wanted = question.separated.get(held)
    if wanted is None and knows[question.family.partition(".")[0]]:
        wanted = question.right
    if wanted is None:
        return None if random.random() < UNSURE else int(random.integers(count))
    if random.random() < SLIP:
        return int(random.choice([i for i in range(count) if i != wanted]))
    return wanted


def _count(tally: Tally, placement: Placement, knows, held) -> None:
    result = placement.result()
    tally.asked.append(len(placement.answers))
    for topic, likely in result.known.items():
        rightly = (likely > 0.5) == knows[topic]
        tally.lessons += 1
        tally.right += rightly
        if result.words[topic] != NOT_SURE:
            tally.said += 1
            tally.said_rightly += rightly
    named = {(one.family, one.belief) for one in result.found}
    asked_about = {(one.family, name) for one in placement.answers for name in one.separated}
    for family, name in asked_about:
        if held.get(family) == name:
            tally.held += 1
            tally.held_named += (family, name) in named
        else:
            tally.free += 1
            tally.free_named += (family, name) in named


def report(course: Course) -> bool:
    """Places simulated readers, drawn as a placement assumes and otherwise, by chosen questions and by a
    fixed list, and prints the figures; returns whether they are what is asked."""
    some = families.load(course.root)
    topics = {one.topic for one in some.values()}
    needs = {one.topic: one.needs for one in course.lessons if one.topic in topics}
    questions, tallies = pool(some), {}
    for words, known in (("along the map", along_the_map), ("by ability", by_ability)):
        for fixed in (False, True):
            row = simulate(some, needs, questions, known(needs, READERS), fixed)
            tallies[words, fixed] = row
            print(f"  {READERS} readers {words}, {'a fixed list' if fixed else 'chosen questions'}: {row}")
    here, there = (tallies[words, False].sides for words in ("along the map", "by ability"))
    one = tallies["along the map", False]
    holds = here >= SIDES and here > tallies["along the map", True].sides and here - there <= WORSE
    holds &= one.said_rightly / one.said >= SAID and one.free_named / one.free <= NAMED_WRONGLY
    holds &= one.held_named / one.held >= HELD_NAMED
    print(f"{'✓' if holds else '✗'} Placement of simulated readers", flush=True)
    return holds
