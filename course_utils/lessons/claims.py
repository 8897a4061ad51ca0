"""The general claims of a lesson, each with the cells and checks that show it.

They stand in `notebooks/claims/NN_topic.md`, two lines each: the words of the claim as they stand in the
lesson, one of its exercises or a solution, and what shows it, a cell by its id in the built notebook or a
check by its name:

    - Each of them is a view, and writing to it writes to the base.
      `0a1b2c3d4e5f` `flip_rows.right_values`

The id of a cell follows from its code. Who changes a cell is told of the claims that stood on it, looks
whether they still hold, and gives them the id of the cell that shows them now.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from course_utils.lessons.catalog import Course, Lesson

_SHOWN = r"  (?P<shown>`[\w.-]+`(?: `[\w.-]+`)*)(?:\n|\Z)"
_CLAIM = re.compile(rf"- (?P<words>.+(?:\n  .+)*?)\n{_SHOWN}(?=- |\s|\Z)")


@dataclass(frozen=True)
class Claim:
    """What is said, and the cells (their ids) and checks (`exercise.check`) that show it."""

    words: str
    shown_by: tuple[str, ...]


def path_of(course: Course, lesson: Lesson) -> Path:
    """The file with the lesson's claims."""
    return course.root / "notebooks" / "claims" / f"{lesson.slug}.md"


def claims(text: str) -> tuple[list[Claim], str]:
    """The claims in the text of such a file, and what is left of it: nothing, where all of it is claims."""
    found = [
        Claim(_plain(match["words"]), tuple(re.findall(r"[\w.-]+", match["shown"])))
        for match in _CLAIM.finditer(text)
    ]
    return found, _CLAIM.sub("", text).strip()


def faults(course: Course, lesson: Lesson) -> Iterator[str]:
    """What is wrong with the list of claims, each as a sentence that says what to do: words that stand
    nowhere in the lesson, a cell or a check that is gone. The lesson's notebook is built."""
    path = path_of(course, lesson)
    listed, rest = claims(path.read_text(encoding="utf-8") if path.is_file() else "")
    if rest:
        yield f"{path}: no claim with what shows it in backticks below: {rest.splitlines()[0]}"
    cells = {cell["id"] for cell in json.loads(lesson.notebook.read_text(encoding="utf-8"))["cells"]}
    files = [lesson.source]
    for folder in ("exercises", "solutions"):
        files += (course.root / folder / lesson.topic / f"{name}.py" for name in lesson.exercise_names)
    said = _plain("\n".join(path.read_text(encoding="utf-8") for path in files))
    for claim in listed:
        if claim.words not in said:
            yield f"the lesson no longer says {claim.words!r}: take it off the list, or list what it says now"
        for shown_by in claim.shown_by:
            if shown_by not in cells and not _is_check(course, lesson, shown_by):
                yield (
                    f"what shows {claim.words!r} is gone: {shown_by}. Look whether it still holds, and name "
                    "the cell or the check that shows it now"
                )


def _plain(text: str) -> str:
    """In one line: where its lines end is not part of a claim."""
    return " ".join(text.split())


def _is_check(course: Course, lesson: Lesson, name: str) -> bool:
    exercise, _, check = name.partition(".")
    path = course.root / "exercises" / lesson.topic / f"{exercise}.py"
    return bool(check) and path.is_file() and f"\ndef {check}(" in path.read_text(encoding="utf-8")
