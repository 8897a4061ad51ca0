"""Finds lessons and exercises by name.

A lesson is a source file `notebooks/source/NN_topic.md`; its exercises are the names in its
```` ```{exercise} name ```` fences, in their order, and each is the file
`exercises/<topic>/<name>.py` with its solution in `solutions/<topic>/<name>.py`. Nothing is
registered anywhere else. Listing them imports no exercise.
"""

import ast
import difflib
import functools
import importlib.util
import inspect
import re
import sys
import textwrap
import traceback
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from course_utils.exercise import Exercise, snake_case
from course_utils.lessons.solutions import Solution, solution_of
from course_utils.places import default_root
from course_utils.words import full_name
from course_utils.wrong_use import public

SOURCE_NAME = re.compile(r"(\d\d)_(\w+)\.md")
EXERCISE_FENCE = re.compile(r"^`{3,}\{exercise\}[ \t]+(\w+)[ \t]*$", re.MULTILINE)
LESSON_TITLE = re.compile(r"^# +(.+?)[ \t]*$", re.MULTILINE)


class CourseError(Exception):
    """The course's own files do not fit together; the message says which and how."""


@dataclass(frozen=True)
class Lesson:
    """One lesson. `slug` is the common stem of its source and its notebook."""

    number: int
    topic: str
    title: str
    source: Path
    notebook: Path
    exercise_names: tuple[str, ...]
    needs: tuple[str, ...] = ()  # topics that it builds on
    reading: int = 0  # minutes

    @property
    def slug(self) -> str:
        return self.source.stem


@dataclass(frozen=True)
class Card:
    """What can be said of an exercise without running its file."""

    name: str
    answer_name: str
    title: str
    minutes: int
    core: bool

    @property
    def full_name(self) -> str:
        return full_name(self.title, self.answer_name)


@dataclass
class Course:
    """The lessons below one root, and their exercises by name."""

    root: Path
    lessons: list[Lesson]
    _exercises: dict[str, Exercise] = field(default_factory=dict, repr=False)
    _solutions: dict[str, Solution] = field(default_factory=dict, repr=False)

    @property
    def exercise_names(self) -> list[str]:
        return [name for lesson in self.lessons for name in lesson.exercise_names]

    @property
    def family_names(self) -> list[str]:
        """The families of questions, `tensors.strides`, in the order of their lessons: the files
        `practice/<topic>/<name>.py`."""
        folders = [self.root / "practice" / one.topic for one in self.lessons]
        paths = [path for folder in folders for path in sorted(folder.glob("*.py"))]
        return [f"{path.parent.name}.{path.stem}" for path in paths]

    def card(self, name: str) -> Card:
        """What is said of the exercise in its file, which is read and not run."""
        path = self.root / "exercises" / self.lesson_of(name).topic / f"{name}.py"
        try:
            return _card(path)
        except (OSError, SyntaxError, StopIteration, KeyError) as error:
            raise CourseError(f"{path} is not a whole exercise: {type(error).__name__} {error}") from None

    def minutes(self, lesson: Lesson, passed: Container[str] = ()) -> tuple[int, int]:
        """How long a lesson takes: its core, the reading counted, and what goes further. With exercises that
        are `passed`, what is left of both: reading is left as far as core exercises are."""
        cards = [self.card(name) for name in lesson.exercise_names]
        left = [card for card in cards if card.name not in passed]
        counted = [card for card in cards if card.core] or cards
        share = sum(card.name not in passed for card in counted) / len(counted) if counted else 1
        core, further = (sum(card.minutes for card in left if card.core is core) for core in (True, False))
        return round(lesson.reading * share) + core, further

    def lesson_of(self, name: str) -> Lesson:
        """The lesson that places the exercise. Raises `CourseError` where none does."""
        for lesson in self.lessons:
            if name in lesson.exercise_names:
                return lesson
        for path in self.root.glob(f"exercises/*/{name}.py"):
            topic = path.parent.name
            source = next((one.source.name for one in self.lessons if one.topic == topic), f"NN_{topic}.md")
            raise CourseError(
                f"exercises/{topic}/{name}.py is there, and no lesson places it: its fence, the two lines "
                f"```{{exercise}} {name} and ```, belongs into notebooks/source/{source}"
            )
        raise CourseError(f"no lesson has an exercise called {name!r}{nearest(name, self.exercise_names)}")

    def lesson(self, word: str) -> Lesson:
        """The lesson with this number, topic or slug. Raises `CourseError` where there is none."""
        for lesson in self.lessons:
            if word in (lesson.slug, lesson.topic, str(lesson.number), f"{lesson.number:02d}"):
                return lesson
        slugs = [lesson.slug for lesson in self.lessons]
        raise CourseError(f"no lesson is called {word!r}{nearest(word, slugs, all_of_them=True)}")

    def name_for(self, answer_name: str) -> str | None:
        """The exercise that has this name, or whose answer has (`MiniDDP` -> `mini_ddp`); or None."""
        name = snake_case(answer_name)
        return name if name in self.exercise_names else None

    def exercise(self, name: str) -> Exercise:
        """The exercise of this name, loaded once. Raises `CourseError` where there is none, where its file
        does not run or is not a whole exercise."""
        if name in self._exercises:
            return self._exercises[name]
        topic = self.lesson_of(name).topic
        path = self.root / "exercises" / topic / f"{name}.py"
        module = run_file(path, f"exercises.{topic}.{name}")
        exercise = getattr(module, "exercise", None)
        if not isinstance(exercise, Exercise):
            raise CourseError(f"{path} has no `exercise = Exercise(...)`")
        if exercise.starter_object is None:
            raise CourseError(f"{path} has no starter")
        if snake_case(exercise.answer_name) != name:
            raise CourseError(f"{path}: the starter is called {exercise.answer_name}, the file {name}")
        title, _, task = inspect.cleandoc(module.__doc__ or "").partition("\n")
        if not title or not task.strip():
            raise CourseError(f"{path}: its docstring is the task: a title, an empty line, what is asked")
        exercise.name, exercise.topic, exercise.path = name, topic, path
        exercise.title, exercise.task = title.strip(), task.strip("\n")
        lines = textwrap.dedent(inspect.getsource(exercise.starter_object)).splitlines()
        start = next(i for i, line in enumerate(lines) if line.startswith(("def ", "class ")))
        exercise.starter_source = "\n".join(lines[start:]).rstrip() + "\n"
        self._exercises[name] = exercise
        return exercise

    def solution(self, name: str) -> Solution:
        """The solution of the exercise of this name, loaded once. Raises `CourseError` where its file does
        not run, or lacks the answer or a reason."""
        if name not in self._solutions:
            topic = self.lesson_of(name).topic
            path = self.root / "solutions" / topic / f"{name}.py"
            exercise = self.exercise(name)  # first: what it imports may make a package ready for both
            module = run_file(path, f"solutions.{topic}.{name}")
            try:
                self._solutions[name] = solution_of(module, path, exercise)
            except ValueError as error:
                raise CourseError(f"{path}: {error}") from None
        return self._solutions[name]


