"""A cheat sheet for each lesson, of one page on paper: what its recap says, and what people get wrong."""

import re
from collections.abc import Iterator

from course_utils.book import addresses
from course_utils.book.claims import Heard, heard
from course_utils.lessons.catalog import Course, Lesson

RECAP = "What to remember"
# A line of the recap is a call where so much of it is code.
_CODE_SHARE = 0.4
_ABOUT = "One for each lesson, on one side of paper when it is printed: its calls, its rules, its traps."
_POINT = re.compile(r"^- (.+(?:\n  .+)*)", re.MULTILINE)


def page(course: Course) -> str:
    """The page that lists the sheets, as Markdown."""
    names = "\n".join(f"sheets/{lesson.slug}" for lesson in course.lessons)
    return f"# Cheat sheets\n\n{_ABOUT}\n\n```{{toctree}}\n:maxdepth: 1\n\n{names}\n```\n"


def pages(course: Course) -> Iterator[tuple[str, str]]:
    """The name of each sheet, below the folder of the book, and its Markdown."""
    said = heard(course)
    for lesson in course.lessons:
        yield f"sheets/{lesson.slug}", sheet(lesson, [one for one in said if one.place.lesson == lesson])


def sheet(lesson: Lesson, said: list[Heard]) -> str:
    """The sheet of a lesson, of which this was said elsewhere. Its links are those of a page in a folder."""
    kinds: dict[str, list[str]] = {"Calls": [], "Rules": [], "Traps": []}
    for point in points(lesson):
        kinds[_kind(point)].append(point.removeprefix("Trap: "))
    kinds["Traps"] += [f"“{one.words}” **{one.verdict}.** {one.sentence}" for one in said]
    recap = addresses.link(lesson, RECAP, "The recap in the lesson")
    # By the empty mark the style for print knows a sheet.
    parts = [
        f"# Cheat sheet {lesson.number:02d}: {lesson.title}",
        f'<span class="sheet"></span>To print on one page. {recap}',
    ]
    for kind, lines in kinds.items():
        if lines:
            parts += [f"## {kind}", "\n".join(f"- {line[0].upper()}{line[1:]}" for line in lines)]
    text = "\n\n".join(parts) + "\n"
    return re.sub(r"\]\((\d\d_\w+\.ipynb)", r"](../\1", text)


def points(lesson: Lesson) -> list[str]:
    """The lines of a lesson's recap."""
    _, _, after = lesson.source.read_text(encoding="utf-8").partition(f"\n## {RECAP}\n")
    return [" ".join(point.split()) for point in _POINT.findall(after.partition("\n## ")[0])]


def _kind(point: str) -> str:
    if point.startswith("Trap: "):
        return "Traps"
    code = sum(map(len, re.findall(r"`[^`]+`", point)))
    return "Calls" if code >= _CODE_SHARE * len(point) else "Rules"
