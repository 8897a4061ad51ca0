"""`course new TOPIC NAME`: the two files of a new exercise, and its place in a lesson.

What is still to be written begins with "…" in them: `course prove NAME` lists that, and what else is missing.
"""

from __future__ import annotations

import re

from course_utils.exercise import snake_case
from course_utils.lessons import catalog
from course_utils.lessons.catalog import EXERCISE_FENCE, Course, CourseError, Lesson
from course_utils.proving.texts import TO_WRITE

EXERCISE = '''\
"""… The title

… What is asked, in at most 120 words: a mechanism, and what of it is judged.
"""

from torch import Tensor

from course_utils.exercise import Exercise, expect

exercise = Exercise(minutes=10, hints=["… A nudge.", "… The way.", "… Almost there."])


@exercise.starter
def {name}(x: Tensor) -> Tensor:
    """… (n,) -> (n,)"""
    raise NotImplementedError


@exercise.check(cases={{"a row": "x = torch.arange(1., 5)", "a view": "x = torch.arange(9.)[::2]"}})
def values(t):
    """… What the reader sees in the list

    … The rule of torch's that this check is about, true whatever the answer was.
    """
    expect.equal(t.call("{name}(x)"), t.x)
'''

SOLUTION = '''\
"""… Why it works."""

from torch import Tensor


def {name}(x: Tensor) -> Tensor:
    return x


# Other right answers

from course_utils.exercise import Edit, Wrong

also_right = []


# Mistakes


def _something_else(x):
    return x * 2


mistakes = [
    Edit("… what people get wrong", "return x", "return x + 1", told_by="values"),
    Wrong(_something_else, told_by="values"),
]
not_tried = {{"hard numbers": "… why not, or try them", "dtypes": "…"}}
'''


def write(course: Course, word: str, answer_name: str) -> list[str]:
    """Writes `exercises/<topic>/<name>.py` and `solutions/<topic>/<name>.py`, and puts the exercise behind
    the last one of its lesson. Nothing that is there is written over.

    `word`: the lesson's number or topic; `answer_name`: what the reader's function is to be called. Returns
    what was done and what comes next, line by line. Raises `CourseError` where there is no such lesson, and
    where the name is taken or is none.
    """
    lesson = course.lesson(word)
    if not answer_name.isidentifier():
        raise CourseError(f"{answer_name!r} is no name of a function")
    name = snake_case(answer_name)
    if taken := [path for path in course.root.glob(f"exercises/*/{name}.py")]:
        raise CourseError(f"{taken[0].relative_to(course.root)} is there already")
    lines = []
    for folder, text in (("exercises", EXERCISE), ("solutions", SOLUTION)):
        path = course.root / folder / lesson.topic / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.format(name=answer_name), encoding="utf-8")
        lines.append(f"written: {path.relative_to(course.root)}")
    source = lesson.source.relative_to(course.root)
    after = _place(lesson, name)
    return [
        *lines,
        f"placed:  {source}, {after}; move it to where it belongs",
        f"What is to be written begins with {TO_WRITE}; what is missing, at any time, says: "
        f"course prove {answer_name}",
    ]


def _place(lesson: Lesson, name: str) -> str:
    """Puts the fence behind that of the last exercise, or at the end; returns where."""
    text = lesson.source.read_text(encoding="utf-8")
    fence = f"```{{exercise}} {name}\n```\n"
    placed = list(EXERCISE_FENCE.finditer(text))
    if not placed:
        lesson.source.write_text(f"{text.rstrip()}\n\n{fence}", encoding="utf-8")
        return "at its end"
    at = re.compile(r"^`{3,}[ \t]*$", re.MULTILINE).search(text, placed[-1].end()).end() + 1
    lesson.source.write_text(f"{text[:at]}\n{fence}{text[at:]}", encoding="utf-8")
    return f"behind {placed[-1][1]}"


def run(word: str, answer_name: str) -> int:
    """`course new`: writes the files and prints what was done."""
    print("\n".join(write(catalog.load(), word, answer_name)))
    return 0
