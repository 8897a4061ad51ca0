"""The page of the interview questions: those at the end of the lessons, with folded answers."""

import re

from course_utils.book import addresses
from course_utils.book.pages import fold
from course_utils.lessons.catalog import Course, Lesson

HEADING = "Five questions"
_QUESTION = re.compile(r"<details>\s*<summary>(.+?)</summary>\s*(.+?)\s*</details>", re.DOTALL)
_ABOUT = """\
What an interviewer may ask, and a colleague: say your answer aloud before you open the one that is here."""


def questions(lesson: Lesson) -> list[tuple[str, str]]:
    """The lesson's questions, as HTML, and their answers, as Markdown."""
    _, _, after = lesson.source.read_text(encoding="utf-8").partition(f"\n## {HEADING}\n")
    return _QUESTION.findall(after.partition("\n## ")[0])


def page(course: Course) -> str:
    """The page as Markdown."""
    parts = ["# Interview questions", _ABOUT]
    for lesson in course.lessons:
        if asked := questions(lesson):
            parts += [
                f"## {lesson.number:02d} {lesson.title}",
                addresses.link(lesson, HEADING, "In the lesson"),
            ]
            parts += [fold(question, answer) for question, answer in asked]
    return "\n\n".join(parts) + "\n"
