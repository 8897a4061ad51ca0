"""Every exercise of the real course and of the toy course, graded once, for the laws to look at."""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from course_utils import catalog, grader
from course_utils.catalog import Course, Solution
from course_utils.conduct import DIED, RAISED, TIMED_OUT
from course_utils.exercise import Exercise
from course_utils.report import Report, as_text

ROOTS = {
    "course": Path(__file__).resolve().parent.parent,
    "toy": Path(__file__).resolve().parent / "toy_course",
}


# What is proved is which mistake is named, not how soon: a busy machine may take its time.
grader.DIAGNOSIS_BUDGET = 120.0
grader.MISTAKE_DEADLINE = 20.0


@dataclass(frozen=True)
class Answer:
    """One answer that the course itself carries. `expected`: the diagnosis it must get, None for none."""

    label: str
    value: Any
    expected: str | None = None


class Study:
    """One exercise with its solution, and what came of the answers that belong to it."""

    def __init__(self, root: str, name: str) -> None:
        self.root, self.name = root, name
        self._reports: dict[str, Report] = {}

    @property
    def course(self) -> Course:
        return catalog.load(ROOTS[self.root])

    @cached_property
    def exercise(self) -> Exercise:
        return self.course.exercise(self.name)

    @cached_property
    def solution(self) -> Solution:
        return self.course.solution(self.name)

    @cached_property
    def is_prediction(self) -> bool:
        """Whether all that the checks look at are predictions."""
        seen = [kind for outcome in self.report(self.reference).outcomes for kind, _ in outcome.evidence]
        return bool(seen) and all(kind.startswith("predicted ") for kind in seen)

    @property
    def reference(self) -> Answer:
        return Answer("the reference", self.solution.reference)

    @property
    def right_answers(self) -> list[Answer]:
        others = [Answer(f"also right: {other.__name__}", other) for other in self.solution.also_right]
        return [self.reference, *others]

    @property
    def mistakes(self) -> list[Answer]:
        return [Answer(m.name, m.answer, m.name) for m in self.exercise.mistakes]

    @property
    def variants(self) -> list[Answer]:
        return [
            Answer(f"{m.name}, written as {variant.__name__}", variant, m.name)
            for m in self.exercise.mistakes
            for variant in m.variants
        ]

    @property
    def forms(self) -> list[Answer]:
        return [
            Answer(f"{m.name}, in the form of {form.__name__}", form, m.name)
            for m in self.exercise.mistakes
            for form in m.forms
        ]

    @property
    def wrong_answers(self) -> list[Answer]:
        return [*self.mistakes, *self.variants, *self.forms]

    @property
    def answers(self) -> list[Answer]:
        return [*self.right_answers, *self.wrong_answers]

    def report(self, answer: Answer) -> Report:
        """The answer's report; graded on the first call."""
        if answer.label not in self._reports:
            self._reports[answer.label] = self.grade(answer.value)
        return self._reports[answer.label]

    def grade(self, value: Any, *, diagnose: bool = True) -> Report:
        return grader.grade(self.exercise, value, diagnose=diagnose)

    def starter_as_typed(self) -> Any:
        """The starter as a reader has it: from its source, in a module of its own."""
        names = dict(vars(sys.modules[self.exercise.starter_object.__module__]), __name__="__main__")
        exec(compile(self.exercise.starter_source, "<cell>", "exec", dont_inherit=True), names)
        return names[self.exercise.answer_name]

    def few_that_fail_all(self) -> list[Answer]:
        """Mistakes, as few as are easily found, of which every check that rejects any rejects one, once for
        each way in which it does: the result is wrong, the answer raises, it does not end."""
        left = {m.label: self._rejections([m]) for m in self.mistakes}
        few = []
        while any(left.values()):
            most = max(self.mistakes, key=lambda m: len(left[m.label]))
            few.append(most)
            left = {label: rejections - left[most.label] for label, rejections in left.items()}
        return few

    def idle_checks(self) -> list[str]:
        """The checks that reject no mistake in any of its forms."""
        rejecting = {check for check, _ in self._rejections(self.wrong_answers)}
        return [check.name for check in self.exercise.checks if check.name not in rejecting]

    def _rejections(self, answers: list[Answer]) -> set[tuple[str, str]]:
        """The checks that reject one of the answers, and what became of them."""
        outcomes = (outcome for answer in answers for outcome in self.report(answer).outcomes)
        return {(outcome.check, outcome.state) for outcome in outcomes if outcome.state in grader.FAILED}


@functools.cache
def study(label: str) -> Study:
    """The study of an exercise by its label, `toy/interleave`; one for the whole run."""
    return Study(*label.split("/"))


def labels() -> list[str]:
    """All exercises that the lessons name, as `course/sliding_windows`; none is imported for it."""
    return [f"{root}/{name}" for root, path in ROOTS.items() for name in catalog.load(path).exercise_names]


def never_wrong(report: Report) -> bool:
    """Whether all that failed raised, hung or died: then no check need pass."""
    failed = [outcome.state for outcome in report.outcomes if outcome.state in grader.FAILED]
    return bool(failed) and all(state in (RAISED, TIMED_OUT, DIED) for state in failed)


def comparable(report: Report) -> Any:
    """What must be the same on every run: what the reader sees, and the evidence but for its last digits."""
    return as_text(report), [outcome.state for outcome in report.outcomes]


# --- texts ---------------------------------------------------------------------------------------

BANNED = ("simply", "just", "obviously", "powerful", "seamless", "seamlessly", "dive into", "oops")
_BANNED = re.compile(rf"\b({'|'.join(BANNED)})\b", re.IGNORECASE)
_CODE = re.compile(r"^(`{3,})[^\n]*\n.*?^\1|`[^`\n]+`", re.DOTALL | re.MULTILINE)


def prose(text: str) -> str:
    """The text without its code."""
    return _CODE.sub("CODE", text)


def faults(text: str) -> list[str]:
    """What the course's voice does not allow in a text."""
    words = prose(text)
    found = [f"{match[0]!r}" for match in _BANNED.finditer(words)]
    if "!" in words:
        found.append("an exclamation mark")
    if re.search(r"\b0x[0-9a-f]{6,}", text):
        found.append("an address")
    return found


def texts(exercise: Exercise, solution: Solution) -> Iterator[tuple[str, str]]:
    """(where it stands, text) of all that a reader may be shown."""
    yield "the title", exercise.title
    yield "the task", exercise.task
    for number, hint in enumerate(exercise.hints, 1):
        yield f"hint {number}", hint
    for check in exercise.checks:
        yield f"check {check.name}", check.title
    for mistake in exercise.mistakes:
        yield f"the diagnosis {mistake.name}", mistake.diagnosis
    yield "the reason", solution.why


def statements(source: str) -> set[str]:
    """The code that gives an answer away: its statements and what they compute, as one writes them."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Return, ast.Assign, ast.AugAssign, ast.Expr)) and node.value is not None:
            if isinstance(node.value, (ast.Constant, ast.Name, ast.Attribute)):
                continue
            found |= {_squeezed(ast.unparse(node)), _squeezed(ast.unparse(node.value))}
    return {text for text in found if len(text) > 12 and "super()" not in text}


def given_away(hint: str, source: str) -> list[str]:
    """The statements of `source` that stand in the hint."""
    return sorted(text for text in statements(source) if text in _squeezed(hint))


def _squeezed(code: str) -> str:
    return re.sub(r"\s+", "", code)
