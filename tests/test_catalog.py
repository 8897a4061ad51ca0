"""Finding lessons and exercises by name, and saying which file does not fit."""

import inspect
import sys
from pathlib import Path

import pytest

from course_utils.lessons import catalog
from course_utils.lessons.catalog import CourseError
from tests.files import write

ROOT = Path(__file__).resolve().parent.parent

EXERCISE = '''"""Twice

Return twice the number.
"""

from course_utils.exercise import Exercise

exercise = Exercise(minutes=1, hints=[])


@exercise.starter
def double(n):
    """a number"""
    # your code here
    raise NotImplementedError
'''

SOLUTION = '''"""Adding is enough."""


def double(n):
    return n + n


# Other right answers


def shifted(n):
    return n << 1


also_right = [shifted]
'''


EXERCISE_FILE, SOLUTION_FILE = "exercises/numbers/double.py", "solutions/numbers/double.py"


@pytest.fixture
def root(tmp_path):
    """A course of one lesson with one exercise."""
    lesson = "# Numbers\n\n```{exercise} double\n```\n"
    yield write(
        tmp_path, {"notebooks/source/01_numbers.md": lesson, EXERCISE_FILE: EXERCISE, SOLUTION_FILE: SOLUTION}
    )
    for name in [n for n in sys.modules if n.startswith(("exercises.numbers", "solutions.numbers"))]:
        del sys.modules[name]


def test_a_course(root):
    course = catalog.load(root)
    (lesson,) = course.lessons
    assert (lesson.number, lesson.topic, lesson.title, lesson.slug) == (1, "numbers", "Numbers", "01_numbers")
    assert lesson.notebook == root / "notebooks" / "01_numbers.ipynb"
    assert lesson.exercise_names == ("double",)
    assert course.lesson_of("double") is lesson
    assert [course.lesson(word) for word in ("numbers", "01_numbers", "1", "01")] == [lesson] * 4
    exercise = course.exercise("double")
    assert exercise is course.exercise("double")
    assert (exercise.name, exercise.topic, exercise.answer_name) == ("double", "numbers", "double")
    assert (exercise.title, exercise.task) == ("Twice", "Return twice the number.")
    assert exercise.starter_source.startswith("def double(n):\n")
    assert "# your code here" in exercise.starter_source
    solution = course.solution("double")
    assert solution.why == "Adding is enough."
    assert solution.reference(4) == solution.also_right[0](4) == 8
    assert solution.source == "def double(n):\n    return n + n\n"


HEALED = '''"""Nothing is added."""

healed = {
    "fsum((n, n))": "fsum((n, 0, n))",
    "    # your code here\\n": "",
    "(1)": "(0)",
}


# Other right answers


def again(n):
    return double(n)


also_right = [again]
'''


def test_a_reference_that_is_a_healed_starter(root):
    """What a reader is shown is the whole program, after the imports of what it names."""
    body = "total = math.fsum((n, n))\n    return total + Fraction(1)"
    imports = "import math\nimport os.path\nfrom fractions import Decimal, Fraction\nfrom course_utils"
    starter = EXERCISE.replace("raise NotImplementedError", body).replace("from course_utils", imports)
    write(root, {EXERCISE_FILE: starter, SOLUTION_FILE: HEALED})
    solution = catalog.load(root).solution("double")
    assert solution.source == (
        'import math\nfrom fractions import Fraction\n\n\ndef double(n):\n    """a number"""\n'
        "    total = math.fsum((n, 0, n))\n    return total + Fraction(0)\n"
    )
    assert solution.reference(4) == solution.also_right[0](4) == 8
    assert inspect.getsource(solution.reference) in solution.source


def test_lessons_come_in_the_order_of_their_numbers_and_exercises_in_that_of_their_lesson():
    course = catalog.load(ROOT)
    assert [lesson.number for lesson in course.lessons] == [*range(len(course.lessons))]
    assert course.exercise_names == [n for lesson in course.lessons for n in lesson.exercise_names]
    assert course.name_for("MiniModule") == course.name_for("mini_module") == "mini_module"
    assert course.name_for("Nobody") is None
    exercise = course.exercise("mini_module")
    assert exercise.answer_name == "MiniModule"
    assert exercise.starter_source.startswith("class MiniModule")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("## only a section\n", "02_more.md has no title"),
        ("# More\n\n```{exercise} double\n```\n", "placed twice in the lessons: double"),
    ],
)
def test_a_lesson_that_does_not_fit(root, text, said):
    write(root, {"notebooks/source/02_more.md": text})
    with pytest.raises(CourseError, match=said):
        catalog.load(root)


@pytest.mark.parametrize(
    ("word", "ask"),
    [("triple", "lesson_of"), ("triple", "exercise"), ("triple", "solution"), ("9", "lesson")],
)
def test_names_that_nobody_has(root, word, ask):
    with pytest.raises(CourseError, match=f"{word!r}"):
        getattr(catalog.load(root), ask)(word)


def test_an_exercise_that_no_lesson_places(root):
    write(root, {"exercises/numbers/triple.py": EXERCISE.replace("double", "triple")})
    with pytest.raises(CourseError, match=r"exercises/numbers/triple\.py is there.*source/01_numbers\.md"):
        catalog.load(root).exercise("triple")


@pytest.mark.parametrize(
    ("path", "old", "new", "said"),
    [
        (EXERCISE_FILE, EXERCISE, '"""A title\n\nAnd a task."""\n', "has no `exercise = Exercise"),
        (EXERCISE_FILE, "@exercise.starter\n", "", "has no starter"),
        (EXERCISE_FILE, "def double(n)", "def twice(n)", "the starter is called twice, the file double"),
        (EXERCISE_FILE, "\n\nReturn twice the number.\n", "\n", "its docstring is the task"),
        (EXERCISE_FILE, EXERCISE, None, r"double\.py is missing"),
        (SOLUTION_FILE, "def double(n)", "def twice(n)", "does not define double"),
        (SOLUTION_FILE, '"""Adding is enough."""', "", "does not say why it works"),
        (SOLUTION_FILE, SOLUTION, None, r"double\.py is missing"),
        (SOLUTION_FILE, SOLUTION, HEALED, r"double\.py: 'fsum\(\(n, n\)\)' stands 0 times in the starter"),
    ],
)
def test_a_file_that_is_not_whole(root, path, old, new, said):
    text = (root / path).read_text()
    assert old in text
    write(root, {path: text.replace(old, new)}) if new is not None else (root / path).unlink()
    course = catalog.load(root)
    with pytest.raises(CourseError, match=said):
        (course.exercise if path == EXERCISE_FILE else course.solution)("double")


def test_an_exercise_file_that_raises_is_not_left_imported(root):
    write(root, {EXERCISE_FILE: EXERCISE + "\nunknown\n"})
    with pytest.raises(CourseError, match=r"double\.py, line 17: NameError: name 'unknown' is not defined"):
        catalog.load(root).exercise("double")
    assert "exercises.numbers.double" not in sys.modules
