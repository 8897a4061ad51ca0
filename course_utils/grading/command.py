"""`course check NOTEBOOK...`: grades the answers in readers' notebooks.

The demonstrations in a notebook are not run; its answers (see `answers`) are, each in a fork of its own, with
limits on time, memory and processes. Results are written as they come; of one notebook alone also the report
on each answer that failed.

With `--json` the result is one object, which `check_schema.json` beside this file describes.
Notebooks come in the order in which they were given, exercises in that of their lessons, checks in that of
their file, one entry for each device that a check ran on. States: `passed`, `wrong`, `raised`, `timed out`,
`died`, `could not check`, `not attempted`. An exercise that is not attempted (no answer in the notebook, or
what the lesson starts with) has no checks. An exercise is passed when a check passed and none failed.

Exit codes: 0, every exercise of every notebook passed; 1, not all did; 2, something given is not a notebook,
cannot be read, or is not of this course. The others are graded in any case.
"""

import json
import os
import textwrap
import warnings
from pathlib import Path
from typing import Any

from tqdm import tqdm

from course_utils.exercise.states import COULD_NOT_CHECK, FAILED, NOT_ATTEMPTED, PASSED, symbol
from course_utils.grading import notebooks
from course_utils.grading.notebooks import Graded
from course_utils.grading.report import Report
from course_utils.lessons import catalog
from course_utils.processes import client
from course_utils.reader.record import open_record


def run(
    paths: list[Path], as_json: bool = False, jobs: int | None = None, save_progress: bool = False
) -> int:
    """Grades the notebooks, prints what came of each as soon as it is known, and returns the exit code.
    `jobs` notebooks are graded at once (default: one for each core). `save_progress`: what was graded counts
    in the reader's record, as in a notebook. Raises `CourseError` where the course's own files do not fit
    together."""
    course = catalog.load()
    client.warm_up()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # what a reader's strings escape is not our business
        submitted = [notebooks.read(path, course) for path in paths]
    printed = _Json() if as_json else _Tables()
    # A bar on the terminal, where there is one and more than one notebook.
    form = "{bar:30} {n_fmt} of {total_fmt}{postfix}"
    bar = tqdm(total=len(paths), leave=False, mininterval=0, bar_format=form, disable=len(paths) < 2 or None)
    with bar:

        def done(one: Graded) -> None:
            bar.clear()
            printed.add(one)
            bar.set_postfix_str(one.path.name[:40], refresh=False)
            bar.update()

        graded = notebooks.grade_all(submitted, min(jobs or os.cpu_count() or 1, len(paths)), done)
    printed.end(graded)
    if save_progress:
        _record([report for one in graded for report in one.reports])
    elif not as_json and any(r.state != NOT_ATTEMPTED for one in graded for r in one.reports):
        print("\nYour own progress is left as it was; --save-progress counts these answers.")
    if any(one.error for one in graded):
        return 2
    return 0 if all(report.state == PASSED for one in graded for report in one.reports) else 1


class _Json:
    """One object, written notebook by notebook: what was graded is there whatever comes after."""

    def __init__(self) -> None:
        self._before = '{\n  "version": 2,\n  "notebooks": ['

    def add(self, one: Graded) -> None:
        text = json.dumps(_as_data(one), indent=2, allow_nan=False)
        print(self._before + "\n" + textwrap.indent(text, "    "), end="", flush=True)
        self._before = ","

    def end(self, graded: list[Graded]) -> None:
        print("\n  ]\n}")


class _Tables:
    def __init__(self) -> None:
        self._before = ""

    def add(self, one: Graded) -> None:
        print(self._before + _as_table(one), flush=True)
        self._before = "\n"

    def end(self, graded: list[Graded]) -> None:
        failed = [report for one in graded for report in one.reports if report.state in FAILED]
        if len(graded) > 1:
            print("\n" + _summary(graded))
            if failed:
                print("What is wrong with an answer: course check with its notebook alone, or --json.")
            return
        for report in failed:
            print("\n" + "\n".join(map(_printable, str(report).splitlines())))


def _record(reports: list[Report]) -> None:
    record = open_record()
    for report in reports:
        if report.state != NOT_ATTEMPTED and record.state(report.exercise) != PASSED:
            counts = report.state, report.passed, report.total
            record.add_attempt(report.exercise, report.topic, *counts, told_by=report.told_by)


def _as_data(one: Graded) -> dict[str, Any]:
    exercises = [
        {
            "name": report.answer_name,
            "lesson": lesson,
            "state": report.state,
            "told_by": report.told_by,
            "symptom": report.symptom or None,
            "checks": [
                {
                    "name": outcome.check,
                    "state": outcome.state,
                    "message": "\n".join(outcome.message),
                    "device": outcome.device,
                    "seconds": round(outcome.seconds, 4),
                }
                for outcome in report.outcomes
            ],
        }
        for report, lesson in zip(one.reports, one.lessons, strict=True)
    ]
    return {"notebook": str(one.path), "error": one.error or None, "exercises": exercises}


def _as_table(one: Graded) -> str:
    lines = [_printable(str(one.path))]
    if one.error:
        return f"{lines[0]}\n  ✗ {one.error}"
    widths = max(len(r.answer_name) for r in one.reports), max(len(r.state) for r in one.reports)
    for report in one.reports:
        counted = f"{report.passed}/{report.total}" if report.total else ""
        name, state = report.answer_name.ljust(widths[0]), report.state.ljust(widths[1])
        row = f"  {symbol(report.state)} {name}  {state}  {counted:>5}  {_in_a_sentence(report)}"
        lines.append(row.rstrip())
    return "\n".join(lines)


def _printable(text: str) -> str:
    """The text as one line that can be printed anywhere: no name, and no answer, forges a line."""
    text = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
    return text.encode("utf-8", "backslashreplace").decode()


def _in_a_sentence(report: Report) -> str:
    """The symptom's first sentence; without one, what the first failing check asks for. Of a pass, what could
    not be checked here."""
    if report.symptom:
        return _first_sentence(report.symptom)
    told = COULD_NOT_CHECK if report.state == PASSED else report.state
    titles = [outcome.title for outcome in report.outcomes if outcome.state == told]
    if titles and told == COULD_NOT_CHECK:
        return f"could not check: {'; '.join(titles)}"
    return "".join(titles[:1])


def _first_sentence(text: str) -> str:
    """Up to the first full stop that ends a sentence (not one inside `code` or a number)."""
    text = " ".join(text.split())
    inside = False
    for i, letter in enumerate(text):
        inside ^= letter == "`"
        if letter in ".?!" and not inside and text[i + 1 : i + 2] in ("", " "):
            return text[: i + 1]
    return text


def _summary(graded: list[Graded]) -> str:
    states = [report.state for one in graded for report in one.reports]
    passed = sum(state == PASSED for state in states)
    text = f"{len(graded)} notebooks: {passed} of {len(states)} exercises passed"
    if failed := sum(bool(one.error) for one in graded):
        text += f"; {failed} could not be graded"
    return text
