"""Finding lessons and exercises by name, and saying which file does not fit."""

import subprocess
import sys
from pathlib import Path

import pytest

from course_utils.lessons import catalog
from course_utils.lessons.catalog import CourseError

TOY = Path(__file__).parent / "toy_course"

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


@pytest.fixture
def root(tmp_path):
    """A course of one lesson with one exercise; gives a function that writes a file of it."""
    write(tmp_path, "notebooks/source/01_numbers.md", "# Numbers\n\n```{exercise} double\n```\n")
    write(tmp_path, "exercises/numbers/double.py", EXERCISE)
    write(tmp_path, "solutions/numbers/double.py", SOLUTION)
    yield tmp_path
    for name in [n for n in sys.modules if n.startswith(("exercises.numbers", "solutions.numbers"))]:
        del sys.modules[name]


def write(root, path, text):
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text, encoding="utf-8")


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


def test_the_same_course_on_every_call(root):
    assert catalog.load(root) is catalog.load(root / "notebooks" / "..")


def test_lessons_come_in_the_order_of_their_numbers_and_exercises_in_that_of_their_lesson():
    course = catalog.load(TOY)
    assert [lesson.slug for lesson in course.lessons] == ["01_plain", "02_elsewhere"]
    assert course.exercise_names[0] == "interleave"
    assert course.exercise_names == [n for lesson in course.lessons for n in lesson.exercise_names]
    assert course.name_for("RunningCentre") == "running_centre"
    assert course.name_for("interleave") == "interleave"
    assert course.name_for("Nobody") is None


def test_listing_a_course_imports_no_exercise():
    code = f"""
import sys
from pathlib import Path
from course_utils.lessons import catalog
catalog.load(Path({str(TOY)!r})).exercise_names
found = [n for n in sys.modules if n.startswith(("exercises", "solutions"))]
assert not found, found
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_the_root_can_be_given_in_the_environment(root, monkeypatch):
    monkeypatch.setenv("COURSE_ROOT", str(root))
    assert catalog.default_root() == root.resolve()
    monkeypatch.delenv("COURSE_ROOT")
    assert catalog.default_root() == Path(__file__).resolve().parent.parent


def test_files_that_are_no_lessons_are_left_out(root):
    write(root, "notebooks/source/notes.md", "no title")
    write(root, "notebooks/source/1_short.md", "no title")
    assert [lesson.slug for lesson in catalog.load(root).lessons] == ["01_numbers"]


def test_a_lesson_without_a_title(root):
    write(root, "notebooks/source/02_more.md", "## only a section\n")
    with pytest.raises(CourseError, match=r"02_more\.md has no title"):
        catalog.load(root)


def test_an_exercise_that_is_placed_twice(root):
    write(root, "notebooks/source/02_more.md", "# More\n\n```{exercise} double\n```\n")
    with pytest.raises(CourseError, match="placed twice in the lessons: double"):
        catalog.load(root)


@pytest.mark.parametrize(
    ("word", "ask"),
    [("triple", "lesson_of"), ("triple", "exercise"), ("triple", "solution"), ("9", "lesson")],
)
def test_names_that_nobody_has(root, word, ask):
    with pytest.raises(CourseError, match=f"{word!r}"):
        getattr(catalog.load(root), ask)(word)


def test_an_exercise_that_no_lesson_places(root):
    write(root, "exercises/numbers/triple.py", EXERCISE.replace("double", "triple"))
    with pytest.raises(CourseError, match=r"exercises/numbers/triple\.py is there.*source/01_numbers\.md"):
        catalog.load(root).exercise("triple")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (EXERCISE, '"""A title\n\nAnd a task."""\n', "has no `exercise = Exercise"),
        ("@exercise.starter\n", "", "has no starter"),
        ("def double(n)", "def twice(n)", "the starter is called twice, the file double"),
        ("\n\nReturn twice the number.\n", "\n", "its docstring is the task"),
    ],
)
def test_an_exercise_that_is_not_whole(root, old, new, said):
    assert old in EXERCISE
    write(root, "exercises/numbers/double.py", EXERCISE.replace(old, new))
    with pytest.raises(CourseError, match=said):
        catalog.load(root).exercise("double")


def test_an_exercise_file_that_raises_is_not_left_imported(root):
    write(root, "exercises/numbers/double.py", EXERCISE + "\nunknown\n")
    with pytest.raises(CourseError, match=r"double\.py, line 17: NameError: name 'unknown' is not defined"):
        catalog.load(root).exercise("double")
    assert "exercises.numbers.double" not in sys.modules


def test_an_exercise_that_is_missing(root):
    (root / "exercises/numbers/double.py").unlink()
    with pytest.raises(CourseError, match=r"double\.py is missing"):
        catalog.load(root).exercise("double")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("def double(n)", "def twice(n)", "does not define double"),
        ('"""Adding is enough."""', "", "does not say why it works"),
    ],
)
def test_a_solution_that_is_not_whole(root, old, new, said):
    write(root, "solutions/numbers/double.py", SOLUTION.replace(old, new))
    with pytest.raises(CourseError, match=said):
        catalog.load(root).solution("double")


def test_a_solution_that_is_missing(root):
    (root / "solutions/numbers/double.py").unlink()
    with pytest.raises(CourseError, match=r"double\.py is missing"):
        catalog.load(root).solution("double")


def test_a_class_is_filed_under_its_name_in_snake_case():
    exercise = catalog.load(TOY).exercise("running_centre")
    assert exercise.answer_name == "RunningCentre"
    assert exercise.starter_source.startswith("class RunningCentre(nn.Module):")