@public
def load(root: Path | None = None) -> Course:
    """The course below `root` (default: `default_root()`); the same object on every call."""
    return _load(Path(root or default_root()).resolve())


@functools.cache
def _load(root: Path) -> Course:
    lessons = []
    for source in sorted((root / "notebooks" / "source").glob("*.md")):
        if match := SOURCE_NAME.fullmatch(source.name):
            lessons.append(_lesson(root, source, int(match[1]), match[2]))
    names = [name for lesson in lessons for name in lesson.exercise_names]
    if twice := {name for name in names if names.count(name) > 1}:
        raise CourseError(f"placed twice in the lessons: {', '.join(sorted(twice))}")
    return Course(root, lessons)


def _lesson(root: Path, source: Path, number: int, topic: str) -> Lesson:
    text = source.read_text(encoding="utf-8")
    title = LESSON_TITLE.search(text)
    if title is None:
        raise CourseError(f"{source} has no title: a line that starts with '# '")
    names = tuple(match[1] for match in EXERCISE_FENCE.finditer(text))
    notebook = root / "notebooks" / f"{source.stem}.ipynb"
    needs = re.search(r"^needs: *\[(.*)\]", text, re.MULTILINE)
    reading = re.search(r"^reading: *(\d+)", text, re.MULTILINE)
    needed = tuple(re.findall(r"\w+", needs[1])) if needs else ()
    minutes = int(reading[1]) if reading else 0
    return Lesson(number, topic, title[1], source, notebook, names, needed, minutes)


@functools.cache
def _card(path: Path) -> Card:
    tree = ast.parse(path.read_text(encoding="utf-8"), path.name)
    assigned = {ast.unparse(n.targets[0]): n.value for n in tree.body if isinstance(n, ast.Assign)}
    given = {keyword.arg: keyword.value for keyword in assigned["exercise"].keywords}
    decorated = [node for node in tree.body if getattr(node, "decorator_list", ())]
    starter = next(n for n in decorated if "exercise.starter" in map(ast.unparse, n.decorator_list))
    core = ast.literal_eval(given["core"]) if "core" in given else False
    title = (ast.get_docstring(tree) or "").partition("\n")[0].strip()
    return Card(path.stem, starter.name, title, ast.literal_eval(given["minutes"]), core)


def anchor(heading: str) -> str:
    """The id of a heading as JupyterLab makes it: not percent-encoded."""
    return heading.replace("`", "").replace("*", "").replace(" ", "-")


def nearest(word: str, names: Iterable[str], all_of_them: bool = False) -> str:
    """What to say after "there is no such name": the one that is nearest, in either case, or all."""
    lower = {name.lower(): name for name in names}
    if close := difflib.get_close_matches(word.lower(), lower, n=1):
        return f"; did you mean {lower[close[0]]}?"
    return f"; there are {', '.join(lower.values())}" if all_of_them and lower else ""


def run_file(path: Path, name: str) -> ModuleType:
    """Runs one of the course's files as the module of this name. Raises `CourseError` where it is missing or
    raises."""
    if not path.is_file():
        raise CourseError(f"{path} is missing")
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs: dataclasses and pickling look their module up
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        frames = traceback.extract_tb(error.__traceback__)
        lines = [f", line {frame.lineno}" for frame in frames if frame.filename == str(path)]
        raise CourseError(f"{path}{''.join(lines[-1:])}: {type(error).__name__}: {error}") from error
    return module
