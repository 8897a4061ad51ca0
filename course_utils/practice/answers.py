"""Answers: what was asked, and what was chosen; kept in the reader's record."""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from course_utils.reader.record import Record

if TYPE_CHECKING:  # that imports torch
    from course_utils.questions.question import Question

PLACEMENT, PRACTICE = "placement", "practice"


@dataclass(frozen=True)
class Answer:
    """An answer to a question of a family: how many choices it had, which was right, and the choice of each
    belief that gives a wrong one. `chosen` is the number of a choice, from 0 on, None for "I don't know";
    `occasion` and `sitting`: at what it was asked, and at which of these; `at`: ISO format, UTC."""

    family: str
    choices: int
    right: int
    separated: dict[str, int]
    chosen: int | None = None
    level: int = 0
    seed: int = 0
    occasion: str = ""
    sitting: int = 0
    at: str = ""

    @property
    def topic(self) -> str:
        return self.family.partition(".")[0]

    @property
    def is_right(self) -> bool:
        return self.chosen == self.right

    @property
    def when(self) -> datetime:
        return datetime.fromisoformat(self.at)


def of(question: Question, chosen: int | None, occasion: str, sitting: int) -> Answer:
    """An answer that is given now."""
    what = question.family, len(question.choices), question.right, question.separated
    now = datetime.now(UTC).isoformat()
    return Answer(*what, chosen, question.level, question.seed, occasion, sitting, now)


def keep(record: Record, answer: Answer) -> None:
    """Writes an answer down."""
    details = asdict(answer)
    record.add_answer(details.pop("family"), answered=details)


def kept(record: Record) -> list[Answer]:
    """All answers, in their order; what has the form of another version is left out."""
    found = []
    for entry in record.answers():
        with contextlib.suppress(TypeError, KeyError):
            found.append(Answer(entry["exercise"], **entry["answered"]))
    return found
