"""A sitting: questions one after another, with what is told after each answer. What is said is the business
of `told`; how it is asked, that of `card` and `terminal`."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass

from course_utils.lessons.catalog import Course, CourseError, anchor
from course_utils.practice import answers, cards
from course_utils.practice.answers import PLACEMENT, PRACTICE
from course_utils.practice.placement import LEVEL, MOST, Placement
from course_utils.questions import families
from course_utils.questions.family import Belief
from course_utils.questions.maker import Maker, NoQuestion
from course_utils.questions.question import Question
from course_utils.reader.record import Record

A_SITTING = 10  # questions of practice
SEEDS = 1_000_000  # those below are for proofs

Wanted = tuple[str, int, int, str | None]  # family, level, seed, a belief to tell: what `Maker.get` takes


@dataclass(frozen=True)
class Told:
    """What is told after an answer. `chosen` as in `Answer`; `beliefs`: those that give exactly the answer,
    each with what its program shows; of "I don't know", those that give a choice. `section` and `link`: where
    in the course this is explained."""

    question: Question
    chosen: int | None
    beliefs: tuple[tuple[Belief, str], ...]
    section: str
    link: str

    @property
    def is_right(self) -> bool:
        return self.chosen == self.question.right


class Sitting:
    """Questions, one after another. `question` is the one that is asked now, None before `ask` and at the
    end; `told` is what was told of the last answer; `trouble`, why a question didn't come."""

    occasion, most = "", 0

    def __init__(self, course: Course, record: Record, maker: Maker) -> None:
        self.course, self.record, self.maker = course, record, maker
        self.families = families.load(course.root)
        self.kept = [one for one in answers.kept(record) if one.occasion == self.occasion]
        self.number = 1 + max((one.sitting for one in self.kept), default=0)
        self.asked = 0  # answers in this sitting
        self.question: Question | None = None
        self.told: Told | None = None
        self.trouble = ""

    def ask(self) -> None:
        """Asks the next question: `question` is it, or None where there is none. While the reader thinks,
        what may come next is made."""
        self.question, self.trouble = None, ""
        while self.question is None and (wanted := self._next()):
            try:
                self.question = self.maker.get(*wanted)
            except NoQuestion as error:
                self.trouble = str(error)
                self._leave_out(wanted[0])
        if self.question:
            for wanted in self._after():
                self.maker.prepare(*wanted)

    def answer(self, chosen: int | None) -> None:
        """Answers the question that is asked: by the number of a choice from 0 on; None: "I don't know"."""
        question, self.question = self.question, None
        self.told = self._told(question, chosen)
        answer = self._of(question, chosen)
        answers.keep(self.record, answer)
        self.asked += 1
        self._hear(answer)

    def _of(self, question: Question, chosen: int | None) -> answers.Answer:
        return answers.of(question, chosen, self.occasion, self.number)

    def _told(self, question: Question, chosen: int | None) -> Told:
        family = self.families[question.family]
        names = question.separated if chosen is None else question.choices[chosen].beliefs
        held = [belief for belief in family.beliefs if belief.name in names]
        shown = ["" if chosen is None else self.maker.shown(family.name, one.name) for one in held]
        beliefs = tuple(zip(held, shown, strict=True))
        lesson = self.course.lesson(family.topic)
        link = f"{lesson.notebook.name}#{anchor(family.section)}"
        return Told(question, chosen, beliefs, f"{lesson.number:02d} {family.section}", link)

    # What makes a kind of sitting: `_next`, which question comes now; `_after`, which may come after it;
    # `_hear`, what an answer changes; `_leave_out`, a family whose questions can't be made.


class PlacementSitting(Sitting):
    """Where a reader begins. An earlier one that was stopped goes on, unless `anew`."""

    occasion, most = PLACEMENT, MOST

    def __init__(self, course: Course, record: Record, maker: Maker, anew: bool = False) -> None:
        super().__init__(course, record, maker)
        if not self.families:
            raise CourseError(f"There are no questions to ask: {course.root} has no folder `practice`.")
        self.placement = Placement(self.families, {one.topic: one.needs for one in course.lessons})
        if self.number > 1 and not anew:
            self.number -= 1
            self.placement.hear(one for one in self.kept if one.sitting == self.number)
            self.asked = len(self.placement.answers)
        self._seeds: dict[tuple[int, str], int] = {}

    def _next(self) -> Wanted | None:
        return self._wanted(self.placement)

    def _wanted(self, placement: Placement) -> Wanted | None:
        if (found := placement.next()) is None:
            return None
        seed = self._seeds.setdefault((len(placement.answers), found[0]), _seed())
        return found[0], LEVEL, seed, found[1]

    def _after(self) -> Iterator[Wanted]:
        for chosen in (self.question.right, *range(len(self.question.choices)), None):
            if wanted := self._wanted(self.placement.after(self._of(self.question, chosen))):
                yield wanted

    def _hear(self, answer: answers.Answer) -> None:
        self.placement.hear([answer])

    def _leave_out(self, family: str) -> None:
        self.placement.left_out.add(family)


class PracticeSitting(Sitting):
    """What is due, ten questions at most."""

    occasion = PRACTICE

    def __init__(self, course: Course, record: Record, maker: Maker) -> None:
        super().__init__(course, record, maker)
        self.standings, self.due = cards.of_reader(course, record)
        self.most = min(A_SITTING, len(self.due))
        self._left = {name: _seed() for name in self.due[: self.most]}

    def _wanted(self, name: str) -> Wanted:
        return name, self.standings[name].level, self._left[name], None

    def _next(self) -> Wanted | None:
        return next(map(self._wanted, self._left), None)

    def _after(self) -> Iterator[Wanted]:
        yield from map(self._wanted, [*self._left][1:2])

    def _hear(self, answer: answers.Answer) -> None:
        self.standings[answer.family] = self.standings[answer.family].after(answer.is_right, answer.when)
        self._leave_out(answer.family)

    def _leave_out(self, family: str) -> None:
        del self._left[family]


def _seed() -> int:
    """Of a question that nobody has seen."""
    return secrets.randbelow(SEEDS) + SEEDS
