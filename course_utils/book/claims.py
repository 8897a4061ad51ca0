"""The page of the claims: what lessons mark as "Heard elsewhere", with a verdict and the cell that shows it.

Verdicts stand in `notebooks/book/claims.md`, below the words of the claim: a word or two, a full stop, a
sentence; and where neither rule finds the cell (see `_shown_by`), its id in backticks.
"""

import re
from dataclasses import dataclass
from typing import Any

from course_utils.book import addresses
from course_utils.book.pages import fold
from course_utils.book.stored import (
    Place,
    entries,
    is_recording,
    mark,
    path_of,
    places,
    printed,
    tools,
    with_outputs,
)
from course_utils.lessons.catalog import Course, CourseError

VERDICTS = ("False", "Half true", "It depends", "Out of date")
_HEARD = re.compile(r'> \*\*Heard elsewhere: "(.+?)"\*\*[ \t]*(.*)')
_JUDGED = re.compile(rf"({'|'.join(VERDICTS)})\. (.+?)(?: `([0-9a-f]{{12}}(?:-\d+)?)`)?")
_ABOUT = """\
What people say about PyTorch, as the lessons put it to the test: a verdict, a sentence, and the cell that \
shows it. Each claim has an address of its own, to be sent to whoever says so."""


@dataclass(frozen=True)
class Heard:
    """A claim as people say it, where it stands, what is said of it, and the cells that show it: one, or one
    and its recording on a GPU."""

    words: str
    place: Place
    verdict: str
    sentence: str
    cells: tuple[dict[str, Any], ...]


def heard(course: Course) -> list[Heard]:
    """All claims in the order of the lessons. Raises `CourseError` where one has no verdict, or a verdict no
    claim."""
    judged, found = entries(course, "claims"), []
    for lesson in course.lessons:
        whole = list(places(lesson))
        for at, place in enumerate(whole):
            if not (said := _HEARD.match(place.line)):
                continue
            words = said[1].removesuffix(".")
            entry = _JUDGED.fullmatch(judged.pop(words, ""))
            if entry is None:
                raise CourseError(
                    f'{path_of(course, "claims")}: of "{words}" in {lesson.slug} it has to say one of '
                    f"{', '.join(VERDICTS)}, a full stop and a sentence"
                )
            found.append(Heard(words, place, entry[1], entry[2], _shown_by(whole, at, said[2], entry[3])))
    if judged:
        raise CourseError(f"{path_of(course, 'claims')}: no lesson has heard {', '.join(judged)}")
    return found


def _shown_by(lesson: list[Place], at: int, answer: str, cell_id: str | None) -> tuple[dict[str, Any], ...]:
    """The next cell below a claim that showed something. Or, where the lesson answers at once and no colon
    announces a cell, the last one above."""
    cells = [(i, one.cell) for i, one in enumerate(lesson) if one.cell and one.cell["cell_type"] == "code"]
    if cell_id:
        found = (i for i, cell in cells if cell["id"] == cell_id)
    elif answer and not answer.endswith(":"):
        found = (i for i, cell in reversed(cells) if i < at and printed(cell).strip())
    else:
        found = (i for i, cell in cells if i > at and printed(cell).strip())
    for i in found:
        return tuple(
            one.cell for one in lesson[i : i + 2] if one.cell and (one is lesson[i] or is_recording(one.cell))
        )
    raise CourseError(f"{lesson[at].lesson.slug}: no cell {cell_id or ''} shows {lesson[at].line}")


def page(course: Course) -> str:
    """The page as Markdown."""
    parts = ["# The claims", _ABOUT, tools({"lesson": "lesson", "verdict": "verdict"})]
    for claim in heard(course):
        lesson = claim.place.lesson
        where = addresses.link(lesson, claim.place.heading)
        verdict = mark(lesson, f"<strong>{claim.verdict}.</strong>", verdict=claim.verdict)
        code, *recorded = claim.cells
        shown = [with_outputs(code, f"What the lesson says of “{claim.words}”"), *map(printed, recorded)]
        parts += [
            f"## “{claim.words}”",
            f"{verdict} {claim.sentence} → {where}",
            fold("The cell and what it showed", "\n\n".join(shown)),
        ]
    return "\n\n".join(parts) + "\n"
