"""What is due: one card a family, spaced by FSRS. No card is stored: the answers in the record make them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from fsrs import Card, Rating, Scheduler

from course_utils.lessons.catalog import Course
from course_utils.practice.answers import PRACTICE, Answer, kept
from course_utils.reader.record import Record

EASIEST, HARDEST = 1, 5

# A card is seen again after days, never within a sitting.
_SCHEDULER = Scheduler(desired_retention=0.9, learning_steps=(), relearning_steps=(), enable_fuzzing=False)


@dataclass(frozen=True)
class Standing:
    """Where a reader stands with a family: the `level` of its next question, and its card, None before the
    first answer."""

    family: str
    level: int = EASIEST
    card: Card | None = None

    def retention(self, now: datetime) -> float | None:
        """How likely it is that the next answer is right; None before the first."""
        return None if self.card is None else _SCHEDULER.get_card_retrievability(self.card, now)

    def is_due(self, now: datetime) -> bool:
        return self.card is None or self.card.due <= now

    def after(self, right: bool, at: datetime) -> Standing:
        """After an answer: a right one raises the level, a wrong one resets it."""
        card = self.card or Card(card_id=1, due=at)
        card, _ = _SCHEDULER.review_card(card, Rating.Good if right else Rating.Again, at)
        level = min(self.level + 1, HARDEST) if right else EASIEST
        return replace(self, level=level, card=card)


def standings(families: Iterable[str], answers: Iterable[Answer]) -> dict[str, Standing]:
    """Where a reader stands with each family, after these answers in their order."""
    found = {name: Standing(name) for name in families}
    for answer in answers:
        if answer.family in found:
            found[answer.family] = found[answer.family].after(answer.is_right, answer.when)
    return found


def due(
    standings: Mapping[str, Standing], on_the_list: Sequence[str], now: datetime | None = None
) -> list[str]:
    """The families that are due, those first that are forgotten soonest, and new ones last: of those on the
    list, and of all that were asked before."""
    now = now or datetime.now(UTC)
    asked = [one for one in standings.values() if one.card is not None and one.is_due(now)]
    new = [name for name in on_the_list if standings[name].card is None]
    return [one.family for one in sorted(asked, key=lambda one: one.retention(now))] + new


def next_due(standings: Mapping[str, Standing]) -> datetime:
    """When the next card is due, of families that have one."""
    return min(one.card.due for one in standings.values())


def on_the_list(course: Course, record: Record) -> list[str]:
    """The families of lessons whose core is passed, in the order of the course."""
    passed = {name for name, row in record.summary().items() if row.state == "passed"}
    found = []
    for lesson in course.lessons:
        core = [name for name in lesson.exercise_names if course.card(name).core]
        if core and passed.issuperset(core):
            found += [name for name in course.family_names if name.startswith(f"{lesson.topic}.")]
    return found


def of_reader(course: Course, record: Record) -> tuple[dict[str, Standing], list[str]]:
    """Where a reader stands with each family, by what practice asked, and what is due."""
    found = standings(course.family_names, [one for one in kept(record) if one.occasion == PRACTICE])
    return found, due(found, on_the_list(course, record))
