"""What a new or changed exercise leaves to be mended around it: long lines, the README, built lessons."""

from __future__ import annotations

from collections.abc import Iterator

from course_utils.lessons import freshness
from course_utils.lessons.catalog import Course, Lesson

MOST_COLUMNS = 110  # of a line in a file, as `make lint` has it


def readme_row(course: Course, lesson: Lesson) -> str:
    """The lesson's row in the README's table: number, title, minutes of its core, of all of it."""
    core, further = course.minutes(lesson)
    return f"| {lesson.number:02d} | {lesson.title} | {core} | {core + further} |"


def readme_sum(course: Course) -> str:
    """How long the course takes, as the README's first lines say it."""
    core, further = (sum(minutes) for minutes in zip(*map(course.minutes, course.lessons), strict=True))
    return f"about {round(core / 60)} hours of core, {round((core + further) / 60)} of everything"


def to_mend(course: Course, names: list[str]) -> Iterator[str]:
    """What is to be mended beside these exercises, each as a sentence that says how; nothing where none is
    named."""
    if not names:
        return
    for name in names:
        for path in (course.exercise(name).path, course.solution(name).path):
            long = []
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                if len(line) > MOST_COLUMNS:
                    long.append(str(number))
            if long:
                where = path.relative_to(course.root)
                yield f"{where}: longer than {MOST_COLUMNS} characters: line {', '.join(long)}"
    readme = course.root / "README.md"
    table = readme.read_text(encoding="utf-8") if readme.is_file() else ""
    lessons = {course.lesson_of(name).slug: course.lesson_of(name) for name in names}
    for lesson in lessons.values():
        if table and (row := readme_row(course, lesson)) not in table:
            yield f"README.md, the table of lessons, needs this line: {row}"
    if "hours of core" in table and (words := readme_sum(course)) not in " ".join(table.split()):
        yield f"README.md, its first lines, need: {words}"
    reasons = {lesson.slug: freshness.why_stale(course, lesson) for lesson in course.lessons}
    old = [slug for slug, why in reasons.items() if why]
    for slug in filter(lessons.__contains__, old):
        yield f"notebooks/{slug}.ipynb {reasons[slug]}: course build {slug}"
    if others := [slug for slug in old if slug not in lessons]:
        yield f"other notebooks to be built again: course build {' '.join(others)}"
