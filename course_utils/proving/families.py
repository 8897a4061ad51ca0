"""Does a family of questions do what it should? Its figures, over many questions of each level."""

from __future__ import annotations

import random
import re
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from course_utils.lessons.catalog import Course
from course_utils.questions import families
from course_utils.questions.family import LEVELS, RAISES, Family, run, text_of
from course_utils.questions.question import LEAST_CHOICES, Question, make

QUESTIONS = 500  # programs of each level
MADE, SLOW_MADE = 60, 20  # so many of them are asked
ENOUGH = 20  # questions, to ask for a share of them
DIFFERENT = {level: 0.4 if level == 1 else 0.8 for level in LEVELS}  # the share of programs that differ
COMMONEST, WRONG, APART = 0.6, 0.15, 0.6


@dataclass(frozen=True)
class Figures:
    """Of one level: the share of programs that differ, of the commonest truth, of questions to which each
    belief is wrong, and of those that tell two beliefs apart; the mean length of a program in characters,
    and how large a share of the beliefs gives the truth."""

    different: float
    commonest: float
    wrong: dict[str, float]
    apart: float
    length: float
    survive: float


def programs(family: Family, level: int, many: int) -> list[str]:
    """The programs of the questions from seed 0 on; none is run."""
    return [family.generate(random.Random(f"{family.name} {level} {seed}"), level) for seed in range(many)]


def figures(family: Family, level: int, many: int, questions: list[Question]) -> Figures:
    """Of `many` programs, and of some questions that were made."""
    written = programs(family, level, many)
    truths = Counter(one.choices[one.right].text for one in questions)
    names = [belief.name for belief in family.beliefs]
    wrong = {name: statistics.mean(name in one.mistaken for one in questions) for name in names}
    apart = statistics.mean(len(set(one.separated.values())) >= 2 for one in questions)
    return Figures(
        len(set(written)) / many,
        truths.most_common(1)[0][1] / len(questions),
        wrong,
        apart,
        statistics.mean(map(len, written)),
        1 - statistics.mean(wrong.values()),
    )


def faults(course: Course, name: str, made: int | None = None) -> Iterator[str]:
    """What is wrong with a family, a sentence each. `made`: of how many programs of each level a question is
    made; of fewer than `ENOUGH` no share is asked."""
    family = families.load_one(name, course.root)
    made = made or (SLOW_MADE if family.slow else MADE)
    text = course.lesson(family.topic).source.read_text(encoding="utf-8")
    if not re.search(rf"^#+ +{re.escape(family.section)} *$", text, re.MULTILINE):
        yield f"its lesson has no section {family.section!r}"
    for belief in family.beliefs:
        if not (belief.claim and belief.why and belief.cell):
            yield f"{belief.name}: the docstring is a claim, why it isn't so, and a program that shows it"
        else:
            text_of(run(belief.cell).value)
    found = {}
    for level in LEVELS:
        questions = [make(family, level, seed) for seed in range(made)]
        found[level] = here = figures(family, level, QUESTIONS, questions)
        yield from (f"level {level}: {told}" for told in _of_level(here, level, questions))
    lengths = [one.length for one in found.values()]
    if lengths != sorted(lengths) or lengths[0] == lengths[-1]:
        yield f"programs don't become longer with the level: {', '.join(f'{one:.0f}' for one in lengths)}"
    if made >= ENOUGH:
        yield from _of_all(found, made)


def _of_all(found: dict[int, Figures], made: int) -> Iterator[str]:
    for name in found[1].wrong:
        if max(one.wrong[name] for one in found.values()) < WRONG:
            yield f"{name} is wrong in fewer than {WRONG:.0%} of the questions of every level"
    if statistics.mean(one.apart for one in found.values()) < APART:
        yield f"fewer than {APART:.0%} of the questions tell two beliefs apart"
    if made >= MADE and found[5].survive >= found[1].survive:
        rates = ", ".join(f"{one.survive:.2f}" for one in found.values())
        yield f"beliefs survive as often at level 5 as at level 1: {rates}"


def _of_level(here: Figures, level: int, questions: list[Question]) -> Iterator[str]:
    if here.different < DIFFERENT[level]:
        yield f"{here.different:.0%} of the programs differ, wanted {DIFFERENT[level]:.0%}"
    by_chance = 0.5 / len(questions) ** 0.5  # how far the share of so few may be from that of all
    if here.commonest > COMMONEST + by_chance and len(questions) >= ENOUGH:
        yield f"one answer is the right one in {here.commonest:.0%}, allowed {COMMONEST:.0%}"
    for one in questions:
        if len({choice.text for choice in one.choices}) < max(LEAST_CHOICES, len(one.choices)):
            yield f"seed {one.seed}: {len(one.choices)} choices, of which some are alike or too few"
        if one.choices[one.right].text == RAISES and one.said == RAISES:
            yield f"seed {one.seed}: the error has no message"


def report(course: Course, name: str) -> bool:
    """Proves a family, and prints what is wrong with it; returns whether it holds."""
    started, found = time.perf_counter(), [*faults(course, name)]
    for fault in found:
        print(f"  {fault}", flush=True)
    family = families.load_one(name, course.root)
    says = f"{len(found)} fault{'s' * (len(found) > 1)}" if found else "holds"
    asked = SLOW_MADE if family.slow else MADE
    much = f"{QUESTIONS} programs of each level, {asked} asked, {time.perf_counter() - started:.1f} s"
    print(f"{'✗' if found else '✓'} {family.title} (`{name}`): {says} ({much})", flush=True)
    return not found
